"""Genuine liqoctl with `strait operator` in the place of Liqo's controllers, in one cluster and in both."""

from lab.report import check
from lab.shell import require, wait_until
from lab.world import CHART, INSTALLED
from liqo_checks.network import pair


def replace_liqo(world, cluster):
    """Removes Liqo from a cluster, as its documentation has it, and installs Strait's chart."""
    world.liqoctl(cluster, "uninstall", "--purge", "--skip-confirm", timeout=200)
    wait_until(f"{cluster.name} is free of Liqo", lambda: not cluster.kubectl(
        "get", "namespace", "liqo", "--ignore-not-found"))
    cluster.helm("install", "strait", CHART, "--namespace", "liqo", "--create-namespace",
                 "--set", "networks.pod=10.244.0.0/16", "--set", f"clusterID={cluster.name}")
    cluster.wait_for_rollout("liqo", *INSTALLED)


@check("Liqo in one cluster, strait operator in the other")
def one_operator(world):
    replace_liqo(world, world.milan)
    return pair(world, "wireguard-server", "strait-client")


@check("liqoctl with strait operator in both clusters")
def two_operators(world):
    replace_liqo(world, world.rome)
    return pair(world, "wireguard-server", "wireguard-client")


@check("liqoctl info works with strait operator")
def info(world):
    said = world.liqoctl(world.rome, "info")
    require("rome" in said, said)
    return "rc 0"
