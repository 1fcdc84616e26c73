"""Two clusters with genuine Liqo in them."""

import time

from lab import dns, liqo
from lab.liqo_world import PULL_POLICY, PULL_POLICY_BINDING
from lab.report import check
from lab.world import NAMESPACE, workload


@check("two clusters of two nodes start", is_needed=True)
def clusters_start(world):
    def start(cluster):
        cluster.start()
        dns.install(cluster)
        second = cluster.add_node()
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
                      PULL_POLICY, PULL_POLICY_BINDING)
        cluster.apply(workload(), workload(name="node"), workload(second.name))
        cluster.kubectl("--namespace", NAMESPACE, "wait", "--for=condition=ready", "pod", "--all", "--timeout=60s")
    world.at_once(start)
    return f"{time.monotonic() - world.begin:.0f} s with images"


@check("the kernel has Geneve")
def kernel_has_geneve(_):
    if liqo.has_geneve():
        return "Liqo is unmodified"
    return ("NO: Liqo's containers `geneve` and `fabric` make VXLAN devices in the place of Geneve devices "
            "(deploy/e2e/liqo/geneve); everything else of Liqo is unmodified")


@check("Liqo is installed with its chart", is_needed=True)
def liqo_installs(world):
    start = time.monotonic()

    def install(cluster):
        world.install_liqo(cluster)
        world.apply_templates(cluster)
    world.at_once(install)
    return f"Liqo {liqo.version()}, ready after {time.monotonic() - start:.1f} s"
