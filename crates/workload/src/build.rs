//! From what importers read to the graph.
//!
//! Invariants: I-WKL-2 and I-WKL-3 are established here: turns sorted, pauses relative to the last thing waited
//! for, no circle.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::graph::{Dep, Node, NodeNo, Play, Session, SessionNo, Trigger, Workload};
use crate::import::ImportError;
use crate::repair::{Repair, Repairs};

/// A turn as an importer read it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turn {
    pub(crate) id: Option<Arc<str>>,
    /// When it was sent, in the source's time; `None` = the source tells pauses only.
    pub(crate) start: Option<Duration>,
    /// When its answer was complete.
    pub(crate) end: Option<Duration>,
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) ids: Vec<u64>,
    /// The pause before it, where the source tells it.
    pub(crate) pause: Option<Duration>,
    pub(crate) tools: bool,
    pub(crate) model: Option<Arc<str>>,
    pub(crate) priority: i32,
    /// What it waits for, where the source tells; replaces what the order of turns would say.
    pub(crate) waits: Option<Vec<Wait>>,
}

/// An edge that the source tells.
#[derive(Debug, Clone)]
pub(crate) struct Wait {
    pub(crate) on: Arc<str>,
    pub(crate) trigger: Trigger,
    /// `None` = as recorded.
    pub(crate) delay: Option<Duration>,
}

/// A session as an importer read it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Draft {
    pub(crate) id: Arc<str>,
    pub(crate) parent: Option<Arc<str>>,
    /// The parent goes on without waiting for it.
    pub(crate) background: bool,
    pub(crate) group: Option<Arc<str>>,
    pub(crate) turns: Vec<Turn>,
}

/// Puts sessions together. They keep their order, but for empty ones, which are left out.
pub(crate) fn build(
    drafts: Vec<Draft>,
    block_size: u32,
    mut repairs: Repairs,
) -> Result<Workload, ImportError> {
    let mut drafts: Vec<Draft> = drafts.into_iter().filter(|draft| !draft.turns.is_empty()).collect();
    for draft in &mut drafts {
        // The sort is stable: turns without times keep the file's order.
        draft.turns.sort_by_key(|turn| (turn.start, turn.end));
    }
    let graph = Graph::new(&drafts, &mut repairs)?;
    let mut nodes = graph.nodes(&drafts, block_size, &mut repairs)?;
    let mut sessions = graph.sessions(&drafts);
    let plays = graph.plays(&drafts, &mut sessions, &nodes);
    for (session, draft) in sessions.iter().zip(&drafts) {
        let starts = plays.get(session.play as usize).map_or(Duration::ZERO, |play| play.starts);
        let range = session.nodes.start as usize..session.nodes.end as usize;
        for (node, turn) in nodes.get_mut(range).into_iter().flatten().zip(&draft.turns) {
            if node.deps.is_empty() {
                node.not_before = turn.start.map_or(Duration::ZERO, |start| start.saturating_sub(starts));
            }
        }
    }
    let first = plays.iter().map(|play| play.starts).min().unwrap_or_default();
    let plays = plays.into_iter().map(|play| Play { starts: play.starts - first, ..play }).collect();
    Ok(Workload { block_size, nodes, sessions, plays, repairs })
}

/// Where everything lies before it is made.
struct Graph {
    first: Vec<u32>,
    parent: Vec<Option<usize>>,
    named: BTreeMap<Arc<str>, NodeNo>,
    deps: Vec<Vec<(NodeNo, Trigger, Option<Duration>)>>,
}

fn number(index: usize) -> Result<u32, ImportError> {
    u32::try_from(index).map_err(|_| ImportError::TooLarge)
}

impl Graph {
    fn new(drafts: &[Draft], repairs: &mut Repairs) -> Result<Self, ImportError> {
        let mut first = Vec::with_capacity(drafts.len() + 1);
        let mut count = 0usize;
        for draft in drafts {
            first.push(number(count)?);
            count += draft.turns.len();
        }
        first.push(number(count)?);
        let by_name: BTreeMap<&str, usize> =
            drafts.iter().enumerate().map(|(index, draft)| (&*draft.id, index)).collect();
        let mut parent = vec![None; drafts.len()];
        for ((draft, slot), index) in drafts.iter().zip(&mut parent).zip(0..) {
            let Some(name) = &draft.parent else { continue };
            match by_name.get(&**name) {
                Some(at) if *at != index => *slot = Some(*at),
                _ => repairs.note(Repair::UnknownParent, &draft.id)?,
            }
        }
        let mut graph = Self { first, parent, named: BTreeMap::new(), deps: vec![Vec::new(); count] };
        for (index, draft) in drafts.iter().enumerate() {
            for (at, turn) in draft.turns.iter().enumerate() {
                if let Some(id) = &turn.id {
                    graph.named.insert(Arc::clone(id), graph.no(index, at));
                }
            }
        }
        graph.order(drafts, repairs)?;
        graph.spawns(drafts);
        graph.check(drafts)?;
        Ok(graph)
    }

    fn no(&self, session: usize, turn: usize) -> NodeNo {
        let first = self.first.get(session).copied().unwrap_or_default();
        NodeNo(first + u32::try_from(turn).unwrap_or(u32::MAX))
    }

    /// Each turn after the one before, or after what the source tells.
    fn order(&mut self, drafts: &[Draft], repairs: &mut Repairs) -> Result<(), ImportError> {
        for (index, draft) in drafts.iter().enumerate() {
            for (at, turn) in draft.turns.iter().enumerate() {
                let mut deps = Vec::new();
                match &turn.waits {
                    Some(waits) => {
                        for wait in waits {
                            match self.named.get(&wait.on) {
                                Some(on) => deps.push((*on, wait.trigger, wait.delay)),
                                None => repairs.note(Repair::UnknownDependency, &wait.on)?,
                            }
                        }
                    }
                    None if at > 0 => deps.push((self.no(index, at - 1), Trigger::Completion, turn.pause)),
                    None => {}
                }
                let no = self.no(index, at);
                if let Some(slot) = self.deps.get_mut(no.0 as usize) {
                    *slot = deps;
                }
            }
        }
        Ok(())
    }

    /// A child's first turn after the parent's turn under which it began, and the parent's first turn after the
    /// child's end after that.
    fn spawns(&mut self, drafts: &[Draft]) {
        for (index, child) in drafts.iter().enumerate() {
            let Some(parent) = self.parent.get(index).copied().flatten() else { continue };
            let Some(above) = drafts.get(parent) else { continue };
            let (Some(head), Some(last)) = (child.turns.first(), child.turns.last()) else { continue };
            let (Some(begin), Some(end)) = (head.start, last.end.or(last.start)) else { continue };
            let spawner = above.turns.iter().rposition(|turn| turn.start.is_some_and(|start| start <= begin));
            if let Some(at) = spawner
                && head.waits.is_none()
            {
                let over = above.turns.get(at).and_then(|turn| turn.end).is_some_and(|end| end <= begin);
                let trigger = if over { Trigger::Completion } else { Trigger::Dispatch };
                let dep = (self.no(parent, at), trigger, head.pause);
                let slot = self.no(index, 0).0 as usize;
                if let Some(deps) = self.deps.get_mut(slot) {
                    deps.push(dep);
                }
            }
            let joined = above.turns.iter().position(|turn| turn.start.is_some_and(|start| start >= end));
            if let Some(at) = joined
                && !child.background
                && above.turns.get(at).is_some_and(|turn| turn.waits.is_none())
            {
                let dep = (self.no(index, child.turns.len() - 1), Trigger::Completion, None);
                let slot = self.no(parent, at).0 as usize;
                if let Some(deps) = self.deps.get_mut(slot) {
                    deps.push(dep);
                }
            }
        }
    }

    /// No request waits for itself, however indirectly.
    fn check(&self, drafts: &[Draft]) -> Result<(), ImportError> {
        let mut left: Vec<usize> = self.deps.iter().map(Vec::len).collect();
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); self.deps.len()];
        for (index, deps) in self.deps.iter().enumerate() {
            for (on, _, _) in deps {
                if let Some(list) = after.get_mut(on.0 as usize) {
                    list.push(index);
                }
            }
        }
        let mut free: Vec<usize> =
            left.iter().enumerate().filter(|(_, count)| **count == 0).map(|(index, _)| index).collect();
        let mut seen = 0;
        while let Some(index) = free.pop() {
            seen += 1;
            for next in after.get(index).into_iter().flatten() {
                if let Some(count) = left.get_mut(*next) {
                    *count -= 1;
                    if *count == 0 {
                        free.push(*next);
                    }
                }
            }
        }
        if seen == self.deps.len() {
            return Ok(());
        }
        let stuck = left.iter().position(|count| *count > 0).unwrap_or_default();
        let session = self.first.partition_point(|first| *first as usize <= stuck).saturating_sub(1);
        Err(ImportError::Circle(drafts.get(session).map_or_else(String::new, |draft| draft.id.to_string())))
    }

    /// When what a dependency waits for came in the recording.
    fn came(&self, drafts: &[Draft], on: NodeNo, trigger: Trigger) -> Option<Duration> {
        let session = self.first.partition_point(|first| *first <= on.0).checked_sub(1)?;
        let turn = drafts.get(session)?.turns.get((on.0 - self.first.get(session)?) as usize)?;
        match trigger {
            Trigger::Dispatch => turn.start,
            Trigger::Completion => turn.end.or(turn.start),
        }
    }

    /// The pauses of one turn: what the source tells, else the recorded one behind the last thing waited for.
    fn pauses(
        &self,
        drafts: &[Draft],
        (turn, place): (&Turn, &str),
        no: NodeNo,
        repairs: &mut Repairs,
    ) -> Result<Vec<Dep>, ImportError> {
        let deps = self.deps.get(no.0 as usize).map_or(&[][..], Vec::as_slice);
        let came: Vec<Option<Duration>> =
            deps.iter().map(|(on, trigger, _)| self.came(drafts, *on, *trigger)).collect();
        let last = came.iter().flatten().max().copied();
        let mut given = false;
        let mut out = Vec::with_capacity(deps.len());
        for ((on, trigger, told), at) in deps.iter().zip(&came) {
            let delay = match (told, turn.start, last) {
                (Some(told), _, _) => *told,
                (None, Some(start), Some(last)) if *at == Some(last) && !given => {
                    given = true;
                    if start < last {
                        repairs.note(Repair::NegativePause, place)?;
                    }
                    start.saturating_sub(last)
                }
                _ => Duration::ZERO,
            };
            out.push(Dep { on: *on, trigger: *trigger, delay });
        }
        Ok(out)
    }

    fn nodes(
        &self,
        drafts: &[Draft],
        block_size: u32,
        repairs: &mut Repairs,
    ) -> Result<Vec<Node>, ImportError> {
        let mut nodes = Vec::with_capacity(self.deps.len());
        for (index, draft) in drafts.iter().enumerate() {
            let mut before: &[u64] = &[];
            for (at, turn) in draft.turns.iter().enumerate() {
                let no = self.no(index, at);
                let place = turn.id.as_deref().unwrap_or(&draft.id);
                let deps = self.pauses(drafts, (turn, place), no, repairs)?;
                let input = u32::try_from(turn.input).map_err(|_| ImportError::TooLarge)?;
                let covered = turn.ids.len() as u64 * u64::from(block_size);
                if turn.ids.is_empty() && turn.input >= u64::from(block_size) {
                    repairs.note(Repair::NoIds, place)?;
                } else if turn.input > covered + u64::from(block_size) {
                    repairs.note(Repair::UncoveredTokens, place)?;
                }
                let most =
                    usize::try_from(turn.input.div_ceil(u64::from(block_size.max(1)))).unwrap_or(usize::MAX);
                if turn.ids.len() > most {
                    repairs.note(Repair::SurplusIds, place)?;
                }
                if turn.output == 0 {
                    repairs.note(Repair::EmptyOutput, place)?;
                }
                let ids = turn.ids.get(..turn.ids.len().min(most)).unwrap_or_default();
                let keep = ids.iter().zip(before).take_while(|(one, other)| one == other).count();
                nodes.push(Node {
                    session: SessionNo(number(index)?),
                    id: turn.id.clone(),
                    input_tokens: input,
                    output_tokens: u32::try_from(turn.output).map_err(|_| ImportError::TooLarge)?.max(1),
                    keep: number(keep)?,
                    tail: ids.get(keep..).unwrap_or_default().into(),
                    deps,
                    not_before: Duration::ZERO,
                    recorded: turn.start.zip(turn.end).map(|(start, end)| end.saturating_sub(start)),
                    tools: turn.tools,
                    model: turn.model.clone(),
                    priority: turn.priority,
                });
                before = ids;
            }
        }
        Ok(nodes)
    }

    fn sessions(&self, drafts: &[Draft]) -> Vec<Session> {
        let session = |(index, draft): (usize, &Draft)| Session {
            id: Arc::clone(&draft.id),
            parent: self.parent.get(index).copied().flatten().and_then(|at| number(at).ok()).map(SessionNo),
            play: 0,
            group: draft.group.clone(),
            nodes: self.no(index, 0).0..self.no(index, draft.turns.len()).0,
        };
        drafts.iter().enumerate().map(session).collect()
    }

    /// Joins sessions that wait for each other, and numbers the plays by their beginnings.
    fn plays(&self, drafts: &[Draft], sessions: &mut [Session], nodes: &[Node]) -> Vec<Play> {
        let mut root: Vec<usize> = (0..drafts.len()).collect();
        let find = |root: &mut Vec<usize>, mut at: usize| {
            while let Some(&above) = root.get(at)
                && above != at
            {
                let next = root.get(above).copied().unwrap_or(above);
                if let Some(slot) = root.get_mut(at) {
                    *slot = next;
                }
                at = next;
            }
            at
        };
        let mut join = |one: usize, other: usize| {
            let (one, other) = (find(&mut root, one), find(&mut root, other));
            if let Some(slot) = root.get_mut(one.max(other)) {
                *slot = one.min(other);
            }
        };
        for (index, parent) in self.parent.iter().enumerate() {
            if let Some(parent) = parent {
                join(index, *parent);
            }
        }
        for node in nodes {
            for dep in &node.deps {
                if let Some(other) = nodes.get(dep.on.0 as usize) {
                    join(node.session.0 as usize, other.session.0 as usize);
                }
            }
        }
        let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for index in 0..drafts.len() {
            let top = find(&mut root, index);
            members.entry(top).or_default().push(index);
        }
        let starts = |member: &usize| drafts.get(*member).and_then(|d| d.turns.first()).and_then(|t| t.start);
        let mut plays: Vec<(Duration, Vec<usize>)> = members
            .into_values()
            .map(|list| (list.iter().filter_map(starts).min().unwrap_or_default(), list))
            .collect();
        plays.sort_by_key(|(starts, _)| *starts);
        for (number, (_, list)) in (0u32..).zip(&plays) {
            for member in list {
                if let Some(session) = sessions.get_mut(*member) {
                    session.play = number;
                }
            }
        }
        let no = |member: usize| number(member).ok().map(SessionNo);
        plays
            .into_iter()
            .map(|(starts, list)| Play { sessions: list.into_iter().filter_map(no).collect(), starts })
            .collect()
    }
}
