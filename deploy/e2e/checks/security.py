"""Pod Security, as deploy/README.md promises it."""

import re

from lab.report import check
from lab.shell import require, status, wait_until
from lab.world import tenant

ENFORCE = "pod-security.kubernetes.io/enforce"


@check("the operator meets Pod Security restricted")
def operator_is_restricted(world):
    cluster = world.rome
    _, said = status(*cluster.command("kubectl", "label", "--dry-run=server", "--overwrite", "namespace", "liqo",
                                      f"{ENFORCE}=restricted"))
    require("strait-node" in said, f"the agents should be named: {said}")
    require("strait-operator" not in said, said)
    return "the agents alone do not"


@check("a gateway is refused by baseline, and check says so", is_quick=False)
def gateway_is_refused(world):
    cluster, other = world.ways[0]
    namespace = tenant(other)
    cluster.kubectl("label", "namespace", namespace, f"{ENFORCE}=baseline")
    try:
        world.gateway(cluster, other).delete()

        def is_named():
            _, said = status(*cluster.command(world.binary, "check"))
            return "PodSecurity" in said and said
        said = wait_until("check names the refusal", is_named, timeout=30)
    finally:
        cluster.kubectl("label", "namespace", namespace, f"{ENFORCE}-")
    wait_until("the gateway is ready", lambda: world.gateway(cluster, other).is_ready, timeout=120)
    world.wait_for_pings()
    return re.search(r'violates PodSecurity "[^"]*"', said)[0]
