//! The worker index from many threads.

use std::sync::Barrier;

use tandem_kvindex::chain;
use tandem_kvindex::worker::{Copies, Matches, Stored, WorkerIndex};
use tandem_types::{EngineId, Tier, WorkerId};

fn worker(n: u32) -> WorkerId {
    WorkerId { engine: EngineId(n), rank: 0 }
}

fn store(index: &WorkerIndex, n: u32, locals: &[u64], from: usize, to: usize) {
    let id = |at: usize| at as u64 * 31 + u64::from(n);
    let ids: Vec<u64> = (from..to).map(id).collect();
    let event = Stored {
        parent: from.checked_sub(1).map(id),
        ids: &ids,
        locals: &locals[from..to],
        tier: Tier::Device,
        copies: Copies::Each,
    };
    index.stored(worker(n), &event);
}

fn remove(index: &WorkerIndex, n: u32, at: usize) {
    index.removed(worker(n), Tier::Device, &[at as u64 * 31 + u64::from(n)]);
}

/// A prompt of `blocks` blocks whose first `shared` are those of every other one.
fn prompt(seed: u64, shared: usize, blocks: usize) -> Vec<u64> {
    (0..blocks as u64).map(|at| if (at as usize) < shared { at + 1 } else { seed * 100_003 + at }).collect()
}

/// I-WIX-5.
#[test]
fn readers_see_no_more_than_was_stored_and_no_less_than_stays() {
    let index = WorkerIndex::default();
    // Worker 0 keeps 400 blocks all along; workers 1 and 2 store and drop the rest of the same prompt and of
    // others that branch off it.
    let locals = prompt(1, 300, 900);
    let whole = chain::chain(&locals);
    store(&index, 0, &locals, 0, 400);
    let start = Barrier::new(4);
    let busy = std::sync::atomic::AtomicUsize::new(2);
    std::thread::scope(|scope| {
        for n in 1..3u32 {
            let (index, start, busy) = (&index, &start, &busy);
            scope.spawn(move || {
                start.wait();
                for round in 0..60u64 {
                    let locals =
                        if round % 3 == 0 { prompt(1, 300, 900) } else { prompt(round * 7, 300, 600) };
                    for from in (0..locals.len()).step_by(50) {
                        store(index, n, &locals, from, from + 50);
                    }
                    for at in (0..locals.len()).rev() {
                        remove(index, n, at);
                    }
                }
                busy.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            });
        }
        for _ in 0..2 {
            let (index, start, busy, whole) = (&index, &start, &busy, &whole);
            scope.spawn(move || {
                let mut matches = Matches::default();
                start.wait();
                while busy.load(std::sync::atomic::Ordering::SeqCst) > 0 {
                    index.find(whole, &mut matches);
                    let kept = matches.of(worker(0)).expect("worker 0 holds the beginning");
                    assert_eq!((kept.device, kept.host, kept.disk), (400, 400, 400));
                    for n in 1..3 {
                        assert!(matches.of(worker(n)).is_none_or(|m| m.device <= 900));
                    }
                }
            });
        }
    });
    let stats = index.stats();
    assert_eq!((stats.held, stats.blocks), (400, 400), "{stats:?}");
}

/// I-WIX-7, I-RUN-1, I-RUN-3.
#[test]
fn workers_that_store_and_drop_the_same_prompts_leave_nothing_behind() {
    let index = WorkerIndex::default();
    std::thread::scope(|scope| {
        for n in 0..4u32 {
            let index = &index;
            scope.spawn(move || {
                for round in 0..40u64 {
                    let locals = prompt((round + u64::from(n)) % 5, 100 + round as usize, 400);
                    store(index, n, &locals, 0, 400);
                    if round % 2 == 0 {
                        for at in (0..400).rev() {
                            remove(index, n, at);
                        }
                    } else if round % 4 == 1 {
                        index.cleared(worker(n), None);
                    } else {
                        index.remove_worker(worker(n));
                    }
                }
                // What races left nobody knows, unless it is whole.
                let locals = prompt(u64::from(n), 100, 400);
                store(index, n, &locals, 0, 400);
            });
        }
    });
    let mut matches = Matches::default();
    for n in 0..4u32 {
        index.find(&chain::chain(&prompt(u64::from(n), 100, 400)), &mut matches);
        assert_eq!(matches.of(worker(n)).map(|m| m.device), Some(400));
        for other in (0..4).filter(|o| *o != n) {
            assert_eq!(matches.of(worker(other)).map(|m| m.device), Some(100));
        }
    }
    for n in 0..4 {
        index.remove_worker(worker(n));
    }
    let stats = index.stats();
    assert_eq!((stats.workers, stats.runs, stats.blocks, stats.held), (0, 0, 0, 0), "{stats:?}");
}
