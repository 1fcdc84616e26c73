"""Removal by the commands of deploy/README.md, and the installation with kustomize."""

from lab.programs import PROJECT
from lab.report import check
from lab.shell import require, wait_until
from lab.snapshot import snapshot
from lab.world import INSTALLED, NAMESPACE, tenant

DEPLOY = PROJECT / "deploy"


def assert_nothing_left(world):
    """Compares with the state before the installation, except for what the checks added themselves."""
    objects, hosts = world.before
    now_objects, now_hosts = snapshot(world)
    left = []
    for cluster in world.clusters:
        names = [node.name for node in cluster.nodes]
        for line in sorted(now_objects[cluster.name] - objects[cluster.name]):
            if f" {NAMESPACE} " not in line and line.split()[-1] not in names:
                left.append(f"{cluster.name}: {line}")
        # A node that was added had what the first one had.
        for node in cluster.nodes:
            before = hosts.get(node.name, hosts[cluster.control.name])
            left += [f"{node.name}: {line}" for line in sorted(now_hosts[node.name] - before)]
    require(not left, "left: " + "; ".join(left))


def clean_up_nodes(world):
    for cluster in world.clusters:
        for node in cluster.nodes:
            node.run(world.binary, "node", "--clean-up")


@check("disconnect and reset remove the peering")
def reset(world):
    world.network("disconnect", "--yes")
    world.network("reset", "--yes", "--wait")
    for cluster, other in world.ways:
        wait_until(f"the gateway of {cluster.name} is gone",
                   lambda: not cluster.pods(tenant(other), "networking.liqo.io/component=gateway"))


@check("nothing is left after the removal with Helm")
def helm_removes(world):
    for cluster, other in world.ways:
        cluster.helm("uninstall", "strait", "--namespace", "liqo")
        cluster.kubectl("delete", "namespace", "liqo", timeout=120)
    clean_up_nodes(world)
    for cluster, other in world.ways:
        cluster.kubectl("delete", "--kustomize", DEPLOY / "crds", timeout=120)
        cluster.kubectl("delete", "namespace", tenant(other), timeout=120)
    assert_nothing_left(world)


@check("kustomize installs, joins and removes", is_quick=False)
def kustomize(world):
    for cluster in world.clusters:
        cluster.kubectl("apply", "--server-side", "--kustomize", DEPLOY / "crds")
        cluster.kubectl("wait", "--for=condition=established", "--filename=-", "--timeout=60s",
                        stdin=cluster.kubectl("kustomize", DEPLOY / "crds"))
        cluster.kubectl("apply", "--server-side", "--kustomize", DEPLOY / "standalone")
    for cluster in world.clusters:
        cluster.wait_for_rollout("liqo", *INSTALLED)
    world.network("connect", "--gw-server-service-type", "NodePort", "--wait")
    world.wait_for_pings()
    world.network("reset", "--yes", "--wait")
    for cluster, other in world.ways:
        cluster.kubectl("delete", "--ignore-not-found", "--kustomize", DEPLOY / "standalone", timeout=180)
    clean_up_nodes(world)
    for cluster, other in world.ways:
        cluster.kubectl("delete", "--ignore-not-found", "namespace", tenant(other), timeout=120)
        cluster.kubectl("delete", "--ignore-not-found", "--kustomize", DEPLOY / "crds", timeout=120)
    assert_nothing_left(world)
    return "nothing is left"
