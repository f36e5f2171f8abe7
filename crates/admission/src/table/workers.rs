//! The table's workers: coming, leaving, and whose home they are.

use tandem_types::WorkerId;

use super::{Slot, Table, Worker};
use crate::contract::Capacity;

impl Table {
    /// A worker, to be changed.
    pub(super) fn worker_mut(&mut self, id: WorkerId) -> Option<&mut Worker> {
        let worker = self.workers.get_mut(&id)?;
        if self.rules.lists && !std::mem::replace(&mut worker.listed, true) {
            self.changed.push(id);
        }
        Some(worker)
    }

    /// The same; a worker that is not known is from now on.
    pub(super) fn worker_entry(&mut self, id: WorkerId) -> Option<&mut Worker> {
        if !self.workers.contains_key(&id) {
            let residents =
                self.programs().filter(|(_, p)| p.home == Some(id)).map(|(slot, _)| slot).collect();
            self.workers.insert(id, Worker { residents, ..Worker::default() });
        }
        self.worker_mut(id)
    }

    /// Where a program's cache lies from now on.
    pub(super) fn set_home(&mut self, slot: Slot, home: Option<WorkerId>) {
        let Some(program) = self.program_mut(slot) else { return };
        let before = std::mem::replace(&mut program.home, home);
        if before == home {
            return;
        }
        if let Some(worker) = before.and_then(|before| self.workers.get_mut(&before)) {
            worker.residents.remove(&slot);
        }
        if let Some(worker) = home.and_then(|home| self.workers.get_mut(&home)) {
            worker.residents.insert(slot);
        }
    }

    pub(crate) fn worker_ready(&mut self, worker: WorkerId, capacity: Option<Capacity>) {
        let Some(entry) = self.worker_entry(worker) else { return };
        (entry.ready, entry.capacity) = (true, capacity.filter(|capacity| capacity.device > 0));
    }

    /// The worker's cache is taken for lost: nobody is at home there any more. Turns that run there stay charged until
    /// their end is told.
    pub(crate) fn worker_lost(&mut self, worker: WorkerId) {
        let Some(entry) = self.workers.get(&worker) else { return };
        for slot in entry.residents.clone() {
            self.leave_home(slot);
        }
        if let Some(entry) = self.worker_mut(worker) {
            entry.ready = false;
        }
        self.sweep(worker);
    }

    pub(super) fn sweep(&mut self, worker: WorkerId) {
        if self
            .workers
            .get(&worker)
            .is_some_and(|w| !w.ready && w.running == 0 && w.idle.is_empty() && w.heads.is_empty())
        {
            self.worker_mut(worker);
            self.workers.remove(&worker);
        }
    }

    /// Workers that changed since this was asked last, perhaps more than once.
    pub(crate) fn take_changed(&mut self) -> Vec<WorkerId> {
        let changed = std::mem::take(&mut self.changed);
        for id in &changed {
            if let Some(worker) = self.workers.get_mut(id) {
                worker.listed = false;
            }
        }
        changed
    }

    /// Whether a worker is listed as changed.
    pub(crate) fn has_changed(&self, id: WorkerId) -> bool {
        self.changed.contains(&id)
    }

    /// Whether a worker's idle programs are others than when this was asked last.
    pub(crate) fn take_idle_changed(&mut self, id: WorkerId) -> bool {
        self.workers.get_mut(&id).is_some_and(|worker| std::mem::take(&mut worker.idle_changed))
    }
}
