"""A cluster of real programs: etcd, API server, controllers, scheduler, and on each node containerd, kubelet, proxy."""

import ipaddress
import json
import time
from pathlib import Path

from lab import credentials, image
from lab.node import LAN, Node, container_pid
from lab.shell import Failed, run, wait_until

SERVICES = "10.96.0.0/12,fd00:10:96::/112"
PODS = "10.244.0.0/16,fd00:10:244::/48"
DNS = "10.96.0.10"
MTU = 1500

AUDIT_POLICY = """apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""


class Cluster:
    """Nodes with the programs of a cluster. All clusters have the same prefixes."""

    def __init__(self, name, number, folder, programs, archives):
        self.name = name
        self.number = number
        self.folder = folder / name
        self.programs = programs
        self.archives = archives
        self.api_server_flags = []
        self.api_server_starts = []
        # Pods of a node are numbered from here.
        self.first_pod = 2
        self.nodes = []
        self.credentials = self.folder / "credentials"

    @property
    def control(self):
        return self.nodes[0]

    @property
    def kubeconfig(self):
        return self.credentials / f"{credentials.ADMINISTRATOR}.kubeconfig"

    def new_node(self):
        number = len(self.nodes) + 1
        host = 10 * self.number + number
        addresses = [f"172.31.0.{host}", f"fd31::{host}"]
        name = f"{self.name}-{number}"
        node = Node(name, number, addresses, self.folder / name, self.programs)
        self.nodes.append(node)
        return node

    def start(self):
        """Starts the cluster with one node, and waits until that is ready."""
        node = self.new_node()
        address = node.addresses[0]
        users = {
            credentials.ADMINISTRATOR: "/O=system:masters/CN=admin",
            "controllers": "/CN=system:kube-controller-manager",
            "scheduler": "/CN=system:kube-scheduler",
            "proxy": "/CN=system:kube-proxy",
        }
        for number in (1, 2):
            users[f"kubelet-{number}"] = f"/O=system:nodes/CN=system:node:{self.name}-{number}"
        names = ["IP:" + ip for ip in [*node.addresses, "127.0.0.1", "10.96.0.1", "fd00:10:96::1"]]
        names += ["DNS:" + name for name in ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]]
        credentials.write(self.credentials, self.name, f"https://{address}:6443", names, users)
        node.start()
        self.start_control_plane()
        self.start_workers(node)
        self.kubectl("create", "clusterrolebinding", "e2e-proxy", "--clusterrole=system:node-proxier",
                     "--user=system:kube-proxy")
        self.wait_for_nodes()

    def start_control_plane(self):
        for program in (self.etcd, self.api_server):
            program()
        wait_until(f"the API server of {self.name} is ready", lambda: self.kubectl("get", "--raw", "/readyz") == "ok")
        for program in (self.controllers, self.scheduler):
            program()

    def start_workers(self, node):
        self.containerd(node)
        self.kubelet(node)
        self.proxy(node)

    def add_node(self):
        """Starts another node, and waits until it is ready."""
        node = self.new_node()
        node.start()
        for other in self.nodes[:-1]:
            other.add_route(node)
            node.add_route(other)
        self.start_workers(node)
        self.wait_for_nodes()
        return node

    def reboot(self, node):
        """Ends everything on a node at once, and starts it again with what is on its disk."""
        node.stop()
        node.start()
        for other in self.nodes:
            if other is not node:
                other.add_route(node)
                node.add_route(other)
        if node is self.control:
            self.start_control_plane()
        self.start_workers(node)

    def wait_for_nodes(self):
        def are_ready():
            nodes = self.get("nodes")["items"]
            conditions = [condition for item in nodes for condition in item["status"].get("conditions", [])]
            ready = [condition for condition in conditions if condition["type"] == "Ready"]
            return len(ready) == len(self.nodes) and all(condition["status"] == "True" for condition in ready)
        wait_until(f"the nodes of {self.name} are ready", are_ready)

    def stop(self):
        for node in self.nodes:
            node.stop()

    # The programs.

    def etcd(self):
        self.control.spawn("etcd", [
            "etcd", f"--data-dir={self.control.folder}/etcd", "--unsafe-no-fsync", "--log-level=warn",
            "--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
        ])

    def api_server(self):
        node, files = self.control, self.credentials
        (node.folder / "audit-policy.yaml").write_text(AUDIT_POLICY)
        self.api_server_starts.append(time.time())
        node.spawn("kube-apiserver", [
            "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", f"--advertise-address={node.addresses[0]}",
            "--bind-address=::", "--secure-port=6443", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", f"--client-ca-file={files}/ca.crt",
            f"--tls-cert-file={files}/apiserver.crt", f"--tls-private-key-file={files}/apiserver.key",
            f"--service-cluster-ip-range={SERVICES}", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={files}/accounts.pub", f"--service-account-signing-key-file={files}/accounts.key",
            f"--kubelet-client-certificate={files}/apiserver-kubelet.crt",
            f"--kubelet-client-key={files}/apiserver-kubelet.key", "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged", f"--audit-policy-file={node.folder}/audit-policy.yaml",
            f"--audit-log-path={self.audit_log}", "--audit-log-maxsize=500", *self.api_server_flags,
        ])

    @property
    def audit_log(self):
        return self.control.log("audit")

    def controllers(self):
        files = self.credentials
        self.control.spawn("kube-controller-manager", [
            "kube-controller-manager", *self.kubeconfig_flags("controllers"), "--allocate-node-cidrs",
            f"--cluster-cidr={PODS}", f"--service-cluster-ip-range={SERVICES}", f"--root-ca-file={files}/ca.crt",
            f"--service-account-private-key-file={files}/accounts.key", f"--cluster-signing-cert-file={files}/ca.crt",
            f"--cluster-signing-key-file={files}/ca.key", "--use-service-account-credentials", "--leader-elect=false",
        ])

    def scheduler(self):
        self.control.spawn("kube-scheduler", [
            "kube-scheduler", *self.kubeconfig_flags("scheduler"), "--leader-elect=false"])

    def user(self, name, subject):
        """Makes another user of the cluster; the path of the kubeconfig."""
        server = f"https://{self.control.addresses[0]}:6443"
        return credentials.user(self.credentials, self.name, server, name, subject)

    def kubeconfig_flags(self, user):
        path = self.credentials / f"{user}.kubeconfig"
        return [f"--{purpose}kubeconfig={path}" for purpose in ("", "authentication-", "authorization-")]

    def containerd(self, node):
        network = node.folder / "cni"
        network.mkdir(exist_ok=True)
        (network / "10-e2e.conflist").write_text(json.dumps(cni(node, self.first_pod)))
        config = node.folder / "containerd.toml"
        config.write_text(containerd_config(self.programs.root, network))
        node.spawn("containerd", ["containerd", "--config", config])
        wait_until(f"containerd of {node.name} answers", lambda: node.run("ctr", "version"))
        images = node.run("ctr", "--namespace=k8s.io", "images", "list", "--quiet").splitlines()
        for archive in self.archives:
            if not set(archive.names) <= set(images):
                node.run("ctr", "--namespace=k8s.io", "images", "import", archive.path)
        if image.NEXT not in images:
            node.run("ctr", "--namespace=k8s.io", "images", "tag", image.STRAIT, image.NEXT)

    def kubelet(self, node):
        config = node.folder / "kubelet.yaml"
        config.write_text(json.dumps(kubelet_config(node, self.credentials)))
        node.spawn("kubelet", [
            "kubelet", f"--config={config}", f"--kubeconfig={self.credentials}/kubelet-{node.number}.kubeconfig",
            f"--hostname-override={node.name}", f"--node-ip={','.join(node.addresses)}",
        ])

    def proxy(self, node, mode="nftables"):
        config = node.folder / "proxy.yaml"
        config.write_text(json.dumps({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": mode,
            "clusterCIDR": PODS, "hostnameOverride": node.name,
            "clientConnection": {"kubeconfig": f"{self.credentials}/proxy.kubeconfig"},
            # These belong to the machine, and cannot be written in the network of a node.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }))
        node.spawn("kube-proxy", ["kube-proxy", f"--config={config}"])

    # What administrators do.

    def command(self, program, *words):
        """The command line of a program that reads this cluster's kubeconfig."""
        return ["nsenter", f"--net=/run/netns/{LAN}", program, "--kubeconfig", self.kubeconfig, *words]

    def kubectl(self, *words, **more):
        return run(*self.command("kubectl", *words), env=self.programs.environment, **more)

    def helm(self, *words, **more):
        return run(*self.command("helm", *words), env=self.programs.environment, **more)

    def get(self, *words):
        return json.loads(self.kubectl("get", "--output=json", *words))

    def apply(self, *documents):
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})
        # The account `default` comes a moment after its namespace.
        wait_until("the objects are applied", lambda: self.kubectl("apply", "--filename=-", stdin=text))

    def pod(self, namespace, name):
        return Pod(self, self.get("pod", "--namespace", namespace, name))

    def pods(self, namespace, selector):
        items = self.get("pods", "--namespace", namespace, "--selector", selector)["items"]
        return [Pod(self, item) for item in items if "deletionTimestamp" not in item["metadata"]]

    def wait_for_rollout(self, namespace, *workloads):
        for workload in workloads:
            self.kubectl("--namespace", namespace, "rollout", "status", workload, "--timeout=120s", timeout=130)


class Pod:
    """A pod as it was when it was read."""

    def __init__(self, cluster, item):
        self.cluster = cluster
        self.item = item
        self.namespace = item["metadata"]["namespace"]
        self.name = item["metadata"]["name"]

    @property
    def addresses(self):
        return [entry["ip"] for entry in self.item["status"].get("podIPs", [])]

    @property
    def node(self):
        return next(node for node in self.cluster.nodes if node.name == self.item["spec"]["nodeName"])

    @property
    def is_ready(self):
        conditions = self.item["status"].get("conditions", [])
        return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)

    @property
    def is_active(self):
        """Whether it is the active replica of a gateway."""
        return self.item["metadata"].get("labels", {}).get("networking.liqo.io/active") == "true"

    @property
    def restarts(self):
        return sum(entry["restartCount"] for entry in self.item["status"].get("containerStatuses", []))

    @property
    def pid(self):
        """Of its first container, as this machine sees it."""
        return self.pid_of(0)

    def pid_of(self, number):
        """Of a container, by its number in the pod."""
        name = self.item["spec"]["containers"][number]["name"]
        status = next(one for one in self.item["status"]["containerStatuses"] if one["name"] == name)
        return container_pid(status["containerID"].removeprefix("containerd://"))

    @property
    def forwarding(self):
        """Name and pid of the container of a gateway that forwards; another one is on standby."""
        for number, container in enumerate(self.item["spec"]["containers"]):
            pid = self.pid_of(number)
            if any(name.read_text() == "outbound\n" for name in Path(f"/proc/{pid}/task").glob("*/comm")):
                return container["name"], pid
        raise Failed(f"no container of {self.name} forwards")

    def inside(self, *command):
        """The command line that runs a program of this machine in the network of the pod."""
        return ["nsenter", f"--target={self.pid}", "--net", *map(str, command)]

    def delete(self):
        self.cluster.kubectl("--namespace", self.namespace, "delete", "pod", self.name, "--wait=false")


def cni(node, first_pod):
    ranges = [[{"subnet": prefix, "rangeStart": str(ipaddress.ip_network(prefix)[first_pod])}]
              for prefix in node.pod_prefixes]
    return {"cniVersion": "0.4.0", "name": "e2e", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True, "mtu": MTU,
         "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": ranges,
                  "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": True}},
        # Pods inherit what this machine has, not their node.
        {"type": "tuning", "sysctl": {"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"}},
    ]}


def containerd_config(root, network):
    unused = ["snapshotter.v1.btrfs", "snapshotter.v1.zfs", "snapshotter.v1.devmapper", "snapshotter.v1.aufs",
              "internal.v1.opt", "internal.v1.tracing", "tracing.processor.v1.otlp"]
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = {json.dumps(["io.containerd." + name for name in unused])}
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image.TOOLS}"
  # A machine may lack CAP_SYS_RESOURCE.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{root}/usr/sbin/runc"
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{root}/usr/lib/cni"
    conf_dir = "{network}"
"""


def kubelet_config(node, files):
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True},
                           "x509": {"clientCAFile": f"{files}/ca.crt"}},
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{node.namespace}", "failCgroupV1": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "failSwapOn": False, "localStorageCapacityIsolation": False,
        "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
                         "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
        "resolvConf": f"{node.folder}/etc/resolv.conf", "clusterDNS": [DNS], "clusterDomain": "cluster.local",
        "maxPods": 50,
    }
