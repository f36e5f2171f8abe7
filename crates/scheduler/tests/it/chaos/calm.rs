//! The end of a storm: all workers are back and no one disturbs them, so everything that waits must be served, and when
//! all sessions are over nothing may be left.

use std::time::Duration;

use tandem_scheduler::{Effect, Input, Scheduler, TurnArrival, TurnOutcome, TurnResult};
use tandem_types::{EngineId, TurnId, WorkerId, WorkerInfo};

use super::{Chaos, Known};
use crate::support::{arrival, program};

/// Turns that come when all is calm.
const LAST: u64 = 60;
/// They can wait for hours: whoever does not get in then is starved by something that is not there.
const PATIENCE: Duration = Duration::from_secs(4 * 3_600);
/// Between two looks at what has ended.
const LOOK: Duration = Duration::from_secs(5);

impl Chaos {
    fn tell(&mut self, core: &mut Scheduler, input: Option<Input>) {
        let mut effects: Vec<Effect> = Vec::new();
        match input {
            Some(input) => core.handle(self.now, input, &mut effects),
            None => core.handle_timeout(self.now, &mut effects),
        }
        self.carry_out(&effects);
        self.settled(core);
    }

    /// Lets the storm end and looks for what it left behind.
    pub(super) fn calm_down(&mut self, core: &mut Scheduler) {
        self.restore(core);
        let first = self.next_turn + 1;
        for turn in first..first + LAST {
            let arrival = TurnArrival {
                program: Some(program(&format!("calm{turn}"))),
                input_tokens_estimate: 3_000,
                hold_max: PATIENCE,
                ..arrival(turn)
            };
            self.next_turn = turn;
            self.expect(&arrival);
            self.tell(core, Some(Input::TurnArrived(arrival)));
        }
        let rejected = core.view().counters().rejected;
        let others = self.turns.len() as u64;
        while self.turns.len() > 0 {
            self.serve(core, first);
        }
        let lost = core.view().counters().rejected - rejected;
        assert!(lost <= others, "{lost} of {others} turns were refused");
        self.agree(core);
        let stats = core.view().admission().stats;
        assert_eq!((stats.held, stats.held_tokens), (0, 0), "nothing waits");
        for worker in core.view().workers() {
            let running = worker.charged.map_or(0, |charged| charged.running);
            let left = (worker.turns_running, worker.calls_running, worker.queued_prefill, running);
            assert_eq!(left, (0, 0, 0, 0), "{:?} has nothing to do", worker.worker);
        }
        self.forget(core);
    }

    /// Workers that take anything, two turns each, and no operator in the way.
    fn restore(&mut self, core: &mut Scheduler) {
        self.sync_until = None;
        self.tell(core, Some(Input::SyncEnd));
        let paused = core.view().programs().filter(|seen| seen.paused_by_operator).map(|seen| seen.program);
        for program in paused.collect::<Vec<_>>() {
            self.tell(core, Some(Input::ProgramResume { program }));
        }
        for engine in 0..u32::try_from(self.size.engines).expect("small") {
            for rank in 0..2 {
                let worker = WorkerId { engine: EngineId(engine), rank };
                let (role, kind) = self.role(worker);
                let kv_capacity_tokens = self.size.capacity(worker).or(Some(8_000));
                let info = WorkerInfo { role, kv_capacity_tokens, ..WorkerInfo::new(kind) };
                self.workers.insert(worker, Known { info: info.clone(), ready: true });
                self.tell(core, Some(Input::WorkerUp { worker, info }));
            }
        }
    }

    /// Everything that runs ends, and time passes. The `LAST` turns are refused in no case.
    fn serve(&mut self, core: &mut Scheduler, first: u64) {
        let running: Vec<TurnId> =
            self.turns.iter().filter(|(_, live)| live.at.is_some()).map(|(id, _)| id).collect();
        for turn in running {
            let outcome = TurnOutcome { result: TurnResult::Finished, usage: None, tool_calls: 0 };
            self.turns.end(turn);
            self.tell(core, Some(Input::TurnEnded { turn, outcome }));
        }
        self.now = self.now + LOOK;
        let waited = |(id, live): (TurnId, &super::turns::Live)| id.0 >= first && live.deadline <= self.now;
        assert!(
            !self.turns.iter().any(waited),
            "somebody waits for nothing: {:?}",
            core.view().held().next()
        );
        self.tell(core, None);
    }

    /// Some clients say that they are over and the others are never seen again.
    fn forget(&mut self, core: &mut Scheduler) {
        let some: Vec<_> = core.view().programs().map(|seen| seen.program).step_by(3).collect();
        for program in some {
            self.said_over = Some(program.clone());
            self.tell(core, Some(Input::SessionEnd { program }));
        }
        let longest = self.config.program_idle_ttl.max(self.config.admission.program_idle_ttl);
        self.now = self.now + longest;
        let left = |core: &Scheduler| {
            let programs = core.view().admission().stats.programs;
            programs + u64::try_from(core.view().program_count()).expect("few")
        };
        // Nothing but time leads there, by the scheduler's own deadlines, and a call forgets a bounded number.
        let most = left(core) / 16 + 100;
        for _ in 0..most {
            let Some(next) = core.next_deadline() else { break };
            self.now = self.now.max(next);
            self.tell(core, None);
        }
        assert_eq!(left(core), 0, "all are forgotten");
        for worker in core.view().workers() {
            let left = worker.charged.map_or(0, |charged| charged.running + charged.idle);
            assert_eq!((left, worker.home_tokens), (0, 0), "{:?} keeps room for nobody", worker.worker);
        }
        self.agree(core);
    }
}
