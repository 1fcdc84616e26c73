"""Container images without a container engine: archives as `docker save` writes them."""

import hashlib
import io
import json
import platform
import re
import shutil
import tarfile
import tempfile
from pathlib import Path

from lab.shell import run

TOOLS = "strait.test/tools:1"
STRAIT = "docker.io/library/strait:dev"
# The same content under another tag, for upgrades.
NEXT = "docker.io/library/strait:next"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


class Archive:
    """A file with images, as `docker save` writes it."""

    def __init__(self, path, names):
        self.path = path
        self.names = names


def archive(path, configs, root):
    """Writes images of one layer, the content of the folder `root` with its file capabilities, each with its config."""
    with tempfile.NamedTemporaryFile() as layer:
        run("tar", "--format=pax", "--xattrs", "--xattrs-include=security.*", "--owner=0", "--group=0",
            "--numeric-owner", "-C", root, "-cf", layer.name, ".")
        content = Path(layer.name).read_bytes()
    layer_digest = "sha256:" + hashlib.sha256(content).hexdigest()
    files, manifest = {"layer.tar": content}, []
    for name, config in configs.items():
        image = json.dumps({
            "architecture": ARCHITECTURE[platform.machine()], "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        }).encode()
        file = hashlib.sha256(image).hexdigest() + ".json"
        files[file] = image
        manifest.append({"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]})
    files["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(path, "w") as tar:
        for file, data in files.items():
            member = tarfile.TarInfo(file)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return Archive(path, list(configs))


def strait(folder, binary):
    """The image of the Dockerfile: two files, one of them with a capability."""
    with tempfile.TemporaryDirectory() as root:
        programs = Path(root, "usr/local/bin")
        programs.mkdir(parents=True)
        for name in ["strait", "strait-gateway"]:
            shutil.copy(binary, programs / name)
        run("setcap", "cap_net_admin+ep", programs / "strait-gateway")
        config = {
            "User": "65532:65532", "Env": ["PATH=/usr/local/bin"], "Entrypoint": ["/usr/local/bin/strait"],
            "Cmd": ["gateway", "--config", "/etc/strait/gateway.toml"],
        }
        return archive(folder / "strait.tar", {STRAIT: config}, root)


def tools(folder, busybox):
    """Busybox and iperf3. It is the sandbox image too: its first process sleeps."""
    with tempfile.TemporaryDirectory() as root:
        install_busybox(root, busybox)
        install_program(root, "iperf3")
        config = {"Env": ["PATH=/usr/bin:/bin"], "Entrypoint": ["/bin/sleep", "1000000"]}
        return archive(folder / "tools.tar", {TOOLS: config}, root)


def install_busybox(root, busybox):
    for name in ["bin", "tmp", "etc", "usr/bin"]:
        Path(root, name).mkdir(parents=True)
    Path(root, "tmp").chmod(0o1777)
    shutil.copy(busybox, Path(root, "bin/busybox"))
    for applet in run(busybox, "--list").split():
        if applet != "busybox":
            Path(root, "bin", applet).symlink_to("busybox")


def install_program(root, name):
    """Copies a program of this machine, and its libraries."""
    program = shutil.which(name)
    shutil.copy(program, Path(root, "usr/bin", name))
    for library in re.findall(r"/\S+", run("ldd", program)):
        target = Path(root, library.lstrip("/"))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
