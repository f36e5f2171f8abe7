//! What programs' prompts have in common, so that a worker's programs are not taken to need it once each.
//!
//! - Input: the match and the prompt length of each program's turn. Output: the part of programs' tokens that is a
//!   head which others have too, a mean in which recent turns count more; 0 before anybody came.

use tandem_types::PrefixMatch;

use crate::RouteTurn;
use crate::columns::float;

/// Part of the distance to a new observation that a mean goes: about the last two hundred turns count.
const STEP: f64 = 1.0 / 128.0;

/// The means.
#[derive(Debug)]
pub(super) struct Heads {
    /// Tokens of a first prompt that lay at some worker already; `None` = none was seen.
    head: Option<f64>,
    /// Tokens of a prompt.
    prompt: Option<f64>,
}

impl Heads {
    pub(super) const fn new() -> Self {
        Self { head: None, prompt: None }
    }

    /// Learns from a program's turn.
    pub(super) fn learn(&mut self, turn: &RouteTurn<'_>) {
        if turn.program_tokens.is_none() {
            return;
        }
        let step = |mean: Option<f64>, new: f64| Some(mean.map_or(new, |mean| mean + (new - mean) * STEP));
        self.prompt = step(self.prompt, float(turn.input_tokens));
        // Where the index knows nobody, nothing can be said of heads.
        let known = turn.prefix.filter(|found| !found.workers.is_empty());
        if let Some(found) = known.filter(|_| turn.home.is_none() && turn.parent_home.is_none()) {
            self.head = step(self.head, deepest(found));
        }
    }

    /// The part of programs' tokens that is a common head, 0 to 1.
    pub(super) fn part(&self) -> f64 {
        match (self.head, self.prompt) {
            (Some(head), Some(prompt)) if prompt > 0.0 => (head / prompt).min(1.0),
            _ => 0.0,
        }
    }
}

/// Tokens of the prompt that the worker with the longest head of it has.
fn deepest(found: &PrefixMatch) -> f64 {
    let held = found.workers.alike().map(|alike| alike.value);
    let blocks = held.map(|held| held.disk.max(held.host).max(held.device)).max().unwrap_or(0);
    f64::from(blocks.min(found.blocks)) * f64::from(found.block_size)
}
