"""Gateways of one container without any capability, which executes Liqo's rules and ends the nodes' Geneve itself."""

import json
import re
from pathlib import Path

from lab import liqo
from lab.liqo_world import NAMESPACE
from lab.report import check
from lab.shell import require
from liqo_checks.network import assert_connected, assert_traffic, connect, disconnect, pair
from liqo_checks.peer import DEMO, offload, peer_clusters, run_network_test, wait_until_identity_is_removed

SERVER, CLIENT = "strait-server-whole", "strait-client-whole"
FABRIC = "daemonset/liqo-fabric"
# As in the templates.
IMAGE = "strait:dev"
PING_PORT = 54321

# Prints the answer to a datagram.
ASK = """
import socket, sys
address, port, question = sys.argv[1:]
with socket.socket(type=socket.SOCK_DGRAM) as asking:
    asking.settimeout(5)
    asking.sendto(question.encode(), (address, int(port)))
    print(asking.recv(2048).decode())
"""


@check("nodes send Geneve")
def nodes_send_geneve(world):
    if liqo.has_geneve():
        return "from their kernel"
    set_geneve("GENEVE=user-space", world.clusters)
    return "from Liqo's `fabric` (deploy/e2e/liqo/geneve/tap.go), as the kernel has none"


def set_geneve(assignment, clusters):
    """Sets or removes a variable of `fabric`, which a kernel without Geneve needs."""
    if liqo.has_geneve():
        return
    for cluster in clusters:
        cluster.kubectl("--namespace", NAMESPACE, "set", "env", FABRIC, assignment)
        cluster.wait_for_rollout(NAMESPACE, FABRIC)


@check("Strait alone in the gateway pods, without capability")
def whole(world):
    try:
        seconds = connect(world, SERVER, CLIENT)
        assert_connected(world)
        assert_without_capability(world)
        answered = assert_gateway_answers_nodes(world)
        return f"connected in {seconds:.1f} s; {assert_traffic(world)}; {answered}"
    finally:
        disconnect(world)


def assert_gateway_answers_nodes(world):
    """Nodes reach the gateway's address in the overlay, as Liqo's check of its Geneve tunnels does."""
    answers = 0
    for cluster in world.clusters:
        [fabric] = cluster.get("internalfabrics", "--all-namespaces")["items"]
        address = fabric["spec"]["interface"]["gateway"]["ip"]
        for node in cluster.nodes:
            node.run("ping", "-q", "-c", "3", "-i", "0.2", "-W", "2", address)
            asked = json.dumps({"clusterID": node.name, "msgType": "PING", "timeStamp": "2026-08-24T10:00:00Z"})
            answer = node.run("python3", "-c", ASK, address, str(PING_PORT), asked)
            require(answer.strip() == asked.replace("PING", "PONG").replace(" ", ""), f"{node.name}: {answer}")
            answers += 1
    return f"gateways answer {answers} nodes"


def assert_without_capability(world):
    for cluster, other in world.ways:
        gateway = world.gateway(cluster, other)
        containers = [container["image"] for container in gateway.item["spec"]["containers"]]
        require(containers == [IMAGE], f"{cluster.name}: {containers}")
        status = Path(f"/proc/{gateway.pid_of(0)}/status").read_text()
        sets = re.findall(r"^Cap(?:Eff|Prm|Bnd):\s*(\w+)$", status, re.MULTILINE)
        require(len(sets) == 3 and not any(int(one, 16) for one in sets), f"{cluster.name}: {sets}")


@check("Strait alone in the gateway pods, client and server swapped")
def swapped(world):
    return pair(world, SERVER, CLIENT, world.milan)


@check("liqoctl peer, offloaded pods and liqoctl test network over such gateways")
def peered(world):
    connect(world, SERVER, CLIENT)
    try:
        peer_clusters(world, "--networking-disabled")
        assert_without_capability(world)
        traffic = assert_traffic(world)
        offloaded = offload(world, lambda: world.liqoctl(
            world.rome, "offload", "namespace", DEMO, "--pod-offloading-strategy", "LocalAndRemote",
            "--namespace-mapping-strategy", "EnforceSameName"), DEMO)
        return f"{run_network_test(world)}; {traffic}; offloaded pod {offloaded}"
    finally:
        world.liqoctl(world.rome, "unpeer", "--skip-confirm", remote=world.milan)
        disconnect(world)
        wait_until_identity_is_removed(world)


@check("Strait alone in the server's pod, Liqo's three containers in the client's")
def stock_client(world):
    set_geneve("GENEVE-", [world.milan])
    return pair(world, SERVER, "stock-client", world.milan)


@check("nodes of both clusters send VXLAN again")
def nodes_send_vxlan(world):
    set_geneve("GENEVE-", world.clusters)
