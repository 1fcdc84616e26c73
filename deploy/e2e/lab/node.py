"""A node: a network, mounts and processes of its own on this machine, and the programs that run there."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

from lab.shell import Failed, run, wait_until

PREFIX = "strait-e2e-"
LAN = PREFIX + "lan"
CGROUPS = Path("/sys/fs/cgroup")
V1_HIERARCHIES = ["blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids", "systemd"]


def is_cgroup_v2():
    return (CGROUPS / "cgroup.controllers").exists()


def make_lan():
    """The network between the nodes: a bridge in a namespace. Commands of administrators run there."""
    run("ip", "netns", "add", LAN)
    for command in ["link set lo up", "link add lan type bridge", "addr add 172.31.0.1/24 dev lan",
                    "addr add fd31::1/64 dev lan nodad", "link set lan up"]:
        run("ip", "-n", LAN, *command.split())


def remove_all():
    """Ends all nodes and removes what they left, also after an interrupted run."""
    for namespace in run("ip", "netns", "list").splitlines():
        name = namespace.split()[0]
        if name.startswith(PREFIX):
            for pid in run("ip", "netns", "pids", name, check=False).split():
                kill(int(pid), signal.SIGKILL)
            run("ip", "netns", "delete", name)
    for folder in CGROUPS.glob(f"*/{PREFIX}*") if not is_cgroup_v2() else CGROUPS.glob(f"{PREFIX}*"):
        remove_cgroup(folder)


def kill(pid, with_signal):
    try:
        os.kill(pid, with_signal)
    except ProcessLookupError:
        pass


def remove_cgroup(folder):
    for path, _, _ in os.walk(folder, topdown=False):
        def is_removed(path=path):
            # Tasks leave a group a moment after they ended.
            try:
                os.rmdir(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise Failed(f"{path}: {error}") from error
            return True
        wait_until(f"{path} is removed", is_removed, timeout=10)


class Node:
    """A node with the number `number` in its cluster. `folder` survives a reboot, as a disk does."""

    def __init__(self, name, number, addresses, folder, programs):
        self.name = name
        self.number = number
        self.addresses = addresses
        self.folder = folder
        self.programs = programs
        self.first = None
        self.init = None

    @property
    def namespace(self):
        return PREFIX + self.name

    @property
    def pod_prefixes(self):
        """Of the pods of this node; the controller manager gives it the same."""
        return [f"10.244.{self.number - 1}.0/24", f"fd00:10:244:{self.number - 1:x}::/64"]

    def start(self):
        """Connects it to the network and starts its first process."""
        network = self.namespace
        run("ip", "netns", "add", network)
        run("ip", "-n", network, "link", "add", "eth0", "type", "veth", "peer", "name", self.name, "netns", LAN)
        run("ip", "-n", LAN, "link", "set", self.name, "master", "lan", "up")
        run("ip", "-n", network, "link", "set", "lo", "up")
        run("ip", "-n", network, "link", "set", "eth0", "up")
        for address in self.addresses:
            is_v6 = ":" in address
            length, more = ("64", ["nodad"]) if is_v6 else ("24", [])
            run("ip", "-n", network, "addr", "add", f"{address}/{length}", "dev", "eth0", *more)
            gateway = "fd31::1" if is_v6 else "172.31.0.1"
            run("ip", "-n", network, "route", "add", "default", "via", gateway)
        run("nsenter", f"--net=/run/netns/{network}", "sysctl", "-qw", "net.ipv4.ip_forward=1",
            "net.ipv6.conf.all.forwarding=1")
        # The others still know the link address that it had before a reboot, until they hear from it.
        wait_until(f"{self.name} reaches its network", lambda: run(
            "nsenter", f"--net=/run/netns/{network}", "ping", "-c", 1, "-W", 1, "172.31.0.1"))
        self.make_cgroups()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log").mkdir(exist_ok=True)
        command = [
            "nsenter", f"--net=/run/netns/{network}", "unshare", "--mount", "--pid", "--fork", "--uts", "--ipc",
            "--kill-child", "--propagation", "private",
            Path(__file__).with_name("node-init"), self.folder, self.name, self.addresses[0],
        ]
        with open(self.log("init"), "w") as log:
            # In a session of its own: Ctrl-C ends the run, which then removes its nodes.
            self.first = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                                          start_new_session=True)
        if self.first.stdout.readline() != "ready\n":
            raise Failed(f"node {self.name} did not start")
        # The pid of the node's first process, as this machine sees it.
        self.init = int(Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children").read_text())

    def stop(self):
        """Ends all its processes at once, as a power failure does."""
        if self.init is None:
            return
        # Before the processes end, as their kernel would still close their connections. With the namespace the link would
        # be deleted a moment later.
        run("ip", "-n", LAN, "link", "delete", self.name)
        kill(self.init, signal.SIGKILL)
        self.first.wait()
        self.init = None
        run("ip", "netns", "delete", self.namespace)
        remove_all_cgroups_of(self.namespace)

    def add_route(self, other):
        """To the pods of another node of the cluster, as the routes of a CNI plugin."""
        for prefix, address in zip(other.pod_prefixes, other.addresses):
            run("ip", "-n", self.namespace, "route", "replace", prefix, "via", address)

    def inside(self, *command):
        """The command line that runs a command on this node."""
        return ["nsenter", "--target", str(self.init), "--mount", "--pid", "--net", "--uts", "--ipc", *map(str, command)]

    def run(self, *command, **more):
        return run(*self.inside(*command), env=self.programs.environment, **more)

    def spawn(self, name, command):
        """Starts a program of the node; its output is added to a log."""
        with open(self.log(name), "a") as log:
            # In a session of its own: signals for the tests are not for it.
            subprocess.Popen(self.inside(*command), env=self.programs.environment, start_new_session=True,
                             stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def log(self, name):
        return self.folder / "log" / f"{name}.log"

    def processes(self, name):
        """The pids, as this machine sees them, of the processes of the node with this program name."""
        namespace = os.readlink(f"/proc/{self.init}/ns/pid")
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                # Containers have pid namespaces of their own below that of the node.
                if os.readlink(folder / "ns/pid") == namespace:
                    program = (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
                    if os.path.basename(program) == name:
                        found.append(int(folder.name))
            except OSError:
                continue
        return found

    def end(self, name, with_signal=signal.SIGTERM):
        """Ends a program, as a service manager does, and waits for its end."""
        for pid in self.processes(name):
            kill(pid, with_signal)
        wait_until(f"{name} of {self.name} ends", lambda: not self.processes(name), timeout=30)

    def make_cgroups(self):
        if is_cgroup_v2():
            (CGROUPS / self.namespace).mkdir(exist_ok=True)
            return
        for hierarchy in V1_HIERARCHIES:
            if (CGROUPS / hierarchy).is_dir():
                (CGROUPS / hierarchy / self.namespace).mkdir(exist_ok=True)
        for name in ["cpuset.cpus", "cpuset.mems"]:
            shutil.copyfile(CGROUPS / "cpuset" / name, CGROUPS / "cpuset" / self.namespace / name)


def remove_all_cgroups_of(name):
    folders = [CGROUPS / name] if is_cgroup_v2() else CGROUPS.glob(f"*/{name}")
    for folder in folders:
        if folder.exists():
            remove_cgroup(folder)


def container_pid(container_id):
    """The pid, as this machine sees it, of the first process of a container."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if container_id in (folder / "cgroup").read_text():
                pids.append(int(folder.name))
        except OSError:
            continue
    if not pids:
        raise Failed(f"no process is in container {container_id}")
    return min(pids)
