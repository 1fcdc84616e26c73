"""The programs of the clusters: built from their Go modules, or unpacked from the distribution's packages.

Nothing is installed: all of it is below the cache of the user, keyed by what it is made of.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from lab.shell import Failed, run

PROJECT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strait"
MODULE = PROJECT / "control/lab/apiserver"

# The programs of each package of the Go module: one binary, which acts by its name. The tests of the workspace need
# the first ones.
GO_PACKAGES_OF_TESTS = {
    ".": ["kube-apiserver", "etcd", "kubectl"],
    "helm.sh/helm/v3/cmd/helm": ["helm"],
}
GO_PACKAGES = GO_PACKAGES_OF_TESTS | {
    "./node": ["kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"],
}

# Of the distribution: the runtime of containers, what the CNI plugins call, and the content of test images.
PACKAGES = [
    "busybox-static", "conntrack", "containerd", "containernetworking-plugins", "iptables", "libip4tc2", "libip6tc2",
    "libmnl0", "libnetfilter-conntrack3", "libnfnetlink0", "libnftnl11", "libseccomp2", "libxtables12", "prometheus",
    "runc",
]


def go_folder():
    """Where the Go programs are; the tests of the workspace share the folder (control/lab/src/programs.rs)."""
    return cache_folder("apiserver", [MODULE / name for name in ["go.mod", "go.sum", "main.go", "node/main.go"]])


def are_cached():
    """Whether nothing has to be built or fetched."""
    names = [names[0] for names in GO_PACKAGES.values()]
    return all((go_folder() / name).exists() for name in names) and packages_folder().exists()


def packages_folder():
    release = run("sh", "-c", ". /etc/os-release; echo $ID$VERSION_ID")
    digest = hashlib.sha256(" ".join([release, *PACKAGES]).encode())
    return CACHE / f"packages-{digest.hexdigest()[:16]}"


class Programs:
    """All programs; `environment` finds them, and their libraries."""

    def __init__(self):
        self.go = build_go()
        self.root = unpack()
        libraries = next((self.root / "usr/lib").glob("*-linux-gnu"))
        path = [self.go, self.root / "links", self.root / "usr/bin", self.root / "usr/sbin", os.environ["PATH"],
                "/usr/sbin", "/sbin"]
        self.environment = dict(
            os.environ,
            PATH=":".join(map(str, path)),
            LD_LIBRARY_PATH=str(libraries),
            XTABLES_LIBDIR=str(libraries / "xtables"),
        )

    def busybox(self):
        found = [path for path in (self.root / "bin/busybox", self.root / "usr/bin/busybox") if path.exists()]
        return found[0]


def build_go(packages=None):
    folder = go_folder()
    with locked(folder):
        for package, names in (packages or GO_PACKAGES).items():
            go_build(MODULE, linker_flags(), folder / names[0], package)
            for other in names[1:]:
                link = folder / other
                if not link.exists():
                    link.symlink_to(names[0])
    return folder


@contextlib.contextmanager
def locked(folder):
    """Makes a folder and locks it: only one process builds there."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def go_build(module, flags, output, *words):
    """Builds packages of a Go module into a file, or a folder if there are several; does nothing if that exists."""
    if output.exists():
        return
    print(f"building {output.name} in {module.relative_to(PROJECT)}; without a cache that takes minutes", flush=True)
    unfinished = output.with_suffix(".unfinished")
    if len(words) > 1:
        unfinished.mkdir(exist_ok=True)
    command = ["go", "build", "-mod=readonly", f"-ldflags={flags}", "-o", unfinished, *words]
    if subprocess.run(command, cwd=module, env=go_environment()).returncode != 0:
        raise Failed(f"go build in {module} failed")
    unfinished.rename(output)


def go_environment():
    return dict(os.environ, CGO_ENABLED="0", GOFLAGS="-buildvcs=false")


def cache_folder(name, files, *more):
    """The folder below the cache for what is made of these files."""
    digest = hashlib.sha256("".join(more).encode())
    for path in files:
        digest.update(path.read_bytes())
    return CACHE / f"{name}-{digest.hexdigest()[:16]}"


def linker_flags():
    """Without debug information, and with the version, which kubelet and API server report."""
    version = run("sed", "-n", r"s/^\tk8s.io\/kubernetes v/v/p", MODULE / "go.mod")
    return f"-s -w -X k8s.io/component-base/version.gitVersion={version}"


def unpack():
    folder = packages_folder()
    if folder.exists():
        return folder
    print("fetching containerd, runc, CNI plugins and Prometheus of the distribution", flush=True)
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    archives = unfinished / "archives"
    archives.mkdir(parents=True)
    download = subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=archives, capture_output=True, text=True)
    if download.returncode != 0:
        raise Failed(f"apt-get download {' '.join(PACKAGES)}: {download.stderr}")
    for archive in archives.iterdir():
        run("dpkg-deb", "--extract", archive, unfinished)
    shutil.rmtree(archives)
    # As `update-alternatives` would have it.
    links = unfinished / "links"
    links.mkdir()
    for name in ["iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"]:
        (links / name).symlink_to("../usr/sbin/xtables-nft-multi")
    unfinished.rename(folder)
    return folder
