//! What people and metrics see of a worker's event stream.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tandem_types::WorkerId;
use tokio::time::Instant;

use crate::state::LastError;

/// Where a worker's event stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KvState {
    /// Nobody publishes for it, as far as is known.
    #[default]
    Absent,
    /// The publisher is out of reach, or was not heard since it came back.
    Stale,
    /// Waits for history or for lost messages.
    Replaying,
    /// Up to date.
    Live,
}

/// A worker's event stream. Counts are since the worker was first seen, or since its publisher changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KvStatus {
    /// Which worker.
    pub worker: WorkerId,
    /// Where it stands.
    pub state: KvState,
    /// The publisher.
    pub endpoint: Option<String>,
    /// Its replay socket.
    pub replay_endpoint: Option<String>,
    /// The last sequence number handed on.
    pub last_seq: Option<u64>,
    /// Everything since the publisher's start was handed on. If not, its cache holds more than was told.
    pub whole: bool,
    /// Connections made.
    pub connects: u64,
    /// Connections lost.
    pub disconnects: u64,
    /// Batches handed on.
    pub batches: u64,
    /// Events in them.
    pub events: u64,
    /// Events left out because they are of no known form.
    pub skipped_events: u64,
    /// Messages that could not be decoded at all, and were left out.
    pub decode_errors: u64,
    /// Holes in the sequence that could not be filled.
    pub gaps: u64,
    /// Messages lost in them.
    pub lost: u64,
    /// Replays asked for.
    pub replays: u64,
    /// Of these, failed.
    pub replay_failures: u64,
    /// Restarts of the publisher noticed.
    pub restarts: u64,
    /// Messages that came again.
    pub duplicates: u64,
    /// Messages held back now.
    pub held: usize,
    /// Age of the last batch when it was handed on, by its own time stamp.
    #[serde(rename = "lag_seconds")]
    pub lag: Option<f64>,
    /// The last thing that went wrong.
    pub last_error: Option<LastError>,
}

impl KvStatus {
    const fn new(worker: WorkerId) -> Self {
        Self {
            worker,
            state: KvState::Absent,
            endpoint: None,
            replay_endpoint: None,
            last_seq: None,
            whole: false,
            connects: 0,
            disconnects: 0,
            batches: 0,
            events: 0,
            skipped_events: 0,
            decode_errors: 0,
            gaps: 0,
            lost: 0,
            replays: 0,
            replay_failures: 0,
            restarts: 0,
            duplicates: 0,
            held: 0,
            lag: None,
            last_error: None,
        }
    }
}

/// The status as its task keeps it.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) status: KvStatus,
    last_error: Option<(String, Instant)>,
}

/// Shared between the task that writes it and those who read it.
#[derive(Debug, Clone)]
pub(super) struct Cell(Arc<Mutex<Kept>>);

impl Cell {
    fn new(worker: WorkerId) -> Self {
        Self(Arc::new(Mutex::new(Kept { status: KvStatus::new(worker), last_error: None })))
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn edit(&self, change: impl FnOnce(&mut KvStatus)) {
        change(&mut self.lock().status);
    }

    pub(super) fn error(&self, text: String) {
        self.lock().last_error = Some((text, Instant::now()));
    }

    fn read(&self) -> KvStatus {
        let kept = self.lock();
        let mut status = kept.status.clone();
        status.last_error = kept.last_error.as_ref().map(|(text, at)| {
            let ago: Duration = at.elapsed();
            LastError { text: text.clone(), ago }
        });
        status
    }
}

/// The statuses of all workers.
#[derive(Debug, Clone, Default)]
pub(super) struct Board(Arc<Mutex<BTreeMap<WorkerId, Cell>>>);

impl Board {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<WorkerId, Cell>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker's status, made if there is none.
    pub(super) fn cell(&self, worker: WorkerId) -> Cell {
        self.lock().entry(worker).or_insert_with(|| Cell::new(worker)).clone()
    }

    /// A worker's status begins anew.
    pub(super) fn fresh(&self, worker: WorkerId) -> Cell {
        let cell = Cell::new(worker);
        self.lock().insert(worker, cell.clone());
        cell
    }

    pub(super) fn remove(&self, worker: WorkerId) {
        self.lock().remove(&worker);
    }

    pub(super) fn read(&self) -> Vec<KvStatus> {
        self.lock().values().map(Cell::read).collect()
    }

    pub(super) fn one(&self, worker: WorkerId) -> Option<KvStatus> {
        self.lock().get(&worker).map(Cell::read)
    }
}
