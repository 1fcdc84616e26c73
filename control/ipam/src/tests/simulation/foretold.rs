//! What a rehearsal says that will be is what an operator then makes of the cluster.

use jiff::Timestamp;

use super::*;
use crate::{Rehearsal, Snapshot};

/// Kind and name of every object, its spec, what it was told, and its conditions without their times.
type Told = BTreeMap<(String, String), [Value; 3]>;

fn told<'a>(objects: impl Iterator<Item = &'a Value>) -> Told {
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

fn told_by(server: &Arc<Mutex<Server>>) -> Told {
    told(server.lock().unwrap().state.objects.values().map(|object| &*object.value))
}

fn rehearsal(server: &Arc<Mutex<Server>>) -> Rehearsal {
    let server = server.lock().unwrap();
    let objects = server.state.objects.values().map(|object| (*object.value).clone()).collect();
    let journal = server.state.journal.as_ref().and_then(|journal| journal.text.clone());
    // Later than anything that the server has made.
    let now = Timestamp::from_second(4_000_000_000).unwrap();

    Rehearsal::new(settings(), Snapshot { objects, journal }, now)
}

/// All of it: nobody in it ever waits for anything.
fn settle_rehearsal(rehearsal: &mut Rehearsal) -> Told {
    {
        let mut settled = std::pin::pin!(rehearsal.settle());
        match settled.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(outcome) => outcome.map(|_| ()).unwrap(),
            std::task::Poll::Pending => panic!("a rehearsal waits"),
        }
    }
    let objects = rehearsal.objects();

    told(objects.iter())
}

/// The same change to the copy, before it happens.
fn rehearse(server: &Arc<Mutex<Server>>, rehearsal: &Rehearsal, step: &Step) {
    // What it does to the server says what it is.
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
            rehearsal.put(object).unwrap();
        }
    }
    // What goes with it is for the rehearsal to know.
    if let Step::Delete(index) = step
        && !before.is_empty()
    {
        let (kind, namespace, name) = before.keys().nth(index.index(before.len())).unwrap();
        assert!(rehearsal.delete(&kind.to_string(), namespace, name));
    }
}

/// What an administrator does.
fn change() -> impl Strategy<Value = Step> {
    step().prop_filter("by an administrator", |step| {
        matches!(step, Step::Network(..) | Step::Ip(_) | Step::Configuration(..) | Step::Delete(_))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_foretold_comes_to_pass(
        steps in vec(change(), 0..25),
        changes in vec(change(), 1..4),
    ) {
        let server = Arc::new(Mutex::new(Server::default()));
        server.lock().unwrap().note();
        let mut operators = [Operator::new(&server)];
        for step in steps {
            happen(&server, &mut operators, step);
        }
        settle(&server, &mut operators)?;
        let before = told_by(&server);
        prop_assert_eq!(settle_rehearsal(&mut rehearsal(&server)), before, "nothing was asked for");

        for change in changes {
            let mut rehearsal = rehearsal(&server);
            rehearse(&server, &rehearsal, &change);
            let foretold = settle_rehearsal(&mut rehearsal);
            let what = format!("{change:?}");
            happen(&server, &mut operators, change);
            settle(&server, &mut operators)?;

            prop_assert_eq!(foretold, told_by(&server), "{}", what);
        }
    }
}
