use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use proptest::prelude::*;
use strait_kube::events::{BURST, REFILL};

use super::*;

fn verdict(outcome: Outcome) -> Verdict {
    Verdict {
        object: ObjectReference::default(),
        generation: Some(7),
        resource_version: None,
        outcome,
        has_condition: true,
        known: None,
    }
}

fn refused(message: &str) -> Verdict {
    verdict(Outcome::Refused { reason: "KeyShared", message: message.to_owned() })
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn waiting() -> Verdict {
    verdict(Outcome::Waiting { reason: "WaitingForPublicKey", message: String::new() })
}

/// The type and message of the due Event; it counts as written.
fn due_event(history: &mut EventHistory, verdict: &Verdict) -> Option<(Kind, String)> {
    history.update(std::slice::from_ref(verdict));
    let event = history.of_verdict(verdict)?;
    history.set_reported(verdict);

    Some((event.kind, event.message))
}

#[test]
fn a_refusal_and_its_end_are_reported_once() {
    let mut history = EventHistory::new(at(0));
    let warning = |text: &str| Some((Kind::Warning, text.to_owned()));
    let in_force = verdict(Outcome::InForce);

    assert_eq!(due_event(&mut history, &in_force), None);
    assert_eq!(due_event(&mut history, &refused("a")), warning("a"));
    assert_eq!(due_event(&mut history, &refused("a")), None);
    assert_eq!(due_event(&mut history, &refused("b")), warning("b"));
    assert_eq!(due_event(&mut history, &waiting()), None);
    assert_eq!(due_event(&mut history, &in_force).unwrap().0, Kind::Normal);
    assert_eq!(due_event(&mut history, &in_force), None);
    assert_eq!(due_event(&mut history, &refused("b")), warning("b"));
}

#[test]
fn an_unwritten_event_is_due_again_while_true() {
    let mut history = EventHistory::new(at(0));
    let first = refused("a");
    history.update(std::slice::from_ref(&first));
    assert!(history.of_verdict(&first).is_some());

    // Meanwhile the condition was written, but not the Event.
    let known = first.condition(None, at(1));
    let again = Verdict { known: Some(known), ..refused("a") };
    assert!(due_event(&mut history, &again).is_some());
    assert_eq!(due_event(&mut history, &again), None);
}

#[test]
fn after_a_restart_known_conditions_give_no_event() {
    let known = |verdict: &Verdict| -> Option<Condition> { Some(verdict.condition(None, at(1))) };
    let after_restart = |former: &Verdict, now: Verdict| {
        due_event(&mut EventHistory::new(at(2)), &Verdict { known: known(former), ..now })
    };
    let in_force = verdict(Outcome::InForce);

    assert_eq!(after_restart(&refused("a"), refused("a")), None);
    assert!(after_restart(&refused("a"), refused("b")).is_some());
    assert_eq!(after_restart(&refused("a"), in_force.clone()).unwrap().0, Kind::Normal);
    assert_eq!(after_restart(&waiting(), in_force), None);
}

#[test]
fn changes_of_the_connection_are_reported() {
    let mut history = EventHistory::new(at(0));
    let mut reported = Vec::new();
    for state in [
        State::Connecting,
        State::Connected,
        State::Connected,
        State::Lost,
        State::Connecting,
        State::Lost,
        State::Connected,
    ] {
        if let Some(event) = history.of_connection(state, "milan") {
            assert!(event.message.contains("milan"));
            history.set_connection_reported(state);
            reported.push((event.kind, event.reason));
        }
    }

    assert_eq!(
        reported,
        [(Kind::Normal, "Connected"), (Kind::Warning, "Lost"), (Kind::Normal, "Connected")]
    );
}

proptest! {
    /// In any time there are at most a burst and one Event each refill.
    #[test]
    fn events_never_exceed_the_limit(steps in proptest::collection::vec(0_i64..25, 1..400)) {
        let mut history = EventHistory::new(at(0));
        let (mut now, mut reported) = (0, 0);
        for step in steps {
            now += step;
            while history.room(at(now)).is_ok() {
                history.take_room();
                reported += 1;
            }
            let next = history.room(at(now)).unwrap_err();
            prop_assert!(at(now) < next && next <= at(now) + REFILL);
            prop_assert!(reported <= i64::from(BURST) + now / REFILL.as_secs());
        }
    }
}

#[test]
fn a_clock_set_back_delays_events_briefly() {
    let mut history = EventHistory::new(at(1_000_000));
    while history.room(at(1_000_000)).is_ok() {
        history.take_room();
    }

    assert_eq!(history.room(at(5)), Err(at(5) + REFILL));
    assert_eq!(history.room(at(5) + REFILL), Ok(()));
}
