"""Genuine liqoctl with `strait operator` in the place of Liqo's controllers, in one cluster and in both."""

from lab.report import check
from lab.shell import require, wait_until
from lab.world import CHART, INSTALLED
from liqo_checks.network import assert_connected, assert_traffic, connect, disconnect, pair


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


@check("liqoctl with strait operator in both clusters, and info peer")
def two_operators(world):
    replace_liqo(world, world.rome)
    server, client = "wireguard-server", "wireguard-client"
    try:
        seconds = connect(world, server, client)
        assert_connected(world)
        assert_info(world)
        traffic = assert_traffic(world)
    finally:
        disconnect(world, None)
    for cluster, _ in world.ways:
        wait_until(f"no ForeignCluster is left in {cluster.name}", lambda cluster=cluster: not cluster.kubectl(
            "get", "foreignclusters", "--output", "name"))
    return f"connected in {seconds:.1f} s; Healthy in info and info peer; {traffic}"


def assert_info(world):
    """liqoctl finds no version, as it reads that from the Deployment of Liqo's own controllers."""
    for cluster, other in world.ways:
        said = world.liqoctl(cluster, "info")
        require(cluster.name in said and other.name in said, said)
        of_peer = world.liqoctl(cluster, "info", "peer", other.name, "--output", "json")
        require("Healthy" in of_peer and "Unhealthy" not in of_peer and "10.244.0.0/16" in of_peer, of_peer)
