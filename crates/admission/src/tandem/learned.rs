//! What is learned from turns: how long programs stay away, how fast prompts are computed, how long answers are, what
//! memory is worth, and whether word of caches can be believed.
//!
//! - Deliberately absent: decisions.

use std::time::Duration;

use tandem_types::{Time, Usage};

use super::TandemConfig;
use super::price::Price;
use crate::contract::End;
use crate::gap::GapModel;
use crate::rate::{ByLength, PrefillRate};
use crate::rooms::float;
use crate::table::{Idler, Program, Turn};

/// Medians and spreads of pauses that are believed before any were seen: tools, subagents (a dozen turns), people.
const TOOLS: (f64, f64) = (6.0, 1.5);
const SUBAGENTS: (f64, f64) = (90.0, 1.0);
const PEOPLE: (f64, f64) = (120.0, 1.6);
/// What a turn weighs in the mean length of answers.
const ANSWER: f64 = 0.02;
/// And in how often caches are found that were not told of.
const UNTOLD: f64 = 0.01;
/// More seldom than this that is chance: what others computed while a turn was on its way.
const UNTOLD_MOST: f64 = 0.05;

/// No engine writes a token after the first one in less: where all came in less the answer came whole, and its first
/// byte says when it was over, not when its prompt was computed.
const TOKEN_LEAST: Duration = Duration::from_micros(50);

/// How many kinds there are.
const KINDS: usize = 8;

/// What programs' pauses depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    subagent: bool,
    /// It waits for subagents that it spawned.
    spawned: bool,
    tools: bool,
}

impl Kind {
    pub(super) const fn of(program: &Program) -> Self {
        Self { subagent: program.parent.is_some(), spawned: program.children.0 > 0, tools: program.tools }
    }

    /// Its number, below [`KINDS`].
    fn number(self) -> usize {
        usize::from(self.subagent) << 2 | usize::from(self.spawned) << 1 | usize::from(self.tools)
    }

    const fn numbered(number: usize) -> Self {
        Self { subagent: number & 4 > 0, spawned: number & 2 > 0, tools: number & 1 > 0 }
    }
}

#[derive(Debug)]
pub(super) struct Learned {
    /// By the number of their kind.
    gaps: [GapModel; KINDS],
    /// Programs are believed to stay away so many times as long.
    gap_factor: f64,
    pub(super) rate: PrefillRate,
    price: Price,
    /// Mean length of answers, in tokens.
    pub(super) answer: f64,
    /// Part of turns that found much more of their prompt computed than was told before.
    untold: f64,
}

impl Learned {
    pub(super) fn new(config: &TandemConfig) -> Self {
        let pauses = |kind: Kind| match kind {
            Kind { spawned: true, .. } => SUBAGENTS,
            Kind { tools: true, .. } => TOOLS,
            Kind { tools: false, .. } => PEOPLE,
        };
        Self {
            gaps: std::array::from_fn(|number| {
                let (median, sigma) = pauses(Kind::numbered(number));
                GapModel::new(median, sigma)
            }),
            gap_factor: config.gap_factor,
            rate: PrefillRate::new(config.prefill_tokens_per_s),
            price: Price::new(config.patience, config.reprefill_target),
            answer: 0.0,
            untold: 0.0,
        }
    }

    /// How likely an idle program returns before keeping it has cost more than computing it again; `horizons` = how long
    /// that takes, in seconds.
    pub(super) fn weight(&self, now: Time, idler: &Idler, horizons: &ByLength) -> f64 {
        // Who waits for a subagent that waits itself does not come back before it.
        if idler.blocked {
            return 0.0;
        }
        let Idler { subagent, spawned, tools, .. } = *idler;
        let Some(gaps) = self.gaps.get(Kind { subagent, spawned, tools }.number()) else { return 1.0 };
        gaps.returns_within_s(self.believed(now.since(idler.since)), horizons.at(idler.tokens))
    }

    /// How long keeping the context of a program is worth it at a worker that holds so many tokens, in seconds.
    pub(super) fn horizons(&self, resident: u64) -> ByLength {
        self.rate.each(|tokens_per_s| {
            let even = float(resident) / tokens_per_s;
            self.believed(Duration::from_secs_f64((even * self.price.factor()).clamp(0.0, 86_400.0)))
        })
    }

    /// The factor on the time after which computing again would have been cheaper.
    pub(super) const fn patience(&self) -> f64 {
        self.price.factor()
    }

    /// A time as programs are believed to take it, in seconds.
    fn believed(&self, time: Duration) -> f64 {
        let factor = self.gap_factor;
        if factor.total_cmp(&1.0).is_eq() { time.as_secs_f64() } else { time.div_f64(factor).as_secs_f64() }
    }

    /// Whether what is told of a cache can be believed when it says that little is there.
    pub(super) fn believes(&self) -> bool {
        self.untold <= UNTOLD_MOST
    }

    /// A program came back.
    pub(super) fn returned(&mut self, kind: Kind, after: Duration) {
        if let Some(gaps) = self.gaps.get_mut(kind.number()) {
            gaps.returned(after);
        }
    }

    /// A program never came back.
    pub(super) fn never(&mut self, kind: Kind) {
        if let Some(gaps) = self.gaps.get_mut(kind.number()) {
            gaps.never();
        }
    }

    /// A turn ended on one of so many workers.
    pub(super) fn ended(&mut self, now: Time, turn: &Turn, end: &End, workers: f64) {
        if let Some(usage) = end.usage {
            self.used(turn, usage);
        }
        let (before, cached) = turn.computed_before(end);
        let (Some(cached), Some(took)) = (cached, turn.first_after) else { return };
        let again = float(before.saturating_sub(cached)) / self.rate.tokens_per_s(turn.prompt);
        self.price.computed_again(now, again / workers);
        // How fast a prompt was computed that is there now, only where most was missing: what comes behind a long prefix
        // takes longer for each token. What was cached is known for sure only from the engine: a cache that is not known
        // of would make the worker look fast beyond measure.
        if cached.saturating_mul(2) <= turn.prompt && !came_whole(now, turn, end) {
            self.rate.sample(turn.prompt - cached, took);
        }
    }

    fn used(&mut self, turn: &Turn, usage: Usage) {
        let output = float(usage.output_tokens.min(1 << 20));
        self.answer += (output - self.answer) * if self.answer > 0.0 { ANSWER } else { 1.0 };
        if let (Some(cached), Some(told)) = (usage.cached_tokens, turn.told) {
            let untold = f64::from(u8::from(told < cached / 2));
            self.untold += (untold - self.untold) * UNTOLD;
        }
    }

    /// Lets time pass.
    pub(super) fn follow(&mut self, now: Time) {
        self.price.follow(now);
    }
}

/// Whether an answer of several tokens was there all at once, as clients get it that do not ask for a stream.
fn came_whole(now: Time, turn: &Turn, end: &End) -> bool {
    let tokens = end.usage.map_or(turn.generated, |usage| usage.output_tokens);
    let more = u32::try_from(tokens.saturating_sub(1)).unwrap_or(u32::MAX);
    let first = turn.dispatched.zip(turn.first_after).map(|(since, after)| since + after);
    first.is_some_and(|first| now.since(first) < TOKEN_LEAST * more)
}
