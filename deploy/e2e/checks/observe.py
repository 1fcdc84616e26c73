"""Probes, metrics, alerts, logs and the audit log."""

import json
import re
import sys
import textwrap
from collections import Counter
from datetime import datetime

from lab.programs import PROJECT
from lab.report import check
from lab.shell import require, run, wait_until

# Port and path of each component (manual, "Ports").
PATHS = {
    "gateway": [(8084, "/metrics"), (8085, "/healthz"), (8085, "/readyz")],
    "operator": [(8082, "/metrics"), (8083, "/healthz"), (8083, "/readyz")],
    "node": [(9483, "/metrics")],
}

# An API server answers before it has read the roles. It has read them after this time.
STARTING_S = 10


def pods_of(world, cluster, component):
    other = world.milan if cluster is world.rome else world.rome
    if component == "gateway":
        return [world.gateway(cluster, other)]
    return cluster.pods("liqo", f"app.kubernetes.io/name=strait-{component}")


def fetch(pod, address, port, path):
    """The body of an answer with status 200, to a client in the network of the pod."""
    return run(*pod.inside(*get(f"http://{address}:{port}{path}")))


def get(url):
    """The command line that prints the body of an answer with status 200."""
    program = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=5).read().decode())"
    return [sys.executable, "-c", program, url]


@check("each probe and metrics path answers")
def paths(world):
    count = 0
    for cluster in world.clusters:
        for component, wanted in PATHS.items():
            for pod in pods_of(world, cluster, component):
                for port, path in wanted:
                    body = fetch(pod, pod.addresses[0], port, path)
                    require(path != "/metrics" or body.endswith("# EOF"), f"{component}: {path}: {body[-200:]}")
                    count += 1
        for pod in pods_of(world, cluster, "node"):
            for path in ("/healthz", "/readyz"):
                fetch(pod, "127.0.0.1", 9484, path)
                count += 1
    return f"{count} answers"


@check("a running Prometheus has all targets up and no alert")
def prometheus(world):
    found = []
    for cluster in world.clusters:
        folder = cluster.control.folder / "prometheus"
        folder.mkdir(exist_ok=True)
        targets = [{"targets": [f"{pod.addresses[0]}:{PATHS[component][0][0]}"],
                    "labels": {"job": f"strait-{component}", "namespace": pod.namespace, "pod": pod.name,
                               "node": pod.node.name}}
                   for component in PATHS for pod in pods_of(world, cluster, component)]
        (folder / "targets.json").write_text(json.dumps(targets))
        # A PrometheusRule has in `spec` what a file of rules has.
        _, rules = (PROJECT / "deploy/alerts/strait.yaml").read_text().split("\nspec:\n")
        (folder / "rules.yml").write_text(textwrap.dedent(rules))
        (folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [str(folder / "rules.yml")],
            "scrape_configs": [{"job_name": "strait", "file_sd_configs": [{"files": [str(folder / "targets.json")]}]}],
        }))
        cluster.control.spawn("prometheus", [
            "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
            "--web.listen-address=127.0.0.1:9999"])
        try:
            wait_until("all targets are up", lambda: all_up(cluster, len(targets)), timeout=30)
            rules = [rule for group in query(cluster, "rules")["groups"] for rule in group["rules"]]
            unsound = [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] == "err"]
            firing = [rule["name"] for rule in rules if rule.get("state") == "firing"]
            require(rules and not unsound and not firing, f"{cluster.name}: {unsound}, firing: {firing}")
        finally:
            cluster.control.end("prometheus")
        found.append(f"{cluster.name} {len(targets)} targets, {len(rules)} rules")
    return ", ".join(found)


def query(cluster, path):
    return json.loads(cluster.control.run(*get(f"http://127.0.0.1:9999/api/v1/{path}")))["data"]


def all_up(cluster, count):
    targets = query(cluster, "targets")["activeTargets"]
    return len(targets) == count and all(target["health"] == "up" for target in targets)


@check("no request was refused, and each names its component")
def audit(world):
    count, early, late, refused, unnamed = 0, 0, 0, Counter(), Counter()
    for cluster in world.clusters:
        granted, early_refused, removed = set(), Counter(), set()
        for line in cluster.audit_log.read_text().splitlines():
            event = json.loads(line)
            user = event["user"]["username"]
            note_rights(event, removed)
            if not is_ours(user):
                continue
            count += 1
            code = event.get("responseStatus", {}).get("code", 0)
            asked = f"{user} {event['verb']} {resource(event) or event['requestURI']}"
            if code == 403 and has_just_started(cluster, event):
                early_refused[asked] += 1
            elif code == 403 and event["verb"] == "get" and resource(event) == "leases" and user in removed:
                late += 1
            elif code in (401, 403):
                refused[f"{code} {asked}"] += 1
            else:
                granted.add(asked)
            if not re.fullmatch(r"strait/\S+ \(.+\)", event.get("userAgent", "")):
                unnamed[f"{asked}: {event.get('userAgent')}"] += 1
        # A right that was granted at another time is not missing.
        early += sum(times for asked, times in early_refused.items() if asked in granted)
        refused.update({f"403 {asked}": times for asked, times in early_refused.items() if asked not in granted})
    require(not refused, f"refused: {dict(refused)}")
    require(not unnamed, f"without User-Agent: {dict(unnamed.most_common(5))}")
    return (
        f"{count} requests"
        + (f", {early} of them to an API server that had not read its roles yet" if early else "")
        + (f", {late} of removed gateways for their Leases" if late else "")
    )


def note_rights(event, removed):
    """Notes in `removed` the service account of a gateway whose RoleBinding is deleted, until it has one again.

    The garbage collector deletes it together with the Deployment: a removed gateway cannot release its Lease.
    """
    about = event.get("objectRef", {})
    if about.get("resource") != "rolebindings" or event.get("responseStatus", {}).get("code", 0) >= 300:
        return
    namespace, prefix = about.get("namespace"), f"strait-gateway-{about.get('namespace')}-"
    if not about.get("name", "").startswith(prefix):
        return
    account = f"system:serviceaccount:{namespace}:{about['name'].removeprefix(prefix)}"
    if event["verb"] == "delete":
        removed.add(account)
    elif event["verb"] in ("create", "patch", "update"):
        removed.discard(account)


def resource(event):
    return event.get("objectRef", {}).get("resource")


def has_just_started(cluster, event):
    """Whether the API server may not have read the roles."""
    received = datetime.fromisoformat(event["requestReceivedTimestamp"].replace("Z", "+00:00")).timestamp()
    return any(0 <= received - start <= STARTING_S for start in cluster.api_server_starts)


def is_ours(user):
    return re.match(r"system:serviceaccount:(liqo:strait-|liqo-tenant-)", user)


@check("no log has a warning")
def logs(world):
    warnings, lines = Counter(), 0
    for cluster in world.clusters:
        # The files of all containers that the kubelets keep, also of those that ended.
        for node in cluster.nodes:
            for path in sorted((node.folder / "var/log/pods").glob("liqo*/*/*.log")):
                for line in path.read_text(errors="replace").splitlines():
                    lines += 1
                    if text := warning(line):
                        warnings[f"{path.parent.name}: {text}"] += 1
    require(not warnings, "\n".join(f"{count} × {text}" for text, count in warnings.most_common(20)))
    return f"{lines} lines"


def warning(line):
    """The text of a line of the CRI's format that is a warning or an error; otherwise `None`."""
    text = line.split(" ", 3)[-1]
    if not re.search(r"\b(WARN|ERROR)\b|panicked", text):
        return None
    try:
        entry = json.loads(text)
        text = f"{entry['level']} {entry.get('message', '')} " + " ".join(
            f"{key}={value}" for key, value in entry.items()
            if key not in ("level", "message", "timestamp", "target"))
    except ValueError:
        text = re.sub(r"^\S+Z\s+", "", re.sub(r"\x1b\[[0-9;]*m", "", text))
    return text
