"""Upgrades by the commands of the manual."""

import json
import time

from checks.forward import SECONDS
from lab.outage import handed_over, none_lost, outage_of
from lab.report import check
from lab.shell import require, wait_until
from lab.traffic import throughput
from lab.world import CHART, INSTALLED, tenant

# After its successor has a session.
FORMER_FORWARDS_S = 4


def upgrade(world, *settings, clusters=None):
    for cluster in clusters or world.clusters:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-",
                        stdin=cluster.helm("show", "crds", CHART))
        cluster.helm("upgrade", "strait", CHART, "--namespace", "liqo", "--reset-then-reuse-values", *settings)
        cluster.wait_for_rollout("liqo", *INSTALLED)


def upgrade_in_turn(world, *settings, until):
    """One cluster after the other: if both gateways of a peering are replaced at a time, each may answer the former one
    of the other, and needs a second to learn that it has ended."""
    for cluster, other in world.ways:
        upgrade(world, *settings, clusters=[cluster])
        wait_until(f"the gateways of {cluster.name} are replaced", lambda cluster=cluster, other=other: until(cluster, other),
                   timeout=120)
        time.sleep(FORMER_FORWARDS_S)


@check("an upgrade without a change costs no packet")
def unchanged(world):
    return none_lost(outage_of(world, *world.ways[0], lambda: upgrade(world), settle=3))


@check("an upgrade replaces operator, agents and gateways", is_quick=False)
def other_tag(world):
    return handed_over(outage_of(world, *world.ways[0], lambda: use_other_image(world), settle=5))


def use_other_image(world):
    """Upgrades to the tag `next`, or back, until all pods of Strait have it."""
    tag = "dev" if image_of(world.gateway(*world.ways[0])) == "strait:next" else "next"
    image = f"strait:{tag}"
    upgrade_in_turn(world, "--set", f"image.tag={tag}", until=lambda *way: all(
        image_of(pod) == image and pod.is_ready for pod in gateways(*way)))
    for cluster in world.clusters:
        for pod in cluster.pods("liqo", "app.kubernetes.io/part-of=strait"):
            require(image_of(pod) == image, f"{pod.name} has {image_of(pod)}")


@check("the engine boringtun joins the engine native", is_quick=False)
def engines(world):
    cluster, other = world.ways[0]

    def use(*flags):
        former = world.gateway(cluster, other).name
        upgrade(world, "--set-json", f"gateways.extraArgs={json.dumps(flags)}", clusters=[cluster])
        wait_until("another gateway is ready", lambda: (
            pod := world.gateway(cluster, other)).name != former and pod.is_ready)
        world.wait_for_pings()
    use("--engine=boringtun")
    rates = [throughput(world.pod(one), world.target(one, another), SECONDS) for one, another in world.ways]
    use()
    return f"rome {rates[0]:.0f} Mb/s, milan {rates[1]:.0f} Mb/s"


def gateways(cluster, other):
    return cluster.pods(tenant(other), "networking.liqo.io/component=gateway")


def image_of(pod):
    return pod.item["spec"]["containers"][0]["image"]
