//! Whether answers come back as the tokens that were generated, learned from what engines report as cached.
//!
//! - Purpose: a turn leaves prompt *and* answer in the cache. The next prompt repeats the answer only if harness,
//!   tool parser and chat template write it exactly as the model did.
//! - Rule, for a turn whose body only grew, with `P` and `G` the counts of prompt and answer before it, `K` what is
//!   reported cached now, `B` the block size and `fl(x)` the whole blocks of `x`: the answer's last token was never
//!   computed, so `reach = P + G - 1`.
//!   - `fl(reach) = fl(P)`: nothing can be told;
//!   - `K >= fl(reach)`: the answer came back the same;
//!   - `fl(P) - B <= K < fl(reach)`: it did not;
//!   - less: the cache had lost it, nothing can be told.
//! - The prompt's own last tokens (the template's opening of the answer) may come back otherwise, too: a turn that
//!   reuses one block less than `fl(P)` shows that more than `P mod B` tokens at its end do not return, one
//!   that reuses `fl(P)` that at most so many do, one that reuses more that all do. [`Resend::trim`] is the least
//!   number that fits all of them, [`Resend::trim_max`] the largest.
//! - A turn of which the cache was known to hold less than was expected shows nothing but what it reused.
//! - Three-valued: [`Verdict::Unknown`] until one kind of evidence is three times the other.
//! - Invariants: I-EVI-1 a block that the cache had lost is no evidence of how answers or prompts come back; I-EVI-2
//!   `trim <= trim_max`: of evidence that contradicts itself only the newer is kept.

use serde::{Deserialize, Serialize};

/// Block size assumed where none is known: the largest in common use.
const BLOCK_ASSUMED: u64 = 64;

/// Evidence is halved when it reaches this, so that a change of template is noticed.
const EVIDENCE_MAX: u8 = 16;

/// Whether answers come back the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Unknown,
    Same,
    Differs,
}

/// The counts of a turn whose successor is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Before {
    pub(crate) prompt: u64,
    pub(crate) answer: u64,
}

impl Before {
    /// Tokens whose KV the turn left: all but the one generated last.
    pub(crate) const fn reach(self) -> u64 {
        if self.answer == 0 { self.prompt } else { self.prompt.saturating_add(self.answer - 1) }
    }
}

/// Evidence on one kind of answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Resend {
    same: u8,
    differs: u8,
    trim: u64,
    trim_max: Option<u64>,
}

impl Resend {
    /// Takes in what was reported cached for a turn that follows `before`. `cut`: the cache was known to hold less
    /// than what was expected to repeat.
    pub(crate) fn observe(&mut self, before: Before, cached: u64, block_size: Option<u32>, cut: bool) {
        let block = block_size.map_or(BLOCK_ASSUMED, u64::from).max(1);
        let whole = |tokens: u64| tokens / block * block;
        let (prompt, reach) = match block_size {
            Some(_) => (whole(before.prompt), whole(before.reach())),
            // Unknown block sizes floor by less than the assumed one.
            None => (before.prompt, before.reach().saturating_sub(block)),
        };
        if cached.saturating_add(block) < prompt {
            return;
        }
        if block_size.is_some() {
            self.observe_trim(before.prompt % block, cached, prompt, cut);
        }
        if reach <= prompt {
            return;
        }
        if cached >= reach {
            self.same = self.same.saturating_add(1);
        } else if !cut {
            self.differs = self.differs.saturating_add(1);
        }
        if self.same.max(self.differs) >= EVIDENCE_MAX {
            self.same /= 2;
            self.differs /= 2;
        }
    }

    /// `cached` is `prompt`, the whole blocks of a prompt with `rest` tokens behind them, or one block less, or more.
    fn observe_trim(&mut self, rest: u64, cached: u64, prompt: u64, cut: bool) {
        if cached >= prompt {
            let most = if cached > prompt { 0 } else { rest };
            if most < self.trim {
                // Contradiction: another template, or a block that the cache had lost.
                (self.trim, self.trim_max) = (0, None);
            }
            self.trim_max = Some(self.trim_max.map_or(most, |max| max.min(most)));
        } else if !cut {
            self.trim = self.trim.max(rest + 1);
            if self.trim_max.is_some_and(|max| max < self.trim) {
                (self.trim, self.trim_max) = (0, None);
            }
        }
    }

    /// No evidence.
    pub(crate) const fn is_empty(self) -> bool {
        self.same == 0 && self.differs == 0
    }

    pub(crate) const fn verdict(self) -> Verdict {
        match (self.same, self.differs) {
            (0, 0) => Verdict::Unknown,
            (same, differs) if same / 3 >= differs => Verdict::Same,
            (same, differs) if differs / 3 >= same => Verdict::Differs,
            _ => Verdict::Unknown,
        }
    }

    /// Tokens at the end of a prompt that do not come back, at least.
    pub(crate) const fn trim(self) -> u64 {
        self.trim
    }

    /// The same, at most; `None` = nothing shows it yet.
    pub(crate) const fn trim_max(self) -> Option<u64> {
        self.trim_max
    }

    /// What `first` shows, and what `second` does where that says more.
    const fn first_of(first: Self, second: Self) -> Self {
        let shown = if first.is_empty() { second } else { first };
        let trim = if first.trim > second.trim { first.trim } else { second.trim };
        let trim_max = match (first.trim_max, second.trim_max) {
            (Some(one), Some(two)) if one > two => Some(two),
            (Some(one), _) => Some(one),
            (None, two) => two,
        };
        match trim_max {
            Some(max) if max < trim => Self { trim: first.trim, trim_max: None, ..shown },
            _ => Self { trim, trim_max, ..shown },
        }
    }
}

/// Evidence by kind of answer: with tool calls and without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Resends {
    texts: Resend,
    calls: Resend,
}

impl Resends {
    /// What `first` has evidence of, and what `second` has where it has none.
    pub(crate) const fn first_of(first: &Self, second: &Self) -> Self {
        Self {
            texts: Resend::first_of(first.texts, second.texts),
            calls: Resend::first_of(first.calls, second.calls),
        }
    }

    pub(crate) const fn of(&mut self, calls: bool) -> &mut Resend {
        if calls { &mut self.calls } else { &mut self.texts }
    }

    pub(crate) const fn get(&self, calls: bool) -> Resend {
        if calls { self.calls } else { self.texts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Before = Before { prompt: 100, answer: 61 };

    fn after(reports: &[u64]) -> Resend {
        let mut resend = Resend::default();
        for cached in reports {
            resend.observe(BEFORE, *cached, Some(16), false);
        }
        resend
    }

    /// fl(100) = 96, reach = 160, fl(160) = 160.
    #[test]
    fn the_verdict_follows_the_engines_reports() {
        assert_eq!(after(&[]).verdict(), Verdict::Unknown);
        assert_eq!(after(&[160]).verdict(), Verdict::Same);
        assert_eq!(after(&[96]).verdict(), Verdict::Differs);
        assert_eq!(after(&[112]).verdict(), Verdict::Differs);
        assert_eq!(after(&[64, 0]).verdict(), Verdict::Unknown);
        assert_eq!(after(&[160, 96]).verdict(), Verdict::Unknown);
        assert_eq!(after(&[96, 160, 160, 160]).verdict(), Verdict::Same);
    }

    #[test]
    fn an_answer_within_the_prompts_last_block_proves_nothing() {
        let mut resend = Resend::default();
        resend.observe(Before { prompt: 100, answer: 12 }, 96, Some(16), false);
        assert!(resend.is_empty());
        resend.observe(Before { prompt: 100, answer: 13 }, 112, Some(16), false);
        assert_eq!(resend.verdict(), Verdict::Same);
    }

    #[test]
    fn without_a_block_size_only_long_answers_prove_something() {
        let mut resend = Resend::default();
        resend.observe(Before { prompt: 100, answer: 60 }, 160, None, false);
        assert!(resend.is_empty());
        resend.observe(Before { prompt: 100, answer: 201 }, 288, None, false);
        assert_eq!(resend.verdict(), Verdict::Same);
    }

    /// Four tokens do not come back: with 3 tokens in the last block a block is lost, with 4 none.
    #[test]
    fn the_trim_is_the_least_that_fits() {
        let mut resend = Resend::default();
        let turn = |prompt, cached, resend: &mut Resend| {
            resend.observe(Before { prompt, answer: 100 }, cached, Some(16), false);
        };
        turn(99, 80, &mut resend);
        assert_eq!(resend.trim(), 4);
        turn(100, 96, &mut resend);
        assert_eq!(resend.trim(), 4);
        assert_eq!(resend.trim_max(), Some(4));
        // Contradiction: one token in the last block, and no block lost.
        turn(97, 96, &mut resend);
        assert_eq!((resend.trim(), resend.trim_max()), (0, Some(1)));
        // A block more than the prompt's own: all of it came back.
        turn(97, 112, &mut resend);
        assert_eq!((resend.trim(), resend.trim_max()), (0, Some(0)));
    }

    /// I-EVI-1: fl(100) = 96, and the cache held 80.
    #[test]
    fn what_the_cache_had_lost_is_no_evidence() {
        let mut resend = Resend::default();
        resend.observe(BEFORE, 80, Some(16), true);
        resend.observe(BEFORE, 96, Some(16), true);
        assert_eq!((resend.verdict(), resend.trim(), resend.trim_max()), (Verdict::Unknown, 0, Some(4)));
        resend.observe(BEFORE, 80, Some(16), false);
        assert_eq!((resend.verdict(), resend.trim()), (Verdict::Differs, 0));
    }

    /// I-EVI-2.
    #[test]
    fn evidence_of_two_is_joined_where_it_fits() {
        let with = |trim, trim_max| Resend { trim, trim_max, ..Resend::default() };
        let joined = |one, two| {
            let joined = Resend::first_of(one, two);
            (joined.trim(), joined.trim_max())
        };
        assert_eq!(joined(with(0, Some(9)), with(3, Some(5))), (3, Some(5)));
        assert_eq!(joined(with(4, None), with(0, None)), (4, None));
        assert_eq!(joined(with(0, Some(2)), with(3, Some(5))), (0, None));
    }
}
