"""The DNS server of a cluster: CoreDNS."""

import shutil
import tempfile
from pathlib import Path

from lab import image
from lab.cluster import DNS
from lab.programs import PROJECT, cache_folder, go_build, locked

MODULE = PROJECT / "deploy/e2e/dns"
IMAGE = "strait.test/coredns:1"
NAME, NAMESPACE = "coredns", "kube-system"

COREFILE = """.:53 {
    errors
    ready :8181
    kubernetes cluster.local in-addr.arpa ip6.arpa
}
"""


def cached_program():
    """The path of the program in the cache."""
    return cache_folder("dns", [MODULE / name for name in ["go.mod", "go.sum", "main.go"]]) / "coredns"


def are_cached():
    return cached_program().exists()


def archive(folder):
    """Builds the program if it is not cached, and writes its image."""
    program = cached_program()
    with locked(program.parent):
        go_build(MODULE, "-s -w", program, ".")
    with tempfile.TemporaryDirectory() as root:
        shutil.copy(program, Path(root, "coredns"))
        Path(root, "Corefile").write_text(COREFILE)
        return image.archive(folder / "dns.tar", {IMAGE: {"Entrypoint": ["/coredns", "-conf", "/Corefile"]}}, root)


def install(cluster):
    """Runs the server at the address that each kubelet gives to its pods."""
    def named(kind, version, **more):
        return {"apiVersion": version, "kind": kind, "metadata": {"name": NAME, "namespace": NAMESPACE}, **more}

    rbac = "rbac.authorization.k8s.io"
    cluster.apply(
        named("ServiceAccount", "v1"),
        named("ClusterRole", f"{rbac}/v1", rules=[
            {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}]),
        named("ClusterRoleBinding", f"{rbac}/v1",
              roleRef={"apiGroup": rbac, "kind": "ClusterRole", "name": NAME},
              subjects=[{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]),
        named("Service", "v1", spec={
            "clusterIP": DNS, "selector": {"app": NAME},
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]}),
        named("Deployment", "apps/v1", spec={
            "selector": {"matchLabels": {"app": NAME}},
            "template": {
                "metadata": {"labels": {"app": NAME}},
                "spec": {"serviceAccountName": NAME, "dnsPolicy": "Default", "containers": [{
                    "name": NAME, "image": IMAGE, "imagePullPolicy": "Never",
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1}}]}}}))
    cluster.wait_for_rollout(NAMESPACE, f"deployment/{NAME}")
