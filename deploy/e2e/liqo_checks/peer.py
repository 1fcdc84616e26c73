"""Peering as Liqo's documentation describes it, over gateways that run Strait: `liqoctl peer`, and declared objects."""

import base64
import re
import subprocess
import time

from lab import image
from lab.liqo_world import OUTSIDE
from lab.node import LAN
from lab.report import check
from lab.shell import require, run, wait_until
from lab.traffic import ping, throughput
from lab.world import tenant
from liqo_checks.network import (
    assert_connected, assert_traffic, make_tenant, remove_network, wait_until_gateways_are_gone)

# The namespace whose pods are offloaded.
DEMO = "demo"
USER = "rome-consumer"
NODE_PORT = 30742


@check("liqoctl peer joins the clusters over Strait")
def peer(world):
    start = time.monotonic()
    peer_clusters(world)
    assert_gateways_run_strait(world)
    return f"virtual node ready after {time.monotonic() - start:.1f} s; {assert_traffic(world)}"


def peer_clusters(world, *flags):
    world.liqoctl(world.rome, "peer", "--gw-server-service-type", "NodePort", "--cpu", "4", "--memory", "4Gi",
                  "--pods", "50", *flags, remote=world.milan)
    assert_connected(world)
    wait_for_virtual_node(world)


def assert_gateways_run_strait(world):
    for cluster, other in world.ways:
        gateway = world.gateway(cluster, other).item
        images = {container["name"]: container["image"] for container in gateway["spec"]["containers"]}
        require(images["wireguard"] == image.STRAIT, f"{cluster.name}: {images}")


def wait_for_virtual_node(world):
    def is_ready():
        conditions = world.rome.get("node", "milan").get("status", {}).get("conditions", [])
        return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
    wait_until("the virtual node is ready", is_ready)


@check("an offloaded pod is reached by address and through a Service")
def offloaded_pod(world):
    return offload(world, lambda: world.liqoctl(
        world.rome, "offload", "namespace", DEMO, "--pod-offloading-strategy", "LocalAndRemote",
        "--namespace-mapping-strategy", "EnforceSameName"), DEMO)


def offload(world, declare, remote_namespace):
    """Lets a pod of Rome run in Milan, and a pod in each cluster reach the other by address and through a Service."""
    rome, milan = world.rome, world.milan
    rome.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DEMO}})
    try:
        declare()
        rome.apply(*(workload(name, place) for name, place in [("remote", "milan"), ("local", None)]))
        rome.apply(*(service(name) for name in ["remote", "local"]))
        rome.kubectl("--namespace", DEMO, "wait", "--for=condition=ready", "pod", "--all", "--timeout=90s", timeout=100)
        local, shadow = rome.pod(DEMO, "local"), rome.pod(DEMO, "remote")
        remote = milan.pod(remote_namespace, "remote")
        require(remote.is_ready and remote.addresses[0] != shadow.addresses[0],
                f"the pod has {remote.addresses} in Milan, and {shadow.addresses} in Rome")
        found = []
        for name, pod, address in [
            ("by address", local, shadow.addresses[0]),
            ("by Service", local, service_address(rome, DEMO, "remote")),
            ("back by address", remote, world.remapped(milan, rome, local.addresses[0])),
            ("back by Service", remote, service_address(milan, remote_namespace, "local")),
        ]:
            rate = wait_until(f"{address} answers ({name})", lambda: throughput(pod, address, 2), timeout=30)
            found.append(f"{name} {rate:.0f} Mb/s")
        require(ping(local, shadow.addresses[0]), "the pod in Milan does not answer a ping")
        return ", ".join(found)
    finally:
        rome.kubectl("delete", "pods,services", "--all", "--namespace", DEMO, timeout=120)
        rome.kubectl("delete", "namespaceoffloadings", "--all", "--namespace", DEMO, timeout=120)
        rome.kubectl("delete", "namespace", DEMO, timeout=120)


def workload(name, virtual_node):
    """A server of iperf3: on the virtual node, or on a node of the cluster."""
    expression = {"key": "liqo.io/type", "operator": "In" if virtual_node else "NotIn", "values": ["virtual-node"]}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": DEMO, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [expression]}]}}},
            "containers": [{
                "name": "tools", "image": image.TOOLS, "imagePullPolicy": "Never", "command": ["iperf3", "--server"],
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                "readinessProbe": {"tcpSocket": {"port": 5201}, "periodSeconds": 1},
            }],
        },
    }


def service(name):
    """Of the pod `name`. Liqo deletes a Service with the name of an offloaded pod."""
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"to-{name}", "namespace": DEMO},
            "spec": {"selector": {"app": name}, "ports": [{"port": 5201, "name": "iperf"}]}}


def service_address(cluster, namespace, pod):
    return wait_until(f"{cluster.name} has the Service of {pod}",
                      lambda: cluster.get("service", "--namespace", namespace, f"to-{pod}")["spec"]["clusterIP"])


@check("liqoctl test network passes")
def test_network(world):
    return run_network_test(world)


def run_network_test(world):
    with Outside(world):
        printed = world.liqoctl(world.rome, "test", "network", "--remote-kubeconfigs", world.milan.kubeconfig, "--ip",
                                "--np-nodes", "workers", "--np-ext", "--pod-np", "--rm", timeout=400)
    # It fails if one of them fails; the last number is that of all.
    count = re.findall(r"succeeded counter: (\d+)", printed)[-1]
    return f"{count} checks of pods, nodes, Services, NodePorts and remapped addresses"


class Outside:
    """A server outside of both clusters, at ports 80 and 443."""

    def __init__(self, world):
        self.busybox = world.programs.busybox()
        self.folder = world.folder
        self.servers = []

    def __enter__(self):
        (self.folder / "index.html").write_text("ok\n")
        run("ip", "-n", LAN, "addr", "replace", f"{OUTSIDE}/32", "dev", "lan")
        self.servers = [
            subprocess.Popen(["nsenter", f"--net=/run/netns/{LAN}", self.busybox, "httpd", "-f", "-p",
                              f"{OUTSIDE}:{port}", "-h", self.folder])
            for port in (80, 443)
        ]

    def __exit__(self, *_):
        for server in self.servers:
            server.kill()
            server.wait()


@check("liqoctl unpeer removes the peering")
def unpeer(world):
    world.liqoctl(world.rome, "unpeer", "--skip-confirm", remote=world.milan)
    wait_until_gateways_are_gone(world)
    wait_until_identity_is_removed(world)


def wait_until_identity_is_removed(world):
    """Liqo's replicator repeats a request that it may no longer make, after growing pauses, before it lets go of the
    identity. A peering that is declared meanwhile is not replicated."""
    wait_until("Liqo has removed the identity of Rome", lambda: world.rome.kubectl(
        "get", "secrets", "--namespace", tenant(world.milan), "--selector", "liqo.io/identity-type=ControlPlane",
        "--output", "name") == "", timeout=180)


@check("declared objects alone peer the clusters over Strait")
def declared(world):
    try:
        declare_network(world)
        assert_connected(world)
        assert_gateways_run_strait(world)
        declare_authentication(world)
        declare_resources(world)
        said = offload(world, lambda: world.rome.apply({
            "apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": DEMO},
            "spec": {"clusterSelector": {"nodeSelectorTerms": []}, "namespaceMappingStrategy": "DefaultName",
                     "podOffloadingStrategy": "LocalAndRemote"},
        }), f"{DEMO}-rome")
        return f"{assert_traffic(world)}; offloaded pod {said}"
    finally:
        world.liqoctl(world.rome, "unpeer", "--skip-confirm", remote=world.milan)
        for cluster, other in world.ways:
            cluster.kubectl("delete", "secret,rolebinding", "--selector", f"liqo.io/remote-cluster-id={other.name}",
                            "--namespace", tenant(other), timeout=120)
        remove_network(world)


def declare_resources(world):
    world.rome.apply({
        "apiVersion": "authentication.liqo.io/v1beta1", "kind": "ResourceSlice",
        "metadata": {"name": "milan", "namespace": tenant(world.milan),
                     "annotations": {"liqo.io/create-virtual-node": "true"},
                     "labels": {**remote(world.milan), "liqo.io/remoteID": "milan", "liqo.io/replication": "true"}},
        "spec": {"class": "default", "providerClusterID": "milan", "resources": {"cpu": "4", "memory": "4Gi"}},
    })
    wait_for_virtual_node(world)


def remote(cluster):
    return {"liqo.io/remote-cluster-id": cluster.name}


def declare_network(world):
    """Tenant namespaces, Configurations, keys from openssl, and a gateway on each side, as the documentation has them."""
    keys = {cluster.name: key_pair(world.folder) for cluster in world.clusters}
    for cluster, other in world.ways:
        namespace = tenant(other)
        gateway = {**remote(other), "networking.liqo.io/gateway-resource": "true"}

        def network(kind, cluster=other):
            return cluster.get("networks.ipam.liqo.io", "--namespace", "liqo", kind)["status"]["cidr"]
        make_tenant(cluster, other)
        cluster.apply(
            networking("Configuration", other.name, namespace, remote(other),
                       {"remote": {"cidr": {"pod": [network("pod-cidr")], "external": [network("external-cidr")]}}}),
            {"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
             "metadata": {"name": "gw-keys", "namespace": namespace, "labels": gateway},
             "data": {"privateKey": keys[cluster.name][0], "publicKey": keys[cluster.name][1]}},
            networking("PublicKey", "gw-publickey", namespace, gateway, {"publicKey": keys[other.name][1]}))
    rome, milan = world.rome, world.milan
    milan.apply(networking("GatewayServer", "server", tenant(rome), remote(rome), {
        "endpoint": {"port": 51840, "serviceType": "NodePort", "nodePort": NODE_PORT}, "mtu": 1340,
        "secretRef": {"name": "gw-keys"}, "serverTemplateRef": template("server")}))
    rome.apply(networking("GatewayClient", "client", tenant(milan), remote(milan), {
        "endpoint": {"addresses": [milan.control.addresses[0]], "port": NODE_PORT, "protocol": "UDP"}, "mtu": 1340,
        "secretRef": {"name": "gw-keys"}, "clientTemplateRef": template("client")}))


def networking(kind, name, namespace, labels, spec):
    return {"apiVersion": "networking.liqo.io/v1beta1", "kind": kind,
            "metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec}


def template(role):
    return {"apiVersion": "networking.liqo.io/v1beta1", "kind": f"WgGateway{role.capitalize()}Template",
            "name": f"wireguard-{role}", "namespace": "liqo"}


def key_pair(folder):
    """A private and a public key of X25519: the last 32 bytes of their DER forms."""
    private, public = folder / "private.der", folder / "public.der"
    run("openssl", "genpkey", "-algorithm", "X25519", "-outform", "der", "-out", private)
    run("openssl", "pkey", "-inform", "der", "-in", private, "-pubout", "-outform", "der", "-out", public)
    return [base64.b64encode(path.read_bytes()[-32:]).decode() for path in (private, public)]


def declare_authentication(world):
    """A user of Milan for Rome, the role and the Tenant that it needs, and its kubeconfig as a Secret in Rome."""
    rome, milan = world.rome, world.milan
    milan.apply(
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
         "metadata": {"name": "liqo-binding-liqo-remote-controlplane", "namespace": tenant(rome), "labels": remote(rome)},
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "liqo-remote-controlplane"},
         "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}]},
        {"apiVersion": "authentication.liqo.io/v1beta1", "kind": "Tenant",
         "metadata": {"name": "my-tenant", "namespace": tenant(rome), "labels": remote(rome)},
         "spec": {"clusterID": "rome", "authzPolicy": "TolerateNoHandshake", "tenantCondition": "Active"}})
    kubeconfig = milan.user(USER, f"/CN={USER}").read_bytes()
    rome.apply({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "cplane-secret", "namespace": tenant(milan),
                     "labels": {"liqo.io/identity-type": "ControlPlane", **remote(milan)},
                     "annotations": {"liqo.io/remote-tenant-namespace": tenant(rome)}},
        "data": {"kubeconfig": base64.b64encode(kubeconfig).decode()}})
