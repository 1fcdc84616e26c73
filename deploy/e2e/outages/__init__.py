"""How long pods do not reach each other when something dies: the table of OUTAGES.md.

Each event happens several times. A cell is the median of the longest gaps between two answers to fifty pings a second,
and of the longest gaps in a TCP stream with as many writes. Each cell is a check, so `--only` selects cells. The others
keep what was measured before.
"""

import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from checks import install  # noqa: F401
from checks.faults import replaced, without_api_servers
from checks.gateways import GATEWAYS, dead_node_of_several, use_gateways
from checks.replicas import kill, outage_of_dead_node, wait_for_replicas
from checks.upgrade import gateways, upgrade, use_other_image
from lab.outage import outage_of
from lab.programs import PROJECT
from lab.report import check, when_and_where
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
    """The kubelet waits ten seconds before it starts a container that has ended a second time."""
    def event(world):
        def act():
            pod = None
            for _ in range(times):
                again = kill(world, *side(world), pod)
                # The process of the active replica, which may be another one by now; of several gateways that of the same one.
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
        container, pid = gateway.forwarding

        def replacements():
            logs = ["logs", gateway.name, "--container", container]
            return gateway.cluster.kubectl("--namespace", gateway.namespace, *logs).count(TOOK_OVER)

        def act():
            before = replacements()
            with ThreadPoolExecutor() as pool:
                load = pool.submit(throughput, pod, target, LOAD_S)
                time.sleep(2)
                os.kill(pid, signal.SIGUSR2)
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


# Of each column, in an order of few changes: replicas of each gateway, and gateways of the peering.
COLUMNS = {"one replica": (1, 1), "two gateways": (1, GATEWAYS), "two replicas": (2, 1)}

# What was measured, by column and event.
KEPT = PROJECT / "deploy" / "e2e" / "outages.json"
MEASURED = "outages.json"


@check("a second node joins", is_needed=True)
def second_node(world):
    world.rome.add_node()
    wait_for_all(world)


def wait_for_all(world):
    wait_for_replicas(world, world.replicas * world.gateways)
    world.wait_for_pings()


def arrange(world, column):
    """Gives the peering the replicas and gateways of the column."""
    replicas, count = COLUMNS[column]
    if world.gateways != count:
        use_gateways(world, count)
    if world.replicas != replicas:
        upgrade(world, "--set", f"gateways.replicas={replicas}")
        world.replicas = replicas


def measure(column, name, event):
    def cell(world):
        arrange(world, column)
        outages = []
        for _ in range(world.repetitions):
            wait_for_all(world)
            # The last event may have left a session that is a moment old. The kubelet, whose pods have just become ready,
            # looks for dead containers once a second.
            time.sleep(2 + random.random())
            outages.append(event(world))
            print(f"    {outages[-1]}", flush=True)
        seen = [figures(one) for one in outages]
        world.outages.setdefault(column, {})[name] = {"measured": when_and_where(), "outages": seen}
        # At once: a run takes hours.
        (world.folder / MEASURED).write_text(json.dumps(measured(world), indent=1) + "\n")
        return in_words(seen)
    return cell


for one_column, (replicas_of_it, gateways_of_it) in COLUMNS.items():
    for one_name, (one_event, needs_another) in EVENTS.items():
        if not needs_another or replicas_of_it * gateways_of_it > 1:
            check(f"{one_column}: {one_name}")(measure(one_column, one_name, one_event))


def measured(world):
    """The cells of the table, of what was measured now and, the others, before."""
    cells = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for column, events in world.outages.items():
        cells.setdefault(column, {}).update(events)
    return cells


def results(world):
    """The table in Markdown."""
    cells = measured(world)
    order = ["one replica", "two replicas", "two gateways"]
    lines = ["# Outages", "", "Medians of the longest gap, with the least and the most. Measured:", ""]
    lines += [f"- {said}" for said in measurements(cells)]
    lines += ["", f"| event | {' | '.join(order)} |", "|---|---|---|---|"]
    for name in EVENTS:
        of_event = [cells.get(column, {}).get(name, {}).get("outages") for column in order]
        lines.append(f"| {name} | {' | '.join(in_words(outages) for outages in of_event)} |")
    return "\n".join(lines) + "\n"


def measurements(cells):
    """What was measured when and how many times, a line each."""
    counts = Counter((column, len(cell["outages"]), cell["measured"])
                     for column, events in cells.items() for cell in events.values())
    return [f"{column}, {count} of {len(EVENTS)} events, {times} times each: {when}"
            for (column, times, when), count in counts.items()]


def figures(outage):
    """Gap in seconds, lost pings, whether there were ICMP errors, and gap of the TCP stream."""
    return [round(outage.longest_gap_s, 3), outage.lost, bool(outage.errors), round(outage.stream_gap_s, 3)]


def in_words(outages):
    """Outages as lists of figures."""
    if not outages:
        return "-"
    gaps, losses, told, *stream_gaps = zip(*outages)
    # The oldest were measured without a stream.
    stream = f"; TCP {in_seconds(*stream_gaps)}" if stream_gaps else ""
    if not any(losses):
        return f"0 lost{stream}"
    errors = f"; ICMP errors in {sum(told)} of {len(outages)}" if any(told) else ""
    without = sum(lost == 0 for lost in losses)
    if 2 * without > len(outages):
        return f"0 lost in {without} of {len(outages)}, **{max(gaps):.1f} s** at most{stream}{errors}"
    return f"**{in_seconds(gaps)}**{stream}{errors}"


def in_seconds(gaps):
    """The median, the least and the most."""
    return f"{statistics.median(gaps):.1f} s ({min(gaps):.1f} to {max(gaps):.1f})"
