//! What a gateway in a cluster and the agent of its node really serve, and whether an expression asks for
//! anything else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::OnceLock;

use strait_lab::Layout;
use strait_lab::process::Process;
use strait_lab::scrape;
use strait_lab::traffic::Ping;
use strait_lab::wait_until;

use crate::deploy::expression::{Matcher, Names, Selector};
use crate::harness::STRAIT;
use crate::harness::require::Need::{Root, Tun};
use crate::harness::require::require;
use crate::kube::fed::{Mode, PATIENCE};
use crate::kube::peering::Peering;

/// Of every sample that Prometheus reads from a pod; `cluster` where it reads several clusters, `gateway` and `node` where
/// the PodMonitor says so, `service` where a ServiceMonitor selects it.
const OF_THE_TARGET: [&str; 8] =
    ["cluster", "gateway", "instance", "job", "namespace", "node", "pod", "service"];

/// Where the agent serves its pages.
const AGENT: &str = "127.0.0.1:9483";

/// Of the kubelet's cAdvisor, which every installation of Prometheus in a cluster reads.
const OF_CADVISOR: [&str; 2] =
    ["container_cpu_usage_seconds_total", "container_memory_working_set_bytes"];

/// By the names of samples: labels and their values.
#[derive(Debug, Default)]
pub(crate) struct Served(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

/// Two joined clusters are asked once for all tests; `None` if there can be none on this machine.
pub(crate) fn served() -> Option<&'static Served> {
    static SERVED: OnceLock<Option<Served>> = OnceLock::new();

    SERVED.get_or_init(ask).as_ref()
}

fn ask() -> Option<Served> {
    let _turn = require(&[Root, Tun])?;
    let peering = Peering::start(&Layout::equal(), Mode::Client)?;
    let ping = Ping::new(peering.target(), 3).run(&peering.rome().pod).unwrap();
    assert!(ping.is_perfect(), "{ping:?}");
    wait_until("a probe was answered", PATIENCE, || {
        Ok(peering.in_rome.metrics().has("strait_peer_probe_rtt_seconds", &[]))
    })
    .unwrap();
    let text = peering.in_rome.get("/metrics");
    // Last: it routes packets away, as no pod here is the gateway.
    let text = text + &of_agent(&peering);
    peering.finish();

    Some(Served::read(&text))
}

/// What the agent of Rome's node serves.
fn of_agent(peering: &Peering) -> String {
    let (rome, folder) = (&peering.rome().gateway, peering.in_rome.folder());
    let node = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"rome"}}"#;
    peering.in_rome.shell(&format!("echo '{node}' | kubectl create --filename=-"));
    let words = [
        format!("KUBECONFIG={}", folder.join("admin").display()),
        STRAIT.to_owned(),
        "node".to_owned(),
        "--node-name=rome".to_owned(),
        format!("--metrics-address={AGENT}"),
    ];
    let env = Path::new("/usr/bin/env");
    let agent = Process::start(rome, "agent", env, words, folder.join("agent")).unwrap();

    let mut text = String::new();
    wait_until("the agent has seen all objects", PATIENCE, || {
        let ask = |path| scrape::get(AGENT.parse().unwrap(), path);
        let is_ready = rome.run(move || ask("/readyz")).is_ok_and(|(status, _)| status == 200);
        if is_ready {
            text = rome.run(move || ask("/metrics"))?.1;
        }
        Ok(is_ready)
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
    agent.stop().unwrap();

    text
}

impl Served {
    /// Reads OpenMetrics text.
    fn read(text: &str) -> Self {
        let mut served = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let names = Names::of(line);
            let [Selector { metric, matchers }] = &names.selectors[..] else {
                panic!("no sample: {line}");
            };
            let labels = served.0.entry(metric.clone()).or_default();
            for Matcher { label, value, .. } in matchers {
                labels.entry(label.clone()).or_default().insert(value.clone());
            }
        }
        // What has no sample yet: its kind of sample is that of all peers.
        let of_a_peer = served.0.get("strait_peer_has_session").cloned().unwrap_or_default();
        for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            if let Some((name, "gauge")) = name.split_once(' ')
                && name.starts_with("strait_peer_")
            {
                served.0.entry(name.to_owned()).or_insert_with(|| of_a_peer.clone());
            }
        }

        served
    }

    /// What there is.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Panics, with all that `expression` asks for and no gateway serves.
    pub(crate) fn assert_has_all_of(&self, expression: &str) {
        let unknown = self.unknown(expression);

        assert!(unknown.is_empty(), "{expression}\nasks for {unknown:#?}");
    }

    fn unknown(&self, expression: &str) -> Vec<String> {
        let names = Names::of(expression);
        let mut unknown = Vec::new();
        for Selector { metric, matchers } in &names.selectors {
            if OF_CADVISOR.contains(&metric.as_str()) {
                continue;
            }
            let Some(labels) = self.0.get(metric) else {
                unknown.push(metric.clone());
                continue;
            };
            for Matcher { label, operator, value } in matchers {
                if OF_THE_TARGET.contains(&label.as_str()) {
                    continue;
                }
                let Some(values) = labels.get(label) else {
                    unknown.push(format!("{metric}{{{label}}}"));
                    continue;
                };
                // A variable of a dashboard has any value.
                let asked = value.split('|').filter(|value| !value.starts_with('$'));
                let absent = asked.filter(|value| !values.contains(*value));
                unknown
                    .extend(absent.map(|value| format!("{metric}{{{label}{operator}{value:?}}}")));
            }
        }
        let is_known = |label: &String| {
            OF_THE_TARGET.contains(&label.as_str())
                || names.made.contains(label)
                || self.0.values().any(|labels| labels.contains_key(label))
        };
        unknown.extend(names.grouping.iter().filter(|label| !is_known(label)).cloned());

        unknown
    }
}

#[test]
fn what_is_not_served_is_found() {
    let served = Served::read(concat!(
        "# TYPE strait_peer_path_mtu_bytes gauge\n",
        "# TYPE strait_drops counter\n",
        "strait_drops_total{direction=\"outbound\",reason=\"no_route\"} 1\n",
        "strait_peer_has_session{peer=\"rome\"} 1\n",
        "# EOF\n",
    ));

    for known in [
        r#"rate(strait_drops_total{reason="no_route",pod=~"$gateway"}[5m]) > 0"#,
        r#"sum by (namespace, reason) (strait_drops_total{reason=~"no_route|$other"})"#,
        r#"strait_peer_path_mtu_bytes{peer=~"$peer"}"#,
        r#"container_cpu_usage_seconds_total{container!=""}"#,
    ] {
        assert_eq!(served.unknown(known), Vec::<String>::new(), "{known}");
    }
    for (expression, unknown) in [
        ("strait_drop_total", "strait_drop_total"),
        ("sum by (cause) (strait_drops_total)", "cause"),
        (r#"strait_drops_total{cause="no_route"}"#, "strait_drops_total{cause}"),
        (
            r#"strait_drops_total{reason=~"no_route|no_way"}"#,
            r#"strait_drops_total{reason=~"no_way"}"#,
        ),
        ("strait_drops", "strait_drops"),
    ] {
        assert_eq!(served.unknown(expression), [unknown]);
    }
}
