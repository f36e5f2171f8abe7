//! Which rows are traced, and where to: settings by name.
//!
//! - Purpose: `TANDEM_TRACE*`, and `DYN_REQUEST_TRACE*` with its older names as drop-in aliases.
//! - Inputs: a lookup from name to value (the environment, a table of a file). Outputs: a [`TraceConfig`], or
//!   nothing when tracing is off, and warnings; an error only where going on would do something else than was
//!   asked for.
//! - Invariants:
//!   - I-TCF-1 of each setting the first name that is set wins: ours, then the current alias, then older ones.
//!     A number that cannot be read falls through to the next name.
//!   - I-TCF-2 a number that is zero where zero means nothing, or cannot be read, gives the default and a
//!     warning; a word in a list that is not known is left out with a warning.
//!   - I-TCF-3 no other sink is put in the place of one that was asked for and is not offered: with nothing
//!     left, that is an error.
//! - Deliberately absent: the S3 and NATS sinks.
//! - Sources: dynamo-llm 1.6.1 and dynamo-runtime 1.6.1 (names, defaults, precedence).

mod keys;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::record::Rows;
use crate::writer::WriterConfig;

pub use keys::{KNOWN_KEYS, unknown_keys};

/// Where files go unless told otherwise: what the reference system uses, so that tools find it.
pub const DEFAULT_PATH: &str = "/tmp/dynamo-request-trace";

/// Rows that may wait for the writer.
pub const DEFAULT_CAPACITY: usize = 1024;

/// First frame of tool events over ZMQ.
pub const DEFAULT_TOOL_TOPIC: &str = "agent-tool-events";

/// Longest payload sent over OTLP, in bytes.
pub const DEFAULT_OTEL_PAYLOAD_BYTES: usize = 4 << 20;

/// Settings of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceConfig {
    /// Kinds of rows.
    pub records: Records,
    /// Where rows go; never empty.
    pub sinks: Vec<SinkKind>,
    /// Literal path (`jsonl`) or segment prefix (`jsonl_gz`).
    pub path: PathBuf,
    /// Form of the file.
    pub format: FileFormat,
    /// Which request rows the main file holds.
    pub rows: Rows,
    /// Rows that may wait for the writer; more are lost and counted.
    pub capacity: usize,
    /// Bytes that make a batch.
    pub buffer_bytes: usize,
    /// Longest wait for a batch.
    pub flush_interval: Duration,
    /// Bytes (before compression) in a segment.
    pub roll_bytes: u64,
    /// Lines in a segment.
    pub roll_lines: Option<u64>,
    /// Hash generated tokens too.
    pub output_hashes: bool,
    /// Request headers to note on payload rows, lower case.
    pub payload_headers: Vec<String>,
    /// Where harnesses push tool events.
    pub tool_zmq: Option<ToolZmq>,
    /// Longest payload sent over OTLP.
    pub otel_payload_bytes_max: usize,
}

impl Default for TraceConfig {
    fn default() -> Self {
        Self {
            records: Records::default(),
            sinks: vec![SinkKind::File],
            path: PathBuf::from(DEFAULT_PATH),
            format: FileFormat::default(),
            rows: Rows::default(),
            capacity: DEFAULT_CAPACITY,
            buffer_bytes: WriterConfig::default().buffer_bytes,
            flush_interval: WriterConfig::default().flush_interval,
            roll_bytes: WriterConfig::default().roll_bytes,
            roll_lines: None,
            output_hashes: true,
            payload_headers: Vec::new(),
            tool_zmq: None,
            otel_payload_bytes_max: DEFAULT_OTEL_PAYLOAD_BYTES,
        }
    }
}

impl TraceConfig {
    /// The settings that a file sink needs.
    #[must_use]
    pub fn writer(&self) -> WriterConfig {
        WriterConfig {
            buffer_bytes: self.buffer_bytes,
            flush_interval: self.flush_interval,
            roll_bytes: self.roll_bytes,
            roll_lines: self.roll_lines,
            ..WriterConfig::default()
        }
    }
}

/// Kinds of rows to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Records {
    /// One row per request.
    pub request_end: bool,
    /// Tool rows.
    pub tool: bool,
    /// Our own rows on admission and routing.
    pub decision: bool,
    /// Content. Off unless asked for by name.
    pub request_payload: bool,
}

impl Default for Records {
    fn default() -> Self {
        Self { request_end: true, tool: true, decision: true, request_payload: false }
    }
}

impl Records {
    const NONE: Self = Self { request_end: false, tool: false, decision: false, request_payload: false };

    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }
}

/// Where rows can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SinkKind {
    /// Files.
    File,
    /// The error stream, bare rows.
    Stderr,
    /// OTLP logs; the gateway has the exporter, in builds that include it.
    Otel,
}

/// Form of trace files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileFormat {
    /// One plain file that is appended to.
    Jsonl,
    /// Numbered gzip segments.
    #[default]
    JsonlGz,
}

/// Where harnesses push tool events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolZmq {
    /// Address to bind a PULL socket to.
    pub endpoint: String,
    /// What the first frame must be.
    pub topic: String,
}

/// What the settings amount to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resolved {
    /// `None` = tracing is off.
    pub trace: Option<TraceConfig>,
    /// What was odd in the settings.
    pub warnings: Vec<ConfigWarning>,
}

/// A setting that was not taken as written. Values are quoted: they are the operator's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigWarning {
    /// A number that cannot be read, or zero where zero means nothing.
    BadNumber {
        /// Setting.
        key: String,
        /// Its value.
        value: String,
    },
    /// Neither true nor false.
    BadFlag {
        /// Setting.
        key: String,
        /// Its value.
        value: String,
    },
    /// A word that is not known.
    UnknownWord {
        /// Setting.
        key: String,
        /// The word.
        word: String,
    },
    /// A sink that we do not have.
    SinkNotOffered {
        /// Setting.
        key: String,
        /// The sink.
        sink: String,
    },
    /// Two names of one setting disagree.
    Overridden {
        /// The name that counts.
        by: String,
        /// The name that does not.
        key: String,
    },
    /// A name that looks like a setting of ours and is none.
    UnknownKey {
        /// The name.
        key: String,
    },
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadNumber { key, value } => {
                write!(f, "{key}: {value:?} is not a usable number; the default is used")
            }
            Self::BadFlag { key, value } => {
                write!(f, "{key}: {value:?} is neither true nor false; taken as not set")
            }
            Self::UnknownWord { key, word } => write!(f, "{key}: {word:?} is not known; left out"),
            Self::SinkNotOffered { key, sink } => {
                write!(f, "{key}: there is no {sink:?} sink here; write files and ship them")
            }
            Self::Overridden { by, key } => write!(f, "{key} is set but {by} counts"),
            Self::UnknownKey { key } => write!(f, "{key} is not a setting"),
        }
    }
}

/// Why the settings cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Rows were to go only to sinks that do not exist.
    #[error("{key}: none of {asked:?} can be used; offered are file, jsonl, jsonl_gz, stderr and otel")]
    NoUsableSink {
        /// Setting.
        key: String,
        /// Its value.
        asked: String,
    },
    /// Rows were asked for, but none that exist.
    #[error(
        "{key}: none of {asked:?} is a kind of row; there are request_end, tool, decision and request_payload"
    )]
    NoUsableRecord {
        /// Setting.
        key: String,
        /// Its value.
        asked: String,
    },
}

/// Reads the settings. `lookup` gives the value of a name, if set.
///
/// # Errors
/// [`ConfigError`] where nothing that was asked for can be done.
pub fn resolve(lookup: impl Fn(&str) -> Option<String>) -> Result<Resolved, ConfigError> {
    keys::Settings::new(&lookup).resolve()
}
