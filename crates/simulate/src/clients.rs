//! The clients' side: plays under way, and when each of their turns is due.
//!
//! Invariants: I-SIM-4 is kept here.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use crate::config::PlayOrder;
use tandem_types::{ProgramKey, SessionId, TenantId, Time};
use tandem_workload::{Dep, Node, NodeNo, Prompts, SessionNo, Trigger, Workload, mix};

/// A hash table whose order nobody sees.
type Table<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// What the workload says, arranged for running.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) workload: &'a Workload,
    /// Requests that wait for each request, with the edge.
    after: Vec<Vec<(NodeNo, Dep)>>,
    /// Requests of each play, and each request's place among them.
    members: Vec<Vec<NodeNo>>,
    place: Vec<u32>,
    /// Leading blocks of each session that other sessions have too.
    shared: Vec<usize>,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(workload: &'a Workload) -> Self {
        let mut after = vec![Vec::new(); workload.nodes.len()];
        for (index, node) in (0u32..).zip(&workload.nodes) {
            for dep in &node.deps {
                if let Some(list) = after.get_mut(dep.on.0 as usize) {
                    list.push((NodeNo(index), *dep));
                }
            }
        }
        let mut place = vec![0; workload.nodes.len()];
        let mut members = Vec::with_capacity(workload.plays.len());
        for play in &workload.plays {
            let mut list = Vec::new();
            for session in &play.sessions {
                let range = workload.session(*session).map_or(0..0, |session| session.nodes.clone());
                for no in range {
                    if let Some(slot) = place.get_mut(no as usize) {
                        *slot = u32::try_from(list.len()).unwrap_or(u32::MAX);
                    }
                    list.push(NodeNo(no));
                }
            }
            members.push(list);
        }
        Self { shared: shared_heads(workload), workload, after, members, place }
    }

    pub(crate) fn plays(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn node(&self, no: NodeNo) -> Option<&'a Node> {
        self.workload.node(no)
    }

    /// Whether a request is its session's last.
    pub(crate) fn is_last(&self, no: NodeNo) -> bool {
        let session = self.node(no).and_then(|node| self.workload.session(node.session));
        session.is_some_and(|session| session.nodes.end == no.0 + 1)
    }
}

/// How many leading blocks of each session's first prompt another session's first prompt has too.
fn shared_heads(workload: &Workload) -> Vec<usize> {
    let first = |index: usize| {
        let node = workload.sessions.get(index).and_then(|s| workload.nodes.get(s.nodes.start as usize));
        node.map_or(&[][..], |node| &node.tail)
    };
    let mut owners: Table<u64, u32> = Table::default();
    for index in 0..workload.sessions.len() {
        for id in first(index) {
            *owners.entry(*id).or_default() += 1;
        }
    }
    let common = |id: &&u64| owners.get(*id).is_some_and(|count| *count > 1);
    (0..workload.sessions.len()).map(|index| first(index).iter().take_while(common).count()).collect()
}

/// A request of a play under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ask {
    pub(crate) run: u32,
    pub(crate) node: NodeNo,
}

/// A play under way.
#[derive(Debug)]
struct Run<'a> {
    lane: u32,
    /// 0 for the first time that this play is run.
    round: u32,
    /// Of each request: what it still waits for, and when the last of what came allows it.
    waits: Vec<(u32, Time)>,
    left: usize,
    prompts: BTreeMap<SessionNo, (usize, Prompts<'a>)>,
}

/// All plays under way.
#[derive(Debug)]
pub(crate) struct Clients<'a> {
    pub(crate) plan: Plan<'a>,
    runs: Vec<Option<Run<'a>>>,
    vacant: Vec<u32>,
    tenant: Option<TenantId>,
    fresh_answers: bool,
}

impl<'a> Clients<'a> {
    /// `fresh_answers` as in [`SimConfig`](crate::SimConfig).
    pub(crate) fn new(workload: &'a Workload, fresh_answers: bool) -> Self {
        let tenant = TenantId::new("sim").ok();
        Self { plan: Plan::new(workload), runs: Vec::new(), vacant: Vec::new(), tenant, fresh_answers }
    }

    /// Begins a play; what may be sent at once or later, without waiting for anything, is handed out with its time.
    pub(crate) fn begin(
        &mut self,
        play: usize,
        lane: u32,
        round: u32,
        now: Time,
        due: &mut Vec<(Time, Ask)>,
    ) {
        let members = self.plan.members.get(play).map_or(&[][..], Vec::as_slice);
        let mut waits = Vec::with_capacity(members.len());
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.runs.push(None);
            u32::try_from(self.runs.len() - 1).unwrap_or(u32::MAX)
        });
        for no in members {
            let Some(node) = self.plan.node(*no) else { continue };
            let at = now + node.not_before;
            waits.push((u32::try_from(node.deps.len()).unwrap_or(u32::MAX), at));
            if node.deps.is_empty() {
                due.push((at, Ask { run: slot, node: *no }));
            }
        }
        let run = Run { lane, round, left: waits.len(), waits, prompts: BTreeMap::new() };
        if let Some(place) = self.runs.get_mut(slot as usize) {
            *place = Some(run);
        }
    }

    /// Something that others wait for came: those that wait for nothing else are handed out with their times.
    pub(crate) fn came(&mut self, ask: Ask, trigger: Trigger, now: Time, due: &mut Vec<(Time, Ask)>) {
        let Some(Some(run)) = self.runs.get_mut(ask.run as usize) else { return };
        for (next, dep) in self.plan.after.get(ask.node.0 as usize).into_iter().flatten() {
            if dep.trigger != trigger {
                continue;
            }
            let place = self.plan.place.get(next.0 as usize).copied().unwrap_or(u32::MAX);
            let Some((left, at)) = run.waits.get_mut(place as usize) else { continue };
            *at = (*at).max(now + dep.delay);
            *left = left.saturating_sub(1);
            if *left == 0 {
                due.push((*at, Ask { run: ask.run, node: *next }));
            }
        }
    }

    /// A request is over. Its play's (lane, play, round, begin) if it was the last one of it.
    pub(crate) fn over(&mut self, ask: Ask) -> Option<Ended> {
        let place = self.runs.get_mut(ask.run as usize)?;
        let run = place.as_mut()?;
        run.left = run.left.saturating_sub(1);
        if run.left > 0 {
            return None;
        }
        let ended = Ended { lane: run.lane };
        *place = None;
        self.vacant.push(ask.run);
        Some(ended)
    }

    /// The program of a session in a run.
    pub(crate) fn program(&self, ask: Ask, session: SessionNo) -> Option<ProgramKey> {
        let run = self.runs.get(ask.run as usize)?.as_ref()?;
        let name = format!("{}.{}", session.0, run.round);
        Some(ProgramKey::root(self.tenant.clone()?, SessionId::new(&name).ok()?))
    }

    /// The blocks of a request's prompt and answer.
    pub(crate) fn prompt(&mut self, ask: Ask, block_size: u32) -> Option<Arc<[u64]>> {
        let node = self.plan.node(ask.node)?;
        let session = self.plan.workload.session(node.session)?;
        let run = self.runs.get_mut(ask.run as usize)?.as_mut()?;
        let turn = (ask.node.0 - session.nodes.start) as usize;
        let workload = self.plan.workload;
        let (next, prompts) =
            run.prompts.entry(node.session).or_insert_with(|| (0, workload.prompts(node.session)));
        if *next > turn {
            (*next, *prompts) = (0, workload.prompts(node.session));
        }
        let mut ids = None;
        while *next <= turn {
            ids = prompts.advance(block_size);
            *next += 1;
        }
        let mut ids = ids?;
        if self.fresh_answers {
            let prompt = usize::try_from(node.input_tokens / block_size.max(1)).unwrap_or(usize::MAX);
            ids = ids.get(..prompt).map_or(Arc::clone(&ids), Arc::from);
        }
        if run.round == 0 {
            return Some(ids);
        }
        let shared = self.plan.shared.get(node.session.0 as usize).copied().unwrap_or(0) as u64;
        let head =
            usize::try_from(shared * u64::from(workload.block_size) / u64::from(block_size)).unwrap_or(0);
        let other = |(at, id): (usize, &u64)| if at < head { *id } else { mix(*id, u64::from(run.round)) };
        Some(ids.iter().enumerate().map(other).collect())
    }
}

/// A play that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) lane: u32,
}

/// The order in which plays are run: the workload's, or shuffled anew for each round.
#[derive(Debug)]
pub(crate) struct Order {
    plays: usize,
    order: PlayOrder,
    seed: u64,
    next: usize,
    list: Vec<usize>,
}

impl Order {
    pub(crate) fn new(plays: usize, order: PlayOrder, seed: u64) -> Self {
        Self { plays, order, seed, next: 0, list: Vec::new() }
    }

    /// The next play and its round.
    pub(crate) fn draw(&mut self) -> (usize, u32) {
        let plays = self.plays.max(1);
        let (round, at) = (self.next / plays, self.next % plays);
        if at == 0 {
            let seed = mix(self.seed, round as u64);
            self.list = (0..self.plays).collect();
            if self.order == PlayOrder::Shuffled {
                self.list.sort_by_key(|play| mix(seed, *play as u64));
            }
        }
        self.next += 1;
        (self.list.get(at).copied().unwrap_or(0), u32::try_from(round).unwrap_or(u32::MAX))
    }

    /// How many have been drawn.
    pub(crate) fn drawn(&self) -> usize {
        self.next
    }
}

/// A pause cut to what may pass while nothing goes on.
pub(crate) fn skipped(now: Time, next: Time, cap: Option<Duration>) -> Duration {
    cap.map_or(Duration::ZERO, |cap| next.since(now).saturating_sub(cap))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plays_come_as_recorded_or_in_another_order_each_round() {
        let draws = |order, count| {
            let mut order = Order::new(3, order, 9);
            (0..count).map(|_| order.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draws(PlayOrder::Recorded, 5), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]);
        let shuffled = draws(PlayOrder::Shuffled, 12);
        let rounds: Vec<Vec<usize>> =
            shuffled.chunks(3).map(|round| round.iter().map(|(play, _)| *play).collect()).collect();
        assert!(rounds.iter().all(|round| round.iter().sum::<usize>() == 3), "each once");
        assert!(rounds.windows(2).any(|pair| pair.first() != pair.last()));
    }
}
