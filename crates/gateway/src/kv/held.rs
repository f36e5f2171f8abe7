//! Turns that wait for a worker are looked up again while the caches change.
//!
//! - Invariants: I-KVH-1 a turn is looked up again only while it waits, at most once a round, and the scheduler is told
//!   only what changed; I-KVH-2 a round looks up a bounded number of turns, those that came first: they are placed
//!   first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tandem_scheduler::Input;
use tandem_types::{PrefixMatch, TurnId};

use super::blocks::{self, Seek};
use crate::app::App;
use crate::metrics::Family;

/// Time between two rounds.
const ROUND: Duration = Duration::from_millis(250);

/// Turns looked up in a round.
const LOOKS_MAX: usize = 256;

/// Turns that wait, with what to look up and what was found last.
#[derive(Default)]
pub(crate) struct Held(Mutex<BTreeMap<TurnId, (Seek, PrefixMatch)>>);

impl Held {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<TurnId, (Seek, PrefixMatch)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn waits.
    pub(crate) fn waits(&self, turn: TurnId, seek: Seek, found: PrefixMatch) {
        self.lock().insert(turn, (seek, found));
    }

    /// It waits no longer.
    pub(crate) fn leaves(&self, turn: TurnId) {
        self.lock().remove(&turn);
    }

    /// The turns of a round.
    fn round(&self) -> Vec<(TurnId, Seek)> {
        let waiting = self.lock();
        waiting.iter().take(LOOKS_MAX).map(|(turn, (seek, _))| (*turn, seek.clone())).collect()
    }

    /// Whether what was found now of a turn is new to the scheduler: it waits still, and it was told otherwise.
    fn is_news(&self, turn: TurnId, prefix: &PrefixMatch) -> bool {
        let mut waiting = self.lock();
        let Some((_, told)) = waiting.get_mut(&turn) else { return false };
        let same = told.agrees(prefix);
        if !same {
            told.clone_from(prefix);
        }
        !same
    }
}

/// Looks waiting turns up again, as long as anybody serves.
pub(crate) async fn rounds(app: Arc<App>) {
    let Some(kv) = app.kv.clone() else { return };
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        for (turn, seek) in kv.held.round() {
            let prefix = blocks::seek(&kv, &seek);
            if kv.held.is_news(turn, &prefix) {
                app.metrics.inc(Family::KvRelooks, &[("cause", "held")]);
                app.owner.tell(Input::PrefixFound { turn, prefix });
            }
            tokio::task::consume_budget().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_kvplane::{Plane, PlaneConfig};
    use tandem_types::{EngineId, MatchSource, WorkerId, WorkerPrefix};

    use super::*;

    fn nothing_to_seek() -> Seek {
        Seek {
            chain: Plane::new(PlaneConfig::default()).reader().chain(&[1, 2, 3], None, None, None),
            reach: None,
        }
    }

    fn found(device: u32) -> PrefixMatch {
        let worker = WorkerId { engine: EngineId(1), rank: 0 };
        let held = WorkerPrefix { worker, device, host: device, disk: device, source: MatchSource::Exact };
        PrefixMatch {
            block_size: 16,
            blocks: 9,
            workers: [held].into_iter().collect(),
            ..PrefixMatch::unknown()
        }
    }

    /// I-KVH-1.
    #[test]
    fn only_changes_of_turns_that_wait_are_told() {
        let held = Held::default();
        let (one, two) = (TurnId(1), TurnId(2));
        held.waits(one, nothing_to_seek(), found(3));
        assert!(!held.is_news(one, &found(3)));
        assert!(held.is_news(one, &found(4)));
        assert!(!held.is_news(one, &found(4)));
        assert!(!held.is_news(two, &found(4)));
        held.leaves(one);
        assert!(!held.is_news(one, &found(5)));
        assert!(held.round().is_empty());
    }

    /// A worker of which nothing is known any more is a change, too.
    #[test]
    fn a_new_blind_spot_is_told() {
        let held = Held::default();
        held.waits(TurnId(1), nothing_to_seek(), found(3));
        let mut blind = found(3);
        blind.blind.push(WorkerId { engine: EngineId(2), rank: 0 });
        assert!(held.is_news(TurnId(1), &blind));
    }

    /// I-KVH-2.
    #[test]
    fn a_round_takes_those_that_came_first() {
        let held = Held::default();
        for turn in (0..LOOKS_MAX as u64 + 40).rev() {
            held.waits(TurnId(turn), nothing_to_seek(), found(0));
        }
        let turns: Vec<u64> = held.round().into_iter().map(|(turn, _)| turn.0).collect();
        assert_eq!(turns, (0..LOOKS_MAX as u64).collect::<Vec<_>>());
        held.leaves(TurnId(0));
        assert_eq!(held.round().last().map(|(turn, _)| turn.0), Some(LOOKS_MAX as u64));
    }
}
