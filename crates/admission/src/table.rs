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

mod check;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use indexmap::IndexMap;
use tandem_types::{GroupId, ProgramKey, TenantId, Time, TurnId, WorkerId};

use crate::contract::{Arrival, Capacity, End, Stats};
use crate::kin::Kin;
use crate::lies::Lies;

/// Larger counts, which only a broken client reports, count as this many, so that sums stay exact.
const TOKENS_MAX: u64 = 1 << 40;
/// Most programs forgotten in one call.
const EXPIRE_PER_CALL_MAX: usize = 64;

/// Whose head it is and what it is called.
type HeadKey = (Option<GroupId>, Option<u64>);

/// A program's place in the table.
pub(crate) type Slot = usize;

#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    pub(crate) key: Option<ProgramKey>,
    pub(crate) tenant: TenantId,
    pub(crate) parent: Option<ProgramKey>,
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
    pub(crate) served: u64,
    pub(crate) live: BTreeSet<TurnId>,
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
    /// Programs charged here while idle.
    pub(crate) idle: BTreeSet<Slot>,
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
    programs: Vec<Option<Program>>,
    vacant: Vec<Slot>,
    by_key: IndexMap<ProgramKey, Slot>,
    turns: BTreeMap<TurnId, Turn>,
    pub(crate) workers: BTreeMap<WorkerId, Worker>,
    /// Their ids.
    ids: Vec<WorkerId>,
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
            ids: Vec::new(),
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
        self.programs.get(slot)?.as_ref()
    }

    pub(crate) fn program_mut(&mut self, slot: Slot) -> Option<&mut Program> {
        self.programs.get_mut(slot)?.as_mut()
    }

    pub(crate) fn turn(&self, id: TurnId) -> Option<&Turn> {
        self.turns.get(&id)
    }

    pub(crate) fn worker(&self, id: WorkerId) -> Option<&Worker> {
        self.workers.get(&id)
    }

    /// Every program, by slot.
    pub(crate) fn programs(&self) -> impl Iterator<Item = (Slot, &Program)> {
        self.programs.iter().enumerate().filter_map(|(slot, program)| Some((slot, program.as_ref()?)))
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

    pub(crate) fn charged(&self, worker: WorkerId) -> (u64, u64) {
        self.workers.get(&worker).map_or((0, 0), |w| (w.running_tokens, w.idle_tokens))
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
            dispatched: None,
            first_after: None,
            told: None,
            lies: Lies::new(arrival.prefix, &self.ids),
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
            program.live.insert(arrival.turn);
            self.idle.remove(&(since.unwrap_or_default(), slot));
            self.paused.remove(&slot);
        }
        turn.rank = self.rank(&turn);
        self.waiting.insert((turn.rank, arrival.turn));
        if let Some(program) = self.programs.get(slot).and_then(Option::as_ref) {
            self.kin.held(&program.tenant, (turn.rank, arrival.turn), program.parent.as_ref());
        }
        self.note_children(slot);
        self.turns.insert(arrival.turn, turn);
        true
    }

    /// The program that spawned one, if it is known.
    pub(crate) fn parent(&self, slot: Slot) -> Option<&Program> {
        self.by_key(self.program(slot)?.parent.as_ref()?)
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

    /// A turn waits no longer.
    fn unwait(&mut self, slot: Slot, place: (Time, TurnId)) {
        self.waiting.remove(&place);
        if let Some(program) = self.programs.get(slot).and_then(Option::as_ref) {
            self.kin.freed(&program.tenant, place, program.parent.as_ref());
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
        let parent = program.parent.as_ref()?;
        Some((*self.by_key.get(parent)?, self.kin.children(parent)))
    }

    fn set_children(&mut self, family: Option<(Slot, (u32, u32))>) {
        if let Some((slot, children)) = family
            && let Some(parent) = self.program_mut(slot)
        {
            parent.children = children;
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
        let key = arrival.program.filter(|_| self.by_key.len() < self.programs_max);
        let program = Program {
            key: key.cloned(),
            tenant: arrival.program.map(|key| key.tenant.clone()).unwrap_or_default(),
            parent: arrival.parent.cloned(),
            group: arrival.group.cloned(),
            children: key.map_or((0, 0), |key| self.kin.children(key)),
            ..Program::default()
        };
        self.kin.came(now, &program.tenant, program.group.as_ref(), program.parent.as_ref());
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.programs.push(None);
            self.programs.len() - 1
        });
        if let Some(place) = self.programs.get_mut(slot) {
            *place = Some(program);
        }
        if let Some(key) = key {
            self.by_key.insert(key.clone(), slot);
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
        self.kin.left(&program.tenant, program.group.as_ref(), program.parent.as_ref());
        self.set_children(self.family(&program));
        if let Some(key) = &program.key {
            self.by_key.swap_remove(key);
        }
        self.vacant.push(slot);
    }

    /// What a turn will take of a worker's room that is not taken already by others' heads.
    pub(crate) fn need(&self, turn: &Turn, worker: WorkerId) -> u64 {
        turn.prompt.saturating_sub(self.head(turn, worker))
    }

    /// The head of a turn's prompt that others have at a worker.
    fn head(&self, turn: &Turn, worker: WorkerId) -> u64 {
        let Some(program) = self.program(turn.slot).filter(|_| self.rules.heads_count_once) else { return 0 };
        program.heads().at(worker, turn.lies.at(worker)).min(turn.prompt)
    }

    /// Lets a turn go, to a worker where its room is taken at once.
    pub(crate) fn admit(&mut self, id: TurnId, worker: Option<WorkerId>) {
        let Some(turn) = self.turns.get_mut(&id) else { return };
        if !std::mem::take(&mut turn.waiting) {
            return;
        }
        let (rank, slot) = (turn.rank, turn.slot);
        self.unwait(slot, (rank, id));
        self.stats.admitted += 1;
        let Some(program) = self.program_mut(slot) else { return };
        let resumed = !program.active && program.ran;
        let moved = program.home.is_some() && worker.is_some() && worker != program.home;
        if !program.active {
            program.served = 0;
        }
        program.active = true;
        program.running += 1;
        self.stats.resumed += u64::from(resumed);
        self.stats.moved += u64::from(moved);
        if moved {
            self.leave_behind(slot);
        }
        if let Some(worker) = worker {
            self.charge(id, worker);
        }
    }

    /// Lists what a program has at its home as not worth keeping.
    fn leave_behind(&mut self, slot: Slot) {
        let Some(program) = self.program(slot).filter(|p| p.ran && self.rules.lists) else { return };
        let (Some(key), Some(home)) = (program.key.clone(), program.home) else { return };
        let left = Left { program: key, worker: home, tokens: program.tokens };
        self.left.push(left);
    }

    /// A turn goes to a worker: what it takes is taken there.
    pub(crate) fn dispatched(&mut self, now: Time, id: TurnId, worker: WorkerId) {
        let Some(turn) = self.turns.get_mut(&id) else { return };
        turn.dispatched = Some(now);
        if turn.waiting {
            // Whoever drives did not wait for us; what runs is counted.
            self.admit(id, Some(worker));
        } else if turn.charge.is_none_or(|(at, _)| at != worker) {
            self.discharge(id);
            self.charge(id, worker);
        }
    }

    fn charge(&mut self, id: TurnId, worker: WorkerId) {
        let Some(turn) = self.turns.get(&id) else { return };
        let (slot, head, name) = (turn.slot, self.head(turn, worker), turn.head);
        let tokens = turn.prompt.saturating_add(turn.generated).saturating_sub(head).min(TOKENS_MAX);
        if self.program(slot).is_some_and(|program| program.home != Some(worker)) {
            self.leave_home(slot);
            // Also where nobody has been before.
            self.worker_entry(worker);
            self.set_home(slot, Some(worker));
            if let Some(program) = self.program_mut(slot) {
                (program.shared, program.head) = (head, name);
            }
        } else {
            self.count_head(slot, false);
            if let Some(program) = self.program_mut(slot) {
                (program.shared, program.head) = (head, name);
            }
        }
        if let Some(program) = self.program_mut(slot).filter(|program| !program.ran) {
            program.others = head;
        }
        self.count_head(slot, true);
        if let Some(entry) = self.worker_entry(worker) {
            entry.running += 1;
            entry.running_tokens += tokens;
        }
        if let Some(program) = self.programs.get(slot).and_then(Option::as_ref) {
            self.kin.charge(&program.tenant, tokens);
        }
        if let Some(turn) = self.turns.get_mut(&id) {
            turn.charge = Some((worker, tokens));
            turn.told = turn.lies.at(worker);
        }
    }

    fn discharge(&mut self, id: TurnId) {
        let Some(turn) = self.turns.get_mut(&id) else { return };
        let (slot, Some((worker, tokens))) = (turn.slot, turn.charge.take()) else { return };
        if let Some(program) = self.programs.get(slot).and_then(Option::as_ref) {
            self.kin.discharge(&program.tenant, tokens);
        }
        if let Some(entry) = self.worker_mut(worker) {
            entry.running = entry.running.saturating_sub(1);
            entry.running_tokens = entry.running_tokens.saturating_sub(tokens);
        }
        self.sweep(worker);
    }

    /// A turn's prompt is computed: where it lay before is of no use any more.
    pub(crate) fn computed(&mut self, now: Time, id: TurnId) {
        if let Some(turn) = self.turns.get_mut(&id) {
            turn.first_after = turn.dispatched.map(|since| now.since(since));
            turn.lies = Lies::default();
        }
    }

    /// A dispatch came to nothing: nothing was computed, and nothing is taken until the next.
    pub(crate) fn undispatched(&mut self, id: TurnId) {
        self.discharge(id);
        if let Some(turn) = self.turns.get_mut(&id) {
            turn.dispatched = None;
        }
    }

    /// Counts a program's head at its home, or does so no more.
    fn count_head(&mut self, slot: Slot, present: bool) {
        let Some(program) = self.program(slot) else { return };
        let (Some(home), head) = (program.home, program.shared) else { return };
        let key = (program.group.clone(), program.head);
        let Some(worker) = self.worker_mut(home).filter(|_| head > 0) else { return };
        let heads = worker.heads.entry(key.clone()).or_default();
        let longest = |heads: &BTreeMap<u64, u32>| heads.last_key_value().map_or(0, |(head, _)| *head);
        let before = longest(heads);
        if present {
            *heads.entry(head).or_default() += 1;
        } else if let Some(count) = heads.get_mut(&head) {
            *count -= 1;
            if *count == 0 {
                heads.remove(&head);
            }
        }
        worker.shared = worker.shared - before + longest(heads);
        if heads.is_empty() {
            worker.heads.remove(&key);
        }
    }

    /// The program's cache lies nowhere any more. It stays as it is otherwise.
    fn leave_home(&mut self, slot: Slot) {
        self.discharge_idle(slot);
        self.count_head(slot, false);
        self.set_home(slot, None);
        if let Some(program) = self.program_mut(slot) {
            program.shared = 0;
        }
    }

    fn discharge_idle(&mut self, slot: Slot) {
        let Some((worker, tokens)) = self.program_mut(slot).and_then(|program| program.charge.take()) else {
            return;
        };
        if let Some(program) = self.programs.get(slot).and_then(Option::as_ref) {
            self.kin.discharge(&program.tenant, tokens);
        }
        if let Some(entry) = self.worker_mut(worker) {
            entry.idle.remove(&slot);
            entry.idle_changed = true;
            entry.idle_tokens = entry.idle_tokens.saturating_sub(tokens);
        }
        self.sweep(worker);
    }

    fn charge_idle(&mut self, slot: Slot) {
        let Some(program) = self.program(slot) else { return };
        let (true, true, Some(home)) = (program.active, program.is_idle(), program.home) else { return };
        let tokens = program.tokens.saturating_sub(program.shared);
        let Some(entry) = self.worker_mut(home) else { return };
        entry.idle.insert(slot);
        entry.idle_changed = true;
        entry.idle_tokens += tokens;
        if let Some(program) = self.programs.get_mut(slot).and_then(Option::as_mut) {
            program.charge = Some((home, tokens));
            self.kin.charge(&program.tenant, tokens);
        }
    }

    /// What an idle program is charged for.
    pub(crate) fn idle_charge(&self, slot: Slot) -> u64 {
        self.program(slot).and_then(|program| program.charge).map_or(0, |(_, tokens)| tokens)
    }

    pub(crate) fn progress(&mut self, id: TurnId, generated: u64) {
        let Some(turn) = self.turns.get_mut(&id) else { return };
        let more = generated.min(TOKENS_MAX).saturating_sub(turn.generated);
        turn.generated += more;
        if let Some((worker, tokens)) = &mut turn.charge {
            *tokens += more;
            let (worker, slot) = (*worker, turn.slot);
            if let Some(program) = self.programs.get(slot).and_then(Option::as_ref) {
                self.kin.charge(&program.tenant, more);
            }
            if let Some(entry) = self.worker_mut(worker) {
                entry.running_tokens += more;
            }
        }
    }

    /// A turn that ran is over. The program that it leaves idle.
    pub(crate) fn end(&mut self, now: Time, id: TurnId, end: &End) -> Option<Slot> {
        let turn = self.turns.get(&id).filter(|turn| !turn.waiting)?;
        let known = end.usage.map(|usage| usage.input_tokens.saturating_add(usage.output_tokens));
        let tokens = known.unwrap_or_else(|| turn.prompt.saturating_add(turn.generated)).min(TOKENS_MAX);
        let slot = turn.slot;
        let found = end.usage.and_then(|usage| usage.cached_tokens).or(turn.told);
        let expected = turn.before.tokens.min(turn.prompt);
        let cold = turn.before.active && found.is_some_and(|found| found.saturating_mul(2) < expected);
        if let Some(program) = self.program_mut(slot) {
            program.cold = cold;
            program.peak = program.peak.max(tokens);
            program.tools = end.tools;
            program.served += 1;
            program.ran = true;
        }
        self.leave(now, id, true)
    }

    /// A turn is over without an answer.
    pub(crate) fn abort(&mut self, now: Time, id: TurnId) -> Option<Slot> {
        let turn = self.turns.get(&id)?;
        let (slot, waiting, before) = (turn.slot, turn.waiting, turn.before);
        let computed = turn.dispatched.map(|_| turn.prompt.saturating_add(turn.generated));
        self.stats.cancelled += u64::from(waiting);
        let alone = self.program(slot).is_some_and(|program| program.live.len() == 1);
        if let Some(program) = self.program_mut(slot) {
            match computed {
                Some(tokens) => {
                    program.peak = program.peak.max(tokens.max(before.tokens));
                    program.ran = true;
                }
                None => program.steps = program.steps.saturating_sub(1),
            }
        }
        let idle = self.leave(now, id, false);
        if let Some(slot) = idle.filter(|_| alone && computed.is_none()) {
            self.restore(now, slot, &before);
        }
        idle
    }

    /// As if a turn had never come: the program's place, and since when it is away.
    fn restore(&mut self, now: Time, slot: Slot, before: &Before) {
        self.leave_home(slot);
        let home = before.home.filter(|home| self.is_ready(*home));
        let since = before.idle_since.unwrap_or(now);
        self.idle.remove(&(now, slot));
        if let Some(program) = self.program_mut(slot) {
            (program.active, program.idle_since) = (before.active, Some(since));
            program.shared = home.map_or(0, |_| before.shared);
        }
        self.set_home(slot, home);
        self.idle.insert((since, slot));
        self.list_paused(slot);
        self.count_head(slot, true);
        self.charge_idle(slot);
    }

    /// Takes a turn out; the program that is idle now, if it stays.
    fn leave(&mut self, now: Time, id: TurnId, ended: bool) -> Option<Slot> {
        self.discharge(id);
        let turn = self.turns.remove(&id)?;
        self.unwait(turn.slot, (turn.rank, id));
        let slot = turn.slot;
        let program = self.program_mut(slot)?;
        program.live.remove(&id);
        if !turn.waiting {
            program.running = program.running.saturating_sub(1);
        }
        if !program.is_idle() {
            return None;
        }
        if program.peak > 0 {
            program.tokens = std::mem::take(&mut program.peak);
        }
        if program.ending || ended && turn.last || !program.ran || program.key.is_none() {
            self.remove(slot);
            return None;
        }
        program.idle_since = Some(now);
        self.idle.insert((now, slot));
        self.list_paused(slot);
        self.charge_idle(slot);
        Some(slot)
    }

    fn list_paused(&mut self, slot: Slot) {
        if self.program(slot).is_some_and(|program| program.is_idle() && !program.active) {
            self.paused.insert(slot);
        } else {
            self.paused.remove(&slot);
        }
    }

    /// A program will not come back; it leaves now, or with its last live turn.
    pub(crate) fn session_end(&mut self, key: &ProgramKey) {
        let Some(slot) = self.by_key.get(key).copied() else { return };
        match self.program_mut(slot) {
            Some(program) if !program.is_idle() => program.ending = true,
            _ => self.remove(slot),
        }
    }

    /// The program loses its place: where its cache lies and how much it is.
    pub(crate) fn pause(&mut self, slot: Slot) -> Option<(ProgramKey, WorkerId, u64)> {
        self.discharge_idle(slot);
        let program = self.program_mut(slot).filter(|program| program.active)?;
        (program.active, program.marked) = (false, false);
        self.leave_behind(slot);
        let program = self.program_mut(slot)?;
        let paused = (program.key.clone(), program.home, program.tokens);
        self.stats.paused += 1;
        self.list_paused(slot);
        Some((paused.0?, paused.1?, paused.2))
    }

    /// An idle paused program gets a place at a worker without a turn.
    pub(crate) fn resume_idle(&mut self, slot: Slot, worker: WorkerId) {
        self.leave_home(slot);
        if let Some(program) = self.program_mut(slot) {
            (program.active, program.served) = (true, 0);
            self.stats.resumed += 1;
        }
        self.set_home(slot, Some(worker));
        self.list_paused(slot);
        self.charge_idle(slot);
    }

    /// When the longest idle program became idle, and its kind.
    pub(crate) fn next_expiry(&self) -> Option<Time> {
        self.idle.first().map(|&(since, _)| since + self.idle_ttl)
    }

    /// Forgets programs that have been idle too long; `gone` hears of each.
    pub(crate) fn expire(&mut self, now: Time, mut gone: impl FnMut(&Self, &Program)) {
        for _ in 0..EXPIRE_PER_CALL_MAX {
            let Some((_, slot)) =
                self.idle.first().copied().filter(|(since, _)| *since + self.idle_ttl <= now)
            else {
                return;
            };
            if let Some(program) = self.program(slot) {
                gone(self, program);
            }
            self.stats.expired += 1;
            self.remove(slot);
        }
    }
}
