//! Where a prompt leaves the one before, and why.

use serde::{Deserialize, Serialize};

use crate::outline::SegmentKind;

/// How a prompt relates to those that its program sent before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// The program's first prompt.
    First,
    /// The last prompt with something added at its end.
    Appends,
    /// The last prompt, changed somewhere.
    Rewrites,
    /// System prompt and tools as before, the history replaced by something shorter.
    Compacted,
    /// Another line of conversation under the same id (subagents that share their parent's).
    Branch,
    /// The very prompt that was sent last.
    Repeat,
}

/// What happened to a list of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolsChange {
    /// Tools were added, none taken away.
    Added,
    /// Tools were taken away, none added.
    Removed,
    /// The same tools in another order.
    Reordered,
    /// Anything else: other tools, or other descriptions or schemas.
    Changed,
}

/// Why a prompt does not go on as the last one did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The segment differs in numbers, times, dates or ids only.
    VolatileText,
    /// Another system prompt.
    SystemChanged,
    /// Another list of tools.
    ToolsChanged(ToolsChange),
    /// Another model, adapter, salt, template argument or reasoning effort.
    ParametersChanged,
    /// The history was replaced by something shorter.
    Compaction,
    /// Something in the history reads differently now.
    EditedHistory,
    /// What stood last still stands last, behind what was added.
    MovedTail,
    /// The model's reasoning of earlier turns is not sent again.
    DroppedReasoning,
    /// The body only grew, but its rendered prompt differs before the old one's end.
    TemplateArtefact,
    /// Messages of the history are left out.
    TruncatedHistory,
    /// None of the above can be told.
    Other,
}

/// A place in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Position {
    /// Tokens before it.
    pub tokens: u64,
    /// Counted from the token ids of both prompts; else estimated from bytes.
    pub exact: bool,
}

/// Where a prompt leaves its predecessor before that one's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Divergence {
    /// Index of the first segment that differs, in the new outline.
    pub segment: u32,
    /// What the old prompt had there; what the new one has, where the old one cannot have had anything.
    pub kind: SegmentKind,
    /// The common part in tokens; `None` when neither tokens nor the old prompt's length are known.
    pub position: Option<Position>,
    /// Why.
    pub cause: Cause,
}

impl Divergence {
    /// The first differing block.
    #[must_use]
    pub fn block(&self, block_size: u32) -> Option<u64> {
        self.position.and_then(|position| position.tokens.checked_div(u64::from(block_size)))
    }
}
