"""The inter-cluster network by `liqoctl network`, for each pair of gateways."""

import json
import time

from lab.outage import killed
from lab.report import check
from lab.shell import require, wait_until
from lab.traffic import ping, throughput
from lab.world import tenant

SECONDS = 3
CONNECTIONS = "connections.networking.liqo.io"
# What declares a network.
DECLARED = "gatewayservers,gatewayclients,publickeies,configurations.networking.liqo.io"


def connect(world, server, client, client_cluster=None, *more):
    """`liqoctl network connect` with templates of the roles; the client's cluster is Rome unless another is given."""
    local = client_cluster or world.rome
    remote = world.milan if local is world.rome else world.rome
    start = time.monotonic()
    world.liqoctl(local, "network", "connect", "--wait", "--gw-server-service-type", "NodePort",
                  "--gw-server-template-name", server, "--gw-client-template-name", client, *more, remote=remote)
    return time.monotonic() - start


def disconnect(world, client_cluster=None):
    local = client_cluster or world.rome
    remote = world.milan if local is world.rome else world.rome
    world.liqoctl(local, "network", "disconnect", "--wait", "--skip-confirm", remote=remote)
    world.liqoctl(local, "network", "reset", "--wait", "--skip-confirm", remote=remote)
    wait_until_gateways_are_gone(world)


def assert_connected(world):
    for cluster, other in world.ways:
        def are_connected(cluster=cluster, other=other):
            items = cluster.get(CONNECTIONS, "--namespace", tenant(other))["items"]
            return [item.get("status", {}).get("value") for item in items] == ["Connected"]
        wait_until(f"the Connection of {cluster.name} is Connected", are_connected, timeout=30)


def assert_traffic(world):
    """Pods on both nodes, and nodes, reach pods on both nodes of the other cluster; TCP by iperf3."""
    found = []
    for cluster, other in world.ways:
        second = f"pod-{cluster.nodes[1].name}"
        targets = [world.target(cluster, other), world.target(cluster, other, f"pod-{other.nodes[1].name}")]
        for name in ["pod", second, "node"]:
            for target in targets:
                wait_until(f"{name} of {cluster.name} reaches {target}",
                           lambda: ping(world.pod(cluster, name), target), timeout=20)
        rate = throughput(world.pod(cluster), targets[0], SECONDS)
        found.append(f"{cluster.name} {rate:.0f} Mb/s")
    return "12 of 12 pings, " + ", ".join(found)


def pair(world, server, client, client_cluster=None, *more):
    """Connects, checks and disconnects a pair of gateways."""
    try:
        seconds = connect(world, server, client, client_cluster, *more)
        assert_connected(world)
        return f"connected in {seconds:.1f} s; {assert_traffic(world)}"
    finally:
        disconnect(world, client_cluster)


@check("Strait's templates on both sides")
def strait_templates(world):
    seconds = connect(world, "strait-server", "strait-client")
    assert_connected(world)
    return f"connected in {seconds:.1f} s; {assert_traffic(world)}"


@check("liqoctl info shows Strait's network")
def info(world):
    for cluster, other in world.ways:
        said = world.liqoctl(cluster, "info")
        require("Healthy" in said and cluster.name in said, said)
        of_peer = json.loads(world.liqoctl(cluster, "info", "peer", other.name, "--output", "json"))
        require("Healthy" in json.dumps(of_peer) and "10.244.0.0/16" in json.dumps(of_peer), json.dumps(of_peer))
    return "Networking is Healthy on both sides"


@check("Strait's process is killed in the client's and the server's pod")
def processes_killed(world):
    # Beside Liqo's containers, of which `gateway` sets the routes again.
    found = [f"{role}: {killed(world, *way, container=1)}" for role, way in zip(["client", "server"], world.ways)]
    return ", ".join(found)


@check("network disconnect and reset leave nothing behind")
def disconnects(world):
    disconnect(world)
    left = [f"{cluster.name}: {item['kind']} {item['metadata']['name']}" for cluster, other in world.ways
            for item in cluster.get(f"{DECLARED},{CONNECTIONS}", "--namespace", tenant(other))["items"]]
    require(not left, "; ".join(left))


@check("Liqo's templates with Strait's image on both sides")
def swapped_image(world):
    return pair(world, "wireguard-server", "wireguard-client")


@check("Strait's templates, client and server swapped")
def swapped_roles(world):
    return pair(world, "strait-server", "strait-client", world.milan)


@check("Liqo's server, Strait's client")
def stock_server(world):
    return pair(world, "stock-server", "strait-client")


@check("Strait's server, Liqo's client")
def stock_client(world):
    return pair(world, "strait-server", "stock-client")


@check("Liqo's server and client, to compare")
def stock(world):
    return pair(world, "stock-server", "stock-client")


@check("Strait's templates with two replicas")
def two_replicas(world):
    try:
        connect(world, "strait-two-server", "strait-two-client")
        assert_connected(world)
        said = assert_traffic(world)
        for cluster, other in world.ways:
            pods = cluster.pods(tenant(other), "networking.liqo.io/component=gateway")
            active = [pod for pod in pods if pod.item["metadata"]["labels"].get("networking.liqo.io/active") == "true"]
            require(len(pods) == 2 and len(active) == 1, f"{cluster.name}: {len(active)} of {len(pods)} pods are active")
        return f"one active pod of two; {said}"
    finally:
        disconnect(world)


@check("the declarative path: Configuration, gateways and keys from liqoctl")
def declarative(world):
    rome, milan = world.rome, world.milan
    try:
        for cluster, other in world.ways:
            make_tenant(other, cluster)
            apply_to(other, cluster, world.liqoctl(cluster, "generate", "configuration", "--output", "json"))
        world.liqoctl(milan, "create", "gatewayserver", "server", "--remote-cluster-id", "rome", "--service-type", "NodePort",
                      "--template-name", "strait-server", "--namespace", tenant(rome), "--wait")
        endpoint = milan.get("gatewayserver", "--namespace", tenant(rome), "server")["status"]["endpoint"]
        world.liqoctl(rome, "create", "gatewayclient", "client", "--remote-cluster-id", "milan",
                      "--addresses", endpoint["addresses"][0], "--port", endpoint["port"],
                      "--template-name", "strait-client", "--namespace", tenant(milan), "--wait")
        for cluster, other, role in [(rome, milan, "client"), (milan, rome, "server")]:
            # It ends with a panic if the gateway has no Secret yet.
            key = wait_until(f"liqoctl generates the key of {role}", lambda: world.liqoctl(
                cluster, "generate", "publickey", "--gateway-type", role, "--gateway-name", role,
                "--namespace", tenant(other), "--output", "json"))
            apply_to(other, cluster, key)
        assert_connected(world)
        return assert_traffic(world)
    finally:
        remove_network(world)


def make_tenant(cluster, other):
    """The namespace of the peering with another cluster, as Liqo's documentation has it."""
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": tenant(other), "labels": {"liqo.io/remote-cluster-id": other.name, "liqo.io/tenant-namespace": "true"}}})


def apply_to(cluster, other, text):
    """Applies an object in the namespace of the peering with another cluster."""
    generated = json.loads(text)
    generated["metadata"]["namespace"] = tenant(other)
    cluster.apply(generated)


def remove_network(world):
    """Deletes the objects that declare a network."""
    for cluster, other in world.ways:
        cluster.kubectl("delete", DECLARED, "--all", "--namespace", tenant(other), timeout=120)
    wait_until_gateways_are_gone(world)


def wait_until_gateways_are_gone(world):
    for cluster, other in world.ways:
        wait_until(f"the gateway of {cluster.name} is gone", lambda cluster=cluster, other=other: not cluster.pods(
            tenant(other), "networking.liqo.io/component=gateway"))
