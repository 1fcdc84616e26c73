"""Two clusters with Liqo in them, whose gateways run Strait in the place of Liqo's container `wireguard`."""

import copy
import json
import tempfile
from pathlib import Path

from lab import dns, image, liqo
from lab.node import LAN
from lab.programs import PROJECT
from lab.shell import run
from lab.world import World

NAMESPACE = "liqo"
# What `liqoctl test network` runs, and expects of it: a web server, curl and nc.
NETSHOOT = "ghcr.io/nicolaka/netshoot:latest"
ROLES = {"server": "wggatewayservertemplates", "client": "wggatewayclienttemplates"}
# An address outside of both clusters, which `liqoctl test network` calls.
OUTSIDE = "1.1.1.1"

# Images without a tag would be pulled always, and no registry is here.
PULL_POLICY = {
    "apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": "MutatingAdmissionPolicy",
    "metadata": {"name": "images-are-here"},
    "spec": {
        "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": (
            "Object{spec: Object.spec{containers: object.spec.containers.map(c, "
            "Object.spec.containers{name: c.name, imagePullPolicy: 'IfNotPresent'})}}")}}],
    },
}
PULL_POLICY_BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": "MutatingAdmissionPolicyBinding",
    "metadata": {"name": "images-are-here"}, "spec": {"policyName": "images-are-here"},
}


class LiqoWorld(World):
    """What the checks share."""

    def __init__(self, folder, binary):
        self.liqo = liqo.Programs()
        super().__init__(folder, binary)
        # Liqo takes a pod for the other cluster's gateway pod of the same address, with its own container as well
        # (manual, "Compatibility with Liqo"): no two pods have the same one here, though the prefixes are equal.
        self.milan.first_pod = 128
        for cluster in self.clusters:
            cluster.api_server_flags = [
                "--feature-gates=MutatingAdmissionPolicy=true",
                "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
            ]

    def archives(self, folder):
        return [*super().archives(folder), self.liqo.archive(), dns.archive(folder),
                netshoot(folder, self.programs.busybox())]

    def install_liqo(self, cluster):
        """By Liqo's chart, with Strait's image in its templates of gateways."""
        values = {
            "tag": liqo.version(),
            "discovery.config.clusterID": cluster.name,
            "apiServer.address": f"https://{cluster.control.addresses[0]}:6443",
            "ipam.podCIDR": "10.244.0.0/16",
            "ipam.serviceCIDR": "10.96.0.0/12",
            "networking.gatewayTemplates.wireguard.implementation": "userspace",
            "networking.gatewayTemplates.container.wireguard.image.name": image.STRAIT.split(":")[0],
            "networking.gatewayTemplates.container.wireguard.image.version": image.STRAIT.split(":")[1],
            # The CNI masquerades what pods send to nodes, and nodes accept Geneve from addresses of gateway pods only.
            "networking.fabric.config.gatewayMasqueradeBypass": "true",
            "metricAgent.enabled": "false",
            "telemetry.enabled": "false",
        }
        words = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        cluster.helm("install", "liqo", self.liqo.chart, "--namespace", NAMESPACE, "--create-namespace", *words)
        workloads = cluster.get("deployments,daemonsets", "--namespace", NAMESPACE)["items"]
        cluster.wait_for_rollout(NAMESPACE, *(f"{item['kind']}/{item['metadata']['name']}" for item in workloads))

    def liqoctl(self, cluster, *words, remote=None, **more):
        """`liqoctl` of an administrator with the kubeconfig of a cluster, and that of the remote one if it is needed."""
        files = [f"--kubeconfig={cluster.kubeconfig}"]
        if remote:
            files.append(f"--remote-kubeconfig={remote.kubeconfig}")
        return run("nsenter", f"--net=/run/netns/{LAN}", self.liqo.liqoctl, *words, *files,
                   env=self.programs.environment, **more)

    def apply_templates(self, cluster):
        """All of Strait's templates as they are, those for one of Liqo's containers with two replicas too, and Liqo's own with
        its own image."""
        documents = []
        for role, kind in ROLES.items():
            strait = object_of(cluster, PROJECT / f"deploy/liqo/{role}.yaml")
            stock = cluster.get(kind, "--namespace", NAMESPACE, f"wireguard-{role}")
            stock["metadata"] = {"name": f"stock-{role}", "namespace": NAMESPACE}
            pod(stock)["containers"][1]["image"] = f"{liqo.REGISTRY}/gateway/wireguard:{liqo.version()}"
            two = copy.deepcopy(strait)
            two["metadata"]["name"] = f"strait-two-{role}"
            two["spec"]["template"]["spec"]["deployment"]["spec"]["replicas"] = 2
            for container in pod(two)["containers"]:
                container["args"] = [word.replace("election=false", "election=true") for word in container["args"]]
            whole = object_of(cluster, PROJECT / f"deploy/liqo/{role}-whole.yaml")
            documents += [strait, stock, two, whole]
        cluster.apply(*documents)


def pod(template):
    """The pod of a template of gateways."""
    return template["spec"]["template"]["spec"]["deployment"]["spec"]["template"]["spec"]


def object_of(cluster, path):
    """The object of a file, as `kubectl` reads it."""
    return json.loads(cluster.kubectl("create", "--dry-run=client", "--output=json", "--filename", path))


def netshoot(folder, busybox):
    """An image in the place of the one that `liqoctl test network` names, with the commands that it runs."""
    with tempfile.TemporaryDirectory() as root:
        image.install_busybox(root, busybox)
        image.install_program(root, "curl")
        script(root, "python3", "echo ok > /tmp/index.html; exec busybox httpd -f -p 80 -h /tmp")
        script(root, "nc", 'busybox nc -w 5 "$2" "$3" < /dev/null && echo "Connection to $2 $3 succeeded" >&2')
        return image.archive(folder / "netshoot.tar", {NETSHOOT: {"Env": ["PATH=/usr/bin:/bin"]}}, root)


def script(root, name, text):
    path = Path(root, "usr/bin", name)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
