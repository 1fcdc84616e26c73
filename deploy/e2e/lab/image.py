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


def archive(path, name, config, root):
    """Writes an image of one layer, the content of the folder `root`, with its file capabilities."""
    with tempfile.NamedTemporaryFile() as layer:
        run("tar", "--format=pax", "--xattrs", "--xattrs-include=security.*", "--owner=0", "--group=0",
            "--numeric-owner", "-C", root, "-cf", layer.name, ".")
        content = Path(layer.name).read_bytes()
    image = json.dumps({
        "architecture": ARCHITECTURE[platform.machine()], "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(content).hexdigest()]},
    }).encode()
    image_name = hashlib.sha256(image).hexdigest() + ".json"
    manifest = [{"Config": image_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        for file, data in [("layer.tar", content), (image_name, image), ("manifest.json", json.dumps(manifest).encode())]:
            member = tarfile.TarInfo(file)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


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
        archive(folder / "strait.tar", STRAIT, config, root)


def tools(folder, busybox):
    """Busybox and iperf3. It is the sandbox image too: its first process sleeps."""
    with tempfile.TemporaryDirectory() as root:
        for name in ["bin", "tmp", "etc", "usr/bin"]:
            Path(root, name).mkdir(parents=True)
        Path(root, "tmp").chmod(0o1777)
        shutil.copy(busybox, Path(root, "bin/busybox"))
        for applet in run(busybox, "--list").split():
            if applet != "busybox":
                Path(root, "bin", applet).symlink_to("busybox")
        iperf3 = shutil.which("iperf3")
        shutil.copy(iperf3, Path(root, "usr/bin/iperf3"))
        for library in re.findall(r"/\S+", run("ldd", iperf3)):
            target = Path(root, library.lstrip("/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
        config = {"Env": ["PATH=/usr/bin:/bin"], "Entrypoint": ["/bin/sleep", "1000000"]}
        archive(folder / "tools.tar", TOOLS, config, root)
