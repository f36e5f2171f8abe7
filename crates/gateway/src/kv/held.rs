//! Turns that wait for a worker are looked up again while the caches change.
//!
//! - A turn is looked up again only while it waits, at most once a round, and the scheduler is told only what changed.
//! - A round looks up a bounded number of turns, those that came first: they are placed first.

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

    fn round(&self) -> Vec<(TurnId, Seek, PrefixMatch)> {
        let waiting = self.lock();
        let first = waiting.iter().take(LOOKS_MAX);
        first.map(|(turn, (seek, found))| (*turn, seek.clone(), found.clone())).collect()
    }

    fn found(&self, turn: TurnId, prefix: &PrefixMatch) {
        if let Some((_, found)) = self.lock().get_mut(&turn) {
            found.clone_from(prefix);
        }
    }
}

/// Looks waiting turns up again, as long as anybody serves.
pub(crate) async fn rounds(app: Arc<App>) {
    let Some(kv) = app.kv.clone() else { return };
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        for (turn, seek, before) in kv.held.round() {
            let prefix = blocks::seek(&kv, &seek);
            if (&prefix.workers, &prefix.shared, &prefix.blind)
                == (&before.workers, &before.shared, &before.blind)
            {
                continue;
            }
            kv.held.found(turn, &prefix);
            app.metrics.inc(Family::KvRelooks, &[("cause", "held")]);
            app.owner.tell(Input::PrefixFound { turn, prefix });
            tokio::task::consume_budget().await;
        }
    }
}
