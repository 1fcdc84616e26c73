"""What pings see while something happens, and how much of it is allowed."""

import os
import signal
import time
from dataclasses import replace

from lab.shell import require, wait_until
from lab.traffic import Pings, Stream

# Beyond this an outage is a fault; the figures of the table are lower.
OUTAGE_MAX_S = 20

# For kube-proxy, whose period is a second, and for nodes to follow.
HAND_OVER_MAX_S = 1


def outage_of(world, cluster, other, act, settle=1.0, name="pod"):
    """What pings and a TCP stream of a pod of `cluster` see while `act()` runs, and until pings are answered again."""
    pod, target = world.pod(cluster, name), world.target(cluster, other)
    with Pings(pod, target) as pings, Stream(pod, world.pod(other), target) as stream:
        time.sleep(1)
        act()
        world.wait_for_pings()
        time.sleep(settle)
        stream_gap_s = stream.stop()
        return replace(pings.stop(), stream_gap_s=stream_gap_s)


def brief(outage):
    require(outage.longest_gap_s <= OUTAGE_MAX_S, str(outage))
    return str(outage)


def handed_over(outage):
    """The successor has a session before its predecessor ends."""
    require(outage.longest_gap_s <= HAND_OVER_MAX_S, f"{outage} {outage.errors}")
    return str(outage)


def none_lost(outage):
    require(outage.lost == 0, f"{outage} {outage.errors}")
    return str(outage)


def killed(world, cluster, other, container=None):
    """What pings from Rome see while the process of a gateway's container is killed, by default of that which forwards, and
    until it runs again."""
    gateway = world.gateway(cluster, other)

    def kill():
        os.kill(gateway.forwarding[1] if container is None else gateway.pid_of(container), signal.SIGKILL)
        wait_until("the container runs again",
                   lambda: (again := world.gateway(cluster, other)).restarts > gateway.restarts and again.is_ready)
    outage = outage_of(world, *world.ways[0], kill)
    require(not any("exceeded" in text for text in outage.errors), f"packets loop: {outage.errors}")
    return brief(outage)
