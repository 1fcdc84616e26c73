//! The result of a dry run is that of an operator on the cluster.

use jiff::Timestamp;

use super::*;
use crate::{DryRun, Snapshot};

/// Kind and name of every object, its spec, its status, and its conditions without their times.
type Observed = BTreeMap<(String, String), [Value; 3]>;

fn observed<'a>(objects: impl Iterator<Item = &'a Value>) -> Observed {
    objects
        .map(|object| {
            let text =
                |path: &str| object.pointer(path).and_then(Value::as_str).unwrap().to_owned();
            let mut status = object["status"].clone();
            let conditions = status.as_object_mut().and_then(|status| status.remove("conditions"));
            let conditions = conditions.unwrap_or_default();
            let conditions: Vec<_> = conditions
                .as_array()
                .into_iter()
                .flatten()
                .map(|one| json!([one["type"], one["status"], one["reason"], one["message"]]))
                .collect();
            let spec = object["spec"].clone();
            ((text("/kind"), text("/metadata/name")), [spec, status, json!(conditions)])
        })
        .collect()
}

fn observed_on(server: &Arc<Mutex<Server>>) -> Observed {
    observed(server.lock().unwrap().state.objects.values().map(|object| &*object.value))
}

fn dry_run(server: &Arc<Mutex<Server>>) -> DryRun {
    let server = server.lock().unwrap();
    let objects = server.state.objects.values().map(|object| (*object.value).clone()).collect();
    let journal = server.state.journal.as_ref().and_then(|journal| journal.text.clone());
    // Later than the creation of any object of the server.
    let now = Timestamp::from_second(4_000_000_000).unwrap();

    DryRun::new(settings(), Snapshot { objects, journal }, now)
}

/// Runs it to the end: no call in it ever waits.
fn settle_dry_run(dry_run: &mut DryRun) -> Observed {
    {
        let mut settled = std::pin::pin!(dry_run.run());
        match settled.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(outcome) => outcome.map(|_| ()).unwrap(),
            std::task::Poll::Pending => panic!("a dry run waits"),
        }
    }
    let objects = dry_run.objects();

    observed(objects.iter())
}

/// The same change to the copy, before it happens.
fn rehearse(server: &Arc<Mutex<Server>>, dry_run: &DryRun, step: &Step) {
    // The change is found by applying it to a copy of the server.
    let tried = Arc::new(Mutex::new(Server {
        state: server.lock().unwrap().state.clone(),
        ..Server::default()
    }));
    let names = |of: &Arc<Mutex<Server>>| -> BTreeMap<_, _> {
        let of = of.lock().unwrap();
        of.state.objects.iter().map(|(name, object)| (name.clone(), object.value.clone())).collect()
    };
    let before = names(&tried);
    happen(&tried, &mut [], step.clone());
    let after = names(&tried);

    for (name, object) in &after {
        let is_changed = before.get(name).is_none_or(|former| former["spec"] != object["spec"]);
        if is_changed {
            dry_run.put(object).unwrap();
        }
    }
    // Dependent objects are left to the dry run.
    if let Step::Delete(index) = step
        && !before.is_empty()
    {
        let (kind, namespace, name) = before.keys().nth(index.index(before.len())).unwrap();
        assert!(dry_run.delete(&kind.to_string(), namespace, name));
    }
}

/// A change by an administrator.
fn change() -> impl Strategy<Value = Step> {
    step().prop_filter("by an administrator", |step| {
        matches!(step, Step::Network(..) | Step::Ip(_) | Step::Configuration(..) | Step::Delete(_))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_dry_run_predicts_the_result(
        steps in vec(change(), 0..25),
        changes in vec(change(), 1..4),
    ) {
        let server = Arc::new(Mutex::new(Server::default()));
        server.lock().unwrap().record();
        let mut operators = [Operator::new(&server)];
        for step in steps {
            happen(&server, &mut operators, step);
        }
        settle(&server, &mut operators)?;
        let before = observed_on(&server);
        prop_assert_eq!(settle_dry_run(&mut dry_run(&server)), before, "no change was made");

        for change in changes {
            let mut dry_run = dry_run(&server);
            rehearse(&server, &dry_run, &change);
            let predicted = settle_dry_run(&mut dry_run);
            let what = format!("{change:?}");
            happen(&server, &mut operators, change);
            settle(&server, &mut operators)?;

            prop_assert_eq!(predicted, observed_on(&server), "{}", what);
        }
    }
}
