//! What the prompt tokens that were computed were computed for.
//!
//! With `P` prompt tokens of which `K` came from a cache, `R = P - K` were computed. A prompt is read from its start:
//! its first `C` tokens repeat what this session had computed before, as they stood then; behind `C` nothing can be
//! reused from the session's own past, because what stands before it differs.
//!
//! ```text
//! reusable = min(C, P - 1) in whole blocks  an engine reuses whole blocks, and never the whole prompt
//! lost     = min(R, max(0, reusable - K))   repeated, and computed again all the same
//! started  = min(R - lost, C - max(K, reusable)), the block in which the repeated part ends
//! moved    = min(lost, max(0, E - K))       E = what another worker held or the shared store had
//! evicted  = lost - moved
//! rest     = R - lost - started             behind the repeated part
//! diverged = min(rest, H - C, D)            H = tokens of the session so far; D = those of the rest that it had
//!                                           before at another place, where known
//! new      = rest - diverged + started
//! ```
//!
//! - Where `C` is not known, all of `R` is unknown. Where `E` is not known, `lost` is, unless the chosen worker
//!   itself was known to hold less than `C` *and nothing else is known to exist*: the caller then says `E = 0`.
//! - What the chosen worker held at dispatch beyond `K` was lost between dispatch and start: `evicted`, wherever
//!   else it may lie.
//! - A cold start (a session's first turn) has `C = H = 0`: all that is computed is new, shared system prompts of
//!   other sessions included, because *this* session had not computed them before.
//! - I-SPL-1 the five figures sum to `P - K`, for any input; `K > P` counts as `K = P`, `C > P` as `C = P`.

use serde::{Deserialize, Serialize};

/// What is known of a turn when its usage has come. All figures in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SplitInput {
    /// Prompt tokens (the engine's report).
    pub prompt: u64,
    /// Of these, taken from a cache (the engine's report).
    pub cached: u64,
    /// Tokens in a block of the engine; 0 and 1 = it reuses single tokens.
    pub block_size: u32,
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
    /// Leading prompt tokens that the chosen worker held or could have loaded from the shared store; `None` = no
    /// store, or not known.
    pub shared: Option<u64>,
}

/// Prompt tokens computed, by what for. The five sum to `prompt - cached`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Split {
    /// Never seen before in this session, or in a block with such tokens.
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

impl Split {
    /// All computed prompt tokens.
    #[must_use]
    pub const fn computed(&self) -> u64 {
        self.new
            .saturating_add(self.diverged)
            .saturating_add(self.moved)
            .saturating_add(self.evicted)
            .saturating_add(self.unknown)
    }
}

/// Splits a turn's computed prompt tokens.
#[must_use]
pub fn split(input: &SplitInput) -> Split {
    let computed = input.prompt.saturating_sub(input.cached);
    let Some(repeated) = input.repeated else {
        return Split { unknown: computed, ..Split::default() };
    };
    let repeated = repeated.min(input.prompt);
    let block = u64::from(input.block_size).max(1);
    let reusable = repeated.min(input.prompt.saturating_sub(1)) / block * block;
    let lost = reusable.saturating_sub(input.cached).min(computed);
    let (moved, evicted, unknown) = lost_to(input, lost);
    let started = repeated.saturating_sub(reusable.max(input.cached)).min(computed - lost);
    let rest = computed - lost - started;
    let displaced = input.history.saturating_sub(repeated).min(input.displaced.unwrap_or(u64::MAX));
    let diverged = displaced.min(rest);
    Split { new: rest - diverged + started, diverged, moved, evicted, unknown }
}

/// Moved, evicted and unknown parts of `lost` tokens from `cached` on.
fn lost_to(input: &SplitInput, lost: u64) -> (u64, u64, u64) {
    // Up to here the chosen worker held it when the turn was sent.
    let vanished = input.held_here.unwrap_or_default().saturating_sub(input.cached).min(lost);
    let left = lost - vanished;
    let from = input.cached.saturating_add(vanished);
    let known = match (input.held_elsewhere, input.shared) {
        (None, None) => return (0, vanished, left),
        (elsewhere, shared) => elsewhere.max(shared).unwrap_or_default(),
    };
    let moved = known.saturating_sub(from).min(left);
    let rest = left - moved;
    // A store that is known says nothing of workers that are not.
    if input.held_elsewhere.is_none() { (moved, vanished, rest) } else { (moved, vanished + rest, 0) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TURN: SplitInput = SplitInput {
        prompt: 1000,
        cached: 800,
        block_size: 16,
        repeated: Some(800),
        history: 800,
        displaced: None,
        held_here: Some(800),
        held_elsewhere: Some(0),
        shared: None,
    };

    #[test]
    fn a_cold_start_is_all_new() {
        let cold = SplitInput { prompt: 500, held_elsewhere: Some(0), ..SplitInput::default() };
        let cold = SplitInput { repeated: Some(0), ..cold };
        assert_eq!(split(&cold), Split { new: 500, ..Split::default() });
        assert_eq!(split(&SplitInput { cached: 96, ..cold }), Split { new: 404, ..Split::default() });
    }

    #[test]
    fn an_appended_turn_computes_only_what_is_new() {
        assert_eq!(split(&TURN), Split { new: 200, ..Split::default() });
    }

    /// Worker 1 held 800, the turn went to worker 2, which held 300 of another session's system prompt.
    #[test]
    fn what_lies_on_another_worker_moved() {
        let input = SplitInput { cached: 300, held_here: Some(300), held_elsewhere: Some(700), ..TURN };
        assert_eq!(split(&input), Split { new: 200, moved: 400, evicted: 100, ..Split::default() });
        let input = SplitInput { held_elsewhere: Some(0), shared: Some(640), ..input };
        assert_eq!(split(&input), Split { new: 200, moved: 340, evicted: 160, ..Split::default() });
    }

    /// Nobody holds more than 160 of the 800 any more; and what vanished after dispatch did not move.
    #[test]
    fn what_none_holds_was_evicted() {
        let input = SplitInput { cached: 160, held_here: Some(160), held_elsewhere: Some(96), ..TURN };
        assert_eq!(split(&input), Split { new: 200, evicted: 640, ..Split::default() });
        let input = SplitInput { held_here: Some(800), held_elsewhere: Some(800), ..input };
        assert_eq!(split(&input), Split { new: 200, evicted: 640, ..Split::default() });
    }

    /// The prompt differs from token 300 on; 450 of the 700 behind were there before.
    #[test]
    fn history_behind_a_divergence_diverged() {
        let input = SplitInput { cached: 288, repeated: Some(300), displaced: Some(450), ..TURN };
        let input = SplitInput { held_here: Some(288), ..input };
        assert_eq!(split(&input), Split { new: 262, diverged: 450, ..Split::default() });
        // Without that knowledge all 500 of the old history that is not repeated may be among them.
        let input = SplitInput { displaced: None, ..input };
        assert_eq!(split(&input), Split { new: 212, diverged: 500, ..Split::default() });
    }

    /// The very prompt again: its last block is computed for its last token, and none of that is a loss.
    #[test]
    fn blocks_that_cannot_be_reused_are_not_lost() {
        let input = SplitInput { prompt: 800, cached: 784, ..TURN };
        assert_eq!(split(&input), Split { new: 16, ..Split::default() });
        let input = SplitInput { repeated: Some(815), history: 815, held_here: Some(815), ..TURN };
        assert_eq!(split(&input), Split { new: 200, ..Split::default() });
    }

    #[test]
    fn what_is_not_known_is_said_to_be_unknown() {
        let input = SplitInput { repeated: None, cached: 100, ..TURN };
        assert_eq!(split(&input), Split { unknown: 900, ..Split::default() });
        let input = SplitInput { cached: 100, held_here: None, held_elsewhere: None, ..TURN };
        assert_eq!(split(&input), Split { new: 200, unknown: 700, ..Split::default() });
        let input = SplitInput { shared: Some(500), ..input };
        assert_eq!(split(&input), Split { new: 200, moved: 400, unknown: 300, ..Split::default() });
    }

    proptest! {
        /// I-SPL-1.
        #[test]
        fn the_parts_sum_to_what_was_computed(
            (prompt, cached, history) in (figure(), figure(), figure()),
            (repeated, displaced, block_size) in (maybe(), maybe(), 0..70_u32),
            (held_here, held_elsewhere, shared) in (maybe(), maybe(), maybe()),
        ) {
            let input = SplitInput {
                prompt, cached, block_size, repeated, history, displaced, held_here, held_elsewhere, shared,
            };
            let parts = split(&input);
            let sum: u128 = [parts.new, parts.diverged, parts.moved, parts.evicted, parts.unknown]
                .into_iter()
                .map(u128::from)
                .sum();
            prop_assert_eq!(sum, u128::from(prompt.saturating_sub(cached)));
        }
    }

    fn figure() -> impl Strategy<Value = u64> {
        prop_oneof![0..40_u64, Just(u64::MAX), any::<u64>()]
    }

    fn maybe() -> impl Strategy<Value = Option<u64>> {
        prop_oneof![Just(None), figure().prop_map(Some)]
    }
}
