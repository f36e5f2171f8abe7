//! No gate: everything is admitted at once.

use tandem_types::{Time, WorkerId};

use crate::{Action, AdmissionPolicy, Event, Grant, Placement, Stats};

/// The policy `none`.
#[derive(Debug, Default)]
pub(crate) struct NoGate {
    admitted: u64,
}

impl AdmissionPolicy for NoGate {
    fn name(&self) -> &'static str {
        "none"
    }

    fn on(&mut self, _now: Time, event: &Event<'_>, out: &mut Vec<Action>) {
        if let Event::Arrived(arrival) = event {
            self.admitted += 1;
            out.push(Action::Admit { turn: arrival.turn, grant: Grant::to(Placement::Any) });
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn on_time(&mut self, _now: Time, _out: &mut Vec<Action>) {}

    fn stats(&self) -> Stats {
        Stats { admitted: self.admitted, ..Stats::default() }
    }

    fn charged(&self, _worker: WorkerId) -> (u64, u64) {
        (0, 0)
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}
