//! The trace's side: rows in, batches out.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use tandem_engines::{HttpClient, HttpConfig, TlsConfig, TlsError};
use tandem_trace::config::TraceConfig;
use tandem_trace::record::Loss;
use tandem_trace::writer::{EncodedRow, Pushed, Sink, SinkError, SinkReport, Step};
use tandem_types::Time;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use super::OtlpConfig;
use super::exporter::{Batch, Exporter, Progress};
use super::message::{self, Made};
use crate::clock::unix_ms;

/// Rows in a call.
const BATCH_ROWS_MAX: u64 = 512;

/// Sends rows to a collector.
pub(super) struct OtlpSink {
    resource: Resource,
    v1: Vec<LogRecord>,
    own: Vec<LogRecord>,
    rows: u64,
    bytes: usize,
    since: Option<Time>,
    /// When to look again at what became of batches, so that losses are counted soon.
    look_at: Option<Time>,
    /// Losses found here that no row has told yet.
    untold: Loss,
    lost: Loss,
    limits: Limits,
    progress: Arc<Progress>,
    /// `None` once closed.
    batches: Option<UnboundedSender<Batch>>,
    ended: Receiver<()>,
    task: AbortHandle,
}

struct Limits {
    row_bytes_max: usize,
    batch_bytes: usize,
    flush_interval: Duration,
    held_bytes_max: usize,
    close_patience: Duration,
}

impl OtlpSink {
    /// A sink with its task, which runs on the current tokio runtime.
    pub(super) fn open(config: &OtlpConfig, trace: &TraceConfig) -> Result<Self, TlsError> {
        let http = HttpConfig {
            connect_timeout: config.timeout,
            tls: TlsConfig { extra_ca_pem: config.ca_pem.clone(), ..TlsConfig::default() },
            ..HttpConfig::default()
        };
        let progress = Arc::new(Progress::default());
        let (batches, waiting) = unbounded_channel();
        let (alive, ended) = sync_channel(0);
        let exporter = Exporter {
            client: HttpClient::new(&http)?,
            endpoint: config.endpoint.clone(),
            headers: config.headers.clone(),
            timeout: config.timeout,
            retry_pause: config.retry_pause,
            progress: Arc::clone(&progress),
            batches: waiting,
            alive,
        };
        let writer = trace.writer();
        Ok(Self {
            resource: message::resource(&config.resource),
            v1: Vec::new(),
            own: Vec::new(),
            rows: 0,
            bytes: 0,
            since: None,
            look_at: None,
            untold: Loss::default(),
            lost: Loss::default(),
            limits: Limits {
                row_bytes_max: trace.otel_payload_bytes_max,
                batch_bytes: writer.buffer_bytes,
                flush_interval: writer.flush_interval,
                held_bytes_max: writer.held_bytes_max,
                close_patience: config.close_patience,
            },
            progress,
            batches: Some(batches),
            ended,
            task: tokio::spawn(exporter.run()).abort_handle(),
        })
    }

    /// Gives the batch to the task.
    fn hand_over(&mut self, now: Time) {
        (self.bytes, self.since) = (0, None);
        let rows = std::mem::take(&mut self.rows);
        if rows == 0 {
            return;
        }
        let body = message::request(&self.resource, &mut self.v1, &mut self.own).encode_to_vec();
        let batch = Batch { rows, body: body.into() };
        self.progress.hold(&batch);
        self.look_at.get_or_insert(now + self.limits.flush_interval);
        if let Some(batches) = &self.batches {
            // Where the runtime has ended, closing counts what is held as lost.
            let _ = batches.send(batch);
        }
    }
}

impl Sink for OtlpSink {
    fn push(&mut self, now: Time, row: &EncodedRow, loss: Loss) -> Pushed {
        if self.bytes + self.progress.held_bytes() >= self.limits.held_bytes_max {
            self.lost.io += 1;
            return Pushed::Refused;
        }
        let mut told = self.progress.take_untold();
        told.add(self.untold);
        told.add(loss);
        let Some(Made { v1, record }) = message::record(row, told, self.limits.row_bytes_max, unix_ms())
        else {
            self.lost.unfit += 1;
            told.unfit += 1;
            self.untold = told;
            return Pushed::Taken;
        };
        self.untold = Loss::default();
        let bytes = record.encoded_len();
        if self.bytes + bytes > self.limits.row_bytes_max {
            self.hand_over(now);
        }
        if v1 { &mut self.v1 } else { &mut self.own }.push(record);
        self.rows += 1;
        self.bytes += bytes;
        self.since.get_or_insert(now);
        if self.bytes >= self.limits.batch_bytes || self.rows >= BATCH_ROWS_MAX {
            self.hand_over(now);
        }
        Pushed::Taken
    }

    fn tick(&mut self, now: Time) {
        if self.since.is_some_and(|since| now >= since + self.limits.flush_interval) {
            self.hand_over(now);
        }
        if self.look_at.is_some_and(|at| now >= at) {
            let waiting = self.progress.held_bytes() > 0;
            self.look_at = waiting.then(|| now + self.limits.flush_interval);
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        let batch = self.since.map(|since| since + self.limits.flush_interval);
        [batch, self.look_at].into_iter().flatten().min()
    }

    fn close(&mut self, now: Time) -> Result<(), SinkError> {
        self.hand_over(now);
        let before = self.report().lost.total();
        self.batches = None;
        let waited = self.ended.recv_timeout(self.limits.close_patience);
        self.progress.close();
        self.task.abort();
        let report = self.report();
        if report.lost.total() == before {
            return Ok(());
        }
        let late = || SinkError {
            step: Step::Send,
            kind: std::io::ErrorKind::TimedOut,
            message: "the collector had not taken all rows when the time for closing was over".to_owned(),
        };
        let in_time = waited == Err(RecvTimeoutError::Disconnected);
        Err(report.last_error.filter(|_| in_time).unwrap_or_else(late))
    }

    fn report(&self) -> SinkReport {
        let mut report =
            SinkReport { name: "otel", rows_held: self.rows, lost: self.lost, ..SinkReport::default() };
        self.progress.add_to(&mut report);
        report
    }
}
