//! Inputs about workers.

use tandem_types::{LoadReport, WorkerId, WorkerInfo};

use crate::Scheduler;
use crate::breaker::Breaker;
use crate::workers::{Worker, WorkerState};

impl Scheduler {
    pub(crate) fn on_worker_expected(&mut self, id: WorkerId) {
        if self.workers.get(id).is_some() {
            return;
        }
        let until = self.now + self.config.startup_grace;
        let breaker = Breaker::new(&self.config.breaker);
        self.workers.upsert(id, || Worker::new(WorkerState::Expected { until }, breaker), |_| {});
    }

    pub(crate) fn on_worker_up(&mut self, id: WorkerId, info: WorkerInfo) {
        let breaker = Breaker::new(&self.config.breaker);
        let fresh = || Worker::new(WorkerState::Down, breaker);
        self.workers.upsert(id, fresh, |worker| {
            match worker.state {
                WorkerState::Ready | WorkerState::Draining => {}
                WorkerState::Expected { .. } | WorkerState::Down | WorkerState::Removed => {
                    worker.breaker.worker_returned();
                }
            }
            worker.state = WorkerState::Ready;
        });
        self.workers.inform(id, info);
        self.room_changed = true;
        self.tell_gate_of(id);
    }

    pub(crate) fn on_worker_draining(&mut self, id: WorkerId) {
        self.set_state(id, WorkerState::Draining);
    }

    pub(crate) fn on_worker_down(&mut self, id: WorkerId) {
        if self.workers.get(id).is_some_and(|w| matches!(w.state, WorkerState::Expected { .. })) {
            // Never seen, still expected.
            return;
        }
        self.set_state(id, WorkerState::Down);
        // Whatever others had there went with it.
        self.workers.change(id, Worker::forget_report);
    }

    pub(crate) fn on_worker_removed(&mut self, id: WorkerId) {
        self.set_state(id, WorkerState::Removed);
    }

    pub(crate) fn on_worker_load(&mut self, id: WorkerId, load: LoadReport) {
        let until = self.now + self.config.load_report_ttl;
        let known = self.workers.change(id, |worker| {
            worker.report = Some(load);
            worker.report_until = Some(until);
            worker.meter.reported(&load);
        });
        match known {
            Some(()) => self.tell_gate_of(id),
            None => self.counters.anomalies.unknown_workers += 1,
        }
    }

    fn set_state(&mut self, id: WorkerId, state: WorkerState) {
        let known = self.workers.change(id, |worker| {
            // A removed worker does not come back by halves: only `WorkerUp` makes it one again.
            if worker.state != WorkerState::Removed {
                worker.state = state;
            }
        });
        match known {
            // Held turns may now have only last resorts left.
            Some(()) => {
                self.room_changed = true;
                self.tell_gate_of(id);
            }
            None => self.counters.anomalies.unknown_workers += 1,
        }
    }
}
