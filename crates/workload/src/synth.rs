//! Seeded generators: sessions with the lengths and pauses of real ones, for when no trace is at hand.
//!
//! Each kind draws from distributions fitted to published or measured marginals, which stand beside its numbers.
//! Prompts only grow. Equal parameters and seeds give equal workloads.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::build::{Draft, Turn, build};
use crate::graph::Workload;
use crate::ids::{Draws, mix};
use crate::import::ImportError;
use crate::repair::Repairs;

/// A kind of session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Reinforcement-learning rollouts on software tasks: 2.5 to 4 K tokens at first, some 52 short turns, quick
    /// tools, context cut at 31.5 K. Calibrated against verl's rollout sweep (aisimulate pass model).
    RlSwe,
    /// mini-SWE-agent: 1.7 K at first, appends of 2.5 K at most, mostly below 20 K in all (LMCache's recorded runs,
    /// arXiv 2602.16069).
    MiniSwe,
    /// OpenHands on SWE-bench: 8 K of tools and system prompt, longer observations, contexts around 50 K; tool
    /// pauses of 0.05 to 0.7 s, a few of them long.
    OpenHands,
    /// Claude Code: 15 K of shared tools and system prompt, median turn adds 655 tokens and answers 216, contexts
    /// to 160 K, pauses of tools (median 9 s) and of people (median 127 s). Marginals of 510 recorded sessions.
    ClaudeCode,
    /// People chatting: short turns, a minute between them, no tools.
    Chat,
}

const NAMES: &[(Kind, &str)] = &[
    (Kind::RlSwe, "rl-swe"),
    (Kind::MiniSwe, "mini-swe"),
    (Kind::OpenHands, "openhands"),
    (Kind::ClaudeCode, "claude-code"),
    (Kind::Chat, "chat"),
];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        NAMES.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(_, name)| *name).collect();
            format!("no such kind of session; there are {}", names.join(", "))
        })
    }
}

/// What to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Synth {
    /// The kind of sessions.
    pub kind: Kind,
    /// How many.
    pub sessions: u32,
    /// Sessions that share a task: equal first prompts and one group id each (GRPO); 1 = none do.
    pub group: u32,
    /// Seed.
    pub seed: u64,
}

/// Tokens in a block.
const BLOCK_SIZE: u32 = 16;

/// A session's shape before it is drawn out.
struct Shape {
    /// Tokens that all sessions of the kind share at the head.
    shared: f64,
    first: f64,
    turns: f64,
    context_max: f64,
    output: (f64, f64),
    observed: (f64, f64),
    observed_max: f64,
}

impl Synth {
    /// Makes the workload.
    ///
    /// # Errors
    /// [`ImportError::Empty`] or [`ImportError::TooLarge`] for none or too many sessions.
    pub fn make(&self) -> Result<Workload, ImportError> {
        if self.sessions == 0 {
            return Err(ImportError::Empty);
        }
        let drafts = (0..self.sessions).map(|index| self.session(index)).collect();
        build(drafts, BLOCK_SIZE, Repairs::default())
    }

    fn shape(&self, task: &mut Draws, draws: &mut Draws) -> Shape {
        match self.kind {
            Kind::RlSwe => Shape {
                shared: 0.0,
                first: task.uniform(2_500.0, 4_000.0),
                turns: draws.lognormal(4.25, 0.3),
                context_max: 31_500.0,
                output: (4.9, 0.6),
                observed: (5.4, 1.0),
                observed_max: 8_000.0,
            },
            Kind::MiniSwe => Shape {
                shared: 0.0,
                first: task.lognormal(7.44, 0.25),
                turns: draws.lognormal(3.6, 0.5),
                context_max: 32_000.0,
                output: (4.6, 0.7),
                observed: (4.9, 1.5),
                observed_max: 2_800.0,
            },
            Kind::OpenHands => Shape {
                shared: 7_000.0,
                first: 7_000.0 + task.lognormal(7.0, 0.5),
                turns: draws.lognormal(3.7, 0.45),
                context_max: 120_000.0,
                output: (5.2, 0.8),
                observed: (6.0, 1.2),
                observed_max: 12_000.0,
            },
            Kind::ClaudeCode => Shape {
                shared: 15_000.0,
                first: 15_000.0 + task.lognormal(8.3, 0.5),
                turns: draws.lognormal(3.8, 1.0).min(330.0),
                context_max: draws.lognormal(11.7, 0.3).clamp(40_000.0, 195_000.0),
                output: (5.4, 0.9),
                observed: (5.9, 1.6),
                observed_max: 30_000.0,
            },
            Kind::Chat => Shape {
                shared: 400.0,
                first: 400.0 + task.lognormal(4.5, 1.0),
                turns: draws.lognormal(1.4, 0.7),
                context_max: 32_000.0,
                output: (5.5, 0.8),
                observed: (4.0, 1.0),
                observed_max: 4_000.0,
            },
        }
    }

    /// The pause before the next turn, and whether it is a tool's.
    fn pause(&self, draws: &mut Draws) -> (f64, bool) {
        match self.kind {
            Kind::RlSwe => (draws.lognormal(0.0, 1.0).min(60.0), true),
            Kind::MiniSwe => (draws.lognormal(-0.7, 0.9).min(60.0), true),
            Kind::OpenHands if draws.unit() < 0.03 => (draws.lognormal(2.3, 0.8).min(120.0), true),
            Kind::OpenHands => (draws.uniform(0.05, 0.7), true),
            // 87 % of follow-ups are tool results: p50 9 s, p90 74 s; people: p50 127 s, p90 1,543 s.
            Kind::ClaudeCode if draws.unit() < 0.87 => (draws.lognormal(2.2, 1.3).min(1_800.0), true),
            Kind::ClaudeCode => (draws.lognormal(4.84, 1.6).min(1_800.0), false),
            Kind::Chat => (draws.lognormal(4.0, 1.0).min(1_800.0), false),
        }
    }

    fn session(&self, index: u32) -> Draft {
        let group = index / self.group.max(1);
        let kind = NAMES.iter().position(|(kind, _)| *kind == self.kind).unwrap_or_default() as u64;
        let mut task = Draws::new(mix(mix(self.seed, kind), u64::from(group)));
        let own = mix(mix(mix(self.seed, kind), 1 << 40), u64::from(index));
        let mut draws = Draws::new(own);
        let shape = self.shape(&mut task, &mut draws);
        let names =
            Names { kind, shared: whole(shape.shared), task: task.next(), first: whole(shape.first), own };
        let mut draft = Draft {
            id: format!("{}-{}-{index}", self.kind, self.seed).into(),
            group: (self.group > 1).then(|| Arc::from(format!("{}-{group}", self.kind))),
            ..Draft::default()
        };
        let mut input = names.first;
        let mut pause = None;
        let mut ids = Vec::new();
        for _ in 0..whole(shape.turns.max(1.0)) {
            let output = whole(draws.lognormal(shape.output.0, shape.output.1).clamp(8.0, 8_000.0));
            if input + output > whole(shape.context_max) && !draft.turns.is_empty() {
                break;
            }
            let (gap, tools) = self.pause(&mut draws);
            ids.extend(
                (ids.len() as u64..input.div_ceil(u64::from(BLOCK_SIZE))).map(|block| names.id(block)),
            );
            draft.turns.push(Turn { input, output, ids: ids.clone(), pause, tools, ..Turn::default() });
            let observed =
                draws.lognormal(shape.observed.0, shape.observed.1).clamp(16.0, shape.observed_max);
            input += output + whole(observed);
            pause = Some(Duration::from_secs_f64(gap));
        }
        if let Some(last) = draft.turns.last_mut() {
            last.tools = false;
        }
        draft
    }
}

/// What names a session's blocks.
struct Names {
    kind: u64,
    shared: u64,
    task: u64,
    first: u64,
    own: u64,
}

impl Names {
    fn id(&self, block: u64) -> u64 {
        let end = (block + 1) * u64::from(BLOCK_SIZE);
        if end <= self.shared {
            mix(mix(7, self.kind), block)
        } else if end <= self.first {
            mix(self.task, block)
        } else {
            mix(self.own, block)
        }
    }
}

/// A positive number of tokens or turns, rounded.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "drawn within a few million")]
fn whole(number: f64) -> u64 {
    number.round().max(0.0) as u64
}
