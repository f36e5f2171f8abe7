//! What to make of a publisher's sequence numbers: gaps, replays, restarts, late joins, duplicates.
//!
//! - Purpose: hand on each message of one publisher once and in order, and say when what was known of it is
//!   no longer to be trusted.
//! - Inputs: messages as they come from the SUB socket, answers from the replay socket, connections, time.
//!   Outputs: [`Effect`]s, to be carried out in order.
//! - One tracker per publisher: each data-parallel rank has a socket and a sequence of its own.
//! - Invariants:
//!   - I-TRK-1 between two [`Effect::Clear`]s, messages are applied with consecutive sequence numbers, each
//!     once; a hole is never stepped over without a `Clear` (or `Reconcile`) before the next message;
//!   - I-TRK-2 with a replay that reaches back to the first message and answers, everything that the publisher
//!     ever said is applied in the end, whatever was lost, repeated or reordered, and nothing twice;
//!   - I-TRK-3 a restarted publisher is never taken for the one before, if it is noticed at all: by a sequence
//!     number that falls, by a number met again with other content, or by the absence of the last message
//!     applied from its replay (which is asked for together with what is missing);
//!   - I-TRK-4 messages held back, waiting for a replay, are bounded in number and bytes; at most one replay
//!     is under way, and one that neither goes on nor ends is given up after a bounded time.
//! - Undetectable: a publisher that restarts and catches up to exactly the expected number while this side
//!   hears neither a message nor of the connection; or, with the replay buffer ending exactly at the first
//!   message missed, to any later one.
//! - Sources: vLLM 0.11 to 0.33, SGLang 0.5.5 to 0.5.23 (a counter from 0 per process, no incarnation id),
//!   Mooncake (from 1, no replay; one number burnt per event dropped).

mod config;

use std::collections::{BTreeMap, VecDeque};

use tandem_types::Time;
use xxhash_rust::xxh3::xxh3_64;

pub use config::{Recovery, TrackerConfig};

/// Messages applied last whose content is remembered, to tell repeated ones from a restart.
const RECENT: usize = 64;

/// Why what was known is no longer to be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The publisher is another process than before.
    Restart,
    /// Messages `missing .. resumed` are lost: there is no replay, or it does not have them, or it failed.
    Gap {
        /// The first one that was missed.
        missing: u64,
        /// The next one that was not.
        resumed: u64,
    },
}

/// What the tracker's owner is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// Decode this message and apply it.
    Apply {
        /// Its sequence number.
        seq: u64,
        /// Its payload.
        payload: P,
    },
    /// Ask the replay socket for all messages from `from` on. Takes the place of a replay under way. Answers go
    /// to [`Tracker::replayed`], [`Tracker::replay_ended`] or [`Tracker::replay_failed`] with this `attempt`.
    Replay {
        /// Names the request.
        attempt: u64,
        /// What to ask for: the first message missing, or the one before it, if that is known: it proves that
        /// the publisher is still the same.
        from: u64,
        /// The first message missing.
        missing: u64,
    },
    /// Forget all that this publisher said.
    Clear(Loss),
    /// Check what is known against another source; what follows is applied to it as it is.
    Reconcile(Loss),
}

/// Where a tracker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackerState {
    /// Nothing was heard.
    Silent,
    /// Waits for the history.
    Joining,
    /// Up to date.
    Live,
    /// Waits for lost messages.
    CatchingUp,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrackerStats {
    /// Messages handed on.
    pub applied: u64,
    /// Messages that were known already.
    pub duplicates: u64,
    /// Messages given up.
    pub lost: u64,
    /// Replays asked for.
    pub replays: u64,
    /// Restarts noticed.
    pub restarts: u64,
    /// Holes stepped over, with [`Effect::Clear`] or [`Effect::Reconcile`].
    pub gaps: u64,
    /// Answers of replays that were given up or replaced.
    pub stale_answers: u64,
}

#[derive(Debug)]
struct Held<P> {
    print: u64,
    payload: P,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    attempt: u64,
    from: u64,
    missing: u64,
    deadline: Time,
    tries: u32,
    /// Something was answered.
    started: bool,
    /// Something was applied.
    progressed: bool,
}

/// Follows one publisher. Payloads are kept as they are (`Bytes`, say).
#[derive(Debug)]
pub struct Tracker<P> {
    config: TrackerConfig,
    next: Option<u64>,
    whole: bool,
    /// The last messages applied, in order, with a hash of their content.
    recent: VecDeque<(u64, u64)>,
    held: BTreeMap<u64, Held<P>>,
    held_bytes: usize,
    pending: Option<Pending>,
    attempts: u64,
    stats: TrackerStats,
}

impl<P: AsRef<[u8]>> Tracker<P> {
    /// A tracker that knows nothing.
    #[must_use]
    pub const fn new(config: TrackerConfig) -> Self {
        Self {
            config,
            next: None,
            whole: false,
            recent: VecDeque::new(),
            held: BTreeMap::new(),
            held_bytes: 0,
            pending: None,
            attempts: 0,
            stats: TrackerStats {
                applied: 0,
                duplicates: 0,
                lost: 0,
                replays: 0,
                restarts: 0,
                gaps: 0,
                stale_answers: 0,
            },
        }
    }

    /// Where it stands.
    #[must_use]
    pub const fn state(&self) -> TrackerState {
        match (self.next, self.pending) {
            (None, None) => TrackerState::Silent,
            (None, Some(_)) => TrackerState::Joining,
            (Some(_), None) => TrackerState::Live,
            (Some(_), Some(_)) => TrackerState::CatchingUp,
        }
    }

    /// True if everything since the publisher's first message was applied. If not, blocks may hang from
    /// parents that nobody told us of.
    #[must_use]
    pub const fn whole(&self) -> bool {
        self.whole
    }

    /// The sequence number expected next; `None` before the first.
    #[must_use]
    pub const fn next_seq(&self) -> Option<u64> {
        self.next
    }

    /// Messages held back.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Counts since the start.
    #[must_use]
    pub const fn stats(&self) -> TrackerStats {
        self.stats
    }

    /// When [`Tracker::handle_timeout`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.pending.map(|pending| pending.deadline)
    }

    /// The SUB socket connected, for the first time or again: asks for what was missed. What was held back may
    /// be of another process than what comes now, and is asked for again too.
    pub fn connected(&mut self, now: Time, effects: &mut Vec<Effect<P>>) {
        self.disconnected();
        if self.config.replay && (self.next.is_some() || self.config.replay_on_join) {
            self.request(now, 1, effects);
        }
    }

    /// The connection is lost, and with it a replay under way and what waited for it. What was said so far stands until
    /// [`Tracker::connected`] or the next message tells more.
    pub fn disconnected(&mut self) {
        self.pending = None;
        self.drop_held();
    }

    /// A message from the SUB socket.
    pub fn live(&mut self, now: Time, seq: u64, payload: P, effects: &mut Vec<Effect<P>>) {
        let print = xxh3_64(payload.as_ref());
        if self.next.is_some_and(|next| seq < next) {
            if self.recent(seq) == Some(print) {
                self.stats.duplicates += 1;
                return;
            }
            self.restart(effects);
            self.drop_held();
        } else if let Some(held) = self.held.get(&seq) {
            if held.print == print {
                self.stats.duplicates += 1;
                return;
            }
            self.restart(effects);
            self.drop_held();
        }
        if self.pending.is_some() {
            self.hold(now, seq, Held { print, payload }, effects);
            return;
        }
        match self.next {
            Some(next) if seq > next => {
                if self.config.replay {
                    self.hold(now, seq, Held { print, payload }, effects);
                    self.request(now, 1, effects);
                    return;
                }
                self.step_over(seq, effects);
            }
            Some(_) => {}
            None if seq > self.config.first_seq && self.config.replay && self.config.replay_on_join => {
                self.hold(now, seq, Held { print, payload }, effects);
                self.request(now, 1, effects);
                return;
            }
            None => self.begin(seq),
        }
        self.apply(seq, print, payload, effects);
    }

    /// A batch from the replay socket.
    pub fn replayed(&mut self, now: Time, attempt: u64, seq: u64, payload: P, effects: &mut Vec<Effect<P>>) {
        let Some(pending) = self.pending.as_mut().filter(|pending| pending.attempt == attempt) else {
            self.stats.stale_answers += 1;
            return;
        };
        let first = !pending.started;
        pending.started = true;
        pending.deadline = now + self.config.replay_timeout;
        let print = xxh3_64(payload.as_ref());
        let known = self.recent(seq).or_else(|| self.held.get(&seq).map(|held| held.print));
        if known.is_some_and(|known| known != print) {
            // Two processes used this number. What was held back may be of either.
            self.restart(effects);
            self.drop_held();
            self.request(now, 1, effects);
            return;
        }
        match self.next {
            Some(next) if seq < next => {
                self.stats.duplicates += 1;
                return;
            }
            Some(next) if seq > next && !first => {
                // A hole in the answer: publishers drop what exceeds their send buffer. Asked for again later.
                self.hold(now, seq, Held { print, payload }, effects);
                return;
            }
            Some(next) if seq > next => self.step_over(seq, effects),
            Some(_) => {}
            None => self.begin(seq),
        }
        if let Some(pending) = self.pending.as_mut() {
            pending.progressed = true;
        }
        self.take_held(seq);
        self.apply(seq, print, payload, effects);
    }

    /// The replay's end marker.
    pub fn replay_ended(&mut self, now: Time, attempt: u64, effects: &mut Vec<Effect<P>>) {
        let Some(pending) = self.pending.take_if(|pending| pending.attempt == attempt) else {
            self.stats.stale_answers += 1;
            return;
        };
        if !pending.started && pending.from < pending.missing {
            // It does not know its own last message. Those held back may be its successor's.
            self.restart(effects);
            self.request(now, 1, effects);
            return;
        }
        self.settle(now, pending.progressed, effects);
    }

    /// The replay socket could not be reached or sent something else than answers.
    pub fn replay_failed(&mut self, now: Time, attempt: u64, effects: &mut Vec<Effect<P>>) {
        let Some(pending) = self.pending.take_if(|pending| pending.attempt == attempt) else { return };
        if pending.progressed {
            self.request(now, 1, effects);
        } else if pending.tries < self.config.replay_tries {
            self.request(now, pending.tries + 1, effects);
        } else {
            self.settle(now, false, effects);
        }
    }

    /// To be called at [`Tracker::next_deadline`].
    pub fn handle_timeout(&mut self, now: Time, effects: &mut Vec<Effect<P>>) {
        if let Some(pending) = self.pending.filter(|pending| pending.deadline <= now) {
            self.replay_failed(now, pending.attempt, effects);
        }
    }

    fn recent(&self, seq: u64) -> Option<u64> {
        let &(first, _) = self.recent.front()?;
        let at = usize::try_from(seq.checked_sub(first)?).ok()?;
        self.recent.get(at).map(|&(_, print)| print)
    }

    fn request(&mut self, now: Time, tries: u32, effects: &mut Vec<Effect<P>>) {
        let missing = self.next.unwrap_or(self.config.first_seq);
        let from = self.recent.back().map_or(missing, |&(last, _)| last);
        self.attempts += 1;
        self.stats.replays += 1;
        self.pending = Some(Pending {
            attempt: self.attempts,
            from,
            missing,
            deadline: now + self.config.replay_timeout,
            tries,
            started: false,
            progressed: false,
        });
        effects.push(Effect::Replay { attempt: self.attempts, from, missing });
    }

    /// After a replay: applies what was held back, and asks for more or gives up what is still missing.
    fn settle(&mut self, now: Time, progressed: bool, effects: &mut Vec<Effect<P>>) {
        self.drain(effects);
        let Some((&lowest, _)) = self.held.first_key_value() else { return };
        if !progressed {
            if self.next.is_some() {
                self.step_over(lowest, effects);
            } else {
                self.begin(lowest);
            }
            self.drain(effects);
        }
        if !self.held.is_empty() {
            self.request(now, 1, effects);
        }
    }

    fn hold(&mut self, now: Time, seq: u64, held: Held<P>, effects: &mut Vec<Effect<P>>) {
        self.take_held(seq);
        self.held_bytes += held.payload.as_ref().len();
        self.held.insert(seq, held);
        if self.held.len() > self.config.held_messages_max || self.held_bytes > self.config.held_bytes_max {
            self.pending = None;
            self.settle(now, false, effects);
        }
    }

    fn take_held(&mut self, seq: u64) -> Option<Held<P>> {
        let held = self.held.remove(&seq)?;
        self.held_bytes -= held.payload.as_ref().len();
        Some(held)
    }

    fn drop_held(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
    }

    fn drain(&mut self, effects: &mut Vec<Effect<P>>) {
        while let (Some(next), Some((&lowest, _))) = (self.next, self.held.first_key_value())
            && lowest <= next
            && let Some(held) = self.take_held(lowest)
        {
            if lowest == next {
                self.apply(lowest, held.print, held.payload, effects);
            } else {
                self.stats.duplicates += 1;
            }
        }
    }

    /// The first message that is heard of this publisher.
    fn begin(&mut self, seq: u64) {
        self.whole = seq == self.config.first_seq;
        self.next = Some(seq);
    }

    /// Gives up what is missing before `seq`.
    fn step_over(&mut self, seq: u64, effects: &mut Vec<Effect<P>>) {
        let missing = self.next.unwrap_or(self.config.first_seq);
        self.stats.gaps += 1;
        self.stats.lost += seq.saturating_sub(missing);
        self.distrust(Loss::Gap { missing, resumed: seq }, effects);
        self.next = Some(seq);
    }

    fn restart(&mut self, effects: &mut Vec<Effect<P>>) {
        self.stats.restarts += 1;
        self.distrust(Loss::Restart, effects);
        self.next = None;
        self.pending = None;
    }

    fn distrust(&mut self, loss: Loss, effects: &mut Vec<Effect<P>>) {
        self.whole = false;
        self.recent.clear();
        effects.push(match self.config.recovery {
            Recovery::Clear => Effect::Clear(loss),
            Recovery::Reconcile => Effect::Reconcile(loss),
        });
    }

    fn apply(&mut self, seq: u64, print: u64, payload: P, effects: &mut Vec<Effect<P>>) {
        self.stats.applied += 1;
        self.next = Some(seq.saturating_add(1));
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((seq, print));
        effects.push(Effect::Apply { seq, payload });
    }
}
