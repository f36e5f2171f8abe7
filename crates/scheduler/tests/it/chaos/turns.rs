//! What the driver knows of its turns, with what makes it quick to ask at the size of a large fleet.

use std::collections::{BTreeMap, BTreeSet};

use tandem_routing::Rng;
use tandem_types::{ProgramKey, Time, TurnId, WorkerId};

/// One of the driver's turns.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Live {
    pub(super) is_turn: bool,
    pub(super) program: Option<ProgramKey>,
    pub(super) at: Option<WorkerId>,
    /// The worker that computes its prompt, where that is another and not done.
    pub(super) prefill: Option<WorkerId>,
    pub(super) started: bool,
    pub(super) answering: bool,
    pub(super) attempts: u32,
    pub(super) deadline: Time,
    pub(super) prompt_tokens: u64,
    /// It runs where admission did not send it.
    pub(super) stray: bool,
    /// Its place in the list of ids.
    place: usize,
}

impl Live {
    pub(super) const fn new(
        program: Option<ProgramKey>,
        is_turn: bool,
        deadline: Time,
        prompt_tokens: u64,
    ) -> Self {
        Self {
            is_turn,
            program,
            at: None,
            prefill: None,
            started: false,
            answering: false,
            attempts: 0,
            deadline,
            prompt_tokens,
            stray: false,
            place: 0,
        }
    }

    /// Where it is in its life.
    pub(super) const fn state(&self) -> &'static str {
        match (self.at, self.prefill) {
            (None, _) => "held",
            (Some(_), Some(_)) => "computed elsewhere",
            (Some(_), None) if self.answering => "answering",
            (Some(_), None) if self.started => "started",
            (Some(_), None) => "sent",
        }
    }

    fn legs(&self) -> impl Iterator<Item = WorkerId> + use<> {
        self.prefill.into_iter().chain(self.at)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Turns {
    live: BTreeMap<TurnId, Live>,
    /// The same ids, to draw from.
    ids: Vec<TurnId>,
    /// Those that run nowhere, by deadline.
    waiting: BTreeSet<(Time, TurnId)>,
    /// Turns, side calls not among them, that each worker has in hand.
    running: BTreeMap<WorkerId, u32>,
    /// Live turns of each program, side calls not among them.
    of_program: BTreeMap<ProgramKey, u32>,
    /// Programs whose last turn is over, to be looked at.
    pub(super) quiet: Vec<ProgramKey>,
    over: BTreeSet<TurnId>,
}

impl Turns {
    pub(super) fn get(&self, id: TurnId) -> Option<&Live> {
        self.live.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: TurnId) -> Option<&mut Live> {
        self.live.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TurnId, &Live)> {
        self.live.iter().map(|(id, live)| (*id, live))
    }

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    /// How many run nowhere, and the one of these whose time is over first.
    pub(super) fn waiting(&self) -> (usize, Option<(Time, TurnId)>) {
        (self.waiting.len(), self.waiting.first().copied())
    }

    pub(super) fn running_at(&self, worker: WorkerId) -> u32 {
        self.running.get(&worker).copied().unwrap_or(0)
    }

    pub(super) fn of_program(&self, program: &ProgramKey) -> u32 {
        self.of_program.get(program).copied().unwrap_or(0)
    }

    pub(super) fn draw(&self, rng: &mut Rng) -> Option<TurnId> {
        self.ids.get(rng.index(self.ids.len())).copied()
    }

    pub(super) fn insert(&mut self, id: TurnId, live: Live) {
        if let Some(program) = live.program.as_ref().filter(|_| live.is_turn) {
            *self.of_program.entry(program.clone()).or_default() += 1;
        }
        self.waiting.insert((live.deadline, id));
        self.live.insert(id, Live { place: self.ids.len(), ..live });
        self.ids.push(id);
    }

    /// It runs there from now on, or nowhere.
    pub(super) fn place(&mut self, id: TurnId, at: Option<WorkerId>, prefill: Option<WorkerId>) {
        let Some(live) = self.live.get_mut(&id) else { return };
        let before: Vec<WorkerId> = live.legs().filter(|_| live.is_turn).collect();
        (live.at, live.prefill) = (at, prefill);
        let after: Vec<WorkerId> = live.legs().filter(|_| live.is_turn).collect();
        let key = (live.deadline, id);
        if at.is_none() {
            (live.started, live.stray) = (false, false);
            self.waiting.insert(key);
        } else {
            self.waiting.remove(&key);
        }
        before.into_iter().for_each(|worker| *self.running.entry(worker).or_default() -= 1);
        after.into_iter().for_each(|worker| *self.running.entry(worker).or_default() += 1);
    }

    /// It is over: exactly once.
    pub(super) fn end(&mut self, id: TurnId) {
        if !self.live.contains_key(&id) {
            return;
        }
        self.place(id, None, None);
        let live = self.live.remove(&id).expect("it is there");
        self.waiting.remove(&(live.deadline, id));
        self.ids.swap_remove(live.place);
        if let Some(moved) = self.ids.get(live.place).and_then(|id| self.live.get_mut(id)) {
            moved.place = live.place;
        }
        if let Some(program) = live.program.as_ref().filter(|_| live.is_turn) {
            let left = self.of_program.get_mut(program).expect("counted");
            *left -= 1;
            if *left == 0 {
                self.of_program.remove(program);
                self.quiet.push(program.clone());
            }
        }
        assert!(self.over.insert(id), "{id} ended twice");
    }
}
