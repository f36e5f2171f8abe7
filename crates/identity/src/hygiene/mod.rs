//! Volatile text at the head of prompts.

use serde::{Deserialize, Serialize};
use tandem_types::{BodyEdit, Dialect, Harness};

/// What to do with one kind of volatile text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handling {
    /// Take it out.
    Remove,
    /// Put constant text in place of the part that changes.
    Freeze,
    /// Report it only.
    Keep,
}

/// A kind of volatile text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolatileKind {
    /// Claude Code's `x-anthropic-billing-header: ...` line, first text of the system prompt.
    BillingLine,
    /// A token budget or token usage marker at the head of the system prompt.
    TokenBudget,
    /// OpenHands' start time with microseconds, near the end of its system prompt.
    DateTime,
}

/// A switch per kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HygieneConfig {
    /// Claude Code's billing line; removed by default.
    pub billing_line: Handling,
    /// Token budget markers; removed by default.
    pub token_budget: Handling,
    /// OpenHands' start time; kept by default, because the model may need it.
    pub date_time: Handling,
}

impl Default for HygieneConfig {
    fn default() -> Self {
        Self { billing_line: Handling::Remove, token_budget: Handling::Remove, date_time: Handling::Keep }
    }
}

/// One piece of volatile text that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Its kind.
    pub kind: VolatileKind,
    /// Its length in the body, in bytes.
    pub bytes: usize,
    /// What the plan does with it.
    pub handling: Handling,
}

/// What hygiene would change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HygienePlan {
    /// Edits of the body as the client sent it: disjoint and in order.
    pub edits: Vec<BodyEdit>,
    /// Everything found, kept text included, for counters and reports.
    pub found: Vec<Found>,
}

/// Looks at the system prompt of a request body and plans its edits.
#[must_use]
pub fn plan(dialect: Dialect, harness: Harness, body: &[u8], config: &HygieneConfig) -> HygienePlan {
    let _ = (dialect, harness, body, config);
    HygienePlan::default()
}
