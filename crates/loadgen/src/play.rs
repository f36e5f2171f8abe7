//! One play under way: which of its requests may be sent, and what they say.
//!
//! Invariants: I-LDG-1 and I-LDG-2 are kept here.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use tandem_workload::{Dep, Node, NodeNo, Prompts, SessionNo, Trigger, Workload, mix};

use crate::body::Prompt;

/// A hash table whose order nobody sees.
type Table<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// What the workload says, arranged for running.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Requests that wait for each request, with the edge.
    after: Vec<Vec<(NodeNo, Dep)>>,
    /// Source blocks at the head of each session that other sessions have too.
    shared: Vec<usize>,
}

impl Plan {
    pub(crate) fn new(workload: &Workload) -> Self {
        let mut after = vec![Vec::new(); workload.nodes.len()];
        for (index, node) in (0u32..).zip(&workload.nodes) {
            for dep in &node.deps {
                if let Some(list) = after.get_mut(dep.on.0 as usize) {
                    list.push((NodeNo(index), *dep));
                }
            }
        }
        Self { after, shared: shared_heads(workload) }
    }
}

/// How many leading blocks of each session's first prompt another session's first prompt has too.
fn shared_heads(workload: &Workload) -> Vec<usize> {
    let first = |session: &tandem_workload::Session| {
        workload.nodes.get(session.nodes.start as usize).map_or(&[][..], |node| &node.tail)
    };
    let mut owners: Table<u64, u32> = Table::default();
    for id in workload.sessions.iter().flat_map(first) {
        *owners.entry(*id).or_default() += 1;
    }
    let common = |id: &&u64| owners.get(*id).is_some_and(|count| *count > 1);
    workload.sessions.iter().map(|session| first(session).iter().take_while(common).count()).collect()
}

/// How prompts are made smaller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Recorded tokens for each that is sent.
    pub(crate) shrink: u32,
    /// Tokens in the engine's blocks.
    pub(crate) block_size: u32,
}

impl Sizes {
    pub(crate) fn tokens(self, recorded: u32) -> u32 {
        (recorded / self.shrink.max(1)).max(1)
    }
}

/// A request that may be sent, so long from now.
pub(crate) type Due = (NodeNo, Duration);

/// A play under way.
pub(crate) struct Run<'a> {
    workload: &'a Workload,
    plan: &'a Plan,
    round: u32,
    sizes: Sizes,
    /// What each request still waits for, and the longest pause that is left of what came, by when it came.
    waits: BTreeMap<NodeNo, (usize, Duration)>,
    prompts: BTreeMap<SessionNo, (u32, Prompts<'a>)>,
}

impl<'a> Run<'a> {
    /// A play from its beginning, or with the first `skip` turns of its first session, and what waits for nothing
    /// but them, taken to have been long ago. Times are recorded times after the play's start.
    pub(crate) fn new(
        workload: &'a Workload,
        plan: &'a Plan,
        play: usize,
        round: u32,
        skip: u32,
        sizes: Sizes,
    ) -> (Self, Vec<Due>) {
        let sessions = workload.plays.get(play).map_or(&[][..], |play| &play.sessions);
        let mut nodes: BTreeMap<NodeNo, &Node> = BTreeMap::new();
        for session in sessions {
            let range = workload.session(*session).map_or(0..0, |session| session.nodes.clone());
            nodes.extend(range.filter_map(|no| Some((NodeNo(no), workload.node(NodeNo(no))?))));
        }
        let root = sessions.first().and_then(|no| workload.session(*no)).map_or(0..0, |s| s.nodes.clone());
        let skipped_until = root.start.saturating_add(skip).min(root.end.saturating_sub(1));
        let gone = gone(&nodes, &root, skipped_until);
        let begun = if gone.is_empty() { Duration::ZERO } else { Duration::MAX };
        let mut waits = BTreeMap::new();
        let mut due = Vec::new();
        for (no, node) in nodes.iter().filter(|(no, _)| !gone.contains(no)) {
            let left = node.deps.iter().filter(|dep| !gone.contains(&dep.on)).count();
            let at = node.not_before.saturating_sub(begun);
            waits.insert(*no, (left, at));
            if left == 0 {
                due.push((*no, at));
            }
        }
        (Self { workload, plan, round, sizes, waits, prompts: BTreeMap::new() }, due)
    }

    /// Requests that are not over.
    pub(crate) fn left(&self) -> usize {
        self.waits.len()
    }

    /// Something that others wait for came, that long after the play's start: those that wait for nothing else are
    /// handed out, with when they are due after its start.
    pub(crate) fn came(&mut self, no: NodeNo, trigger: Trigger, now: Duration) -> Vec<Due> {
        let mut due = Vec::new();
        for (next, dep) in self.plan.after.get(no.0 as usize).into_iter().flatten() {
            if dep.trigger != trigger {
                continue;
            }
            let Some((left, at)) = self.waits.get_mut(next) else { continue };
            *at = (*at).max(now.saturating_add(dep.delay));
            *left = left.saturating_sub(1);
            if *left == 0 {
                due.push((*next, *at));
            }
        }
        due
    }

    /// A request is over.
    pub(crate) fn over(&mut self, no: NodeNo) {
        self.waits.remove(&no);
    }

    /// What a request says.
    pub(crate) fn prompt(&mut self, no: NodeNo) -> Option<Prompt> {
        let (workload, sizes) = (self.workload, self.sizes);
        let node = workload.node(no)?;
        let turn = no.0.checked_sub(workload.session(node.session)?.nodes.start)?;
        let (next, prompts) =
            self.prompts.entry(node.session).or_insert_with(|| (0, workload.prompts(node.session)));
        if *next > turn {
            (*next, *prompts) = (0, workload.prompts(node.session));
        }
        let span = sizes.block_size.saturating_mul(sizes.shrink).max(1);
        let mut ids = None;
        while *next <= turn {
            ids = prompts.advance(span);
            *next += 1;
        }
        let tokens = sizes.tokens(node.input_tokens);
        let whole = (tokens / sizes.block_size.max(1)) as usize;
        // Other rounds have other content, but for what sessions share anyhow.
        let head = self.plan.shared.get(node.session.0 as usize).copied().unwrap_or(0);
        let head = head.saturating_mul(workload.block_size as usize) / span as usize;
        let round = u64::from(self.round);
        let named = |(at, id): (usize, &u64)| if round == 0 || at < head { *id } else { mix(*id, round) };
        let blocks = ids?.iter().take(whole).enumerate().map(named).collect();
        let rest = mix(mix(u64::from(no.0), round), u64::MAX);
        Some(Prompt { blocks, block_size: sizes.block_size, tokens, rest })
    }
}

/// The root's turns before `until`, and what of other sessions waits for nothing but what is gone.
fn gone(
    nodes: &BTreeMap<NodeNo, &Node>,
    root: &std::ops::Range<u32>,
    until: u32,
) -> std::collections::BTreeSet<NodeNo> {
    let mut gone: std::collections::BTreeSet<NodeNo> = (root.start..until).map(NodeNo).collect();
    while !gone.is_empty() {
        let more: Vec<NodeNo> = nodes
            .iter()
            .filter(|(no, node)| !gone.contains(no) && !root.contains(&no.0) && !node.deps.is_empty())
            .filter(|(_, node)| node.deps.iter().all(|dep| gone.contains(&dep.on)))
            .map(|(no, _)| *no)
            .collect();
        if more.is_empty() {
            break;
        }
        gone.extend(more);
    }
    gone
}
