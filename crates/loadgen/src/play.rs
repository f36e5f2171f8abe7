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

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_workload::{Format, ImportOptions, import};

    const SIZES: Sizes = Sizes { shrink: 4, block_size: 16 };

    /// Two sessions whose tools and system prompt are the same 128 tokens; the second turns extend the first.
    fn workload() -> Workload {
        let rows = ["a", "b"].map(|id| {
            format!(
                r#"{{"id":"{id}","models":["m"],"block_size":64,"hash_id_scope":"local","tool_tokens":64,
                "system_tokens":64,"requests":[
                {{"t":0.0,"type":"n","model":"m","in":300,"out":20,"hash_ids":[1,2,3,4],"stop":"tool_use","api_time":1.0}},
                {{"t":3.0,"type":"n","model":"m","in":400,"out":20,"hash_ids":[1,2,3,4,5,6],"stop":"tool_use","api_time":1.0}},
                {{"t":9.0,"type":"n","model":"m","in":500,"out":20,"hash_ids":[1,2,3,4,5,6,7],"stop":"","api_time":1.0}}
                ]}}"#
            )
            .replace('\n', "")
        });
        import(rows.join("\n").as_bytes(), Format::Weka, &ImportOptions::default()).expect("is sound")
    }

    fn begin<'a>(
        workload: &'a Workload,
        plan: &'a Plan,
        play: usize,
        round: u32,
        skip: u32,
    ) -> (Run<'a>, Vec<Due>) {
        Run::new(workload, plan, play, round, skip, SIZES)
    }

    #[test]
    fn turns_wait_for_the_answer_before_and_for_the_recorded_pause() {
        // I-LDG-1
        let workload = workload();
        let plan = Plan::new(&workload);
        let (mut run, due) = begin(&workload, &plan, 0, 0, 0);
        let first = due[0].0;
        assert_eq!(due, vec![(first, Duration::ZERO)]);
        assert_eq!(run.came(first, Trigger::Dispatch, Duration::from_secs(1)), vec![]);
        // The answer took 5 s instead of 1; the tools take the 2 s that they took.
        let due = run.came(first, Trigger::Completion, Duration::from_secs(5));
        assert_eq!(due, vec![(NodeNo(first.0 + 1), Duration::from_secs(7))]);
    }

    #[test]
    fn a_play_taken_up_midway_goes_on_from_there() {
        let workload = workload();
        let plan = Plan::new(&workload);
        let (mut run, due) = begin(&workload, &plan, 0, 0, 2);
        assert_eq!((due.len(), due[0].1, run.left()), (1, Duration::ZERO, 1));
        assert_eq!(run.prompt(due[0].0).map(|prompt| prompt.tokens), Some(125));
        let (run, due) = begin(&workload, &plan, 0, 0, 99);
        assert_eq!((due.len(), run.left()), (1, 1), "the last turn is always left");
    }

    #[test]
    fn prompts_share_what_the_workload_says() {
        // I-LDG-2; blocks of 16 tokens stand for the source's blocks of 64.
        let workload = workload();
        let plan = Plan::new(&workload);
        let prompts = |play: usize, round: u32| -> Vec<Prompt> {
            let (mut run, due) = begin(&workload, &plan, play, round, 0);
            (0..3).filter_map(|turn| run.prompt(NodeNo(due[0].0.0 + turn))).collect()
        };
        let common = |a: &Prompt, b: &Prompt| {
            let tokens = a.token_ids().zip(b.token_ids()).take_while(|(a, b)| a == b).count();
            (a.blocks.iter().zip(&b.blocks).take_while(|(a, b)| a == b).count(), tokens / 16)
        };
        let (a, b, again) = (prompts(0, 0), prompts(1, 0), prompts(0, 1));
        let lengths: Vec<_> = a.iter().map(|prompt| (prompt.tokens, prompt.blocks.len())).collect();
        assert_eq!(lengths, [(75, 4), (100, 6), (125, 7)]);
        assert_eq!(common(&a[0], &a[1]), (4, 4), "a turn repeats the one before");
        assert_eq!(common(&a[1], &a[2]), (6, 6));
        assert_eq!(common(&a[2], &b[2]), (2, 2), "sessions share tools and system prompt");
        assert_eq!(common(&a[2], &again[2]), (2, 2), "another round is another session");
        assert_eq!(prompts(0, 0), a);
    }
}
