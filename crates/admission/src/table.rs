//! Programs, their turns, and what each worker is charged with.
//!
//! - A program is REASONING while a turn of it runs or is held, else ACTING; ACTIVE while it has a place, else PAUSED. Only
//!   ACTIVE programs are charged. A turn without identity is a program of its own that leaves with it.
//! - A running turn is charged with its prompt and what it has generated, an idle program with the context of its last
//!   turns, both without the head that others have there too ([`Worker::shared`]).
//! - Several turns of one program may run at once, at several workers. The context of the program is then that of the
//!   longest of them.
//! - I-ATB-1 what a worker is charged with is the sum over its turns and idle programs; [`Table::check`] counts again.
//! - I-ATB-2 a turn is waiting, admitted, or gone; it is charged to one worker at most.
//! - I-ATB-3 an aborted turn leaves its program as it was before it came; one that had run leaves what it computed.
//! - Heads: what lies at a worker of the first prompt of a program that never ran there was computed by others. It is
//!   counted once for each group and name of a head ([`PrefixMatch::head`]), at the length of the longest: heads that differ
//!   later than their names tell are undercounted by the shorter ones.

mod charges;
mod check;
mod turns;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use tandem_types::{GroupId, ProgramKey, TenantId, Time, TurnId, WorkerId};

use crate::contract::{Arrival, Capacity, End, Stats};
use crate::kin::Kin;
use crate::lies::Lies;

/// Larger counts, which only a broken client reports, count as this many, so that sums stay exact.
pub(crate) const TOKENS_MAX: u64 = 1 << 40;
/// Most programs forgotten in one call.
const EXPIRE_PER_CALL_MAX: usize = 64;

/// Whose head it is and what it is called.
type HeadKey = (Option<GroupId>, Option<u64>);

/// A program's place in the table.
pub(crate) type Slot = usize;

#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    pub(crate) key: Option<Arc<ProgramKey>>,
    pub(crate) tenant: TenantId,
    pub(crate) parent: Option<Arc<ProgramKey>>,
    pub(crate) group: Option<GroupId>,
    /// Context after its last turn.
    pub(crate) tokens: u64,
    /// The head of it that others computed, at its home.
    pub(crate) shared: u64,
    /// What that head is called.
    head: Option<u64>,
    /// How much others had computed of its first prompt where it ran first.
    others: u64,
    /// Turns that came.
    pub(crate) steps: u64,
    /// Turns that ran since it was let in.
    pub(crate) served: u32,
    /// Its turns that are not over, in no useful order.
    pub(crate) live: Vec<TurnId>,
    pub(crate) running: u32,
    /// Where its cache lies.
    pub(crate) home: Option<WorkerId>,
    pub(crate) active: bool,
    /// Since when no turn of it is live.
    pub(crate) idle_since: Option<Time>,
    pub(crate) tools: bool,
    pub(crate) marked: bool,
    pub(crate) ran: bool,
    /// Its last turn found less than half of its context where that was to lie, by the engine's count or, where that is
    /// missing, by what was told before.
    pub(crate) cold: bool,
    ending: bool,
    /// Of its next turn's priority, until then.
    pub(crate) demoted_until: Option<Time>,
    /// Programs that it spawned, and their held turns.
    pub(crate) children: (u32, u32),
    /// What it is charged for while idle, and where.
    charge: Option<(WorkerId, u64)>,
    /// Longest context among turns that ran side by side.
    peak: u64,
}

/// What of a program's prompts others have computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    home: Option<WorkerId>,
    /// At home.
    shared: u64,
    /// Elsewhere, at most.
    others: u64,
}

impl Heads {
    pub(crate) const fn home(self) -> Option<WorkerId> {
        self.home
    }

    /// The most that it can be elsewhere.
    pub(crate) const fn elsewhere(self) -> u64 {
        self.others
    }

    /// The most that it can be at any worker where no more than that of the prompt lies.
    pub(crate) fn anywhere(self, lies: u64) -> u64 {
        let at_home = self.home.map_or(0, |_| self.shared);
        lies.min(self.others.max(at_home))
    }

    /// The head at a worker where so much of the prompt lies.
    pub(crate) fn at(self, worker: WorkerId, lies: Option<u64>) -> u64 {
        let most = if self.home == Some(worker) { self.shared } else { self.others };
        lies.unwrap_or(0).min(most)
    }
}

impl Program {
    /// Elsewhere than at home, what lies there of a program that has run may be its own from an earlier stay.
    pub(crate) fn heads(&self) -> Heads {
        let others = if self.ran { self.others } else { u64::MAX };
        Heads { home: self.home, shared: self.shared, others }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.live.is_empty()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub(crate) slot: Slot,
    pub(crate) prompt: u64,
    pub(crate) generated: u64,
    pub(crate) arrived: Time,
    /// Its place among those that wait.
    rank: Time,
    pub(crate) waiting: bool,
    /// It was let in before.
    again: bool,
    /// Workers that failed it.
    pub(crate) failed_on: Vec<WorkerId>,
    /// How urgent it was when it was let in, where the policy says something of that.
    pub(crate) priority: i32,
    pub(crate) dispatched: Option<Time>,
    /// From there to the first token of its answer.
    pub(crate) first_after: Option<Duration>,
    /// Tokens of its prompt that were said to lie where it ran.
    pub(crate) told: Option<u64>,
    /// Prompt tokens that lie at each worker, until the prompt is computed.
    pub(crate) lies: Lies,
    head: Option<u64>,
    charge: Option<(WorkerId, u64)>,
    /// Its program ends with it.
    last: bool,
    before: Before,
}

impl Turn {
    /// Where it is charged.
    pub(crate) fn at(&self) -> Option<WorkerId> {
        self.charge.map(|(worker, _)| worker)
    }

    /// Since when its program had no live turn when it came.
    pub(crate) const fn away_since(&self) -> Option<Time> {
        self.before.idle_since
    }

    /// Tokens of its prompt that its program had computed before, and what of its prompt was found computed when it ran
    /// as far as that is known.
    pub(crate) fn computed_before(&self, end: &End) -> (u64, Option<u64>) {
        let found = end.usage.and_then(|usage| usage.cached_tokens).or(self.told);
        (self.before.tokens.min(self.prompt), found)
    }
}

/// How a program was before a turn came.
#[derive(Debug, Clone, Copy, Default)]
struct Before {
    active: bool,
    idle_since: Option<Time>,
    tokens: u64,
    home: Option<WorkerId>,
    shared: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Worker {
    pub(crate) ready: bool,
    pub(crate) capacity: Option<Capacity>,
    pub(crate) running_tokens: u64,
    pub(crate) running: u32,
    pub(crate) idle_tokens: u64,
    /// Programs charged here while idle, by slot.
    pub(crate) idle: Vec<Idler>,
    /// Programs whose home this is.
    pub(crate) residents: BTreeSet<Slot>,
    /// It is in [`Table::changed`].
    listed: bool,
    /// Its idle programs are not those of the last look.
    idle_changed: bool,
    /// Heads counted once: of each group and name, the lengths and how many programs have them.
    heads: BTreeMap<HeadKey, BTreeMap<u64, u32>>,
    /// Their sum.
    pub(crate) shared: u64,
}

/// An idle program that is charged somewhere, with what is asked of all of a worker at once: so a look at them reads one
/// piece of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Idler {
    pub(crate) slot: Slot,
    /// What it is charged for.
    pub(crate) charge: u64,
    /// Context after its last turn.
    pub(crate) tokens: u64,
    /// Since when no turn of it is live.
    pub(crate) since: Time,
    /// As in [`Program`].
    pub(crate) served: u32,
    pub(crate) tools: bool,
    pub(crate) subagent: bool,
    /// It spawned programs that are known.
    pub(crate) spawned: bool,
    /// A turn of one of these is held.
    pub(crate) blocked: bool,
}

impl Idler {
    const fn new(slot: Slot, program: &Program, since: Time, charge: u64) -> Self {
        let (spawned, held) = program.children;
        Self {
            slot,
            charge,
            tokens: program.tokens,
            since,
            served: program.served,
            tools: program.tools,
            subagent: program.parent.is_some(),
            spawned: spawned > 0,
            blocked: held > 0,
        }
    }
}

/// What a program leaves behind at a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) program: ProgramKey,
    pub(crate) worker: WorkerId,
    pub(crate) tokens: u64,
}

/// What policies differ in.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rules {
    /// A head that several programs have is charged once.
    pub(crate) heads_count_once: bool,
    /// Turns wait in the order of [`Kin::rank`] rather than of arrival.
    pub(crate) kin_ranks: bool,
    /// What programs leave behind is listed in [`Table::left`], and whose charges changed in [`Table::changed`].
    pub(crate) lists: bool,
}

#[derive(Debug)]
pub(crate) struct Table {
    programs: Vec<Option<Box<Program>>>,
    vacant: Vec<Slot>,
    by_key: IndexMap<Arc<ProgramKey>, Slot>,
    /// In memory of their own, so that looking one up reads little of the others.
    turns: BTreeMap<TurnId, Box<Turn>>,
    pub(crate) workers: BTreeMap<WorkerId, Worker>,
    /// Held turns in their order.
    pub(crate) waiting: BTreeSet<(Time, TurnId)>,
    idle: BTreeSet<(Time, Slot)>,
    /// Idle programs without a place.
    pub(crate) paused: BTreeSet<Slot>,
    programs_max: usize,
    idle_ttl: Duration,
    rules: Rules,
    pub(crate) kin: Kin,
    /// Caches that are not worth keeping, until somebody takes the list.
    pub(crate) left: Vec<Left>,
    /// Workers that came, left, or are charged otherwise than before, until somebody takes the list.
    changed: Vec<WorkerId>,
    pub(crate) stats: Stats,
}

impl Table {
    pub(crate) fn new(programs_max: usize, idle_ttl: Duration, rules: Rules) -> Self {
        Self {
            programs: Vec::new(),
            vacant: Vec::new(),
            by_key: IndexMap::new(),
            turns: BTreeMap::new(),
            workers: BTreeMap::new(),
            waiting: BTreeSet::new(),
            idle: BTreeSet::new(),
            paused: BTreeSet::new(),
            programs_max,
            idle_ttl,
            rules,
            kin: Kin::default(),
            left: Vec::new(),
            changed: Vec::new(),
            stats: Stats::default(),
        }
    }

    pub(crate) fn program(&self, slot: Slot) -> Option<&Program> {
        self.programs.get(slot)?.as_deref()
    }

    pub(crate) fn program_mut(&mut self, slot: Slot) -> Option<&mut Program> {
        self.programs.get_mut(slot)?.as_deref_mut()
    }

    pub(crate) fn turn(&self, id: TurnId) -> Option<&Turn> {
        self.turns.get(&id).map(Box::as_ref)
    }

    pub(crate) fn turn_mut(&mut self, id: TurnId) -> Option<&mut Turn> {
        self.turns.get_mut(&id).map(Box::as_mut)
    }

    pub(crate) fn worker(&self, id: WorkerId) -> Option<&Worker> {
        self.workers.get(&id)
    }

    /// Every program, by slot.
    pub(crate) fn programs(&self) -> impl Iterator<Item = (Slot, &Program)> {
        self.programs.iter().enumerate().filter_map(|(slot, program)| Some((slot, program.as_deref()?)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.programs.len() == self.vacant.len()
    }

    pub(crate) fn is_ready(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|worker| worker.ready)
    }

    pub(crate) fn stats(&self) -> Stats {
        let tokens =
            self.waiting.iter().filter_map(|(_, id)| self.turns.get(id)).map(|turn| turn.prompt).sum();
        Stats {
            programs: (self.programs.len() - self.vacant.len()) as u64,
            held: self.waiting.len() as u64,
            held_tokens: tokens,
            ..self.stats
        }
    }

    /// A turn came; it waits. False when the id is taken.
    pub(crate) fn arrive(&mut self, now: Time, arrival: &Arrival<'_>) -> bool {
        if self.turns.contains_key(&arrival.turn) {
            return false;
        }
        let slot = arrival.program.and_then(|key| self.by_key.get(key).copied());
        let slot = slot.unwrap_or_else(|| self.insert(now, arrival));
        let mut turn = Turn {
            slot,
            prompt: arrival.prompt_tokens.min(TOKENS_MAX),
            generated: 0,
            arrived: now - arrival.waited,
            rank: now - arrival.waited,
            waiting: true,
            again: false,
            failed_on: Vec::new(),
            priority: 0,
            dispatched: None,
            first_after: None,
            told: None,
            lies: Lies::new(arrival.prefix),
            head: arrival.prefix.head,
            charge: None,
            last: arrival.last,
            before: Before::default(),
        };
        self.discharge_idle(slot);
        if let Some(program) = self.program_mut(slot) {
            turn.before = Before {
                active: program.active,
                idle_since: program.idle_since,
                tokens: program.tokens,
                home: program.home,
                shared: program.shared,
            };
            let since = program.idle_since.take();
            program.steps += 1;
            program.live.push(arrival.turn);
            self.idle.remove(&(since.unwrap_or_default(), slot));
            self.paused.remove(&slot);
        }
        turn.rank = self.rank(&turn);
        self.wait(slot, (turn.rank, arrival.turn));
        self.turns.insert(arrival.turn, Box::new(turn));
        true
    }

    /// The program that spawned one, if it is known.
    pub(crate) fn parent(&self, slot: Slot) -> Option<&Program> {
        self.by_key(self.program(slot)?.parent.as_deref()?)
    }

    pub(crate) fn by_key(&self, key: &ProgramKey) -> Option<&Program> {
        self.program(*self.by_key.get(key)?)
    }

    fn rank(&self, turn: &Turn) -> Time {
        let Some(program) = self.program(turn.slot).filter(|_| self.rules.kin_ranks) else {
            return turn.arrived;
        };
        let parent_idle = self.parent(turn.slot).and_then(|parent| parent.idle_since);
        self.kin.rank(turn.arrived, program.group.as_ref(), parent_idle)
    }

    /// A turn waits.
    fn wait(&mut self, slot: Slot, place: (Time, TurnId)) {
        self.waiting.insert(place);
        if let Some(program) = self.programs.get(slot).and_then(Option::as_ref) {
            self.kin.held(&program.tenant, place, program.parent.as_deref());
        }
        self.note_children(slot);
    }

    /// A turn waits no longer.
    fn unwait(&mut self, slot: Slot, place: (Time, TurnId)) {
        self.waiting.remove(&place);
        if let Some(program) = self.programs.get(slot).and_then(Option::as_ref) {
            self.kin.freed(&program.tenant, place, program.parent.as_deref());
        }
        self.note_children(slot);
    }

    /// A program may have become its parent's, or its turns wait or do so no more.
    fn note_children(&mut self, slot: Slot) {
        let family = self.program(slot).and_then(|program| self.family(program));
        self.set_children(family);
    }

    /// A program's parent, if it is known, and what is known of that one's children.
    fn family(&self, program: &Program) -> Option<(Slot, (u32, u32))> {
        let parent = program.parent.as_deref()?;
        Some((*self.by_key.get(parent)?, self.kin.children(parent)))
    }

    fn set_children(&mut self, family: Option<(Slot, (u32, u32))>) {
        if let Some((slot, children)) = family
            && let Some(parent) = self.programs.get_mut(slot).and_then(Option::as_mut)
        {
            parent.children = children;
            let at = parent.charge.and_then(|(worker, _)| self.workers.get_mut(&worker));
            let idle = at.and_then(|at| {
                let place = at.idle.binary_search_by_key(&slot, |idler| idler.slot).ok()?;
                at.idle.get_mut(place)
            });
            if let Some(idler) = idle {
                (idler.spawned, idler.blocked) = (children.0 > 0, children.1 > 0);
            }
        }
    }

    fn insert(&mut self, now: Time, arrival: &Arrival<'_>) -> Slot {
        if self.by_key.len() >= self.programs_max
            && let Some((_, longest_idle)) = self.idle.first().copied()
        {
            self.stats.expired += 1;
            self.remove(longest_idle);
        }
        // A table full of live programs serves the newcomer as one without identity.
        let key = arrival.program.filter(|_| self.by_key.len() < self.programs_max).cloned().map(Arc::new);
        let program = Program {
            key: key.clone(),
            tenant: arrival.program.map(|key| key.tenant.clone()).unwrap_or_default(),
            parent: arrival.parent.cloned().map(Arc::new),
            group: arrival.group.cloned(),
            children: key.as_ref().map_or((0, 0), |key| self.kin.children(key)),
            ..Program::default()
        };
        self.kin.came(now, &program.tenant, program.group.as_ref(), program.parent.as_ref());
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.programs.push(None);
            self.programs.len() - 1
        });
        if let Some(place) = self.programs.get_mut(slot) {
            *place = Some(Box::new(program));
        }
        if let Some(key) = key {
            self.by_key.insert(key, slot);
        }
        self.note_children(slot);
        slot
    }

    fn remove(&mut self, slot: Slot) {
        self.leave_behind(slot);
        self.leave_home(slot);
        let Some(program) = self.programs.get_mut(slot).and_then(Option::take) else { return };
        self.idle.remove(&(program.idle_since.unwrap_or_default(), slot));
        self.paused.remove(&slot);
        self.kin.left(&program.tenant, program.group.as_ref(), program.parent.as_deref());
        self.set_children(self.family(&program));
        if let Some(key) = &program.key {
            self.by_key.swap_remove(key.as_ref());
        }
        self.vacant.push(slot);
    }
}
