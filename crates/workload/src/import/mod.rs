//! Importers: one file per family of formats, one table that tells them apart.

mod agentic;
mod applied;
mod atif;
mod bailian;
mod dynamo;
mod mooncake;
mod weka;

use std::fmt;
use std::io::Read;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::build::{Draft, build};
use crate::graph::Workload;
use crate::repair::{Repair, Repairs};

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// Mooncake rows: whole prompts, one line per request, with or without sessions.
    Mooncake,
    /// The same where later rows of a session hold only what is new.
    MooncakeDelta,
    /// Agentic Mooncake: explicit dependencies; version 2 with a header line, or older rows without.
    AgenticMooncake,
    /// kv-cache-tester's sessions (the source format of AgentX).
    Weka,
    /// `dynamo.request.trace.v1`, Tandem's own traces included.
    Dynamo,
    /// Applied Compute's agentic rows: one session per line, lengths only.
    AppliedCompute,
    /// Alibaba's Bailian usage traces.
    Bailian,
    /// ATIF trajectories, of which only lengths and times are used.
    Atif,
}

/// Names of formats, as flags spell them.
const NAMES: &[(Format, &str)] = &[
    (Format::Mooncake, "mooncake"),
    (Format::MooncakeDelta, "mooncake-delta"),
    (Format::AgenticMooncake, "agentic-mooncake"),
    (Format::Weka, "weka"),
    (Format::Dynamo, "dynamo"),
    (Format::AppliedCompute, "applied-compute"),
    (Format::Bailian, "bailian"),
    (Format::Atif, "atif"),
];

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.iter().find(|(format, _)| format == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = NAMES.iter().find(|(_, name)| *name == text || name.replace('-', "_") == text);
        found.map(|(format, _)| *format).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(_, name)| *name).collect();
            format!("no such trace format; there are {}", names.join(", "))
        })
    }
}

/// How to import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportOptions {
    /// The first thing that needs mending is an error.
    pub strict: bool,
    /// Tokens in a block, for formats that do not say: what the rows themselves tell, else 512.
    pub block_size: Option<u32>,
    /// Sessions with equal tools and system prompt share the head of their prompts (Weka: by the lengths that the
    /// file gives, since its block ids mean nothing across sessions).
    pub share_heads: bool,
    /// Most bytes of an unpacked file.
    pub bytes_max: u64,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self { strict: false, block_size: None, share_heads: true, bytes_max: 4 << 30 }
    }
}

/// Why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It cannot be unpacked.
    #[error("cannot unpack: {0}")]
    Gzip(String),
    /// It is too large, or a number in it is.
    #[error("too large")]
    TooLarge,
    /// It is of no known format.
    #[error("this is no trace format that is known here; name it, or see the list of formats")]
    Unknown,
    /// It holds no request.
    #[error("there is no request in it")]
    Empty,
    /// Requests wait for each other in a circle.
    #[error("requests wait for each other in a circle; one of them is of session {0}")]
    Circle(String),
    /// A header says something that this reader does not know.
    #[error("{0}")]
    Header(String),
    /// Something needs mending, and strict import was asked for.
    #[error("{place}: {repair:?}")]
    Strict {
        /// What.
        repair: Repair,
        /// Where.
        place: String,
    },
}

/// Reads one file of a known format.
///
/// # Errors
/// [`ImportError`].
pub fn import(bytes: &[u8], format: Format, options: &ImportOptions) -> Result<Workload, ImportError> {
    let unpacked;
    let text = if bytes.starts_with(&[0x1f, 0x8b]) {
        unpacked = unpack(bytes, options.bytes_max)?;
        &unpacked[..]
    } else {
        bytes
    };
    let mut repairs = Repairs::new(options.strict);
    let (drafts, block_size) = match format {
        Format::Mooncake => mooncake::read(text, false, options, &mut repairs)?,
        Format::MooncakeDelta => mooncake::read(text, true, options, &mut repairs)?,
        Format::AgenticMooncake => agentic::read(text, options, &mut repairs)?,
        Format::Weka => weka::read(text, options, &mut repairs)?,
        Format::Dynamo => dynamo::read(text, options, &mut repairs)?,
        Format::AppliedCompute => applied::read(text, options, &mut repairs)?,
        Format::Bailian => bailian::read(text, options, &mut repairs)?,
        Format::Atif => atif::read(text, options, &mut repairs)?,
    };
    let workload = build(drafts, block_size, repairs)?;
    if workload.nodes.is_empty() { Err(ImportError::Empty) } else { Ok(workload) }
}

fn unpack(bytes: &[u8], most: u64) -> Result<Vec<u8>, ImportError> {
    let mut out = Vec::new();
    let mut decoder = MultiGzDecoder::new(bytes).take(most.saturating_add(1));
    decoder.read_to_end(&mut out).map_err(|error| ImportError::Gzip(error.to_string()))?;
    if out.len() as u64 > most { Err(ImportError::TooLarge) } else { Ok(out) }
}

/// Guesses the format from the first rows.
///
/// # Errors
/// [`ImportError::Unknown`], or a file that cannot be unpacked.
pub fn sniff(bytes: &[u8]) -> Result<Format, ImportError> {
    let mut head = Vec::new();
    let most = 64 << 20;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        // A file that is cut off still shows its beginning.
        let read = MultiGzDecoder::new(bytes).take(most).read_to_end(&mut head);
        if head.is_empty() {
            return Err(ImportError::Gzip(read.err().map_or_else(String::new, |error| error.to_string())));
        }
    }
    let text = if head.is_empty() { bytes } else { &head };
    let rows: Vec<Value> =
        lines(text).take(32).filter_map(|(_, line)| serde_json::from_slice(line).ok()).collect();
    let whole = || serde_json::from_slice::<Value>(text).ok();
    let first = rows.first().cloned().or_else(whole).ok_or(ImportError::Unknown)?;
    let first = first.get("event").filter(|event| event.is_object()).unwrap_or(&first);
    let has = |key: &str| first.get(key).is_some();
    let text_of = |key: &str| first.get(key).and_then(Value::as_str).unwrap_or_default();
    let found = if text_of("schema").starts_with("dynamo.agentic_mooncake") {
        Format::AgenticMooncake
    } else if text_of("schema").starts_with("dynamo.request.trace")
        || text_of("schema").starts_with("tandem.trace")
    {
        Format::Dynamo
    } else if text_of("schema_version").starts_with("ATIF") {
        Format::Atif
    } else if has("requests") && has("block_size") {
        Format::Weka
    } else if has("assistant_response_length") {
        Format::AppliedCompute
    } else if has("chat_id") && has("parent_chat_id") {
        Format::Bailian
    } else if has("wait_for") || has("dependencies") {
        Format::AgenticMooncake
    } else if has("hash_ids") && (has("input_length") || has("input_tokens")) {
        if mooncake::looks_like_deltas(&rows) { Format::MooncakeDelta } else { Format::Mooncake }
    } else {
        return Err(ImportError::Unknown);
    };
    Ok(found)
}

/// Lines that are not blank, with their numbers from 1.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    text.split(|byte| *byte == b'\n')
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim_ascii()))
        .filter(|(_, line)| !line.is_empty())
}

/// Rows of one type; a line that is none is noted and left out.
fn rows<T: DeserializeOwned>(text: &[u8], repairs: &mut Repairs) -> Result<Vec<(usize, T)>, ImportError> {
    let mut rows = Vec::new();
    for (number, line) in lines(text) {
        match serde_json::from_slice(line) {
            Ok(row) => rows.push((number, row)),
            Err(error) => repairs.note(Repair::BadRow, format_args!("line {number}: {error}"))?,
        }
    }
    Ok(rows)
}

/// Milliseconds, where they make sense.
fn millis(ms: f64) -> Duration {
    seconds(ms / 1000.0)
}

/// Seconds, where they make sense.
fn seconds(s: f64) -> Duration {
    Duration::try_from_secs_f64(s.max(0.0)).unwrap_or_default()
}

/// Ids of a text that only grows: one stream per seed.
fn stream(seed: u64, tokens: u64, block_size: u32) -> Vec<u64> {
    (0..tokens.div_ceil(u64::from(block_size.max(1)))).map(|index| crate::ids::mix(seed, index)).collect()
}

/// Sessions in the order in which they are first named.
#[derive(Default)]
struct Drafts {
    list: Vec<Draft>,
    by_name: std::collections::BTreeMap<Arc<str>, usize>,
}

impl Drafts {
    fn of(&mut self, name: &str) -> Option<&mut Draft> {
        let index = match self.by_name.get(name) {
            Some(index) => *index,
            None => {
                let id: Arc<str> = name.into();
                self.by_name.insert(Arc::clone(&id), self.list.len());
                self.list.push(Draft { id, ..Draft::default() });
                self.list.len() - 1
            }
        };
        self.list.get_mut(index)
    }
}
