//! The hold queue: turns that wait for a worker.
//!
//! - One first-in first-out queue per model, all under one bound. Order is by arrival; a repeated call and a turn
//!   that failed and waits again keep the place of their first arrival.
//! - Fairness: within a model nobody is overtaken (except by turns that may use a worker which the head may not,
//!   because that worker just failed it). A freed worker that serves several models takes the oldest of their
//!   heads, so a model with a long queue cannot starve another. There are no classes: programs with many parallel
//!   turns get as many places as they have turns.
//! - Turns that are held before any worker is asked for them (see [`crate::on_gate`]) stand in a line of their own, in order
//!   of arrival over all models, and enter their model's queue at the place of their arrival.
//! - I-QUE-1 every held turn is in one queue, or in the line, and has one deadline;
//!   nobody else is.
//! - Deliberately absent: knowledge of workers.

use std::collections::{BTreeMap, BTreeSet};

use tandem_types::{Time, TurnId};

/// The model that a turn asks for; `None` = any.
pub(crate) type Model = Option<String>;

#[derive(Debug, Default)]
pub(crate) struct HoldQueue {
    by_model: BTreeMap<Model, BTreeSet<(u64, TurnId)>>,
    line: BTreeSet<(u64, TurnId)>,
    deadlines: BTreeSet<(Time, TurnId)>,
}

impl HoldQueue {
    pub(crate) fn len(&self) -> usize {
        self.deadlines.len()
    }

    /// Whether some turn waits for nothing but a worker.
    pub(crate) fn wants_worker(&self) -> bool {
        !self.by_model.is_empty()
    }

    /// Puts a turn in its place among those that wait for a worker and tells which it is, from 1.
    pub(crate) fn push(&mut self, model: &Model, order: u64, turn: TurnId, deadline: Time) -> u32 {
        self.deadlines.insert((deadline, turn));
        let queue = of_model(&mut self.by_model, model);
        queue.insert((order, turn));
        place(queue, (order, turn))
    }

    /// Puts a turn in its place in the line and tells which it is, from 1.
    pub(crate) fn push_in_line(&mut self, order: u64, turn: TurnId, deadline: Time) -> u32 {
        self.deadlines.insert((deadline, turn));
        self.line.insert((order, turn));
        place(&self.line, (order, turn))
    }

    /// A turn leaves the line for its model's queue.
    pub(crate) fn let_in(&mut self, model: &Model, order: u64, turn: TurnId) {
        if self.line.remove(&(order, turn)) {
            of_model(&mut self.by_model, model).insert((order, turn));
        }
    }

    /// A turn leaves its model's queue for the line.
    pub(crate) fn send_back(&mut self, model: &Model, order: u64, turn: TurnId) {
        if self.leave(model, order, turn) {
            self.line.insert((order, turn));
        }
    }

    pub(crate) fn remove(&mut self, model: &Model, order: u64, turn: TurnId, deadline: Time) {
        self.deadlines.remove(&(deadline, turn));
        self.line.remove(&(order, turn));
        self.leave(model, order, turn);
    }

    fn leave(&mut self, model: &Model, order: u64, turn: TurnId) -> bool {
        let Some(queue) = self.by_model.get_mut(model) else { return false };
        let left = queue.remove(&(order, turn));
        if queue.is_empty() {
            self.by_model.remove(model);
        }
        left
    }

    pub(crate) fn next_deadline(&self) -> Option<(Time, TurnId)> {
        self.deadlines.first().copied()
    }

    /// The head of each model's queue, oldest first.
    pub(crate) fn heads(&self) -> BTreeMap<(u64, TurnId), Model> {
        self.by_model
            .iter()
            .filter_map(|(model, queue)| queue.first().map(|&head| (head, model.clone())))
            .collect()
    }

    /// The next turn of a model's queue after `place`.
    pub(crate) fn after(&self, model: &Model, place: (u64, TurnId)) -> Option<(u64, TurnId)> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.by_model.get(model)?.range((Excluded(place), Unbounded)).next().copied()
    }

    /// The turns in the line, in their order.
    pub(crate) fn line(&self) -> impl Iterator<Item = TurnId> {
        self.line.iter().map(|(_, turn)| *turn)
    }

    /// Every held turn, in no useful order.
    pub(crate) fn all(&self) -> impl Iterator<Item = TurnId> {
        self.deadlines.iter().map(|(_, turn)| *turn)
    }

    /// Every turn that waits for a worker, by model and place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Model, u32, TurnId)> {
        self.by_model.iter().flat_map(|(model, queue)| {
            (1_u32..).zip(queue).map(move |(position, &(_, turn))| (model, position, turn))
        })
    }

    /// Whether a turn is where it should be: in the line, or in its model's queue and not in the line.
    pub(crate) fn contains(
        &self,
        model: &Model,
        order: u64,
        turn: TurnId,
        deadline: Time,
        in_line: bool,
    ) -> bool {
        let queued = self.by_model.get(model).is_some_and(|queue| queue.contains(&(order, turn)));
        self.deadlines.contains(&(deadline, turn))
            && self.line.contains(&(order, turn)) == in_line
            && queued != in_line
    }
}

fn of_model<'a>(
    by_model: &'a mut BTreeMap<Model, BTreeSet<(u64, TurnId)>>,
    model: &Model,
) -> &'a mut BTreeSet<(u64, TurnId)> {
    by_model.entry(model.clone()).or_default()
}

/// Which place a turn has, from 1.
fn place(queue: &BTreeSet<(u64, TurnId)>, turn: (u64, TurnId)) -> u32 {
    // Nearly always last; else count those before it.
    let place = if queue.last() == Some(&turn) { queue.len() } else { queue.range(..=turn).count() };
    u32::try_from(place).unwrap_or(u32::MAX)
}
