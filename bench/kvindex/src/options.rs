//! What to run.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::workload::Trace;

/// Traces and fleets.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Mooncake trace (JSON Lines, gzip).
    #[arg(long)]
    pub mooncake: Option<PathBuf>,
    /// Claude Code traces (kv-cache-tester's, one session a line, gzip).
    #[arg(long, num_args = 1..)]
    pub claude: Vec<PathBuf>,
    /// Only this fleet.
    #[arg(long)]
    pub workers: Option<u32>,
    /// Only indexes whose name contains one of these.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Rounds of the speed comparison; the indexes take turns.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
}

/// One fleet on one trace.
#[derive(Debug, Clone, Copy)]
pub struct Fleet {
    pub workers: u32,
    /// Blocks that a worker's cache takes.
    pub capacity: usize,
    /// Copies of the trace side by side.
    pub copies: u32,
    /// Requests taken from each session.
    pub per_session: usize,
}

/// Blocks of 128 tokens: the trace's own, of 512, in four.
pub const MOONCAKE: [Fleet; 3] = [
    Fleet { workers: 2, capacity: 100_000, copies: 1, per_session: usize::MAX },
    Fleet { workers: 64, capacity: 8_000, copies: 2, per_session: usize::MAX },
    Fleet { workers: 1024, capacity: 2_000, copies: 8, per_session: usize::MAX },
];

/// Blocks of 64 tokens.
pub const CLAUDE: [Fleet; 3] = [
    Fleet { workers: 2, capacity: 200_000, copies: 1, per_session: 100 },
    Fleet { workers: 64, capacity: 10_000, copies: 1, per_session: 100 },
    Fleet { workers: 1024, capacity: 4_000, copies: 4, per_session: 24 },
];

impl Options {
    /// Whether an index takes part.
    #[must_use]
    pub fn wants(&self, index: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|o| index.contains(o.as_str()))
    }

    /// The traces asked for, by name, with the fleets to run them on.
    ///
    /// # Errors
    /// When a trace cannot be read.
    pub fn runs(&self, mut each: impl FnMut(&str, &Trace, Fleet) -> Result<()>) -> Result<()> {
        let wanted = |f: &&Fleet| self.workers.is_none_or(|w| w == f.workers);
        if let Some(path) = &self.mooncake {
            let trace = Trace::mooncake(path, 4)?;
            for fleet in MOONCAKE.iter().filter(wanted) {
                each("mooncake", &trace, *fleet)?;
            }
        }
        if !self.claude.is_empty() {
            for fleet in CLAUDE.iter().filter(wanted) {
                let trace = Trace::claude(&self.claude, fleet.per_session)?;
                each("claude", &trace, *fleet)?;
            }
        }
        Ok(())
    }
}
