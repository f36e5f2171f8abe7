//! Workers by number, with a state for each that only one thread changes at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use tandem_types::WorkerId;

use super::span::WORKER_END;
use crate::spread::Spread;

/// One worker's place.
#[derive(Debug)]
struct Slot<S> {
    number: u32,
    /// `None` once the worker is gone.
    state: Mutex<Option<S>>,
}

impl<S> Slot<S> {
    fn lock(&self) -> MutexGuard<'_, Option<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Inner<S> {
    numbers: HashMap<WorkerId, u32, Spread>,
    /// By number; `None` = the number is free.
    slots: Vec<Option<Arc<Slot<S>>>>,
    names: Vec<WorkerId>,
    free: Vec<u32>,
}

impl<S> Inner<S> {
    fn slot(&self, worker: WorkerId) -> Option<&Arc<Slot<S>>> {
        self.slots.get(*self.numbers.get(&worker)? as usize)?.as_ref()
    }
}

#[derive(Debug)]
pub(super) struct Roster<S>(RwLock<Inner<S>>);

/// Worker numbers to ids; while it is held, no number changes its meaning.
#[derive(Debug)]
pub(super) struct Names<'a, S>(RwLockReadGuard<'a, Inner<S>>);

impl<S> Names<'_, S> {
    pub(super) fn get(&self, number: u32) -> Option<WorkerId> {
        self.0.names.get(number as usize).copied()
    }
}

impl<S: From<u32>> Roster<S> {
    pub(super) fn new() -> Self {
        Self(RwLock::new(Inner {
            numbers: HashMap::default(),
            slots: Vec::new(),
            names: Vec::new(),
            free: Vec::new(),
        }))
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner<S>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn names(&self) -> Names<'_, S> {
        Names(self.read())
    }

    fn slot(&self, worker: WorkerId) -> Option<Arc<Slot<S>>> {
        self.read().slot(worker).cloned()
    }

    /// Runs `f` on the state of a worker, if it is known.
    pub(super) fn with_known<T>(&self, worker: WorkerId, f: impl FnOnce(&mut S) -> T) -> Option<T> {
        let slot = self.slot(worker)?;
        slot.lock().as_mut().map(f)
    }

    /// Runs `f` on the state of a worker, making it known. `None` = there are too many workers.
    pub(super) fn with<T>(&self, worker: WorkerId, f: impl FnOnce(&mut S) -> T) -> Option<T> {
        loop {
            let slot = match self.slot(worker) {
                Some(slot) => slot,
                None => self.register(worker)?,
            };
            // A worker that was removed in between is registered afresh.
            if let Some(state) = slot.lock().as_mut() {
                return Some(f(state));
            }
        }
    }

    /// Runs `f` on the states of all workers, one after the other.
    pub(super) fn each(&self, mut f: impl FnMut(&mut S)) {
        let slots: Vec<Arc<Slot<S>>> = self.read().slots.iter().flatten().cloned().collect();
        for slot in slots {
            if let Some(state) = slot.lock().as_mut() {
                f(state);
            }
        }
    }

    /// Removes a worker; `empty` takes all that it holds out of the index before its number is given away.
    pub(super) fn remove(&self, worker: WorkerId, empty: impl FnOnce(&mut S)) {
        let Some(slot) = self.slot(worker) else { return };
        let mut state = slot.lock();
        let Some(mut gone) = state.take() else { return };
        empty(&mut gone);
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inner.numbers.remove(&worker);
        if let Some(place) = inner.slots.get_mut(slot.number as usize) {
            *place = None;
        }
        inner.free.push(slot.number);
    }

    fn register(&self, worker: WorkerId) -> Option<Arc<Slot<S>>> {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = inner.slot(worker) {
            return Some(slot.clone());
        }
        let number = match inner.free.pop() {
            Some(number) => number,
            None => u32::try_from(inner.names.len()).ok().filter(|n| *n < WORKER_END)?,
        };
        let slot = Arc::new(Slot { number, state: Mutex::new(Some(S::from(number))) });
        let Inner { numbers, slots, names, .. } = &mut *inner;
        numbers.insert(worker, number);
        match (names.get_mut(number as usize), slots.get_mut(number as usize)) {
            (Some(name), Some(place)) => (*name, *place) = (worker, Some(slot.clone())),
            _ => {
                names.push(worker);
                slots.push(Some(slot.clone()));
            }
        }
        Some(slot)
    }
}
