//! What the prompt tokens that were computed were computed for.

use serde::{Deserialize, Serialize};

/// What is known of a turn when its usage has come. All figures in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SplitInput {
    /// Prompt tokens (the engine's report).
    pub prompt: u64,
    /// Of these, taken from a cache (the engine's report).
    pub cached: u64,
    /// Leading prompt tokens that repeat what the session had before; `None` = not known (lineage lost).
    pub repeated: Option<u64>,
    /// Tokens that the session had before in all: its last prompt and the answer to it.
    pub history: u64,
    /// Of the prompt tokens behind `repeated`, how many the session had before at another place; `None` = not
    /// known, and then all of `history` that is not repeated may be among them.
    pub displaced: Option<u64>,
    /// Leading prompt tokens that the chosen worker held at dispatch (all its tiers); `None` = not known.
    pub held_here: Option<u64>,
    /// Leading prompt tokens that any other worker held at dispatch, at most; `None` = not known.
    pub held_elsewhere: Option<u64>,
    /// Leading prompt tokens that the chosen worker held or could have loaded from the shared store.
    pub shared: Option<u64>,
}

/// Prompt tokens computed, by what for. The five sum to `prompt - cached`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Split {
    /// Never seen before in this session.
    pub new: u64,
    /// Seen before, and of no use because the prompt before them differs now.
    pub diverged: u64,
    /// Seen before, and held by another worker or the shared store.
    pub moved: u64,
    /// Seen before, and held by none any more.
    pub evicted: u64,
    /// Not known which.
    pub unknown: u64,
}

/// Splits a turn's computed prompt tokens.
#[must_use]
pub fn split(input: &SplitInput) -> Split {
    let computed = input.prompt.saturating_sub(input.cached);
    Split { unknown: computed, ..Split::default() }
}
