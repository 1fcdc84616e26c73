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

/// What is told, as kind and message; and it is written.
fn tell(news: &mut EventHistory, verdict: &Verdict) -> Option<(Kind, String)> {
    news.see(std::slice::from_ref(verdict));
    let event = news.of_verdict(verdict)?;
    news.has_told(verdict);

    Some((event.kind, event.message))
}

#[test]
fn a_refusal_is_told_once_and_its_end_too() {
    let mut news = EventHistory::new(at(0));
    let warning = |text: &str| Some((Kind::Warning, text.to_owned()));
    let in_force = verdict(Outcome::InForce);

    assert_eq!(tell(&mut news, &in_force), None);
    assert_eq!(tell(&mut news, &refused("a")), warning("a"));
    assert_eq!(tell(&mut news, &refused("a")), None);
    assert_eq!(tell(&mut news, &refused("b")), warning("b"));
    assert_eq!(tell(&mut news, &waiting()), None);
    assert_eq!(tell(&mut news, &in_force).unwrap().0, Kind::Normal);
    assert_eq!(tell(&mut news, &in_force), None);
    assert_eq!(tell(&mut news, &refused("b")), warning("b"));
}

#[test]
fn what_could_not_be_told_is_told_later_if_it_is_still_true() {
    let mut news = EventHistory::new(at(0));
    let first = refused("a");
    news.see(std::slice::from_ref(&first));
    assert!(news.of_verdict(&first).is_some());

    // The condition was written meanwhile, the Event was not.
    let known = first.condition(None, at(1));
    let again = Verdict { known: Some(known), ..refused("a") };
    assert!(tell(&mut news, &again).is_some());
    assert_eq!(tell(&mut news, &again), None);
}

#[test]
fn a_restart_tells_nothing_that_the_object_says_already() {
    let known = |verdict: &Verdict| -> Option<Condition> { Some(verdict.condition(None, at(1))) };
    let after_restart = |former: &Verdict, now: Verdict| {
        tell(&mut EventHistory::new(at(2)), &Verdict { known: known(former), ..now })
    };
    let in_force = verdict(Outcome::InForce);

    assert_eq!(after_restart(&refused("a"), refused("a")), None);
    assert!(after_restart(&refused("a"), refused("b")).is_some());
    assert_eq!(after_restart(&refused("a"), in_force.clone()).unwrap().0, Kind::Normal);
    assert_eq!(after_restart(&waiting(), in_force), None);
}

#[test]
fn a_connection_is_told_of_when_it_is_had_or_lost() {
    let mut news = EventHistory::new(at(0));
    let mut told = Vec::new();
    for state in [
        State::Connecting,
        State::Connected,
        State::Connected,
        State::Lost,
        State::Connecting,
        State::Lost,
        State::Connected,
    ] {
        if let Some(event) = news.of_connection(state, "milan") {
            assert!(event.message.contains("milan"));
            news.has_told_of_connection(state);
            told.push((event.kind, event.reason));
        }
    }

    assert_eq!(
        told,
        [(Kind::Normal, "Connected"), (Kind::Warning, "Lost"), (Kind::Normal, "Connected")]
    );
}

proptest! {
    /// However time goes by, there are no more than a burst and one each refill.
    #[test]
    fn there_is_never_a_flood(steps in proptest::collection::vec(0_i64..25, 1..400)) {
        let mut news = EventHistory::new(at(0));
        let (mut now, mut told) = (0, 0);
        for step in steps {
            now += step;
            while news.room(at(now)).is_ok() {
                news.take_room();
                told += 1;
            }
            let next = news.room(at(now)).unwrap_err();
            prop_assert!(at(now) < next && next <= at(now) + REFILL);
            prop_assert!(told <= i64::from(BURST) + now / REFILL.as_secs());
        }
    }
}

#[test]
fn a_clock_that_was_set_back_does_not_silence_for_long() {
    let mut news = EventHistory::new(at(1_000_000));
    while news.room(at(1_000_000)).is_ok() {
        news.take_room();
    }

    assert_eq!(news.room(at(5)), Err(at(5) + REFILL));
    assert_eq!(news.room(at(5) + REFILL), Ok(()));
}
