"""Packets between the clusters."""

from lab.report import check
from lab.shell import require, run
from lab.traffic import Pings, ping, throughput

SECONDS = 4


@check("pods ping pods of the other cluster")
def pods_ping(world):
    found = []
    for cluster, other in world.ways:
        with Pings(world.pod(cluster), world.target(cluster, other)) as pings:
            ping(world.pod(cluster), world.target(cluster, other), count=10)
            outage = pings.stop()
        require(outage.lost == 0 and not outage.errors, f"{cluster.name}: {outage} {outage.errors}")
        found.append(f"{cluster.name} {outage.answered} of {outage.answered}")
    return ", ".join(found)


@check("no node redirects a pod that accepts redirects")
def not_redirected(world):
    # The gateway is behind the bridge from which the packets of the pod come, as the pod itself.
    accepts = ["net.ipv4.ip_forward=0", "net.ipv4.conf.all.accept_redirects=1", "net.ipv4.conf.eth0.accept_redirects=1"]
    for cluster, other in world.ways:
        pod, target = world.pod(cluster), world.target(cluster, other)
        run(*pod.inside("sysctl", "--quiet", "--write", *accepts))
        route = pod.inside("ip", "route", "get", target)
        before = run(*route)
        with Pings(pod, target) as pings:
            ping(pod, target, count=10)
            outage = pings.stop()
        require(not outage.errors and run(*route) == before, f"{cluster.name}: {outage.errors} {run(*route)}")
    return "2 of 2 pods keep their route"


@check("pods reach pods of the other cluster over IPv6")
def pods_over_ipv6(world):
    found = []
    for cluster, other in world.ways:
        pod, target = world.pod(cluster), world.target(cluster, other, version=6)
        require(ping(pod, target, count=10), f"{cluster.name}: {target} does not answer")
        found.append(f"{cluster.name} 10 of 10 pings, {throughput(pod, target, SECONDS):.0f} Mb/s to {target}")
    return ", ".join(found)


@check("TCP between pods, beside TCP between nodes")
def tcp(world):
    found = []
    for cluster, other in world.ways:
        pod, node = world.pod(cluster), world.pod(cluster, "node")
        bare = throughput(node, world.pod(other, "node").addresses[0], SECONDS, 5301)
        through = throughput(pod, world.target(cluster, other), SECONDS)
        found.append((cluster.name, through, bare, through / bare))
    return ", ".join(f"{name} {through:.0f} of {bare:.0f} Mb/s ({share:.0%})" for name, through, bare, share in found)


@check("nodes reach pods of the other cluster", is_quick=False)
def node_to_pod(world):
    found = []
    for cluster, other in world.ways:
        node, target = world.pod(cluster, "node"), world.target(cluster, other)
        require(ping(node, target, count=5), f"{cluster.name}: {target} does not answer the node")
        found.append(f"{cluster.name} {throughput(node, target, SECONDS):.0f} Mb/s")
    return ", ".join(found)
