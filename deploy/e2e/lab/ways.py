"""Which gateway carries packets, if a peering has several."""

from lab.shell import Failed

GATEWAY = "networking.liqo.io/component=gateway"
NAME = "networking.liqo.io/gateway-name"


def carrier(cluster, pods, source, target):
    """Of the gateways `pods` of `cluster` the one to which packets of the pod `source` to the address `target` go."""
    node, device = source.node, "cni0"
    # To the node of the gateway first, if that is another one.
    for _ in cluster.nodes:
        words = node.run("ip", "route", "get", target, "from", source.addresses[0], "iif", device).split()
        hop = words[words.index("via") + 1] if "via" in words else None
        for pod in pods:
            if hop in pod.addresses:
                return pod
        node = next((other for other in cluster.nodes if hop in other.addresses), None)
        if node is None:
            break
        device = "eth0"
    raise Failed(f"no gateway of {cluster.name} carries packets to {target}: {' '.join(words)}")


def counterpart(pod, cluster, other):
    """The name of the gateway of `other` at the other end of that of `cluster` in `pod`."""
    return pod.item["metadata"]["labels"][NAME].replace(other.name, cluster.name, 1)
