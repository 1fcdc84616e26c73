"""How long pods do not reach each other when something dies: the table of OUTAGES.md.

Each event happens several times. A cell is the median of the longest gaps between two answers to fifty pings a second.
"""

import os
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from checks import install  # noqa: F401
from checks.faults import replaced, without_api_servers
from checks.gateways import GATEWAYS, dead_node_of_several, use_gateways
from checks.replicas import kill, outage_of_dead_node, wait_for_replicas
from checks.upgrade import gateways, upgrade, use_other_image
from lab.outage import outage_of
from lab.report import check
from lab.shell import wait_until
from lab.traffic import throughput

AWAY_S = 60

# Of TCP while a binary is replaced, which takes half a second.
LOAD_S = 6

TOOK_OVER = "took over from the previous program"


def client(world):
    return world.ways[0]


def server(world):
    return world.ways[1]


def deleted(side):
    return lambda world: replaced(world, *side(world))


def killed(side, times=1):
    """The kubelet waits ten seconds before it starts a container that has ended a second time, and longer each time
    after that."""
    def event(world):
        def act():
            pod = None
            for _ in range(times):
                again = kill(world, *side(world), pod)
                # Another replica is the active one by now; of several gateways the same one dies again.
                pod = again if world.gateways > 1 else None
        outage = outage_of(world, *world.ways[0], act, settle=2)
        # A new pod has no back-off.
        for pod in gateways(*side(world)):
            pod.delete()
            wait_for_all(world)
        return outage
    return event


def replaced_in_place(side):
    """The file holds the same binary, as the root of the container is read-only. One TCP stream takes what it gets."""
    def event(world):
        cluster, other = world.ways[0]
        pod, target = world.pod(cluster), world.target(cluster, other)
        gateway = world.gateway(*side(world))

        def replacements():
            return gateway.cluster.kubectl("--namespace", gateway.namespace, "logs", gateway.name).count(TOOK_OVER)

        def act():
            before = replacements()
            with ThreadPoolExecutor() as pool:
                load = pool.submit(throughput, pod, target, LOAD_S)
                time.sleep(2)
                os.kill(gateway.pid, signal.SIGUSR2)
                wait_until("the process runs its binary again", lambda: replacements() > before)
                load.result()
        return outage_of(world, cluster, other, act)
    return event


def upgraded(world):
    return outage_of(world, *world.ways[0], lambda: use_other_image(world), settle=5)


def api_servers_away(world):
    def away():
        without_api_servers(world, lambda: time.sleep(AWAY_S))
    return outage_of(world, *world.ways[0], away, settle=5)


def node_dead(world):
    return dead_node_of_several(world) if world.gateways > 1 else outage_of_dead_node(world)


# In the order of the table; and whether another gateway or replica is needed.
EVENTS = {
    "the client's pod is deleted": (deleted(client), False),
    "the server's pod is deleted": (deleted(server), False),
    "the client's process is killed": (killed(client), False),
    "the server's process is killed": (killed(server), False),
    "the client's process is killed twice": (killed(client, times=2), False),
    "the server's process is killed twice": (killed(server, times=2), False),
    "the client's node has no power": (node_dead, True),
    "the client's binary is replaced in place": (replaced_in_place(client), False),
    "the server's binary is replaced in place": (replaced_in_place(server), False),
    "the chart upgrades to another image": (upgraded, False),
    f"the API servers are away for {AWAY_S} s": (api_servers_away, False),
}


def wait_for_all(world):
    wait_for_replicas(world, world.replicas * world.gateways)
    world.wait_for_pings()


def measure(world, column):
    """Runs each event that is possible, and keeps what pings have seen."""
    for name, (event, needs_another) in EVENTS.items():
        if needs_another and world.replicas * world.gateways == 1:
            continue
        for _ in range(world.repetitions):
            wait_for_all(world)
            # The last event may have left a session that is a moment old.
            time.sleep(2)
            outage = event(world)
            print(f"    {name}: {outage}", flush=True)
            world.outages.setdefault(name, {}).setdefault(column, []).append(outage)
    return f"{len(EVENTS)} events, {world.repetitions} times each"


@check("a second node joins", is_needed=True)
def second_node(world):
    world.rome.add_node()
    wait_for_all(world)


@check("outages with one replica")
def one_replica(world):
    return measure(world, "one replica")


@check("outages with two gateways")
def two_gateways(world):
    use_gateways(world, GATEWAYS)
    try:
        return measure(world, "two gateways")
    finally:
        use_gateways(world, 1)


@check("outages with two replicas")
def two_replicas(world):
    upgrade(world, "--set", "gateways.replicas=2")
    world.replicas = 2
    return measure(world, "two replicas")


def table(world, heading):
    """In Markdown, below the lines of `heading`."""
    columns = ["one replica", "two replicas", "two gateways"]
    lines = [*heading, f"| event | {' | '.join(columns)} |", "|---|---|---|---|"]
    for name in EVENTS:
        by_column = world.outages.get(name, {})
        lines.append(f"| {name} | {' | '.join(cell(by_column.get(column)) for column in columns)} |")
    return "\n".join(lines) + "\n"


def cell(outages):
    if not outages:
        return "-"
    if not any(outage.lost for outage in outages):
        return "0 lost"
    gaps = [outage.longest_gap_s for outage in outages]
    told = sum(bool(outage.errors) for outage in outages)
    errors = f"; ICMP errors in {told} of {len(outages)}" if told else ""
    return f"**{statistics.median(gaps):.1f} s** ({min(gaps):.1f} to {max(gaps):.1f}){errors}"
