//! Several operators in a cluster in which everything can happen at any time: objects come and go, an operator's view
//! is old, its calls are made late or lose their answers, it ends and starts again, and the journal is deleted.

mod prediction;
mod server;

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use kube::ResourceExt as _;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use super::*;
use crate::object::{Kind, Target};
use crate::round::Allocator;

use server::{Connection, Fate, Server};

type Running = Pin<Box<dyn Future<Output = ()>>>;

/// One operator.
struct Operator {
    line: Connection,
    /// Its view: the state of this number.
    seen: Arc<Mutex<usize>>,
    running: Running,
}

impl Operator {
    fn new(server: &Arc<Mutex<Server>>) -> Self {
        let server = server.clone();
        let line = Connection { server, fate: Arc::default(), wakers: Arc::default() };
        // An operator starts with a list.
        let seen = Arc::new(Mutex::new(line.server.lock().unwrap().history.len() - 1));
        let running = Box::pin(rounds(line.clone(), seen.clone()));

        Self { line, seen, running }
    }

    /// Lets one call proceed.
    fn go_on(&mut self, fate: Fate) {
        *self.line.fate.lock().unwrap() = Some(fate);
        self.line.wakers.lock().unwrap().drain(..).for_each(Waker::wake);
        let _ = self.running.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Sees a part of the new states.
    fn look(&self, how_far: usize) {
        let last = self.line.server.lock().unwrap().history.len() - 1;
        let mut seen = self.seen.lock().unwrap();
        *seen = last.min(*seen + how_far);
    }
}

async fn rounds(line: Connection, seen: Arc<Mutex<usize>>) {
    let mut allocator = Allocator::new(line.clone(), settings());
    let now = jiff::Timestamp::UNIX_EPOCH;
    for number in 0_u64.. {
        if number % 8 == 7 {
            allocator.look_again();
        }
        let objects = line.server.lock().unwrap().history[*seen.lock().unwrap()].clone();
        let _ = allocator.round(&objects, now).await;
        // A round without a call must not be the last event.
        let _ = line.call(|_| Ok(())).await;
    }
}

/// Small pools, so that requests conflict.
fn settings() -> Settings {
    Settings { pools: Pools::new(vec![prefix("10.0.0.0/28")]).unwrap(), ..Settings::default() }
}

/// One event.
#[derive(Clone, Debug)]
enum Step {
    /// One call of an operator.
    Call(Index, Fate),
    /// An operator sees more.
    Look(Index, usize),
    /// An operator ends, and another one starts.
    Restart(Index),
    /// A network of this length is created at this place, perhaps a shared one.
    Network(usize, u8, u8, bool),
    /// An address is created.
    Ip(usize),
    /// A `Configuration` is created, or changed.
    Configuration(usize, Vec<u8>, Vec<u8>),
    /// An object is deleted.
    Delete(Index),
    DeleteJournal,
}

fn step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![
        12 => Just(Fate::Answered),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::Lost),
    ];
    prop_oneof![
        60 => (any::<Index>(), fate).prop_map(|(who, fate)| Step::Call(who, fate)),
        20 => (any::<Index>(), 1..20_usize).prop_map(|(who, far)| Step::Look(who, far)),
        1 => any::<Index>().prop_map(Step::Restart),
        4 => (0..6_usize, 29..=31_u8, 0..8_u8, any::<bool>())
            .prop_map(|(name, len, place, is_shared)| Step::Network(name, len, place, is_shared)),
        3 => (0..4_usize).prop_map(Step::Ip),
        3 => (0..2_usize, vec(0..4_u8, 0..3), vec(0..4_u8, 0..2))
            .prop_map(|(name, pod, external)| Step::Configuration(name, pod, external)),
        3 => any::<Index>().prop_map(Step::Delete),
        1 => Just(Step::DeleteJournal),
    ]
}

fn happen(server: &Arc<Mutex<Server>>, operators: &mut [Operator], step: Step) {
    let which = |index: &Index| index.index(operators.len());
    match step {
        Step::Call(index, fate) => operators[which(&index)].go_on(fate),
        Step::Look(index, how_far) => operators[which(&index)].look(how_far),
        Step::Restart(index) => operators[which(&index)] = Operator::new(server),
        Step::Network(name, len, place, is_shared) => {
            let network = 0x0a00_0000 + (u32::from(place) << 1);
            let cidr = of_tree((network & !(u32::MAX >> len), len));
            let labels = if is_shared {
                json!({"ipam.liqo.io/network-shared": "true", "ipam.liqo.io/network-not-remapped": "true"})
            } else {
                json!({"ipam.liqo.io/network-type": if name == 0 { "external-cidr" } else { "other" }})
            };
            let made = json!({
                "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "Network",
                "metadata": {"namespace": "liqo", "name": format!("network-{name}"), "labels": labels},
                "spec": {"cidr": cidr.to_string(), "preAllocated": 1},
            });
            let _ = server.lock().unwrap().make(Kind::Network, made);
        }
        Step::Ip(name) => {
            let made = json!({
                "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "IP",
                "metadata": {"namespace": "liqo", "name": format!("ip-{name}")},
                "spec": {"ip": "192.0.2.1"},
            });
            let _ = server.lock().unwrap().make(Kind::Ip, made);
        }
        Step::Configuration(name, pod, external) => {
            let cidr = |place: &u8| format!("10.0.0.{}/31", u16::from(*place) << 1);
            let [pod, external] =
                [pod, external].map(|places| places.iter().map(cidr).collect::<Vec<_>>());
            let cidr = json!({"pod": pod, "external": external});
            let name = (Kind::Configuration, "liqo".to_owned(), format!("peer-{name}"));
            let mut server = server.lock().unwrap();
            let known =
                server.state.objects.get(&name).map(|object| object.value["metadata"].clone());
            match known {
                None => {
                    let made = json!({
                        "apiVersion": "networking.liqo.io/v1beta1", "kind": "Configuration",
                        "metadata": {"namespace": name.1, "name": name.2},
                        "spec": {"remote": {"cidr": cidr}},
                    });
                    let _ = server.make(Kind::Configuration, made);
                }
                Some(metadata) => {
                    let text = |key: &str| metadata[key].as_str().unwrap().to_owned();
                    let (uid, version) = (text("uid"), text("resourceVersion"));
                    let (kind, namespace, name) = name;
                    let target = Target { kind, namespace, name, uid, version };
                    let _ = server.change(&target, json!({"spec": {"remote": {"cidr": cidr}}}));
                }
            }
        }
        Step::Delete(index) => {
            let mut server = server.lock().unwrap();
            let names: Vec<_> = server.state.objects.keys().cloned().collect();
            if !names.is_empty() {
                let name = &names[index.index(names.len())];
                server.delete(name);
            }
        }
        Step::DeleteJournal => server.lock().unwrap().state.journal = None,
    }
}

/// Lets all operators run until none has anything to write.
fn settle(server: &Arc<Mutex<Server>>, operators: &mut [Operator]) -> Result<(), TestCaseError> {
    let mut quiet = 0;
    for _ in 0..4_000 {
        server.lock().unwrap().collect_orphans();
        let before = server.lock().unwrap().state.version;
        for operator in operators.iter_mut() {
            operator.look(usize::MAX / 2);
            operator.go_on(Fate::Answered);
        }
        let is_quiet = server.lock().unwrap().state.version == before;
        quiet = if is_quiet { quiet + 1 } else { 0 };
        if quiet > 60 {
            return Ok(());
        }
    }

    Err(TestCaseError::fail("the operators do not settle"))
}

/// Every resource that can have an allocation has it, and the journal has exactly those.
fn check(server: &Server) -> Result<(), TestCaseError> {
    let text = server.state.journal.as_ref().and_then(|journal| journal.text.clone());
    let journal = Journal::read(&text.unwrap_or_default()).unwrap();
    let mut entries = 0;
    let seen = server.state.seen();
    let mut external = seen.networks.iter().filter_map(|network| {
        let network = network.0.as_ref().ok()?;
        let is_external = network.labels().values().any(|value| value == "external-cidr");
        network.status.as_ref().filter(|_| is_external)?.cidr.as_ref()?.parse::<Prefix>().ok()
    });
    let external = external.next_back();
    for (name, object) in &server.state.objects {
        let object = &*object.value;
        prop_assert!(object["metadata"]["deletionTimestamp"].is_null(), "{name:?} is kept");
        let entry = journal.entry(object["metadata"]["uid"].as_str().unwrap());
        let written = match name.0 {
            Kind::Network => object.pointer("/status/cidr"),
            Kind::Ip => object.pointer("/status/ip"),
            Kind::Configuration => continue,
        };
        let held = entry.map(|entry| match entry.allocation {
            Allocation::Prefix { prefix, .. } => prefix.to_string(),
            Allocation::Address(address) => address.to_string(),
        });
        // An address whose network was deleted before the address was written may never be written: the entry is kept,
        // and no status shows it.
        let is_stray = held.as_ref().is_some_and(|held| {
            let address = held.parse().ok();
            name.0 == Kind::Ip
                && !address.is_some_and(|it| external.is_some_and(|prefix| prefix.contains(it)))
        });
        if written.is_some() || !is_stray {
            prop_assert_eq!(written.and_then(Value::as_str).map(str::to_owned), held);
        }
        entries += usize::from(entry.is_some());
    }
    prop_assert_eq!(journal.len(), entries);

    for object in &seen.configurations {
        let peer = object.0.as_ref().unwrap();
        let requested = requests::requested_prefixes(peer).prefixes();
        let owned = seen.networks.iter().filter(|network| {
            let owners = network.owner_references();
            owners.iter().any(|owner| Some(&owner.uid) == peer.metadata.uid.as_ref())
        });
        prop_assert_eq!(owned.count(), requested.len());
        let condition = &peer.status.as_ref().unwrap().conditions[0];
        prop_assert_eq!(condition.observed_generation, peer.metadata.generation);
    }

    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_allocation_is_written_to_two_objects(
        operators in 1..4_usize,
        steps in vec(step(), 50..300),
    ) {
        let server = Arc::new(Mutex::new(Server::default()));
        server.lock().unwrap().record();
        let mut operators: Vec<_> = (0..operators).map(|_| Operator::new(&server)).collect();
        for step in steps {
            let what = format!("{step:?}");
            happen(&server, &mut operators, step);
            let wrong = server.lock().unwrap().wrong.clone();
            prop_assert!(wrong.is_none(), "{what}: {}", wrong.unwrap_or_default());
        }

        settle(&server, &mut operators)?;
        let server = server.lock().unwrap();
        prop_assert!(server.wrong.is_none(), "{:?}", server.wrong);
        check(&server)?;
    }
}

#[test]
fn an_invalid_journal_is_restored_and_reported() {
    let server = Arc::new(Mutex::new(Server::default()));
    server.lock().unwrap().record();
    let mut operators = [Operator::new(&server)];
    for place in 0..3 {
        happen(&server, &mut operators, Step::Network(place, 31, 0, false));
    }
    settle(&server, &mut operators).unwrap();
    let statuses = |server: &Server| -> Vec<_> {
        server.state.objects.values().map(|object| object.value["status"].clone()).collect()
    };
    let before = statuses(&server.lock().unwrap());
    assert_eq!(server.lock().unwrap().events, []);

    if let Some(journal) = &mut server.lock().unwrap().state.journal {
        let text = journal.text.clone().unwrap();
        journal.text = Some(format!("{text}and so on\n"));
        journal.version = "by hand".to_owned();
    }
    operators = [Operator::new(&server)];
    settle(&server, &mut operators).unwrap();

    let server = server.lock().unwrap();
    assert_eq!(statuses(&server), before);
    check(&server).unwrap();
    let [(reason, message)] = server.events.as_slice() else { panic!("{:?}", server.events) };
    assert_eq!(*reason, "JournalUnreadable");
    assert!(
        message
            .starts_with("line 5 of the allocations is none: \"and so on\"; it was created again"),
        "{message}"
    );
}

/// Too rare to come up by chance: an operator that knows the former journal sees an object that was written to for the
/// next one.
#[test]
fn a_former_journal_causes_no_write() {
    let server = Arc::new(Mutex::new(Server::default()));
    let network = |name: &str, labels: Value, since: &str| {
        let metadata = json!({
            "namespace": "liqo", "name": name, "labels": labels,
            "annotations": {"liqo.io/preinstalled": "true", "ipam.strait.io/since-journal": since},
        });
        let spec = json!({"cidr": "10.0.0.0/30"});
        server.lock().unwrap().make(Kind::Network, json!({
            "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "Network", "metadata": metadata, "spec": spec,
        }))
        .unwrap();
    };
    let journal = || server.lock().unwrap().state.journal.clone();
    let last = || server.lock().unwrap().history.len() - 1;
    let is_entered = || journal().is_some_and(|it| it.text.is_some_and(|text| !text.is_empty()));

    // The first operator enters an allocation, and cannot write the status.
    network("old-one", json!({}), "");
    let mut slow = Operator::new(&server);
    while !is_entered() {
        slow.go_on(Fate::Answered);
    }
    slow.go_on(Fate::Lost);
    // The second one creates a journal of its own, and is cut off before it enters anything.
    server.lock().unwrap().state.journal = None;
    let mut fast = Operator::new(&server);
    let before = last();
    while last() == before {
        fast.go_on(Fate::Answered);
    }
    fast.go_on(Fate::Lost);
    let reported_prefix = |name: &str| {
        let server = server.lock().unwrap();
        let name = (Kind::Network, "liqo".to_owned(), name.to_owned());
        server.state.objects[&name].value["status"]["cidr"].as_str().map(str::to_owned)
    };
    assert_eq!((reported_prefix("old-one"), is_entered()), (None, false));
    let marked = last();
    // Meanwhile an immutable request arrives.
    let since = journal().unwrap().uid;
    network("new-one", json!({"ipam.liqo.io/network-not-remapped": "true"}), &since);
    for _ in 0..100 {
        fast.look(usize::MAX / 2);
        if reported_prefix("new-one").is_none() {
            fast.go_on(Fate::Answered);
        }
    }
    assert_eq!(reported_prefix("new-one").as_deref(), Some("10.0.0.0/30"));

    assert_eq!(reported_prefix("old-one"), None);

    *slow.seen.lock().unwrap() = marked;
    for _ in 0..20 {
        slow.go_on(Fate::Answered);
        assert_eq!(server.lock().unwrap().wrong, None);
    }
}
