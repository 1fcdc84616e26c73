"""From nothing to the first ping, by the commands of the README."""

import time

from lab.cluster import PODS, SERVICES
from lab.report import check
from lab.shell import require, wait_until
from lab.snapshot import snapshot
from lab.traffic import ping
from lab.world import CHART, INSTALLED, NAMESPACE, workload

LIMIT_S = 60


@check("two clusters start", is_needed=True)
def clusters_start(world):
    def start(cluster):
        cluster.start()
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        cluster.apply(workload(), workload(name="node"))
        cluster.kubectl("--namespace", NAMESPACE, "wait", "--for=condition=ready", "pod", "--all", "--timeout=60s")
    world.at_once(start)
    world.before = snapshot(world)
    return f"{time.monotonic() - world.begin:.0f} s with images"


@check("the chart is installed with Helm", is_needed=True)
def helm_installs(world):
    start = time.monotonic()

    def install(cluster):
        cluster.helm("install", "strait", CHART, "--namespace", "liqo", "--create-namespace",
                     "--set", f"networks.pod={{{PODS}}}", "--set", f"networks.service={{{SERVICES}}}")
        cluster.wait_for_rollout("liqo", *INSTALLED)
    world.at_once(install)
    return f"rollouts complete after {time.monotonic() - start:.1f} s"


@check("strait network connect joins the clusters", is_needed=True)
def connects(world):
    start = time.monotonic()
    said = world.network("connect", "--gw-server-service-type", "NodePort", "--wait")
    require("Connection is established" in said, said)
    return f"{time.monotonic() - start:.1f} s"


@check("the first ping is answered within a minute")
def first_ping(world):
    pod, target = world.pod(world.rome), world.target(world.rome, world.milan)
    wait_until(f"{target} answers", lambda: ping(pod, target), timeout=20)
    elapsed = time.monotonic() - world.begin
    require(elapsed <= LIMIT_S, f"{elapsed:.0f} s, at most {LIMIT_S} are allowed")
    return f"{elapsed:.0f} s from nothing"
