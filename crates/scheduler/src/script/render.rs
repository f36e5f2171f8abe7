//! Effects and state as lines of text.

use std::time::Duration;

use tandem_admission::Placement;
use tandem_routing::CostTerms;
use tandem_types::{ProgramKey, TenantId, Time, WorkerId};

use crate::View;
use crate::breaker::BreakerState;
use crate::contract::{
    Admission, Decision, Effect, FailureKind, HoldReason, LegDecision, PrefillDecision, RejectReason,
};
use crate::programs::ProgramState;
use crate::view::{AdmissionView, HeldView, WorkerView};
use crate::workers::WorkerState;

/// One effect as lines, without the leading `>`: one, and for a decision with terms one more for each candidate.
pub(super) fn effect(effect: &Effect) -> Vec<String> {
    let mut lines = vec![headline(effect)];
    if let Effect::Record(decision) = effect {
        lines.extend(decision.candidates.iter().zip(&decision.terms).map(|((id, _), t)| terms(*id, t)));
        lines.extend(decision.prefill.iter().flat_map(prefill));
    }
    lines
}

/// The terms that are not zero.
fn terms(worker: WorkerId, t: &CostTerms) -> String {
    let mut line = format!("  cost {worker} prefill={}", t.prefill);
    for (name, tokens) in [
        ("transfer", t.transfer),
        ("queued", t.queued),
        ("decode", t.decode),
        ("left_behind", t.left_behind),
        ("crowding", t.crowding),
        ("affinity", t.affinity),
        ("labels", t.labels),
        ("adapter", t.adapter),
    ] {
        if tokens > 0 {
            line.push_str(&format!(" {name}={tokens}"));
        }
    }
    let blocks = [t.device_blocks, t.host_blocks, t.disk_blocks, t.shared_blocks];
    if blocks != [0; 4] {
        line.push_str(&format!(" blocks={}/{}/{}/{}", blocks[0], blocks[1], blocks[2], blocks[3]));
    }
    if t.assumed_tokens > 0 {
        line.push_str(&format!(" assumed={}", t.assumed_tokens));
    }
    line
}

fn headline(effect: &Effect) -> String {
    match effect {
        Effect::Dispatch { turn, worker, prefill, attempt, delay, priority } => {
            let (legs, delay) = (legs(*worker, *prefill), seconds(*delay));
            let priority = if *priority == 0 { String::new() } else { format!(" priority={priority}") };
            format!("dispatch {turn} {legs} attempt={attempt} delay={delay}{priority}")
        }
        Effect::Hold { turn, reason, position } => {
            format!("hold {turn} {} position={position}", reason.as_str())
        }
        Effect::Reject { turn, reason, retry_after } => {
            format!("reject {turn} {} retry_after={}", rejection(*reason), seconds(*retry_after))
        }
        Effect::Cancel { turn, worker, prefill } => format!("cancel {turn} {}", legs(*worker, *prefill)),
        Effect::Supersede { old, by } => format!("supersede {old} by {by}"),
        Effect::Record(decision) => record(decision),
        Effect::Paused { program: key, worker, tokens } => {
            format!("paused {} {worker} tokens={tokens}", program(key))
        }
        Effect::Demote { program: key, worker, tokens } => {
            format!("demote {} {worker} tokens={tokens}", program(key))
        }
    }
}

/// The workers of a dispatch: `e2r0`, or `e0r0>e2r0` where the first computes the prompt for the second.
fn legs(worker: WorkerId, prefill: Option<WorkerId>) -> String {
    prefill.map_or_else(|| worker.to_string(), |prefill| format!("{prefill}>{worker}"))
}

fn scores(candidates: &[(WorkerId, f64)]) -> String {
    let scores: Vec<String> = candidates.iter().map(|(worker, score)| format!("{worker}={score}")).collect();
    scores.join(" ")
}

/// Who computes the prompt, and the terms of the choice.
fn prefill(decision: &PrefillDecision) -> Vec<String> {
    let leg: &LegDecision = match decision {
        PrefillDecision::Remote(leg) => leg,
        PrefillDecision::Local { tokens } => return vec![format!("  prefill local tokens={tokens}")],
        PrefillDecision::Alone => return vec!["  prefill alone".to_owned()],
    };
    let LegDecision { worker, reason, candidates, terms: costs, candidate_count } = leg;
    let mut lines = vec![format!("  prefill {worker} {reason} {} of {candidate_count}", scores(candidates))];
    lines.extend(candidates.iter().zip(costs).map(|((id, _), t)| terms(*id, t)));
    lines
}

fn record(d: &Decision) -> String {
    let admission = d.admission.as_deref().map(admission).unwrap_or_default();
    format!(
        "record {} {} {}/{} {} of {} attempt={} held={}{admission}",
        d.turn,
        d.worker,
        d.policy,
        d.reason,
        scores(&d.candidates),
        d.candidate_count,
        d.attempt,
        seconds(d.held)
    )
}

/// `admission=tandem/pin:e0r0`, and what is not usual about it.
fn admission(admission: &Admission) -> String {
    let placement = match admission.placement {
        Placement::Any => "any".to_owned(),
        Placement::Free(worker) => format!("free:{worker}"),
        Placement::Prefer(worker) => format!("prefer:{worker}"),
        Placement::Pin(worker) => format!("pin:{worker}"),
    };
    let held = admission.held.map(|held| format!(" was={}", held.as_str())).unwrap_or_default();
    let forced = if admission.forced { " forced" } else { "" };
    format!(" admission={}/{placement}{held}{forced}", admission.policy)
}

const fn rejection(reason: RejectReason) -> &'static str {
    match reason {
        RejectReason::QueueFull => "queue_full",
        RejectReason::HoldExpired => "hold_expired",
        RejectReason::NoWorker => "no_worker",
        RejectReason::NoneSuits => "none_suits",
        RejectReason::AttemptsExhausted(kind) => match kind {
            FailureKind::Connect => "attempts_exhausted(connect)",
            FailureKind::Disconnected => "attempts_exhausted(disconnected)",
            FailureKind::Timeout => "attempts_exhausted(timeout)",
            FailureKind::ServerError => "attempts_exhausted(server_error)",
            FailureKind::Overloaded => "attempts_exhausted(overloaded)",
            FailureKind::Garbage => "attempts_exhausted(garbage)",
        },
    }
}

/// The state: programs by key, held turns by place, workers by id, and what went wrong, if anything.
pub(super) fn view(view: View<'_>) -> Vec<String> {
    let mut programs: Vec<_> = view.programs().collect();
    programs.sort_by(|a, b| a.program.cmp(&b.program));
    let programs: Vec<String> = programs
        .iter()
        .map(|p| {
            let state = match p.state {
                ProgramState::Reasoning => "reasoning",
                ProgramState::Acting => "acting",
            };
            let home = p.last_worker.map_or_else(|| "-".to_owned(), |worker| worker.to_string());
            format!(
                "{}:{state}@{home},live={},finished={}",
                program(&p.program),
                p.live_turns,
                p.turns_finished
            )
        })
        .collect();
    let held: Vec<String> = view.held().map(|h| held(&h)).collect();
    let mut lines = vec![list("programs", &programs), list("held", &held)];
    lines.extend(view.workers().map(|w| worker(&w)));
    lines.extend(admitted(&view.admission()));
    let anomalies = view.counters().anomalies;
    if anomalies.total() > 0 {
        lines.push(format!("anomalies {}", anomalies.total()));
    }
    lines
}

/// A held turn; where no worker is the cause, what is.
fn held(h: &HeldView) -> String {
    let (turn, position) = (h.turn.turn, h.position);
    match h.reason {
        HoldReason::NoWorker
        | HoldReason::WorkersFull
        | HoldReason::NoPrefillWorker
        | HoldReason::NoDecodeWorker => format!("{turn}#{position}"),
        HoldReason::MemoryFull
        | HoldReason::Paused
        | HoldReason::Behind
        | HoldReason::PausedByOperator
        | HoldReason::WeightSync => format!("{turn}#{position}({})", h.reason.as_str()),
    }
}

/// Admission's counts, where there is a policy.
fn admitted(view: &AdmissionView) -> Option<String> {
    let s = view.stats;
    (view.policy != tandem_admission::NONE).then(|| {
        format!(
            "admission {} held={} held_tokens={} admitted={} paused={} resumed={} forced={} moved={}",
            view.policy, s.held, s.held_tokens, s.admitted, s.paused, s.resumed, s.forced, s.moved
        )
    })
}

fn list(name: &str, items: &[String]) -> String {
    if items.is_empty() { format!("{name} none") } else { format!("{name} {}", items.join(" ")) }
}

fn worker(w: &WorkerView) -> String {
    let state = match w.state {
        WorkerState::Expected { .. } => "expected",
        WorkerState::Ready => "ready",
        WorkerState::Draining => "draining",
        WorkerState::Down => "down",
        WorkerState::Removed => "removed",
    };
    let breaker = match w.breaker {
        BreakerState::Closed { failures } => format!("closed({failures})"),
        BreakerState::Open { until, .. } => format!("open(until {})", time(until)),
        BreakerState::HalfOpen { probe: None, .. } => "half_open".to_owned(),
        BreakerState::HalfOpen { probe: Some(turn), .. } => format!("half_open({turn})"),
    };
    let charged = w.charged.map(|c| format!(" charged={}+{}", c.running, c.idle)).unwrap_or_default();
    format!(
        "worker {} {state} turns={} calls={} foreign={} breaker={breaker}{charged}",
        w.worker, w.turns_running, w.calls_running, w.foreign
    )
}

fn program(key: &ProgramKey) -> String {
    let tenant = if key.tenant == TenantId::default() { String::new() } else { format!("{}:", key.tenant) };
    match &key.agent {
        Some(agent) => format!("{tenant}{}/{agent}", key.session),
        None => format!("{tenant}{}", key.session),
    }
}

/// Seconds since the start with as many decimals as needed.
pub(super) fn time(at: Time) -> String {
    seconds(at.since(Time::ZERO))
}

fn seconds(duration: Duration) -> String {
    let nanos = duration.subsec_nanos();
    if nanos == 0 {
        return duration.as_secs().to_string();
    }
    let decimals = format!("{nanos:09}");
    format!("{}.{}", duration.as_secs(), decimals.trim_end_matches('0'))
}
