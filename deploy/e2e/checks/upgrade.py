"""Upgrades by the commands of the manual."""

from checks.outage import brief, none_lost, outage_of
from lab.report import check
from lab.shell import require, wait_until
from lab.world import CHART, INSTALLED


def upgrade(world, *settings):
    for cluster in world.clusters:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-",
                        stdin=cluster.helm("show", "crds", CHART))
        cluster.helm("upgrade", "strait", CHART, "--namespace", "liqo", "--reset-then-reuse-values", *settings)
        cluster.wait_for_rollout("liqo", *INSTALLED)


@check("an upgrade without a change costs no packet")
def unchanged(world):
    return none_lost(outage_of(world, *world.ways[0], lambda: upgrade(world), settle=3))


@check("an upgrade replaces operator, agents and gateways", is_quick=False)
def other_tag(world):
    wanted = "strait:next"

    def to_next():
        upgrade(world, "--set", "image.tag=next")
        wait_until("both gateways have the new image", lambda: all(
            image_of(world.gateway(*way)) == wanted and world.gateway(*way).is_ready for way in world.ways))
    outage = outage_of(world, *world.ways[0], to_next)
    for cluster in world.clusters:
        for pod in cluster.pods("liqo", "app.kubernetes.io/part-of=strait"):
            require(image_of(pod) == wanted, f"{pod.name} has {image_of(pod)}")
    return brief(outage)


def image_of(pod):
    return pod.item["spec"]["containers"][0]["image"]
