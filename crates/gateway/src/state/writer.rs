//! The thread that writes what is kept.
//!
//! - Purpose: no task and no request ever waits for the disk.
//! - Inputs: batches over a bounded channel. Outputs: metrics, and the keys of what could not be written.
//! - A disk that fails is said once, counted each time, and tried again with the next batch after [`RETRY`]; the gateway
//!   goes on meanwhile.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::store::{Change, Limits, Store};
use crate::clock::unix_ms;
use crate::metrics::{Family, Metrics};

/// Batches that may wait.
const BATCHES_MAX: usize = 2;

/// Time between two tries to open a store that failed.
const RETRY: Duration = Duration::from_secs(10);

/// What the thread is told.
pub(super) enum Command {
    /// Write this; whether it was.
    Write(Vec<Change>, oneshot::Sender<bool>),
    /// All keys that are kept; `None` = the store is not open.
    Keys(oneshot::Sender<Option<Vec<Vec<u8>>>>),
}

/// A way to reach the thread.
pub(super) struct Writer {
    commands: mpsc::Sender<Command>,
    thread: JoinHandle<()>,
}

impl Writer {
    pub(super) fn start(
        store: Store,
        folder: PathBuf,
        limits: Limits,
        metrics: Metrics,
    ) -> std::io::Result<Self> {
        let (commands, inbox) = mpsc::channel(BATCHES_MAX);
        let work = Work { store: Some(store), folder, limits, metrics, failed: None, retry: RETRY };
        let thread =
            std::thread::Builder::new().name("tandem-state".to_owned()).spawn(move || work.run(inbox))?;
        Ok(Self { commands, thread })
    }

    /// Has a batch written; false if it was not.
    pub(super) async fn write(&self, batch: Vec<Change>) -> bool {
        let (answer, written) = oneshot::channel();
        self.commands.send(Command::Write(batch, answer)).await.is_ok() && written.await.unwrap_or(false)
    }

    /// All keys that are kept; `None` = that is not known while the store is not open.
    pub(super) async fn keys(&self) -> Option<Vec<Vec<u8>>> {
        let (answer, keys) = oneshot::channel();
        self.commands.send(Command::Keys(answer)).await.ok()?;
        keys.await.ok()?
    }

    /// Ends the thread once it has done all that it was told.
    pub(super) async fn finish(self) {
        drop(self.commands);
        let joined = tokio::task::spawn_blocking(|| self.thread.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            tracing::error!("the thread that keeps sessions did not end orderly");
        }
    }
}

struct Work {
    /// `None` after a failure: the database takes nothing more until it is opened again.
    store: Option<Store>,
    folder: PathBuf,
    limits: Limits,
    metrics: Metrics,
    /// When it failed last, while it does.
    failed: Option<Instant>,
    retry: Duration,
}

impl Work {
    fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
        self.count();
        while let Some(command) = inbox.blocking_recv() {
            match command {
                Command::Write(batch, answer) => {
                    let written = self.write(&batch);
                    self.count();
                    let _ = answer.send(written);
                }
                Command::Keys(answer) => {
                    let _ = answer.send(self.store.as_ref().map(Store::keys));
                }
            }
        }
    }

    fn write(&mut self, batch: &[Change]) -> bool {
        if self.store.is_none() {
            self.reopen();
        }
        let Some(store) = &mut self.store else { return batch.is_empty() || self.fail(None) };
        if batch.is_empty() && !store.is_overdue(unix_ms()) {
            return true;
        }
        match store.write(batch, unix_ms()) {
            Ok(surplus) => {
                let put = batch.iter().filter(|change| matches!(change, Change::Put { .. })).count();
                let removed = batch.iter().filter(|change| matches!(change, Change::Remove { .. })).count();
                self.metrics.count(Family::StateWrites, &[("outcome", "written")], put as u64);
                self.metrics.count(
                    Family::StateWrites,
                    &[("outcome", "removed")],
                    (removed + surplus) as u64,
                );
                if self.failed.take().is_some() {
                    tracing::info!("sessions are kept again");
                }
                true
            }
            Err(error) => {
                self.store = None;
                self.fail(Some(error.to_string()))
            }
        }
    }

    fn reopen(&mut self) {
        if self.failed.is_some_and(|at| at.elapsed() < self.retry) {
            return;
        }
        match Store::open(&self.folder, self.limits) {
            Ok((store, aside)) => {
                if let Some(why) = aside {
                    tracing::warn!("kept sessions begin anew: {why}");
                }
                self.store = Some(store);
            }
            Err(error) => {
                self.fail(Some(error.to_string()));
            }
        }
    }

    /// Counts a failure, and says the first of a row.
    fn fail(&mut self, why: Option<String>) -> bool {
        self.metrics.inc(Family::StateFailures, &[]);
        if let Some(why) = why {
            if self.failed.is_none() {
                tracing::warn!(
                    why,
                    "sessions cannot be kept: the gateway goes on, and a restart would find them as they were last written"
                );
            }
            self.failed = Some(Instant::now());
        }
        false
    }

    fn count(&self) {
        if let Some(store) = &self.store {
            self.metrics.set(Family::StatePrograms, &[], store.programs());
            self.metrics.gauge(Family::StateBytes, &[], store.bytes() as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::state::store::tests::{Failing, LIMITS, put};

    /// What a write takes out for want of room is counted with what it was told to remove.
    #[test]
    fn what_leaves_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Metrics::new().unwrap();
        let limits = Limits { programs: 2, ..LIMITS };
        let mut work = Work {
            store: Store::on(Failing::new().0, limits).ok(),
            folder: folder.path().to_owned(),
            limits,
            metrics: metrics.clone(),
            failed: None,
            retry: RETRY,
        };
        let now = unix_ms();
        assert!(work.write(&[put("a", now - 3, 10), put("b", now - 2, 10), put("c", now - 1, 10)]));
        assert!(work.write(&[Change::Remove { key: b"b".to_vec() }]));
        assert!(
            metrics.render().contains("tandem_state_writes_total{outcome=\"removed\"} 2"),
            "{}",
            metrics.render()
        );
    }

    /// I-STA-5: a full disk is counted, and written to again once it can be.
    #[test]
    fn a_disk_that_fails_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let (backend, full) = Failing::new();
        let metrics = Metrics::new().unwrap();
        let mut work = Work {
            store: Store::on(backend, LIMITS).ok(),
            folder: folder.path().to_owned(),
            limits: LIMITS,
            metrics: metrics.clone(),
            failed: None,
            retry: Duration::from_secs(3600),
        };
        let now = unix_ms();
        assert!(work.write(&[put("a", now, 10)]));
        full.store(true, Ordering::Relaxed);
        assert!(!work.write(&[put("b", now, 100_000)]) && work.failed.is_some());
        // Not before its time.
        assert!(!work.write(&[put("b", now, 10)]));
        assert!(metrics.render().contains("tandem_state_write_failures_total 2"), "{}", metrics.render());
        work.retry = Duration::ZERO;
        assert!(work.write(&[put("b", now, 10)]) && work.failed.is_none());
        assert_eq!(work.store.as_ref().map(Store::keys), Some(vec![b"b".to_vec()]));
        assert!(metrics.render().contains("tandem_state_writes_total{outcome=\"written\"} 2"));
    }
}
