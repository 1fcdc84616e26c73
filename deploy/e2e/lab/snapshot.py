"""What is in the clusters and on their nodes, to be compared."""

import json


def objects(cluster):
    """All objects of a cluster by kind, namespace and name, but for those that come and go by themselves."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "--output=name").split()
    passing = ("events", "leases", "endpoints", "endpointslices", "componentstatuses", "pods.metrics")
    names = [kind for kind in kinds if kind.split(".")[0] not in passing]
    columns = "custom-columns=K:.kind,NS:.metadata.namespace,N:.metadata.name"
    lines = cluster.kubectl("get", ",".join(names), "--all-namespaces", "--no-headers", "--ignore-not-found",
                            f"--output={columns}").splitlines()
    return {" ".join(line.split()) for line in lines if " kube-root-ca.crt" not in line}


def host(node):
    """What Strait could have left on a node."""
    found = {f"link {link['ifname']}" for link in json.loads(node.run("ip", "-json", "link"))
             if not link["ifname"].startswith("veth")}
    for family in ("-4", "-6"):
        found |= {f"rule {family} {line.strip()}" for line in node.run("ip", family, "rule").splitlines()}
        found |= {f"route {family} {line.strip()}" for line in node.run(
            "ip", family, "route", "show", "table", "all", "proto", "83").splitlines()}
    found |= {line for line in node.run("nft", "list", "tables").splitlines()}
    found |= {f"sysctl {line}" for line in node.run("sh", "-c", (
        "cd /proc/sys/net/ipv4/conf; for i in all default eth0 cni0; do for k in rp_filter send_redirects; do "
        "echo $i/$k=$(cat $i/$k); done; done")).splitlines()}
    return found


def snapshot(world):
    return ({cluster.name: objects(cluster) for cluster in world.clusters},
            {node.name: host(node) for cluster in world.clusters for node in cluster.nodes})
