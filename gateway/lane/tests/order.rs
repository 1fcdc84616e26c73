//! A lane with real threads, and one without any.

#![cfg(not(loom))]

use std::thread;

use strait_lane::{Owner, Worker};

/// What passes through a slot: its number, and how often it was worked on.
#[derive(Default)]
struct Job {
    number: u64,
    worked: u64,
}

#[test]
fn a_hundred_thousand_jobs_come_out_once_and_in_order() {
    for workers in 1..=3 {
        let (mut owner, workers) = strait_lane::new((0..8).map(|_| Job::default()), workers);
        let mut retired = 0;

        thread::scope(|scope| {
            for worker in workers {
                owner.attach(scope.spawn(|| run(worker)).thread().clone());
            }
            for number in 0..100_000 {
                while !owner.fill(|job| *job = Job { number, worked: 0 }) {
                    advance(&mut owner, &mut retired);
                }
            }
            while !owner.is_empty() {
                advance(&mut owner, &mut retired);
            }
            drop(owner);
        });

        assert_eq!(retired, 100_000);
    }
}

#[test]
fn an_owner_without_workers_does_everything_itself() {
    let (mut owner, _) = strait_lane::new((0..2).map(|_| Job::default()), 0);

    assert!(owner.fill(|job| job.number = 0));
    assert!(owner.fill_done(|job| *job = Job { number: 1, worked: 1 }));
    assert!(owner.is_full() && !owner.fill(|_| panic!("there is no room")));
    assert!(!owner.retire(|_| panic!("nobody has worked on it")));
    assert!(owner.help(|job| job.worked += 1));
    assert!(!owner.help(|_| panic!("nothing is left to do")));

    for expected in 0..2 {
        assert!(owner.retire(|job| assert_eq!((job.number, job.worked), (expected, 1))));
    }
    assert!(owner.is_empty() && !owner.retire(|_| panic!("everything is retired")));
}

#[test]
fn a_worker_that_slept_for_many_laps_finds_what_is_ready() {
    let (mut owner, workers) = strait_lane::new((0..4).map(|_| Job::default()), 1);
    let [mut worker] = <[_; 1]>::try_from(workers).unwrap();

    for number in 0..1001 {
        assert!(owner.fill(|job| *job = Job { number, worked: 1 }));
        assert!(owner.help(|_| {}));
        assert!(owner.retire(|job| assert_eq!(job.number, number)));
    }
    owner.fill(|job| *job = Job { number: 1001, worked: 0 });

    assert!(worker.work(|job| job.worked += job.number));
    assert!(owner.retire(|job| assert_eq!(job.worked, 1001)));
}

#[test]
fn work_that_panics_keeps_nobody_waiting() {
    let (mut owner, workers) = strait_lane::new([Job::default()], 1);
    let [mut worker] = <[_; 1]>::try_from(workers).unwrap();
    owner.fill(|job| job.number = 7);

    let worker = thread::spawn(move || worker.work(|_| panic!("as this test wants")));
    assert!(worker.join().is_err());

    owner.wait();
    assert!(owner.retire(|job| assert_eq!(job.number, 7)));
    assert!(owner.fill(|job| job.number = 8));
}

fn run(mut worker: Worker<Job>) {
    while worker.work(|job| job.worked += 1) {}
}

/// Retires the oldest job, works on one, or waits for one.
fn advance(owner: &mut Owner<Job>, retired: &mut u64) {
    let is_retired = owner.retire(|job| {
        assert_eq!((job.number, job.worked), (*retired, 1));
        *retired += 1;
    });
    // Now and then it does not help, so that workers are waited for.
    if !is_retired && (retired.is_multiple_of(3) || !owner.help(|job| job.worked += 1)) {
        owner.wait();
    }
}
