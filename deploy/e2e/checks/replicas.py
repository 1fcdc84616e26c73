"""Gateways with two replicas, of which one is active."""

import os
import signal

from checks.faults import replace_gateway, replaced
from checks.upgrade import gateways, upgrade_in_turn, use_other_image
from lab.outage import brief, handed_over, outage_of
from lab.report import check
from lab.shell import require, wait_until

REPLICAS = 2


def wait_for_replicas(world, count=REPLICAS):
    """Waits until as many pods of gateways are ready."""
    for cluster, other in world.ways:
        wait_until(f"{count} gateway pods of {cluster.name} are ready",
                   lambda cluster=cluster, other=other: are_ready(cluster, other, count), timeout=120)


def are_ready(cluster, other, count=REPLICAS):
    pods = gateways(cluster, other)
    return len(pods) == count and all(pod.is_ready for pod in pods)


@check("the chart gives each gateway a second replica", is_quick=False)
def second_replica(world):
    def add():
        upgrade_in_turn(world, "--set", f"gateways.replicas={REPLICAS}", until=are_ready)
        for way in world.ways:
            world.gateway(*way)
    outage = outage_of(world, *world.ways[0], add, settle=5)
    for cluster, other in world.ways:
        nodes = {pod.node.name for pod in gateways(cluster, other)}
        require(len(nodes) == min(REPLICAS, len(cluster.nodes)), f"the replicas of {cluster.name} are on {nodes}")
    return handed_over(outage)


@check("a standby replaces the client's deleted pod", is_quick=False)
def client_deleted(world):
    return handed_over(deleted(world, *world.ways[0]))


@check("a standby replaces the server's deleted pod", is_quick=False)
def server_deleted(world):
    return handed_over(deleted(world, *world.ways[1]))


def deleted(world, cluster, other):
    outage = replaced(world, cluster, other)
    wait_for_replicas(world)
    return outage


@check("a standby replaces the client's killed process", is_quick=False)
def client_killed(world):
    return killed(world, *world.ways[0])


@check("a standby replaces the server's killed process", is_quick=False)
def server_killed(world):
    return killed(world, *world.ways[1])


def killed(world, cluster, other):
    """The process on standby in the same pod takes the Lease of the pod."""
    return brief(outage_of(world, *world.ways[0], lambda: kill(world, cluster, other)))


def kill(world, cluster, other, pod=None):
    """Kills the process of `pod` that forwards, or of the active replica, and returns the pod when its container runs
    again."""
    pod = pod or world.gateway(cluster, other)
    os.kill(pod.forwarding[1], signal.SIGKILL)
    return wait_until("the container runs again", lambda: next(
        (again for again in gateways(cluster, other)
         if again.name == pod.name and again.restarts > pod.restarts and again.is_ready), None), pause=0.1)


@check("a standby replaces the replica of a dead node", is_quick=False)
def node_dead(world):
    return brief(outage_of_dead_node(world))


def outage_of_dead_node(world):
    """Of the second node of Rome, on which the active replica is made to run."""
    rome, milan = world.ways[0]
    node = rome.nodes[1]
    if world.gateway(rome, milan).node is not node:
        replace_gateway(world, rome, milan)
        wait_for_replicas(world)
    require(world.gateway(rome, milan).node is node, f"the active replica is not on {node.name}")
    try:
        return outage_of(world, rome, milan, node.stop, settle=3)
    finally:
        rome.reboot(node)
        rome.wait_for_nodes()
        wait_for_replicas(world)


@check("an upgrade replaces two replicas one by one", is_quick=False)
def upgraded(world):
    outage = outage_of(world, *world.ways[0], lambda: use_other_image(world), settle=5)
    wait_for_replicas(world)
    return handed_over(outage)


@check("the chart takes the second replica back", is_quick=False)
def one_replica(world):
    def take_back():
        upgrade_in_turn(world, "--set", "gateways.replicas=1", until=lambda *way: are_ready(*way, count=1))
    return handed_over(outage_of(world, *world.ways[0], take_back, settle=5))
