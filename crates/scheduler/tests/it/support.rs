//! Builders for inputs.

use std::time::Duration;

use tandem_scheduler::{Input, TurnArrival, TurnOutcome, TurnResult};
use tandem_types::{
    EngineId, EngineKind, PrefixMatch, ProgramKey, RequestClass, RouteWishes, SessionId, TenantId, TurnId,
    WorkerId, WorkerInfo,
};

pub(crate) const fn worker(engine: u32) -> WorkerId {
    WorkerId { engine: EngineId(engine), rank: 0 }
}

pub(crate) fn up(engine: u32, models: &[&str], max_running: Option<u32>) -> Input {
    let models = models.iter().map(|&model| model.to_owned()).collect();
    let info =
        WorkerInfo { models, kv_capacity_tokens: None, max_running, ..WorkerInfo::new(EngineKind::Vllm) };
    Input::WorkerUp { worker: worker(engine), info }
}

pub(crate) fn program(name: &str) -> ProgramKey {
    ProgramKey::root(TenantId::default(), SessionId::new(name).expect("a valid id"))
}

/// A turn without identity that can wait for 30 s.
pub(crate) const fn arrival(turn: u64) -> TurnArrival {
    TurnArrival {
        turn: TurnId(turn),
        program: None,
        parent: None,
        group: None,
        session_final: false,
        class: RequestClass::Turn,
        retry_key: None,
        model: None,
        input_tokens_estimate: 1000,
        prefix: PrefixMatch::unknown(),
        wishes: RouteWishes::none(),
        max_output_tokens: None,
        hold_max: Duration::from_secs(30),
    }
}

pub(crate) fn turn_of(turn: u64, session: &str) -> Input {
    Input::TurnArrived(TurnArrival { program: Some(program(session)), ..arrival(turn) })
}

pub(crate) const fn ended(turn: u64, result: TurnResult) -> Input {
    Input::TurnEnded { turn: TurnId(turn), outcome: TurnOutcome { result, usage: None, tool_calls: 0 } }
}
