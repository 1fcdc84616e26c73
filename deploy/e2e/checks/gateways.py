"""Two gateways of one peering, which share its packets."""

from threading import Timer

from checks.faults import replaced
from checks.replicas import kill, wait_for_replicas
from checks.upgrade import gateways, use_other_image
from lab.outage import none_lost, outage_of
from lab.report import check
from lab.shell import require, wait_until
from lab.traffic import throughput
from lab.ways import NAME, carrier, counterpart
from lab.world import workload

GATEWAYS = 2

# Nodes notice that a gateway is gone in 0.3 s; two clusters share the processors of this machine.
GAP_MAX_S = 1

# Pods on the first node whose replies may take either gateway.
SOURCES = 6


def use_gateways(world, count):
    said = world.network("connect", "--gw-server-service-type", "NodePort", "--gateways", str(count), "--wait", "--yes")
    require("Connection is established" in said, said)
    wait_for_replicas(world, count * world.replicas)
    world.gateways = count
    world.wait_for_pings()


def survived(outage):
    require(outage.longest_gap_s <= GAP_MAX_S, f"{outage} {outage.errors}")
    return str(outage)


@check("a second gateway joins a peering", is_quick=False)
def second_gateway(world):
    outage = outage_of(world, *world.ways[0], lambda: use_gateways(world, GATEWAYS), settle=3)
    for cluster, other in world.ways:
        nodes = {pod.node.name for pod in gateways(cluster, other)}
        require(len(nodes) == min(GATEWAYS, len(cluster.nodes)), f"the gateways of {cluster.name} are on {nodes}")
    return none_lost(outage)


@check("the other gateway carries on when the client's pod is deleted", is_quick=False)
def client_deleted(world):
    outage = replaced(world, *world.ways[0])
    wait_for_replicas(world, GATEWAYS)
    return none_lost(outage)


@check("the other gateway carries on when the server's pod is deleted", is_quick=False)
def server_deleted(world):
    outage = replaced(world, *world.ways[1])
    wait_for_replicas(world, GATEWAYS)
    return none_lost(outage)


@check("the other gateway carries on when the client's process is killed", is_quick=False)
def client_killed(world):
    return survived(outage_of(world, *world.ways[0], lambda: kill(world, *world.ways[0])))


@check("the other gateway carries on when the server's process is killed", is_quick=False)
def server_killed(world):
    return survived(outage_of(world, *world.ways[0], lambda: kill(world, *world.ways[1])))


@check("TCP survives the death of the gateway that carries it", is_quick=False)
def tcp_survives(world):
    cluster, other = world.ways[0]
    pod, target = world.pod(cluster), world.target(cluster, other)
    before = throughput(pod, target, 4)
    found = []
    outage = outage_of(world, cluster, other, lambda: found.append(killed_under_load(world, pod, target)))
    return f"{found[0]:.0f} Mb/s, {before:.0f} without; {outage}"


def killed_under_load(world, pod, target):
    """The throughput of one stream in whose time the gateway dies."""
    timer = Timer(2, lambda: kill(world, *world.ways[0]))
    timer.start()
    try:
        return throughput(pod, target, 8)
    finally:
        timer.join()


@check("the other gateway carries on when a node is dead", is_quick=False)
def node_dead(world):
    return survived(dead_node_of_several(world))


def dead_node_of_several(world):
    """Pings of a pod on the first node of Rome whose replies come through the gateway on the second one, which dies."""
    rome, milan = world.ways[0]
    node = rome.nodes[1]
    name = crossing(world, node)
    try:
        return outage_of(world, rome, milan, node.stop, settle=3, name=name)
    finally:
        rome.reboot(node)
        rome.wait_for_nodes()
        wait_for_replicas(world, GATEWAYS)


def crossing(world, node):
    """The name of a pod of Rome whose replies come through a gateway on `node`."""
    rome, milan = world.ways[0]
    first = rome.nodes[0].name
    names = ["pod", *(f"source{number}-{first}" for number in range(SOURCES))]
    rome.apply(*(workload(first, f"source{number}") for number in range(SOURCES)))
    for name in names:
        wait_until(f"{name} is ready", lambda name=name: world.pod(rome, name).is_ready)
    there = {pod.item["metadata"]["labels"][NAME] for pod in gateways(rome, milan) if pod.node is node}

    def is_crossing(name):
        back = world.target(milan, rome, name)
        pod = carrier(milan, gateways(milan, rome), world.pod(milan), back)
        return counterpart(pod, milan, rome) in there
    # After a reboot the gateway may not forward yet.
    return wait_until(f"replies to one of {names} come through {there}",
                      lambda: next(filter(is_crossing, names), None))


@check("an upgrade replaces two gateways", is_quick=False)
def upgraded(world):
    outage = outage_of(world, *world.ways[0], lambda: use_other_image(world), settle=5)
    wait_for_replicas(world, GATEWAYS)
    return none_lost(outage)


@check("the second gateway leaves again", is_quick=False)
def one_gateway(world):
    # Its key is deleted with it, maybe before its pod ends.
    return survived(outage_of(world, *world.ways[0], lambda: use_gateways(world, 1), settle=3))
