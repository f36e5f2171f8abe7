//! The task that sends batches, and what it tells the sink.

use std::io::ErrorKind;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, Uri, header};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use prost::Message as _;
use tandem_engines::{HttpClient, SendErrorKind, full, read_body};
use tandem_trace::record::Loss;
use tandem_trace::writer::{SinkError, SinkReport, Step};
use tokio::sync::mpsc::UnboundedReceiver;

/// Tries of one batch.
const TRIES: u32 = 3;

/// Longest wait that a collector can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Rows on their way.
pub(super) struct Batch {
    pub(super) rows: u64,
    pub(super) body: Bytes,
}

/// What became of batches, between the task and the sink.
#[derive(Default)]
pub(super) struct Progress {
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    held_rows: u64,
    held_bytes: usize,
    written_rows: u64,
    written_bytes: u64,
    lost: u64,
    /// Lost and not told in a row yet.
    untold: u64,
    errors: u64,
    last_error: Option<SinkError>,
    /// The last batch did not get through.
    failing: bool,
    /// The sink is closed: what was held is counted, and later news changes nothing.
    closed: bool,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch goes to the task.
    pub(super) fn hold(&self, batch: &Batch) {
        let mut counts = self.lock();
        counts.held_rows += batch.rows;
        counts.held_bytes += batch.body.len();
    }

    /// Bytes with the task.
    pub(super) fn held_bytes(&self) -> usize {
        self.lock().held_bytes
    }

    /// Losses that the next row tells.
    pub(super) fn take_untold(&self) -> Loss {
        Loss { io: std::mem::take(&mut self.lock().untold), ..Loss::default() }
    }

    /// What the task knows of the report.
    pub(super) fn add_to(&self, report: &mut SinkReport) {
        let counts = self.lock();
        report.rows_written = counts.written_rows;
        report.bytes_written = counts.written_bytes;
        report.rows_held += counts.held_rows;
        report.lost.io += counts.lost;
        report.errors = counts.errors;
        report.last_error.clone_from(&counts.last_error);
    }

    /// Gives up what is held.
    pub(super) fn close(&self) {
        let mut counts = self.lock();
        counts.closed = true;
        counts.held_bytes = 0;
        counts.lost += std::mem::take(&mut counts.held_rows);
    }

    fn failed(&self, error: &SinkError) {
        let mut counts = self.lock();
        counts.errors += 1;
        counts.last_error = Some(error.clone());
    }

    fn settle(&self, batch: &Batch, outcome: &Result<u64, SinkError>) {
        let mut counts = self.lock();
        if counts.closed {
            return;
        }
        counts.held_rows = counts.held_rows.saturating_sub(batch.rows);
        counts.held_bytes = counts.held_bytes.saturating_sub(batch.body.len());
        let lost = match outcome {
            Ok(rejected) => {
                counts.written_bytes += u64::try_from(batch.body.len()).unwrap_or(u64::MAX);
                (*rejected).min(batch.rows)
            }
            Err(_) => batch.rows,
        };
        counts.written_rows += batch.rows - lost;
        counts.lost += lost;
        counts.untold += lost;
        let before = std::mem::replace(&mut counts.failing, outcome.is_err());
        drop(counts);
        // Once per outage, not per batch: the metric counts.
        match outcome {
            Err(error) if !before => {
                tracing::warn!(%error, "trace rows lost, the collector does not take them")
            }
            Ok(_) if lost > 0 => tracing::warn!(rows = lost, "the collector rejects trace rows"),
            Ok(_) if before => tracing::info!("the collector takes trace rows again"),
            Err(_) | Ok(_) => {}
        }
    }
}

/// Sends batches one after the other.
pub(super) struct Exporter {
    pub(super) client: HttpClient,
    pub(super) endpoint: Uri,
    pub(super) headers: HeaderMap,
    pub(super) timeout: Duration,
    pub(super) retry_pause: Duration,
    pub(super) progress: Arc<Progress>,
    /// Bounded by the sink, in bytes.
    pub(super) batches: UnboundedReceiver<Batch>,
    /// Goes when the task does.
    pub(super) alive: SyncSender<()>,
}

/// Why a try failed.
struct Failure {
    error: SinkError,
    /// Whether another try makes sense.
    repeat: bool,
    /// How long the collector wants to be left alone.
    wait: Option<Duration>,
}

impl Exporter {
    /// Works until the sink is closed and nothing is left.
    pub(super) async fn run(mut self) {
        while let Some(batch) = self.batches.recv().await {
            let outcome = self.deliver(&batch.body).await;
            self.progress.settle(&batch, &outcome);
        }
        drop(self.alive);
    }

    /// Sends one message; returns how many rows the collector rejected.
    async fn deliver(&self, body: &Bytes) -> Result<u64, SinkError> {
        let mut pause = self.retry_pause;
        let mut tries = 1;
        loop {
            let failure = match self.attempt(body).await {
                Ok(rejected) => return Ok(rejected),
                Err(failure) => failure,
            };
            self.progress.failed(&failure.error);
            if !failure.repeat || tries == TRIES {
                return Err(failure.error);
            }
            tokio::time::sleep(failure.wait.unwrap_or(pause)).await;
            pause *= 2;
            tries += 1;
        }
    }

    async fn attempt(&self, body: &Bytes) -> Result<u64, Failure> {
        match tokio::time::timeout(self.timeout, self.call(body)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::repeatable(ErrorKind::TimedOut, "no answer in time".to_owned())),
        }
    }

    async fn call(&self, body: &Bytes) -> Result<u64, Failure> {
        let mut request = Request::post(self.endpoint.clone())
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .header(header::USER_AGENT, concat!("tandem/", env!("CARGO_PKG_VERSION")))
            .body(full(body.clone()))
            .map_err(|error| Failure::last(ErrorKind::InvalidInput, error.to_string()))?;
        for (name, value) in &self.headers {
            request.headers_mut().insert(name, value.clone());
        }
        let answer = self.client.send(request).await.map_err(|error| {
            let kind = match error.kind {
                SendErrorKind::Connect => ErrorKind::NotConnected,
                SendErrorKind::Timeout => ErrorKind::TimedOut,
                SendErrorKind::Garbage => ErrorKind::InvalidData,
                SendErrorKind::Disconnected | SendErrorKind::Body | SendErrorKind::Request => {
                    ErrorKind::ConnectionAborted
                }
            };
            Failure::repeatable(kind, error.to_string())
        })?;
        let status = answer.status();
        if !status.is_success() {
            let wait = retry_after(answer.headers());
            let message = format!("the collector answered {}", status.as_u16());
            return Err(if repeatable(status) {
                Failure { wait, ..Failure::repeatable(ErrorKind::ResourceBusy, message) }
            } else {
                Failure::last(ErrorKind::Other, message)
            });
        }
        // The rows are in, whatever becomes of the rest of the answer.
        let Ok(answer) = read_body(answer.into_body(), ANSWER_BYTES_MAX).await else { return Ok(0) };
        let partial =
            ExportLogsServiceResponse::decode(answer).ok().and_then(|response| response.partial_success);
        Ok(partial.map_or(0, |partial| u64::try_from(partial.rejected_log_records).unwrap_or(0)))
    }
}

/// The statuses that the specification lets a client repeat.
const fn repeatable(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

impl Failure {
    fn repeatable(kind: ErrorKind, message: String) -> Self {
        Self { repeat: true, ..Self::last(kind, message) }
    }

    fn last(kind: ErrorKind, message: String) -> Self {
        Self { error: SinkError { step: Step::Send, kind, message }, repeat: false, wait: None }
    }
}
