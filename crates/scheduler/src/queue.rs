//! The hold queue: turns that wait for a worker.
//!
//! - One first-in first-out queue per model, all under one bound. Order is by arrival; a repeated call and a turn
//!   that failed and waits again keep the place of their first arrival.
//! - Fairness: within a model nobody is overtaken (except by turns that may use a worker which the head may not,
//!   because that worker just failed it). A freed worker that serves several models takes the oldest of their
//!   heads, so a model with a long queue cannot starve another. There are no classes: programs with many parallel
//!   turns get as many places as they have turns.
//! - I-QUE-1 every held turn is in one queue and has one deadline; nobody else is.
//! - Deliberately absent: knowledge of workers.

use std::collections::{BTreeMap, BTreeSet};

use tandem_types::{Time, TurnId};

/// The model that a turn asks for; `None` = any.
pub(crate) type Model = Option<String>;

#[derive(Debug, Default)]
pub(crate) struct HoldQueue {
    by_model: BTreeMap<Model, BTreeSet<(u64, TurnId)>>,
    deadlines: BTreeSet<(Time, TurnId)>,
}

impl HoldQueue {
    pub(crate) fn len(&self) -> usize {
        self.deadlines.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.deadlines.is_empty()
    }

    /// Puts a turn in its place and tells which it is, from 1.
    pub(crate) fn push(&mut self, model: &Model, order: u64, turn: TurnId, deadline: Time) -> u32 {
        self.deadlines.insert((deadline, turn));
        if !self.by_model.contains_key(model) {
            self.by_model.insert(model.clone(), BTreeSet::new());
        }
        let Some(queue) = self.by_model.get_mut(model) else { return 1 };
        queue.insert((order, turn));
        // Nearly always last; else count those before it.
        let place = if queue.last() == Some(&(order, turn)) {
            queue.len()
        } else {
            queue.range(..=(order, turn)).count()
        };
        u32::try_from(place).unwrap_or(u32::MAX)
    }

    pub(crate) fn remove(&mut self, model: &Model, order: u64, turn: TurnId, deadline: Time) {
        self.deadlines.remove(&(deadline, turn));
        if let Some(queue) = self.by_model.get_mut(model) {
            queue.remove(&(order, turn));
            if queue.is_empty() {
                self.by_model.remove(model);
            }
        }
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

    /// Every held turn, by model and place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Model, u32, TurnId)> {
        self.by_model.iter().flat_map(|(model, queue)| {
            (1_u32..).zip(queue).map(move |(position, &(_, turn))| (model, position, turn))
        })
    }

    pub(crate) fn contains(&self, model: &Model, order: u64, turn: TurnId, deadline: Time) -> bool {
        self.deadlines.contains(&(deadline, turn))
            && self.by_model.get(model).is_some_and(|queue| queue.contains(&(order, turn)))
    }
}
