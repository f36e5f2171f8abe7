//! Volatile text at the head of prompts.
//!
//! - Purpose: a line that differs from session to session, put before everything else by the harness, keeps
//!   any two sessions from sharing a prefix in the cache. It is found in the raw body and taken out, or
//!   frozen, by edits that leave every other byte as it came.
//! - Inputs: dialect, harness, raw body, switches. Output: [`HygienePlan`]: edits, and a list of what was
//!   found for counters and reports.
//! - Invariants: I-HYG-1 only the system prompt is looked at, and (start times aside) only its head; user
//!   content is never touched; I-HYG-2 an edited body is valid JSON, equal to the original but for that
//!   text (a block that held nothing else goes with it); I-HYG-3 edits are disjoint and in order; I-HYG-4
//!   any JSON spelling (escapes, white space, order of keys, text or blocks) is read alike, but a start time
//!   in escapes, which no serialiser writes, is not seen; I-HYG-5 a body
//!   without volatile text costs a few vectorised searches and no parse.
//! - Deliberately absent: Responses and Completions, where no volatile head is known. OpenHands' start time
//!   is reported and by default kept: it is constant within a conversation, the model may need it, and most
//!   of the prompt stands before it. Freezing it to the start of its day pays where a chat template puts
//!   the tools after the system prompt, and is left to the operator.
//! - Sources: named beside the forms themselves.

mod pieces;
mod scan;

use memchr::memmem;
use serde::{Deserialize, Serialize};
use tandem_types::{BodyEdit, Dialect, Harness};

use self::pieces::Piece;
use self::scan::{Cursor, Node, spells, units};

/// Most blocks of a system prompt that are looked at.
const BLOCKS_MAX: usize = 64;

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
///
/// A body that cannot be scanned gives an empty plan: judging it is the dialect's business.
#[must_use]
pub fn plan(dialect: Dialect, harness: Harness, body: &[u8], config: &HygieneConfig) -> HygienePlan {
    let mut planner =
        Planner { body, config, dates: harness == Harness::OpenHands, done: 0, plan: HygienePlan::default() };
    if planner.may_hold_volatile_text() {
        // `None` says that there is no system prompt where it should be, or that the body is broken.
        let _ = match dialect {
            Dialect::Messages => planner.messages(),
            Dialect::Chat => planner.chat(),
            Dialect::Responses | Dialect::Completions => None,
        };
    }
    planner.plan
}

struct Planner<'a> {
    body: &'a [u8],
    config: &'a HygieneConfig,
    /// Look for start times, too.
    dates: bool,
    /// End of the last piece taken.
    done: usize,
    plan: HygienePlan,
}

impl Planner<'_> {
    /// A quick no for bodies without any of the words. A client may write any letter as an escape, so
    /// escapes of ASCII letters are followed up.
    fn may_hold_volatile_text(&self) -> bool {
        let has = |word: &str| memmem::find(self.body, word.as_bytes()).is_some();
        has(pieces::BILLING)
            || has("token_budget")
            || has("Token usage")
            || (self.dates && has(pieces::DATE_WORDS))
            || has("\\u00")
    }

    /// Top-level `system`: a text, or blocks of text.
    fn messages(&mut self) -> Option<()> {
        let system = self.member(self.start(), "system")?;
        self.content(system, true)
    }

    /// The first message, if it is a system prompt: its `content` is a text, or parts of text.
    fn chat(&mut self) -> Option<()> {
        let Node::Array(messages) = self.member(self.start(), "messages")? else { return None };
        let mut first = None;
        Cursor::new(self.body, messages.start).elements(|node, _| {
            first = Some(node);
            false
        })?;
        let Some(Node::Object(message)) = first else { return None };
        let Node::Text(role) = self.member(message.start, "role")? else { return None };
        if !spells(self.body, &role, "system") && !spells(self.body, &role, "developer") {
            return None;
        }
        let content = self.member(message.start, "content")?;
        self.content(content, false)
    }

    /// A member of the object that starts at `at`. Of several with one name the last counts, as it does
    /// for the engines.
    fn member(&self, at: usize, name: &str) -> Option<Node> {
        let mut found = None;
        Cursor::new(self.body, at).members(|key, value| {
            if spells(self.body, key, name) {
                found = Some(value);
            }
        })?;
        found
    }

    /// The start of the body behind a byte order mark.
    fn start(&self) -> usize {
        if self.body.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 }
    }

    fn content(&mut self, content: Node, may_be_empty: bool) -> Option<()> {
        match content {
            Node::Text(text) => {
                let head = pieces::head(units(self.body, text.clone()));
                self.take(head.pieces);
                if self.dates {
                    self.take(pieces::date_times(self.body, &text));
                }
                Some(())
            }
            Node::Array(blocks) => self.blocks(blocks.start, may_be_empty),
            Node::Object(_) | Node::Other => None,
        }
    }

    /// Blocks of text. As long as they hold nothing else, volatile text goes on into the next one.
    fn blocks(&mut self, at: usize, may_be_empty: bool) -> Option<()> {
        let mut blocks = Vec::new();
        Cursor::new(self.body, at).elements(|node, range| {
            blocks.push((node, range));
            blocks.len() <= BLOCKS_MAX
        })?;
        let count = blocks.len();
        blocks.truncate(BLOCKS_MAX);
        let mut at_head = true;
        // End of the last block of the head that stays.
        let mut kept = None;
        for (index, (node, range)) in blocks.into_iter().enumerate() {
            let Node::Object(block) = node else {
                at_head = false;
                continue;
            };
            let Some(Node::Text(text)) = self.member(block.start, "text") else {
                at_head = false;
                continue;
            };
            if at_head {
                let head = pieces::head(units(self.body, text.clone()));
                at_head = head.whole;
                let goes =
                    head.whole && head.pieces.iter().all(|p| self.handling(p.kind) == Handling::Remove);
                let last = index + 1 == count;
                if goes && (!last || may_be_empty || kept.is_some()) {
                    // An emptied block is an error to some servers, and a line break to others.
                    let range = match kept.filter(|_| last) {
                        None => range,
                        // The last one has no comma of its own: with all that goes since the last that stays,
                        // it takes the comma behind that.
                        Some(kept) => {
                            self.plan.edits.retain(|edit| edit.range.start < kept);
                            kept..range.end
                        }
                    };
                    self.plan.edits.push(BodyEdit { range, with: Vec::new() });
                    self.report(&head.pieces);
                    continue;
                }
                kept = Some(block.end);
                self.take(head.pieces);
            }
            if self.dates {
                self.take(pieces::date_times(self.body, &text));
            } else if !at_head {
                break;
            }
        }
        Some(())
    }

    const fn handling(&self, kind: VolatileKind) -> Handling {
        match kind {
            VolatileKind::BillingLine => self.config.billing_line,
            VolatileKind::TokenBudget => self.config.token_budget,
            VolatileKind::DateTime => self.config.date_time,
        }
    }

    fn report(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            let handling = self.handling(piece.kind);
            self.plan.found.push(Found { kind: piece.kind, bytes: piece.range.len(), handling });
        }
    }

    /// Takes pieces in order of place; one that overlaps an earlier one is part of it.
    fn take(&mut self, mut pieces: Vec<Piece>) {
        pieces.retain(|piece| {
            let apart = piece.range.start >= self.done;
            if apart {
                self.done = piece.range.end;
            }
            apart
        });
        self.report(&pieces);
        for piece in pieces {
            match self.handling(piece.kind) {
                Handling::Remove => {
                    self.plan.edits.push(BodyEdit { range: piece.range, with: Vec::new() });
                }
                Handling::Freeze => self.plan.edits.extend(piece.frozen),
                Handling::Keep => {}
            }
        }
    }
}
