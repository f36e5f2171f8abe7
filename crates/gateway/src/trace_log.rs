//! The trace's writer thread and the way to it.
//!
//! - Inputs: finished turns, decisions, holds, tool events. Output: rows in the sinks of the configuration.
//! - Invariants: I-LOG-1 the request path never waits for a disk: a full queue loses the row, and the loss is
//!   counted in the metrics and in the file itself; I-LOG-2 block hashes are made on the writer's thread;
//!   I-LOG-3 closing waits until everything that was accepted is written.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tandem_scheduler::{Admission, Decision, HoldReason};
use tandem_trace::config::{Records, TraceConfig};
use tandem_trace::record::{
    AdmissionAction, AdmissionEvent, OwnKind, PayloadRecord, PrefixEvent, TraceStart,
};
use tandem_trace::writer::{Fanout, Sink, SinkError, Stream};
use tandem_trace::{OwnEvent, Record, TraceRow, files, hash};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, unix_ms};
use crate::metrics::{Family, Metrics};
use crate::routing_rows;
use crate::turn::Story;

/// Prompts that may be rendered in the background at once.
const RENDERS_MAX: usize = 64;

/// How long a row waits for the tokens of its prompt when the turn is over.
const RENDER_PATIENCE: Duration = Duration::from_secs(5);

/// The tokens of a prompt.
#[derive(Default)]
pub(crate) enum PromptTokens {
    /// Not known.
    #[default]
    Unknown,
    /// These.
    Known(Vec<u32>),
    /// An engine is being asked.
    Asked(oneshot::Receiver<Vec<u32>>),
}

/// A turn that is over.
pub(crate) struct Finished {
    pub(crate) record: Record,
    pub(crate) prompt: PromptTokens,
    pub(crate) output: Vec<u32>,
}

/// The content of a turn, as bytes.
pub(crate) struct Payload {
    pub(crate) request_id: String,
    pub(crate) endpoint: &'static str,
    pub(crate) model: String,
    pub(crate) request: Bytes,
    /// `None`: streamed, or none came.
    pub(crate) response: Option<Bytes>,
    pub(crate) headers: BTreeMap<String, String>,
}

impl Payload {
    fn into_record(self) -> PayloadRecord {
        let json = |bytes: &Bytes| {
            let text = std::str::from_utf8(bytes).ok()?;
            RawValue::from_string(text.to_owned()).ok()
        };
        let request = json(&self.request);
        let response = self.response.as_ref().and_then(json);
        let dropped = match (&request, &response) {
            (None, _) => Some("request_unreadable"),
            (_, None) => Some("response_not_collected"),
            _ => None,
        };
        PayloadRecord {
            request_id: self.request_id,
            endpoint: self.endpoint.to_owned(),
            model: self.model,
            request,
            response,
            http_request_headers: (!self.headers.is_empty()).then_some(self.headers),
            payload_complete: dropped.is_none(),
            payload_drop_reason: dropped.map(str::to_owned),
        }
    }
}

enum Job {
    Row(TraceRow),
    Payload { unix_ms: u64, payload: Box<Payload> },
    Turn { record: Box<Record>, prompt: Vec<u32>, output: Vec<u32> },
    Close,
}

/// A way to the writer; does nothing when tracing is off. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct TraceLog {
    shared: Option<Arc<Shared>>,
}

struct Shared {
    jobs: SyncSender<Job>,
    lost: Arc<AtomicU64>,
    metrics: Metrics,
    records: Records,
    payload_headers: Vec<String>,
    renders: Arc<Semaphore>,
    /// Rows that wait for tokens.
    waiting: TaskTracker,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What the log is opened with.
pub(crate) struct Opening<'a> {
    pub(crate) config: &'a TraceConfig,
    pub(crate) block_size: NonZeroU32,
    pub(crate) policy: &'a str,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    /// Sinks beside those of the trace crate.
    pub(crate) more: Vec<Box<dyn Sink + Send>>,
}

impl TraceLog {
    /// Opens the sinks and starts the writer.
    pub(crate) fn open(opening: Opening<'_>) -> Result<Self, OpenError> {
        let Opening { config, block_size, policy, clock, metrics, more } = opening;
        let mut fanout = files::open_sinks(config, clock.now(), Box::new(std::io::stderr()))?;
        for sink in more {
            fanout.add(Stream::Both, sink);
        }
        let start = TraceStart {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            policy: Some(policy.to_owned()),
            rows: config.rows,
            trace_block_size: Some(block_size.get()),
        };
        fanout.start(clock.now(), unix_ms(), start);
        let (jobs, waiting) = sync_channel(config.capacity);
        let lost = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            fanout,
            clock,
            block_size,
            output_hashes: config.output_hashes,
            lost: Arc::clone(&lost),
            metrics: metrics.clone(),
            lost_before: 0,
        };
        let writer = std::thread::Builder::new()
            .name("tandem-trace".to_owned())
            .spawn(move || writer.run(&waiting))
            .map_err(OpenError::Thread)?;
        let shared = Shared {
            jobs,
            lost,
            metrics,
            records: config.records,
            payload_headers: config.payload_headers.clone(),
            renders: Arc::new(Semaphore::new(RENDERS_MAX)),
            waiting: TaskTracker::new(),
            writer: Mutex::new(Some(writer)),
        };
        Ok(Self { shared: Some(Arc::new(shared)) })
    }

    /// Whether rows are written at all.
    pub(crate) const fn enabled(&self) -> bool {
        self.shared.is_some()
    }

    /// Room for one more background look-up of a prompt's tokens.
    pub(crate) fn render_slot(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        let shared = self.shared.as_ref()?;
        Arc::clone(&shared.renders).try_acquire_owned().ok()
    }

    /// A turn is over.
    pub(crate) fn finished(&self, turn: Finished) {
        let Some(shared) = &self.shared else { return };
        if !shared.records.request_end {
            return;
        }
        let Finished { record, prompt, output } = turn;
        let record = Box::new(record);
        match prompt {
            PromptTokens::Unknown => shared.send(Job::Turn { record, prompt: Vec::new(), output }),
            PromptTokens::Known(prompt) => shared.send(Job::Turn { record, prompt, output }),
            PromptTokens::Asked(answer) => {
                let log = Arc::clone(shared);
                shared.waiting.spawn(async move {
                    let prompt = tokio::time::timeout(RENDER_PATIENCE, answer).await;
                    let prompt = prompt.ok().and_then(Result::ok).unwrap_or_default();
                    log.send(Job::Turn { record, prompt, output });
                });
            }
        }
    }

    /// Whether content is wanted: only where the operator asked for it by name.
    pub(crate) fn wants_payload(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.records.request_payload)
    }

    /// The request headers to note beside content.
    pub(crate) fn payload_headers(&self, headers: &http::HeaderMap) -> BTreeMap<String, String> {
        let wanted = self.shared.iter().flat_map(|shared| &shared.payload_headers);
        wanted
            .filter_map(|name| headers.get(name).map(|value| (name, value)))
            .map(|(name, value)| (name.clone(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect()
    }

    /// The content of a turn that is over.
    pub(crate) fn payload(&self, unix_ms: u64, payload: Payload) {
        let Some(shared) = &self.shared else { return };
        shared.send(Job::Payload { unix_ms, payload: Box::new(payload) });
    }

    /// A worker was chosen.
    pub(crate) fn routed(&self, story: &Story, decision: &Decision) {
        let Some(shared) = self.decisions() else { return };
        let event = routing_rows::event(story, decision);
        shared.send(Job::Row(OwnEvent::new(unix_ms(), OwnKind::Routing(event)).into()));
    }

    /// What became of a turn's prompt.
    pub(crate) fn prefix(&self, event: PrefixEvent) {
        let Some(shared) = self.decisions() else { return };
        shared.send(Job::Row(OwnEvent::new(unix_ms(), OwnKind::Prefix(event)).into()));
    }

    /// A turn waits.
    pub(crate) fn held(&self, story: &Story, reason: HoldReason, position: u32) {
        self.admission(story, AdmissionAction::Held, |event| {
            event.reason = Some(reason.as_str().to_owned());
            event.position = Some(position);
        });
    }

    /// Admission's policy let a turn in.
    pub(crate) fn admitted(&self, story: &Story, decision: &Decision, admission: &Admission) {
        self.admission(story, AdmissionAction::Admitted, |event| {
            event.reason = admission.held.map(|held| held.as_str().to_owned());
            event.policy = Some(admission.policy.clone());
            event.worker = admission.placement.worker().map(Into::into);
            event.forced = admission.forced;
            event.priority = Some(admission.priority).filter(|priority| *priority != 0);
            event.held_ms = Some(millis(decision.held));
        });
    }

    /// A turn was refused.
    pub(crate) fn rejected(&self, story: &Story, reason: &str, retry_after_s: u64) {
        self.admission(story, AdmissionAction::Rejected, |event| {
            event.reason = Some(reason.to_owned());
            event.retry_after_s = Some(retry_after_s);
        });
    }

    fn admission(&self, story: &Story, action: AdmissionAction, more: impl FnOnce(&mut AdmissionEvent)) {
        let Some(shared) = self.decisions() else { return };
        let mut event = AdmissionEvent::new(story.request_id.to_string(), action);
        event.session_id = story.session_id().map(str::to_owned);
        more(&mut event);
        shared.send(Job::Row(OwnEvent::new(unix_ms(), OwnKind::Admission(event)).into()));
    }

    /// Rows of tools; false when tracing (or tracing of tools) is off.
    pub(crate) fn tools(&self, records: Vec<Record>) -> bool {
        let Some(shared) = self.shared.as_ref().filter(|shared| shared.records.tool) else { return false };
        for record in records {
            shared.send(Job::Row(record.into()));
        }
        true
    }

    fn decisions(&self) -> Option<&Arc<Shared>> {
        self.shared.as_ref().filter(|shared| shared.records.decision)
    }

    /// Waits for the rows that are on their way, and closes the files.
    pub(crate) async fn close(&self) {
        let Some(shared) = &self.shared else { return };
        shared.waiting.close();
        shared.waiting.wait().await;
        let writer = shared.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(writer) = writer else { return };
        let jobs = shared.jobs.clone();
        let closed = tokio::task::spawn_blocking(move || {
            let _ = jobs.send(Job::Close);
            writer.join()
        });
        if !matches!(closed.await, Ok(Ok(()))) {
            tracing::error!("the trace's writer did not end orderly");
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Why a trace cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A sink.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The writer's thread.
    #[error("cannot start the trace's writer: {0}")]
    Thread(std::io::Error),
}

impl Shared {
    fn send(&self, job: Job) {
        match self.jobs.try_send(job) {
            Ok(()) => self.metrics.inc(Family::TraceRows, &[]),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                self.metrics.inc(Family::TraceRowsLost, &[]);
            }
        }
    }
}

struct Writer {
    fanout: Fanout,
    clock: Clock,
    block_size: NonZeroU32,
    output_hashes: bool,
    lost: Arc<AtomicU64>,
    metrics: Metrics,
    /// What the sinks themselves had lost at the last look.
    lost_before: u64,
}

impl Writer {
    fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let job = match self.fanout.next_deadline() {
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => jobs.recv_timeout(at.since(self.clock.now())),
            };
            let lost = self.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                self.fanout.lost(lost);
            }
            match job {
                Ok(Job::Row(row)) => self.fanout.record(self.clock.now(), row),
                Ok(Job::Payload { unix_ms, payload }) => {
                    let record = Record::request_payload(unix_ms, payload.into_record());
                    self.fanout.record(self.clock.now(), record.into());
                }
                Ok(Job::Turn { record, prompt, output }) => self.turn(*record, &prompt, &output),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Job::Close) | Err(RecvTimeoutError::Disconnected) => break,
            }
            self.fanout.tick(self.clock.now());
            self.count_sink_losses();
        }
        let now = self.clock.now();
        for report in self.fanout.close(now, unix_ms()) {
            let lost = report.report.lost.total();
            match report.error {
                Some(error) => tracing::error!(%error, sink = report.report.name, lost, "trace rows lost"),
                None => tracing::debug!(
                    sink = report.report.name,
                    rows = report.report.rows_written,
                    lost,
                    "trace closed"
                ),
            }
        }
    }

    fn turn(&mut self, mut record: Record, prompt: &[u32], output: &[u32]) {
        if !prompt.is_empty() {
            let output = if self.output_hashes { output } else { &[] };
            if let Some(request) = &mut record.request {
                request.replay = Some(hash::replay(prompt, output, self.block_size));
            }
        }
        self.fanout.record(self.clock.now(), record.into());
    }

    fn count_sink_losses(&mut self) {
        let lost = self.fanout.lost_so_far();
        let own = lost.io + lost.unfit;
        if own > self.lost_before {
            self.metrics.count(Family::TraceRowsLost, &[], own - self.lost_before);
            self.lost_before = own;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tandem_trace::config::SinkKind;
    use tandem_trace::record::{Extras, Loss, RequestRecord};
    use tandem_trace::writer::{EncodedRow, Pushed, SinkReport};
    use tandem_types::Time;

    use super::*;

    /// Tells of each row's losses, and takes a row only when it may.
    struct Gate {
        may: mpsc::Receiver<()>,
        losses: mpsc::Sender<u64>,
    }

    impl Sink for Gate {
        fn push(&mut self, _: Time, _: &EncodedRow, loss: Loss) -> Pushed {
            let _ = self.losses.send(loss.total());
            let _ = self.may.recv();
            Pushed::Taken
        }

        fn tick(&mut self, _: Time) {}

        fn next_deadline(&self) -> Option<Time> {
            None
        }

        fn close(&mut self, _: Time) -> Result<(), SinkError> {
            Ok(())
        }

        fn report(&self) -> SinkReport {
            SinkReport::default()
        }
    }

    fn turn(n: usize) -> Finished {
        let record = Record::request_end(1, None, RequestRecord::new(format!("r{n}")), Extras::default());
        Finished { record, prompt: PromptTokens::Unknown, output: Vec::new() }
    }

    /// I-LOG-1: with the writer stuck, rows beyond the queue are lost at once, and counted in metrics and rows.
    #[tokio::test]
    async fn a_stuck_sink_costs_rows_and_not_turns() {
        let ((go, may), (losses, told)) = (mpsc::channel(), mpsc::channel());
        let metrics = Metrics::new().expect("buckets");
        // For the row with which a trace begins.
        go.send(()).expect("the sink lives");
        let config = TraceConfig { sinks: vec![SinkKind::Otel], capacity: 4, ..TraceConfig::default() };
        let log = TraceLog::open(Opening {
            config: &config,
            block_size: NonZeroU32::MIN,
            policy: "test",
            clock: Clock::start(),
            metrics: metrics.clone(),
            more: vec![Box::new(Gate { may, losses })],
        })
        .expect("opens");
        assert_eq!(told.recv(), Ok(0));
        // The writer is stuck in the first row; four wait; the rest has no room.
        log.finished(turn(0));
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(0));
        for n in 1..11 {
            log.finished(turn(n));
        }
        let text = metrics.render();
        assert!(text.contains("tandem_trace_rows_total 5"), "{text}");
        assert!(text.contains("tandem_trace_rows_lost_total 6"), "{text}");
        for _ in 0..64 {
            let _ = go.send(());
        }
        log.close().await;
        let told: Vec<u64> = told.try_iter().collect();
        assert_eq!(told.iter().sum::<u64>(), 6, "{told:?}");
    }
}
