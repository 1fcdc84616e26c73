//! Every interleaving of an owner and its workers, as loom sees them. Run with `RUSTFLAGS="--cfg loom"`.
//!
//! That nobody finds a slot locked is checked by the lane itself, which panics under loom; that no wake-up is
//! lost by loom, which reports threads that wait for ever.

#![cfg(loom)]

use loom::model::Builder;
use loom::thread;
use strait_lane::{Owner, Worker};

/// What passes through a slot: its number, and how often it was worked on.
#[derive(Default)]
struct Job {
    number: usize,
    worked: usize,
}

#[test]
fn what_is_filled_is_worked_on_once_and_retired_in_order() {
    explore(Some(3), || {
        let mut owner = start(2, 1);
        let mut retired = Vec::new();

        for number in 0..3 {
            while !owner.fill(|job| *job = Job { number, worked: 0 }) {
                finish_one(&mut owner, &mut retired);
            }
        }
        while !owner.is_empty() {
            finish_one(&mut owner, &mut retired);
        }

        assert_eq!(retired, [(0, 1), (1, 1), (2, 1)]);
    });
}

#[test]
fn a_worker_that_sleeps_is_woken_for_each() {
    explore(Some(3), || {
        let mut owner = start(2, 1);
        let mut retired = Vec::new();

        for number in 0..3 {
            while !owner.fill(|job| *job = Job { number, worked: 0 }) {
                wait_for_one(&mut owner, &mut retired);
            }
        }
        while !owner.is_empty() {
            wait_for_one(&mut owner, &mut retired);
        }

        assert_eq!(retired, [(0, 1), (1, 1), (2, 1)]);
    });
}

#[test]
fn what_is_done_already_keeps_its_place() {
    explore(Some(3), || {
        let mut owner = start(2, 1);
        let mut retired = Vec::new();

        owner.fill(|job| *job = Job { number: 0, worked: 0 });
        owner.fill_done(|job| *job = Job { number: 1, worked: 0 });
        wait_for_one(&mut owner, &mut retired);
        owner.fill(|job| *job = Job { number: 2, worked: 0 });
        while !owner.is_empty() {
            wait_for_one(&mut owner, &mut retired);
        }

        assert_eq!(retired, [(0, 1), (1, 0), (2, 1)]);
    });
}

#[test]
fn two_workers_share_and_the_order_stays() {
    explore(Some(2), || {
        let mut owner = start(2, 2);
        let mut retired = Vec::new();

        for number in 0..3 {
            while !owner.fill(|job| *job = Job { number, worked: 0 }) {
                wait_for_one(&mut owner, &mut retired);
            }
        }
        while !owner.is_empty() {
            finish_one(&mut owner, &mut retired);
        }

        assert_eq!(retired, [(0, 1), (1, 1), (2, 1)]);
    });
}

#[test]
fn an_owner_that_goes_leaves_nobody_behind() {
    explore(Some(3), || {
        let mut owner = start(2, 1);

        owner.fill(|job| *job = Job::default());

        drop(owner);
    });
}

/// Tries every interleaving, or those with at most so many preemptions.
fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

/// Nobody joins the workers: loom takes a thread that is joining for one that is parked, and a wake-up for
/// the end of the other. It waits for all threads by itself, and reports one that never ends.
fn start(slots: usize, workers: usize) -> Owner<Job> {
    let (mut owner, workers) = strait_lane::new((0..slots).map(|_| Job::default()), workers);
    for worker in workers {
        owner.attach(thread::spawn(|| run(worker)).thread().clone());
    }

    owner
}

fn run(mut worker: Worker<Job>) {
    while worker.work(|job| job.worked += 1) {}
}

/// Retires the oldest, with a hand in the work if there is nothing to retire.
fn finish_one(owner: &mut Owner<Job>, retired: &mut Vec<(usize, usize)>) {
    if retire(owner, retired) || owner.help(|job| job.worked += 1) {
        return;
    }
    wait_for_one(owner, retired);
}

/// Retires the oldest, which is left to the workers.
fn wait_for_one(owner: &mut Owner<Job>, retired: &mut Vec<(usize, usize)>) {
    owner.wait();
    assert!(retire(owner, retired));
}

fn retire(owner: &mut Owner<Job>, retired: &mut Vec<(usize, usize)>) -> bool {
    owner.retire(|job| retired.push((job.number, job.worked)))
}
