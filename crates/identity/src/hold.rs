//! How long each harness can be kept waiting.
//!
//! - Purpose: whoever holds a turn must answer before its client gives up, in a way that the client takes
//!   for life. Both differ from harness to harness, so they stand in a table like the headers do.
//! - Invariants: I-HLD-1 every wait handed out is shorter than the shortest one after which that harness
//!   was seen to give up; I-HLD-2 an unknown client that says nothing gets the least of every column;
//!   I-HLD-3 a read time-out that the client's SDK states shortens a silent wait; it lengthens that of an unknown
//!   client only, of whom nothing better is known; I-HLD-4 an answer that is not streamed is held silently, since an
//!   early 200 would be its last word; I-HLD-5 a client that says itself how long it waits is held for that long,
//!   but in silence no longer than its SDK reads.
//! - Why events and not comments: Codex, Qwen Code and OpenClaw do not count an SSE comment as life.
//! - Sources: the versions in `measured_with`, each driven against a scripted server with its default
//!   settings. Times are single runs (some seconds either way), hence [`MARGIN`].

use std::time::Duration;

use tandem_types::Harness;

/// Taken off every measured limit.
pub const MARGIN: Duration = Duration::from_secs(6);

/// Silence that every measured harness survives; also when to send an early 200, because middleboxes often
/// cut silent connections after a minute.
pub const SILENT_EVERYWHERE: Duration = Duration::from_secs(55);

/// Time between two keep-alive events.
pub const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);

/// What a measurement of waiting found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The client gave up after so many seconds.
    GaveUpAfter(u64),
    /// The client still waited when the measurement ended after so many seconds.
    HeldFor(u64),
}

impl Wait {
    const fn safe(self) -> Duration {
        match self {
            Self::GaveUpAfter(secs) => Duration::from_secs(secs).saturating_sub(MARGIN),
            Self::HeldFor(secs) => Duration::from_secs(secs),
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
pub struct HoldEntry {
    /// The harness.
    pub harness: Harness,
    /// Version that was measured.
    pub measured_with: &'static str,
    /// Accepted, and not a byte of an answer.
    pub silent: Wait,
    /// After an early 200: seconds for which the stream was kept up by events (for Pi, Kimi Code, Cline and
    /// Gemini CLI by comments, to which any event is superior). `None` = better not sent: it
    /// starts an idle clock that a silent wait does not have, or the harness does not stream.
    pub kept_alive: Option<u64>,
}

const fn entry(
    harness: Harness,
    measured_with: &'static str,
    silent: Wait,
    kept_alive: Option<u64>,
) -> HoldEntry {
    HoldEntry { harness, measured_with, silent, kept_alive }
}

/// What was measured.
pub const HOLDS: &[HoldEntry] = &[
    entry(Harness::ClaudeCode, "2.1.332", Wait::GaveUpAfter(359), Some(420)),
    entry(Harness::Codex, "0.171.0", Wait::HeldFor(900), None),
    entry(Harness::OpenCode, "1.18.33", Wait::GaveUpAfter(300), Some(420)),
    entry(Harness::Pi, "1.6.0", Wait::GaveUpAfter(300), Some(420)),
    entry(Harness::KimiCode, "2.1.0", Wait::GaveUpAfter(306), Some(420)),
    entry(Harness::QwenCode, "0.24.4", Wait::GaveUpAfter(120), Some(300)),
    entry(Harness::OpenClaw, "2026.9.6", Wait::GaveUpAfter(600), Some(330)),
    entry(Harness::Hermes, "0.19.0", Wait::HeldFor(900), Some(900)),
    entry(Harness::GeminiCli, "0.61.0", Wait::GaveUpAfter(61), Some(420)),
    entry(Harness::OpenHands, "1.16.0", Wait::GaveUpAfter(300), None),
    entry(Harness::MiniSweAgent, "2.4.6", Wait::GaveUpAfter(600), None),
    entry(Harness::Cline, "3.0.65", Wait::GaveUpAfter(300), Some(330)),
];

/// An unknown client: the least of every column.
const UNKNOWN: HoldEntry = entry(Harness::Unknown, "the least of all", Wait::GaveUpAfter(61), Some(300));

fn lookup(harness: Harness) -> &'static HoldEntry {
    HOLDS.iter().find(|e| e.harness == harness).unwrap_or(&UNKNOWN)
}

/// How to keep an accepted stream alive after an early 200.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// Time between two events of the dialect (`ping`, empty delta, `response.in_progress`).
    pub every: Duration,
    /// Longest time for which this was seen to work (not a limit that was met), or that the client asked for.
    pub proven: Duration,
}

/// What a client says of its patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Declared {
    /// The read time-out that its SDK states.
    pub read_timeout: Option<Duration>,
    /// How long it means to wait until an answer begins ([`crate::table::HOLD_MAX`]).
    pub hold_max: Option<Duration>,
}

/// How one request may be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldTolerance {
    /// Longest safe wait from accepting the request to the first byte of the answer.
    pub silent: Duration,
    /// An early 200 with events of the protocol prolongs the wait; `None` = hold silently only.
    pub early_200: Option<KeepAlive>,
    /// When to send the early 200: at most [`Self::silent`].
    pub early_200_after: Duration,
}

impl HoldTolerance {
    /// The longest wait that is known to be survived: with the early 200 where there is one, else silently.
    /// One way excludes the other, even where the silent one would last longer (OpenClaw): something in
    /// between might cut a silent connection.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.early_200.map_or(self.silent, |k| k.proven)
    }
}

/// How a request of `harness` may be held whose client declares that.
#[must_use]
pub fn hold_tolerance(harness: Harness, stream: bool, declared: Declared) -> HoldTolerance {
    let entry = lookup(harness);
    let table = entry.silent.safe();
    let read = declared.read_timeout.map(within);
    let silent = match (declared.hold_max, read) {
        (Some(own), read) => read.map_or(own, |read| own.min(read)),
        (None, Some(read)) if entry.harness == Harness::Unknown => read,
        (None, read) => read.map_or(table, |read| table.min(read)),
    };
    let early_200 = entry.kept_alive.filter(|_| stream).map(|secs| KeepAlive {
        every: KEEP_ALIVE_EVERY.min(silent),
        proven: declared.hold_max.unwrap_or(Duration::from_secs(secs)),
    });
    HoldTolerance { silent, early_200, early_200_after: silent.min(SILENT_EVERYWHERE) }
}

/// A wait well inside a stated time-out, however short that is.
fn within(timeout: Duration) -> Duration {
    timeout.saturating_sub(MARGIN).max(timeout / 2)
}
