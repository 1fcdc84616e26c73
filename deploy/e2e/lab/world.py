"""Two clusters with equal prefixes, Rome and Milan, with a pod and a process of the node to talk to in each."""

import ipaddress
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

from lab import image, node
from lab.cluster import Cluster
from lab.node import LAN
from lab.programs import PROJECT, Programs
from lab.shell import run, wait_until
from lab.traffic import ping
from lab.ways import GATEWAY, carrier

NAMESPACE = "e2e"

CHART = PROJECT / "deploy/helm/strait"
# What an installation runs.
INSTALLED = ["deployment/strait-operator", "daemonset/strait-node"]


class World:
    """What the checks share. `folder` is emptied first."""

    def __init__(self, folder, binary):
        self.begin = time.monotonic()
        self.folder = folder
        self.binary = binary
        node.remove_all()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        # Of each peering.
        self.gateways = 1
        # Of each gateway.
        self.replicas = 1
        # What pings have seen, by event and column of the table.
        self.outages = {}
        self.programs = Programs()
        node.make_lan()
        images = folder / "images"
        images.mkdir()
        archives = self.archives(images)
        self.rome = Cluster("rome", 1, folder, self.programs, archives)
        self.milan = Cluster("milan", 2, folder, self.programs, archives)

    def archives(self, folder):
        """Writes the images of the containers."""
        return [image.tools(folder, self.programs.busybox()), image.strait(folder, self.binary)]

    @property
    def clusters(self):
        return [self.rome, self.milan]

    @property
    def ways(self):
        return [(self.rome, self.milan), (self.milan, self.rome)]

    def at_once(self, act):
        """Runs `act(cluster)` for both clusters at the same time, and raises what one of them raised."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(act, self.clusters))

    def remove(self):
        for cluster in self.clusters:
            cluster.stop()
        node.remove_all()

    def strait(self, *words, **more):
        """The command of an administrator who has the kubeconfigs of both clusters."""
        files = ["--kubeconfig", self.rome.kubeconfig, "--remote-kubeconfig", self.milan.kubeconfig]
        return run("nsenter", f"--net=/run/netns/{LAN}", self.binary, *words, *files, **more)

    def network(self, *words, **more):
        """`strait network`, with the ids of both clusters."""
        ids = ["--cluster-id", "rome", "--remote-cluster-id", "milan"]
        return self.strait("network", *words, *ids, **more)

    def pod(self, cluster, name="pod"):
        return cluster.pod(NAMESPACE, name)

    def remapped(self, cluster, other, address):
        """The address that `cluster` has for an address of a pod of `other`."""
        status = cluster.get("configurations.networking.liqo.io", "--namespace", tenant(other), other.name)["status"]
        address = ipaddress.ip_address(address)
        prefixes = map(ipaddress.ip_network, status["remote"]["cidr"]["pod"])
        prefix = next(prefix for prefix in prefixes if prefix.version == address.version)
        return str(prefix.network_address + (int(address) & int(prefix.hostmask)))

    def target(self, cluster, other, name="pod", version=4):
        """The address of one IP version that `cluster` has for the pod of `other`."""
        own = next(own for own in self.pod(other, name).addresses if ipaddress.ip_address(own).version == version)
        return self.remapped(cluster, other, own)

    def gateway(self, cluster, other):
        """The pod of the gateway of `cluster` to `other`; of several gateways the one that carries the packets of the pod, of
        several replicas the active one."""
        def found():
            pods = cluster.pods(tenant(other), GATEWAY)
            if self.gateways > 1:
                return carrier(cluster, pods, self.pod(cluster), self.target(cluster, other))
            active = [pod for pod in pods if pod.is_active] if len(pods) > 1 else pods
            return active[0] if len(active) == 1 else None
        return wait_until(f"{cluster.name} has one active gateway", found)

    def wait_for_pings(self, timeout=60):
        """Waits until pods of both clusters reach each other."""
        for cluster, other in self.ways:
            pod, target = self.pod(cluster), self.target(cluster, other)
            wait_until(f"pods of {cluster.name} reach {target}", lambda pod=pod, target=target: ping(pod, target), timeout)


def tenant(cluster):
    """The namespace of the peering with `cluster`."""
    return f"liqo-tenant-{cluster.name}"


def workload(node_name=None, name="pod"):
    """A pod that serves iperf3; on the network of its node if the name says so."""
    is_host = name == "node"
    port = 5301 if is_host else 5201
    spec = {
        "terminationGracePeriodSeconds": 1, "hostNetwork": is_host, "tolerations": [{"operator": "Exists"}],
        "containers": [{
            "name": "tools", "image": image.TOOLS, "imagePullPolicy": "Never",
            "command": ["iperf3", "--server", "--port", str(port)],
            "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
        }],
    }
    if node_name:
        spec["nodeName"] = node_name
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": name if not node_name else f"{name}-{node_name}", "namespace": NAMESPACE,
                         "labels": {"app": name}}}
