//! The table of programs and what their prompts looked like.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_types::{Harness, ProgramKey, TenantId, Time, ToolCall, Usage};

use crate::divergence::{Divergence, Relation};
use crate::outline::Outline;

/// Bounds of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LineageConfig {
    /// Most programs remembered; the one that was quiet longest leaves first.
    pub programs_max: usize,
    /// Most segments remembered of all programs together (24 bytes each).
    pub segments_max: usize,
    /// Most token ids remembered of all programs together (4 bytes each, shared with the caller).
    pub tokens_max: usize,
    /// Most lines of conversation remembered under one id.
    pub branches_max: usize,
    /// A program that was quiet this long is forgotten.
    pub idle: Duration,
}

impl Default for LineageConfig {
    fn default() -> Self {
        Self {
            programs_max: 100_000,
            segments_max: 8 * 1024 * 1024,
            tokens_max: 32 * 1024 * 1024,
            branches_max: 8,
            idle: Duration::from_secs(3600),
        }
    }
}

/// A turn as it arrives.
#[derive(Debug, Clone, Copy)]
pub struct Arriving<'a> {
    /// Its body's outline.
    pub outline: &'a Outline,
    /// Its prompt's token ids, where known.
    pub tokens: Option<&'a Arc<[u32]>>,
    /// Who sent it: what is learned of one session helps others of the same harness and model.
    pub harness: Harness,
    /// The harness says that the history was compacted since the last turn.
    pub compacted: bool,
}

/// Names one arrived turn until it has ended or was withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// On what an expectation rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Nothing is known of earlier turns.
    Nothing,
    /// In proportion to bytes.
    Estimated,
    /// The last turn's prompt as the engine counted it; the body only grew.
    Prompt,
    /// The last turn's prompt and answer as the engine counted them: the harness is known to send answers back
    /// so that they become the same tokens.
    PromptAndAnswer,
    /// Token ids of both prompts.
    Tokens,
}

/// Leading prompt tokens that repeat what the session left in the cache, not rounded to blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Expected {
    /// How many.
    pub tokens: u64,
    /// How sure.
    pub basis: Basis,
}

/// What a new prompt has to do with those before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// To hand back in [`Lineage::ended`] or [`Lineage::withdrawn`].
    pub ticket: Ticket,
    /// How it relates to the program's earlier prompts.
    pub relation: Relation,
    /// For a program's first prompt: the program whose whole prompt it begins with (a forked session).
    pub forked_from: Option<ProgramKey>,
    /// Where it leaves the last prompt before that one's end.
    pub divergence: Option<Divergence>,
    /// How many of its tokens repeat what the last turn left.
    pub expected: Expected,
    /// Tokens that the session had in all before this turn: the last prompt and its answer; 0 = none known.
    pub history: u64,
    /// Tokens behind the divergence that the session had before at another place, estimated from bytes.
    pub displaced: Option<u64>,
}

/// A turn's end.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    /// What the engine counted.
    pub usage: Usage,
    /// The tools that the answer called.
    pub tool_calls: &'a [ToolCall],
    /// The answer's token ids, where known.
    pub answer: Option<&'a [u32]>,
    /// Block size of the engine that answered, where known: how far its cached count is rounded down.
    pub block_size: Option<u32>,
}

/// Whose turn a request without identity is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inferred {
    /// The program.
    pub program: ProgramKey,
    /// It was there before; else its id is made up now.
    pub continues: bool,
}

/// What was learned of programs from their prompts. One owner; bounded by its [`LineageConfig`].
#[derive(Debug)]
pub struct Lineage {
    config: LineageConfig,
}

impl Lineage {
    /// An empty table.
    #[must_use]
    pub const fn new(config: LineageConfig) -> Self {
        Self { config }
    }

    /// The live program whose next turn this is; `None` = none, or it cannot be told.
    #[must_use]
    pub fn infer(&self, tenant: &TenantId, outline: &Outline, now: Time) -> Option<ProgramKey> {
        let _ = (tenant, outline, now);
        None
    }

    /// The program of a request without identity: [`Self::infer`], or a made-up id that no live program has.
    /// `None` when the table holds as many programs with this very beginning as can be told apart.
    #[must_use]
    pub fn identify(&self, tenant: &TenantId, outline: &Outline, now: Time) -> Option<Inferred> {
        self.infer(tenant, outline, now).map(|program| Inferred { program, continues: true })
    }

    /// Compares a turn with its program's earlier ones and remembers it.
    pub fn arrived(&mut self, program: &ProgramKey, arriving: &Arriving<'_>, now: Time) -> Arrival {
        let _ = (program, arriving, now);
        Arrival {
            ticket: Ticket(0),
            relation: Relation::First,
            forked_from: None,
            divergence: None,
            expected: Expected { tokens: 0, basis: Basis::Nothing },
            history: 0,
            displaced: None,
        }
    }

    /// The engine answered: its counts make the next turn's expectation exact.
    pub fn ended(&mut self, ticket: Ticket, ended: &Ended<'_>, now: Time) {
        let _ = (ticket, ended, now);
    }

    /// The turn was rejected, failed or cancelled: as if it had never come.
    pub fn withdrawn(&mut self, ticket: Ticket) {
        let _ = ticket;
    }

    /// Forgets a program.
    pub fn end_session(&mut self, program: &ProgramKey) {
        let _ = program;
    }

    /// Forgets programs that were quiet too long.
    pub fn expire(&mut self, now: Time) {
        let _ = (now, self.config.idle);
    }

    /// Programs remembered.
    #[must_use]
    pub const fn programs(&self) -> usize {
        self.config.programs_max.saturating_sub(self.config.programs_max)
    }
}
