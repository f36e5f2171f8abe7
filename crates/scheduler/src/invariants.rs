//! What must be true of the scheduler's state between any two inputs. Tests check it after every step.
//!
//! Costs time in proportion to the whole state: not for the live path.

use std::collections::{BTreeMap, BTreeSet};

use tandem_types::{ProgramKey, TurnId, WorkerId};

use crate::Scheduler;
use crate::breaker::BreakerState;
use crate::gate::Pass;
use crate::turns::Phase;

/// A broken invariant: a defect of the scheduler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {detail}")]
pub struct Violation {
    /// Which one.
    pub invariant: &'static str,
    /// What was found.
    pub detail: String,
}

fn ensure(holds: bool, invariant: &'static str, detail: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { invariant, detail: detail() }) }
}

/// Checks every invariant of the state.
///
/// # Errors
/// The first one that does not hold.
pub fn check(core: &Scheduler) -> Result<(), Violation> {
    turns_and_queue(core)?;
    workers(core)?;
    programs(core)?;
    gate(core)?;
    let idle = core.idle_while_held();
    ensure(idle.is_empty(), "I-SCH-6", || format!("{idle:?} are held while a worker could take them"))?;
    let c = &core.counters;
    let ended = c.finished + c.refused + c.failed + c.cancelled + c.rejected + c.superseded;
    let live = core.turns.len() as u64;
    ensure(c.arrived == ended + live, "I-SCH-1", || {
        format!("{} arrived, {ended} ended, {live} live", c.arrived)
    })
}

fn turns_and_queue(core: &Scheduler) -> Result<(), Violation> {
    let mut held = 0_usize;
    for (id, turn) in core.turns.iter() {
        match turn.phase {
            Phase::Placing => ensure(false, "I-SCH-4", || format!("{id} is neither held nor running"))?,
            Phase::Held { .. } => {
                held += 1;
                let queued = core.queue.contains(
                    &turn.arrival.model,
                    turn.order,
                    id,
                    turn.deadline,
                    !turn.pass.is_open(),
                );
                ensure(queued, "I-QUE-1", || format!("{id} is held but not where it should wait"))?;
                ensure(turn.deadline > core.now, "I-SCH-8", || format!("{id} is held past its deadline"))?;
                ensure(turn.arrival.class.is_turn(), "I-SCH-7", || format!("{id} is a side call and held"))?;
            }
            Phase::Running { answering, prefill, worker, .. } => {
                ensure(!answering || turn.queued_prefill == 0 && prefill.is_none(), "I-SCH-11", || {
                    format!("{id} answers and its prefill is still queued")
                })?;
                let kinds = prefill.map(|prefill| [prefill, worker].map(|id| kind(core, id)));
                ensure(kinds.is_none_or(|[a, b]| a == b), "I-PAIR-1", || {
                    format!("{id} runs on a pair of different makes")
                })?;
            }
        }
    }
    ensure(held == core.queue.len(), "I-QUE-1", || {
        format!("{held} turns are held, the queue has {}", core.queue.len())
    })?;
    ensure(core.queue.len() <= core.config.queue_max, "I-QUE-1", || "the queue is over its bound".into())?;
    ensure(core.turns.is_sound(), "I-SCH-2", || {
        "an answering turn could be replaced, or another could not".into()
    })
}

fn workers(core: &Scheduler) -> Result<(), Violation> {
    ensure(core.workers.indexes_are_true(), "I-WRK-1", || "a worker index is out of date".into())?;
    let mut running: BTreeMap<WorkerId, (u32, u64, u64)> = BTreeMap::new();
    for (_, turn) in core.turns.iter() {
        if let Phase::Running { worker, prefill, .. } = turn.phase {
            let computes = prefill.unwrap_or(worker);
            for leg in prefill.into_iter().chain([worker]) {
                let (turns, calls, queued) = running.entry(leg).or_default();
                *turns += u32::from(turn.arrival.class.is_turn());
                *calls += 1;
                *queued += if leg == computes { turn.queued_prefill } else { 0 };
            }
        }
    }
    for (id, worker) in core.workers.iter() {
        let counted = (worker.turns_running, worker.meter.ours(), worker.queued_prefill);
        let found = running.remove(&id).unwrap_or_default();
        ensure(counted == found, "I-WRK-2", || format!("{id} counts {counted:?}, runs {found:?}"))?;
        if let BreakerState::HalfOpen { probe: Some(probe), .. } = worker.breaker.state() {
            ensure(probes(core, probe, id), "I-BRK-2", || {
                format!("{id} waits for {probe}, which is not there")
            })?;
        }
    }
    ensure(running.is_empty(), "I-WRK-3", || format!("turns run on forgotten workers: {running:?}"))
}

/// A worker's make. It may have come back as another while a turn ran there; then nothing can be said.
fn kind(core: &Scheduler, id: WorkerId) -> Option<tandem_types::EngineKind> {
    core.workers.get(id).and_then(|worker| worker.kind())
}

fn probes(core: &Scheduler, probe: TurnId, id: WorkerId) -> bool {
    let at = |phase| matches!(phase, Phase::Running { worker, prefill, .. } if worker == id || prefill == Some(id));
    core.turns.get(probe).is_some_and(|turn| at(turn.phase))
}

/// What admission counts is what is there, and whoever it does not let through runs nowhere.
fn gate(core: &Scheduler) -> Result<(), Violation> {
    let (mut shut, mut taken) = (BTreeMap::new(), BTreeSet::new());
    for (id, turn) in core.turns.iter() {
        let running = match turn.phase {
            Phase::Running { worker, .. } => Some(worker),
            Phase::Placing | Phase::Held { .. } => None,
        };
        match turn.pass {
            Pass::Shut { pool, .. } => *shut.entry(pool).or_default() += 1,
            Pass::Admitted { .. } => taken.extend(running.or_else(|| turn.pass.named())),
            Pass::Free | Pass::Unasked | Pass::Stopped => {}
        }
        ensure(turn.pass.is_open() || running.is_none(), "I-GTE-1", || {
            format!("{id} runs and the gate is shut")
        })?;
        let stopped =
            turn.tracked_program().and_then(|key| core.programs.get(key)).is_some_and(|p| p.stopped);
        ensure((turn.pass == Pass::Stopped) <= stopped, "I-GTE-1", || {
            format!("{id} waits for an operator who did not pause it")
        })?;
    }
    ensure(core.sync_until.is_none_or(|until| until > core.now), "I-GTE-2", || {
        "weights are exchanged longer than was said".into()
    })?;
    core.gate.check(&shut, &taken).map_err(|detail| Violation { invariant: "I-GTP-1", detail })
}

fn programs(core: &Scheduler) -> Result<(), Violation> {
    ensure(core.programs.is_sound(), "I-PRG-3", || "the program table is out of order".into())?;
    let mut live: BTreeMap<&ProgramKey, u32> = BTreeMap::new();
    for (_, turn) in core.turns.iter() {
        if let Some(program) = turn.tracked_program() {
            *live.entry(program).or_default() += 1;
        }
    }
    for (key, program) in core.programs.iter() {
        let found = live.remove(key).unwrap_or_default();
        ensure(program.live_turns == found, "I-PRG-2", || {
            format!("{key} counts {} live turns, has {found}", program.live_turns)
        })?;
    }
    ensure(live.is_empty(), "I-PRG-2", || format!("turns of forgotten programs: {live:?}"))
}
