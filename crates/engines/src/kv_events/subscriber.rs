//! The task that follows one publisher: link, sequence tracker, replays, decoding, delivery.

use std::time::Duration;

use bytes::Bytes;
use tandem_kvwire::tracker::Loss;
use tandem_kvwire::tracker::TrackerState;
use tandem_kvwire::{Effect, Tracker, decode, parse_message};
use tandem_types::{Time, WorkerId};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::link::{Link, LinkEvent, LinkTimes};
use super::replay::{Answer, Replay};
use super::status::{Cell, KvState};
use super::{KvClear, KvEventsConfig, KvUpdate, KvUpdateKind};

/// Where one rank publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) endpoint: String,
    pub(super) replay: Option<String>,
}

/// Nobody receives updates any more.
pub(super) struct Closed;

pub(super) struct Subscriber {
    worker: WorkerId,
    source: Source,
    config: KvEventsConfig,
    updates: mpsc::Sender<KvUpdate>,
    cell: Cell,
    tracker: Tracker<Bytes>,
    link: Link,
    replay: Option<Replay>,
    effects: Vec<Effect<Bytes>>,
    start: Instant,
    /// What the receiver believes.
    told_live: bool,
    /// Something was told that would have to be cleared.
    told_any: bool,
    /// The connection is new, and the publisher behind it may be another one than before.
    unconfirmed: bool,
    recheck_at: Option<Instant>,
}

/// What the task waits for.
enum Step {
    Link(LinkEvent),
    Answer(Answer),
    ReplayDeadline,
    Recheck,
}

impl Subscriber {
    pub(super) fn new(
        worker: WorkerId,
        source: Source,
        config: KvEventsConfig,
        updates: mpsc::Sender<KvUpdate>,
        cell: Cell,
    ) -> Self {
        cell.edit(|status| {
            status.state = KvState::Stale;
            status.endpoint = Some(source.endpoint.clone());
            status.replay_endpoint.clone_from(&source.replay);
        });
        Self {
            worker,
            tracker: Tracker::new(config.tracker(source.replay.is_some())),
            link: Link::new(source.endpoint.clone(), LinkTimes::from(&config)),
            source,
            config,
            updates,
            cell,
            replay: None,
            effects: Vec::new(),
            start: Instant::now(),
            told_live: false,
            told_any: false,
            unconfirmed: false,
            recheck_at: None,
        }
    }

    /// Follows until `stop`; what was told is then cleared. `shutdown` ends it without a word.
    pub(super) async fn run(mut self, stop: CancellationToken, shutdown: CancellationToken) {
        let stopped = tokio::select! {
            biased;
            () = shutdown.cancelled() => false,
            () = stop.cancelled() => true,
            _ = self.follow() => false,
        };
        if stopped && self.told_any {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                _ = self.tell(KvUpdateKind::Cleared(KvClear::Ended)) => {}
            }
        }
    }

    async fn follow(&mut self) -> Result<(), Closed> {
        loop {
            let step = self.wait().await;
            let now = self.now();
            match step {
                Step::Link(event) => self.linked(now, event),
                Step::Answer(answer) => self.answered(now, answer),
                Step::ReplayDeadline => {
                    self.cell.edit(|status| status.replay_failures += 1);
                    self.cell.error(format!("no answer to a replay within {:?}", self.config.replay_timeout));
                    self.tracker.handle_timeout(now, &mut self.effects);
                }
                Step::Recheck => {
                    self.recheck_at = None;
                    if self.tracker.next_deadline().is_none() {
                        self.tracker.connected(now, &mut self.effects);
                    }
                }
            }
            self.carry_out().await?;
            self.report().await?;
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    async fn wait(&mut self) -> Step {
        // Time stands still for a replay while the receiver holds us up: what it brought meanwhile comes first.
        let waiting = self.replay.as_ref().is_some_and(Replay::has_answers);
        let deadline = self.tracker.next_deadline().filter(|_| !waiting);
        let deadline = deadline.map(|time| self.start + Duration::from_nanos(time.0));
        tokio::select! {
            event = self.link.next() => Step::Link(event),
            answer = next_answer(&mut self.replay) => Step::Answer(answer),
            () = sleep_until(deadline.unwrap_or(self.start)), if deadline.is_some() => Step::ReplayDeadline,
            () = sleep_until(self.recheck_at.unwrap_or(self.start)), if self.recheck_at.is_some() => Step::Recheck,
        }
    }

    fn linked(&mut self, now: Time, event: LinkEvent) {
        match event {
            LinkEvent::Connected => {
                tracing::debug!(endpoint = self.source.endpoint, "kv events connected");
                self.cell.edit(|status| status.connects += 1);
                self.unconfirmed = self.tracker.next_seq().is_some();
                self.replay = None;
                self.recheck_at = self.source.replay.is_some().then(|| Instant::now() + self.config.recheck);
                self.tracker.connected(now, &mut self.effects);
            }
            LinkEvent::Message(frames) => {
                self.recheck_at = None;
                self.message(now, frames);
            }
            LinkEvent::Lost(error) => {
                tracing::debug!(endpoint = self.source.endpoint, error, "kv events lost");
                self.cell.edit(|status| status.disconnects += 1);
                self.cell.error(error);
                self.replay = None;
                self.recheck_at = None;
                self.tracker.disconnected();
            }
            LinkEvent::Failed(error) => self.cell.error(error),
        }
    }

    fn message(&mut self, now: Time, mut frames: Vec<Bytes>) {
        let parts: Vec<&[u8]> = frames.iter().map(AsRef::as_ref).collect();
        let seq = match parse_message(&parts) {
            Ok(message) => message.seq,
            Err(error) => {
                self.cell.edit(|status| status.decode_errors += 1);
                self.cell.error(error.to_string());
                return;
            }
        };
        let Some(payload) = frames.pop() else { return };
        self.tracker.live(now, seq, payload, &mut self.effects);
        self.unconfirmed = false;
    }

    fn answered(&mut self, now: Time, answer: Answer) {
        let Some(attempt) = self.replay.as_ref().map(|replay| replay.attempt) else { return };
        match answer {
            Answer::Batch { seq, payload } => {
                self.unconfirmed = false;
                self.tracker.replayed(now, attempt, seq, payload, &mut self.effects);
            }
            Answer::End => {
                self.unconfirmed = false;
                self.replay = None;
                self.tracker.replay_ended(now, attempt, &mut self.effects);
            }
            Answer::Failed(error) => {
                self.cell.edit(|status| status.replay_failures += 1);
                self.cell.error(error);
                self.replay = None;
                self.tracker.replay_failed(now, attempt, &mut self.effects);
            }
        }
    }

    /// Does what the tracker wants done, in order.
    async fn carry_out(&mut self) -> Result<(), Closed> {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Apply { seq, payload } => self.apply(seq, &payload).await?,
                Effect::Replay { attempt, from, .. } => {
                    let Some(endpoint) = self.source.replay.clone() else { continue };
                    let within = self.config.connect_timeout;
                    self.replay = Some(Replay::start(endpoint, attempt, from, within));
                }
                Effect::Clear(loss) | Effect::Reconcile(loss) => {
                    tracing::info!(
                        endpoint = self.source.endpoint,
                        ?loss,
                        "kv events lost for good, cleared"
                    );
                    let cause = match loss {
                        Loss::Restart => KvClear::Restarted,
                        Loss::Gap { .. } => KvClear::Lost,
                    };
                    self.tell(KvUpdateKind::Cleared(cause)).await?;
                }
            }
        }
        Ok(())
    }

    async fn apply(&mut self, seq: u64, payload: &[u8]) -> Result<(), Closed> {
        let decoded = match decode(payload) {
            Ok(decoded) => decoded,
            Err(error) => {
                self.cell.edit(|status| {
                    status.decode_errors += 1;
                    status.last_seq = Some(seq);
                });
                self.cell.error(format!("message {seq}: {error}"));
                return Ok(());
            }
        };
        let (events, timestamp) = (decoded.batch.events.len(), decoded.batch.timestamp);
        self.tell(KvUpdateKind::Batch(decoded.batch)).await?;
        self.cell.edit(|status| {
            status.batches += 1;
            status.events += u64::try_from(events).unwrap_or(u64::MAX);
            status.skipped_events += u64::from(decoded.skipped.total());
            status.last_seq = Some(seq);
            status.lag = age(timestamp);
        });
        Ok(())
    }

    async fn tell(&mut self, kind: KvUpdateKind) -> Result<(), Closed> {
        self.told_any = true;
        let received = std::time::Instant::now();
        self.updates.send(KvUpdate { worker: self.worker, received, kind }).await.map_err(|_| Closed)
    }

    /// Brings the status up to date, and tells the receiver when the stream became live or stale.
    async fn report(&mut self) -> Result<(), Closed> {
        let up = self.link.is_connected();
        let caught_up = matches!(self.tracker.state(), TrackerState::Live | TrackerState::Silent);
        let state = match (up, caught_up) {
            (false, _) => KvState::Stale,
            (true, false) => KvState::Replaying,
            (true, true) if self.unconfirmed => KvState::Stale,
            (true, true) => KvState::Live,
        };
        match state {
            KvState::Live if !self.told_live => {
                self.told_live = true;
                self.tell(KvUpdateKind::Live).await?;
            }
            KvState::Stale if self.told_live => {
                self.told_live = false;
                self.tell(KvUpdateKind::Stale).await?;
            }
            _ => {}
        }
        let stats = self.tracker.stats();
        self.cell.edit(|status| {
            status.state = state;
            status.whole = self.tracker.whole();
            status.gaps = stats.gaps;
            status.lost = stats.lost;
            status.replays = stats.replays;
            status.restarts = stats.restarts;
            status.duplicates = stats.duplicates;
            status.held = self.tracker.held();
        });
        Ok(())
    }
}

async fn next_answer(replay: &mut Option<Replay>) -> Answer {
    match replay {
        Some(replay) => replay.next().await,
        None => std::future::pending().await,
    }
}

/// Seconds since `timestamp`, a time of day in seconds. Clocks differ: never below zero.
fn age(timestamp: f64) -> Option<f64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?.as_secs_f64();
    timestamp.is_finite().then(|| (now - timestamp).max(0.0))
}
