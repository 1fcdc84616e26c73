//! Interleavings of an owner and its workers, explored by loom. Run with `RUSTFLAGS="--cfg loom"`.
//!
//! The ring itself checks that no thread finds a slot locked: it panics under loom. Loom checks that no wake-up is
//! lost: it reports a deadlock.

use loom::model::Builder;
use loom::thread;
use strait_work_ring::{Owner, Worker};

/// An item in a slot: its number, and how often it was worked on.
#[derive(Default)]
struct Job {
    number: usize,
    worked: usize,
}

#[test]
fn jobs_are_done_once_in_order() {
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
fn each_job_wakes_a_sleeping_worker() {
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
fn finished_items_keep_their_place() {
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
fn two_workers_keep_the_order() {
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
fn dropping_the_owner_ends_the_workers() {
    explore(Some(3), || {
        let mut owner = start(2, 1);

        owner.fill(|job| *job = Job::default());

        drop(owner);
    });
}

/// Explores all interleavings, or those with at most `preemptions` preemptions.
fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

/// Starts workers that are never joined: loom cannot tell a joining thread from a parked one, and takes a wake-up
/// for the end of the other thread. Loom waits for all threads by itself, and reports one that never ends.
fn start(slots: usize, workers: usize) -> Owner<Job> {
    let (mut owner, workers) = strait_work_ring::new((0..slots).map(|_| Job::default()), workers);
    for worker in workers {
        owner.attach(thread::spawn(|| run(worker)).thread().clone());
    }

    owner
}

fn run(mut worker: Worker<Job>) {
    while worker.work(|job| job.worked += 1) {}
}

/// Retires the oldest job. If none can be retired, works on one, or waits.
fn finish_one(owner: &mut Owner<Job>, retired: &mut Vec<(usize, usize)>) {
    if retire(owner, retired) || owner.help(|job| job.worked += 1) {
        return;
    }
    wait_for_one(owner, retired);
}

/// Waits until a worker has done the oldest job, and retires it.
fn wait_for_one(owner: &mut Owner<Job>, retired: &mut Vec<(usize, usize)>) {
    owner.wait();
    assert!(retire(owner, retired));
}

fn retire(owner: &mut Owner<Job>, retired: &mut Vec<(usize, usize)>) -> bool {
    owner.retire(|job| retired.push((job.number, job.worked)))
}
