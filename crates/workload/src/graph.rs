//! The graph: sessions, turns, and what turns wait for.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::mix;
use crate::repair::Repairs;

/// A node's index in [`Workload::nodes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeNo(pub u32);

/// A session's index in [`Workload::sessions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionNo(pub u32);

/// What of an earlier request a later one waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trigger {
    /// That it was sent.
    Dispatch,
    /// That its answer was complete.
    Completion,
}

/// One thing that a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dep {
    /// Which request.
    pub on: NodeNo,
    /// What of it.
    pub trigger: Trigger,
    /// How long after that, at the earliest.
    pub delay: Duration,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its session.
    pub session: SessionNo,
    /// The id that the source gives it, if it does.
    pub id: Option<Arc<str>>,
    /// Prompt length in tokens.
    pub input_tokens: u32,
    /// Answer length in tokens, at least 1.
    pub output_tokens: u32,
    /// Leading blocks that are those of the session's turn before.
    pub keep: u32,
    /// Ids of the blocks behind them, in blocks of [`Workload::block_size`]; the last may be partial. Blocks that
    /// the list does not reach are unique to this request.
    pub tail: Box<[u64]>,
    /// What it waits for: it is sent when all of them, with their delays, have come. Empty: see `not_before`.
    pub deps: Vec<Dep>,
    /// Not sent before this time after the start of its play.
    pub not_before: Duration,
    /// How long the recorded call took.
    pub recorded: Option<Duration>,
    /// The answer asks for tools, so that the pause behind it is theirs and not a person's.
    pub tools: bool,
    /// The model that the source names.
    pub model: Option<Arc<str>>,
    /// Urgency, where the source tells: higher is sooner.
    pub priority: i32,
}

/// One reasoning and tool chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its name in the source, unique in the workload.
    pub id: Arc<str>,
    /// The session that spawned it.
    pub parent: Option<SessionNo>,
    /// Which play it belongs to: sessions that depend on each other.
    pub play: u32,
    /// Sessions that share a fate, where the source tells.
    pub group: Option<Arc<str>>,
    /// Its requests, in [`Workload::nodes`].
    pub nodes: Range<u32>,
}

/// Sessions that depend on each other, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Play {
    /// Sessions, the roots first.
    pub sessions: Vec<SessionNo>,
    /// When it began in the source, after the workload's start.
    pub starts: Duration,
}

/// A workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Tokens in a block of [`Node::tail`].
    pub block_size: u32,
    /// All requests, session by session, in the order of turns.
    pub nodes: Vec<Node>,
    /// All sessions.
    pub sessions: Vec<Session>,
    /// All plays, by the time at which they began.
    pub plays: Vec<Play>,
    /// What had to be mended.
    pub repairs: Repairs,
}

impl Workload {
    /// One request.
    #[must_use]
    pub fn node(&self, no: NodeNo) -> Option<&Node> {
        self.nodes.get(no.0 as usize)
    }

    /// One session.
    #[must_use]
    pub fn session(&self, no: SessionNo) -> Option<&Session> {
        self.sessions.get(no.0 as usize)
    }

    /// The requests of a session.
    #[must_use]
    pub fn turns(&self, no: SessionNo) -> &[Node] {
        let range = self.session(no).map_or(0..0, |session| session.nodes.clone());
        self.nodes.get(range.start as usize..range.end as usize).unwrap_or_default()
    }

    /// All prompt and answer tokens.
    #[must_use]
    pub fn tokens(&self) -> (u64, u64) {
        self.nodes.iter().fold((0, 0), |(input, output), node| {
            (input + u64::from(node.input_tokens), output + u64::from(node.output_tokens))
        })
    }

    /// The longest context that a session reaches, in tokens, answer included.
    #[must_use]
    pub fn peak_context(&self, no: SessionNo) -> u64 {
        let contexts = self.turns(no).iter().map(|n| u64::from(n.input_tokens) + u64::from(n.output_tokens));
        contexts.max().unwrap_or(0)
    }

    /// No pause is longer than this: those that are, are shortened.
    pub fn cap_gaps(&mut self, cap: Duration) {
        for dep in self.nodes.iter_mut().flat_map(|node| &mut node.deps) {
            dep.delay = dep.delay.min(cap);
        }
    }

    /// Reads the prompts of one session in order.
    #[must_use]
    pub fn prompts(&self, no: SessionNo) -> Prompts<'_> {
        Prompts { turns: self.turns(no), next: 0, block_size: self.block_size, ids: Vec::new() }
    }
}

/// The prompts of one session, turn by turn.
#[derive(Debug, Clone)]
pub struct Prompts<'a> {
    turns: &'a [Node],
    next: usize,
    block_size: u32,
    ids: Vec<u64>,
}

impl Prompts<'_> {
    /// Ids of the next turn's prompt and, as far as the turn after it repeats them, of its answer, in blocks of
    /// `block_size` tokens, whatever the source's: `ids[i]` stands for the tokens `0 .. (i + 1) * block_size`. What
    /// the list does not reach is unique. `None` = no turn is left.
    pub fn advance(&mut self, block_size: u32) -> Option<Arc<[u64]>> {
        let turn = self.turns.get(self.next)?;
        self.next += 1;
        self.ids.truncate(turn.keep as usize);
        self.ids.extend_from_slice(&turn.tail);
        let input = u64::from(turn.input_tokens);
        let own = input / u64::from(self.block_size.max(1));
        // A later turn that keeps every whole block of this one repeats its answer too.
        let behind = self
            .turns
            .get(self.next)
            .filter(|after| {
                u64::from(after.keep) >= own.min(self.ids.len() as u64)
                    && after.input_tokens >= turn.input_tokens.saturating_add(turn.output_tokens)
            })
            .map_or(&[][..], |after| &after.tail);
        let known = self.turns.get(self.next).map_or(self.ids.len(), |after| {
            if behind.is_empty() { self.ids.len() } else { (after.keep as usize).min(self.ids.len()) }
        });
        let reach = if behind.is_empty() { input } else { input + u64::from(turn.output_tokens) };
        let at = |index: usize| -> Option<u64> {
            if index < known { self.ids.get(index).copied() } else { behind.get(index - known).copied() }
        };
        Some(reblock(reach, self.block_size, block_size, at))
    }
}

/// Ids for blocks of another size: a block is named by the source's block in which it ends and by where.
fn reblock(reach: u64, from: u32, to: u32, at: impl Fn(usize) -> Option<u64>) -> Arc<[u64]> {
    let (from, to) = (u64::from(from.max(1)), u64::from(to.max(1)));
    let mut out = Vec::with_capacity(usize::try_from(reach / to).unwrap_or(0));
    let mut end = to;
    while end <= reach {
        let index = (end - 1) / from;
        let Some(id) = usize::try_from(index).ok().and_then(&at) else { break };
        let inside = end - index * from;
        out.push(if inside == from { id } else { mix(id, inside) });
        end += to;
    }
    out.into()
}
