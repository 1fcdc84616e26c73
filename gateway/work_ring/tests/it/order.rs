//! A ring with real threads, and one without workers.

use std::thread;

use strait_work_ring::{Owner, Worker};

/// An item in a slot: its number, and how often it was worked on.
#[derive(Default)]
struct Job {
    number: u64,
    worked: u64,
}

#[test]
fn many_jobs_are_done_once_in_order() {
    for workers in 1..=3 {
        let (mut owner, workers) = strait_work_ring::new((0..8).map(|_| Job::default()), workers);
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
fn owner_works_without_workers() {
    let (mut owner, _) = strait_work_ring::new((0..2).map(|_| Job::default()), 0);

    assert!(owner.fill(|job| job.number = 0));
    assert!(owner.fill_done(|job| *job = Job { number: 1, worked: 1 }));
    assert!(owner.is_full() && !owner.fill(|_| panic!("all slots are filled")));
    assert!(!owner.retire(|_| panic!("it is not done")));
    assert!(owner.help(|job| job.worked += 1));
    assert!(!owner.help(|_| panic!("no slot is ready")));

    for expected in 0..2 {
        assert!(owner.retire(|job| assert_eq!((job.number, job.worked), (expected, 1))));
    }
    assert!(owner.is_empty() && !owner.retire(|_| panic!("all slots are retired")));
}

#[test]
fn worker_catches_up_after_many_laps() {
    let (mut owner, workers) = strait_work_ring::new((0..4).map(|_| Job::default()), 1);
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
fn panicked_work_counts_as_done() {
    let (mut owner, workers) = strait_work_ring::new([Job::default()], 1);
    let [mut worker] = <[_; 1]>::try_from(workers).unwrap();
    owner.fill(|job| job.number = 7);

    let worker = thread::spawn(move || worker.work(|_| panic!("on purpose")));
    assert!(worker.join().is_err());

    owner.wait();
    assert!(owner.retire(|job| assert_eq!(job.number, 7)));
    assert!(owner.fill(|job| job.number = 8));
}

fn run(mut worker: Worker<Job>) {
    while worker.work(|job| job.worked += 1) {}
}

/// Retires the oldest job, works on a job, or waits for the oldest.
fn advance(owner: &mut Owner<Job>, retired: &mut u64) {
    let is_retired = owner.retire(|job| {
        assert_eq!((job.number, job.worked), (*retired, 1));
        *retired += 1;
    });
    // Every third time it does not help, so that it waits for the workers.
    if !is_retired && (retired.is_multiple_of(3) || !owner.help(|job| job.worked += 1)) {
        owner.wait();
    }
}
