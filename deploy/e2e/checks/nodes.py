"""A cluster of two nodes, and another key."""

import json
import time

from lab.outage import brief
from lab.report import check
from lab.shell import require, run, wait_until
from lab.traffic import Pings, ping, throughput
from lab.world import CHART, NAMESPACE, tenant, workload

# A key is replaced in both clusters within three minutes; the former one is valid that long (manual, "Key rotation").
GRACE_S = 180


@check("pods of a second node reach the other cluster", is_quick=False)
def second_node(world):
    rome = world.rome
    node = rome.add_node()
    rome.apply(workload(node.name))
    rome.kubectl("--namespace", NAMESPACE, "wait", "--for=condition=ready", f"pod/pod-{node.name}", "--timeout=60s")
    pod, target = world.pod(rome, f"pod-{node.name}"), world.target(rome, world.milan)
    wait_until(f"{target} answers {node.name}", lambda: ping(pod, target))
    back = world.target(world.milan, rome, f"pod-{node.name}")
    wait_until(f"{back} answers", lambda: ping(world.pod(world.milan), back))
    return f"{throughput(pod, target, 4):.0f} Mb/s by {route(node, target)}"


@check("VXLAN between nodes replaces direct routes", is_quick=False)
def vxlan(world):
    # A node may use it a moment before the agent of the other one is replaced.
    rome = world.rome
    node = rome.nodes[1]
    pod, target = world.pod(rome, f"pod-{node.name}"), world.target(rome, world.milan)
    with Pings(pod, target) as pings:
        rome.helm("upgrade", "strait", CHART, "--namespace", "liqo", "--reset-then-reuse-values",
                  "--set", "nodes.extraArgs={--vxlan=always}")
        rome.wait_for_rollout("liqo", "daemonset/strait-node")
        wait_until("the route uses VXLAN", lambda: "strait-vxlan" in route(node, target))
        time.sleep(2)
        outage = brief(pings.stop())
    return f"{outage}; {throughput(pod, target, 4):.0f} Mb/s by {route(node, target)}"


def route(node, target):
    """The device of the node's route to an address."""
    words = node.run("ip", "route", "get", target, "from", node.pod_prefixes[0].split("/")[0][:-1] + "9", "iif",
                     "cni0").split()
    return words[words.index("dev") + 1]


@check("another key costs no packet", is_quick=False)
def another_key(world):
    rome, milan = world.ways[0]
    with Pings(world.pod(rome), world.target(rome, milan)) as pings:
        start = time.monotonic()
        before = public_key(milan)
        private = run(world.binary, "key", "generate")
        public = run(world.binary, "key", "public", "/dev/stdin", stdin=private)
        patch = json.dumps({"data": {"privateKey": private, "publicKey": public}})
        rome.kubectl("--namespace", tenant(milan), "patch", "secret", "gw-milan", "--type=merge", f"--patch={patch}")
        world.network("connect", "--gw-server-service-type", "NodePort", "--wait")
        wait_until("Milan has the new key", lambda: public_key(milan) != before)
        time.sleep(GRACE_S + 10 - (time.monotonic() - start))
        outage = pings.stop()
    require(outage.lost == 0, str(outage))
    return f"{outage} in {time.monotonic() - start:.0f} s"


def public_key(cluster):
    """Of the other cluster, as `cluster` knows it."""
    items = cluster.get("publickeies.networking.liqo.io", "--namespace", "liqo-tenant-rome")["items"]
    return items[0]["spec"]["publicKey"]
