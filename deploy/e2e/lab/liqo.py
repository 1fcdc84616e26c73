"""Liqo: the programs of its published Go module, and its own chart."""

import re
import shutil
import tempfile
from pathlib import Path

from lab import image
from lab.programs import PROJECT, cache_folder, go_build, go_environment, locked
from lab.shell import run, status

MODULE = PROJECT / "deploy/e2e/liqo"
LIQO = "github.com/liqotech/liqo"
# The package of Liqo that makes Geneve devices, and what replaces it on a kernel without Geneve.
GENEVE = "pkg/utils/network/geneve"
REPLACEMENT = [MODULE / "geneve/netlink.go", MODULE / "geneve/tap.go"]
REGISTRY = "ghcr.io/liqotech"
# Names of programs whose images have another one.
IMAGES = {"wireguard": "gateway/wireguard", "geneve": "gateway/geneve"}


def has_geneve():
    """Whether the kernel has Geneve; it tries, in a network namespace of its own."""
    code, _ = status("unshare", "--net", "ip", "link", "add", "test", "type", "geneve", "id", 1, "remote", "127.0.0.1")
    return code == 0


def version():
    return run("sed", "-n", rf"s,^\t{LIQO} \(v[^ ]*\).*,\1,p", MODULE / "go.mod")


def packages():
    """The `tool` lines of go.mod."""
    return re.findall(rf"^\t({LIQO}/cmd/\S+)$", (MODULE / "go.mod").read_text(), re.MULTILINE)


def folder():
    return cache_folder("liqo", [MODULE / "go.mod", MODULE / "go.sum", *REPLACEMENT], str(has_geneve()))


def are_cached():
    return (folder() / "bin").exists()


class Programs:
    """Liqo's programs, by name, and its chart."""

    def __init__(self):
        self.bin = build()
        self.source = source()
        self.chart = self.source / "deployments/liqo"
        self.liqoctl = self.bin / "liqoctl"

    def archive(self):
        """The images of all programs, written once: one layer, and the program that each of them starts."""
        programs = [program for program in self.bin.iterdir() if program.name != "liqoctl"]
        configs = {
            f"{REGISTRY}/{IMAGES.get(program.name, program.name)}:{version()}":
                {"Entrypoint": [f"/usr/bin/{program.name}"], "Env": ["PATH=/usr/bin"]}
            for program in programs
        }
        path = folder() / "images.tar"
        if not path.exists():
            with tempfile.TemporaryDirectory() as root:
                target = Path(root, "usr/bin")
                target.mkdir(parents=True)
                Path(root, "tmp").mkdir()
                Path(root, "tmp").chmod(0o1777)
                for program in programs:
                    shutil.copy(program, target)
                unfinished = path.with_suffix(".unfinished")
                image.archive(unfinished, configs, root)
            unfinished.rename(path)
        return image.Archive(path, list(configs))


def source():
    run("go", "mod", "download", LIQO, env=go_environment(), cwd=MODULE)
    return Path(run("go", "list", "-m", "-f", "{{.Dir}}", LIQO, env=go_environment(), cwd=MODULE))


def build():
    output = folder() / "bin"
    with locked(folder()):
        if not output.exists():
            modfile = [] if has_geneve() else [f"-modfile={without_geneve(folder())}"]
            flags = f"-s -w -X {LIQO}/pkg/liqoctl/version.LiqoctlVersion={version()}"
            go_build(MODULE, flags, output, *modfile, *packages())
    return output


def without_geneve(target):
    """A go.mod that takes Liqo from a copy in which other devices take the place of Geneve devices."""
    copy = target / "source"
    if not copy.exists():
        shutil.copytree(source(), copy)
        run("chmod", "--recursive", "u+w", copy)
    for file in REPLACEMENT:
        shutil.copy(file, copy / GENEVE)
    modfile = target / "go.mod"
    modfile.write_text(f"{(MODULE / 'go.mod').read_text()}\nreplace {LIQO} => {copy}\n")
    shutil.copyfile(MODULE / "go.sum", target / "go.sum")
    return modfile
