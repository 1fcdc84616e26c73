"""What an installation survives. Each figure is what fifty pings a second between pods have seen."""

import os
import signal
import time

from lab.outage import brief, handed_over, killed, none_lost, outage_of
from lab.report import check
from lab.shell import require, wait_until


def replace_gateway(world, cluster, other):
    pod = world.gateway(cluster, other)
    pod.delete()
    wait_until("another gateway is ready", lambda: is_replaced(world, cluster, other, pod.name))


def replaced(world, cluster, other):
    """What pings see until the former pod has ended."""
    return outage_of(world, *world.ways[0], lambda: replace_gateway(world, cluster, other), settle=5)


def is_replaced(world, cluster, other, name):
    gateway = world.gateway(cluster, other)
    return gateway.name != name and gateway.is_ready


@check("the client's gateway pod is deleted")
def client_deleted(world):
    return handed_over(replaced(world, *world.ways[0]))


@check("the server's gateway pod is deleted")
def server_deleted(world):
    return handed_over(replaced(world, *world.ways[1]))


@check("the client's gateway process is killed", is_quick=False)
def client_killed(world):
    return killed(world, *world.ways[0])


@check("the server's gateway process is killed", is_quick=False)
def server_killed(world):
    return killed(world, *world.ways[1])


@check("the kubelets are restarted", is_quick=False)
def kubelets_restarted(world):
    return none_lost(outage_of(world, *world.ways[0], lambda: restart(world, "kubelet")))


@check("containerd is restarted", is_quick=False)
def containerd_restarted(world):
    return none_lost(outage_of(world, *world.ways[0], lambda: restart(world, "containerd")))


def restart(world, program):
    before = [pod.restarts for pod in gateways(world)]
    for cluster in world.clusters:
        for node in cluster.nodes:
            node.end(program)
            getattr(cluster, program)(node)
    # The pings go on: it takes a moment until a program has found its former containers.
    time.sleep(5)
    for cluster in world.clusters:
        cluster.wait_for_nodes()
    require([pod.restarts for pod in gateways(world)] == before, "a gateway was restarted")


def gateways(world):
    return [world.gateway(cluster, other) for cluster, other in world.ways]


@check("kube-proxy in iptables mode leads to a new gateway pod", is_quick=False)
def iptables_mode(world):
    switch_proxies(world, "iptables")
    try:
        return handed_over(replaced(world, *world.ways[1]))
    finally:
        switch_proxies(world, "nftables")


def switch_proxies(world, mode):
    """Restarts kube-proxy on all nodes; it removes the rules of the other mode."""
    rules = {"iptables": ["iptables-save", "-t", "nat"], "nftables": ["nft", "list", "table", "ip", "kube-proxy"]}
    for cluster in world.clusters:
        for node in cluster.nodes:
            node.end("kube-proxy")
            cluster.proxy(node, mode)
            wait_until(f"kube-proxy of {node.name} has rules in {mode} mode",
                       lambda node=node: "default/kubernetes" in node.run(*rules[mode]))


@check("the API servers are restarted", is_quick=False)
def api_servers_restarted(world):
    return none_lost(outage_of(world, *world.ways[0], lambda: without_api_servers(world, lambda: time.sleep(5))))


@check("a gateway restarts while the API server is away", is_quick=False)
def restarted_without_api_server(world):
    away_s = 5
    process = world.gateway(*world.ways[1]).forwarding[1]

    def kill():
        os.kill(process, signal.SIGKILL)
        time.sleep(away_s)
    outage = outage_of(world, *world.ways[0], lambda: without_api_servers(world, kill))
    require(outage.longest_gap_s < away_s, str(outage))
    return str(outage)


def without_api_servers(world, act):
    for cluster in world.clusters:
        # In order it would wait a minute for watches to end.
        cluster.control.end("kube-apiserver", signal.SIGKILL)
    act()
    for cluster in world.clusters:
        cluster.api_server()
    for cluster in world.clusters:
        wait_until("it is ready", lambda cluster=cluster: cluster.kubectl("get", "--raw", "/readyz") == "ok")


@check("the gateway moves when its node is drained", is_quick=False)
def drained(world):
    cluster, other = world.ways[0]
    node = world.gateway(cluster, other).node

    def drain():
        cluster.kubectl("drain", node.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
                        "--pod-selector=app notin (pod,node)", "--timeout=120s", timeout=150)
        wait_until("the gateway is ready on another node",
                   lambda: (pod := world.gateway(cluster, other)).node is not node and pod.is_ready)
    # After an outage of the API server the scheduler may not know for seconds that a node is cordoned; a started one does.
    cluster.control.end("kube-scheduler")
    cluster.scheduler()
    try:
        return brief(outage_of(world, cluster, other, drain))
    finally:
        cluster.kubectl("uncordon", node.name)


@check("a rebooted node is reached again", is_quick=False)
def rebooted(world):
    milan = world.milan
    start = time.monotonic()
    milan.reboot(milan.control)
    wait_until("the pods of Milan are ready", lambda: all(
        pod.is_ready for pod in [world.pod(milan), world.gateway(milan, world.rome)]), timeout=120)
    world.wait_for_pings(timeout=120)
    return f"pods reach each other {time.monotonic() - start:.0f} s after the power failure"
