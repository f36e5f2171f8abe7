//! What the demo shows at its end: per agent what was recognised, cached and prefilled, taken from the trace
//! and held against what the agents really sent.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;
use tandem_trace::record::{EventType, Record};
use tandem_types::{Dialect, IdentitySource};

use super::drive::Call;
use super::plan::AgentPlan;

/// The whole outcome.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Whether every check held.
    pub(super) ok: bool,
    /// Turns that the agents made, and those that were answered.
    pub(super) turns: Count,
    /// Side calls (titles) made and answered.
    pub(super) side_calls: Count,
    /// APIs spoken.
    pub(super) dialects: Vec<Dialect>,
    /// One row per agent.
    pub(super) agents: Vec<AgentRow>,
    /// What did not hold, in words.
    pub(super) faults: Vec<String>,
    /// Prompt tokens of all turns.
    pub(super) input_tokens: u64,
    /// Of these, taken from a cache.
    pub(super) cached_tokens: u64,
    /// The trace file.
    pub(super) trace: String,
    /// Wall time of the sessions, seconds.
    pub(super) seconds: f64,
    /// Base URL of the gateway.
    pub(super) gateway: String,
}

/// Made and answered.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Count {
    pub(super) made: u32,
    pub(super) completed: u32,
}

/// One agent.
#[derive(Debug, Serialize)]
pub(super) struct AgentRow {
    /// Its name in the demo.
    pub(super) name: String,
    /// What it imitates.
    pub(super) harness: &'static str,
    /// The API that it speaks.
    pub(super) dialect: Dialect,
    /// The id under which it was recognised.
    pub(super) session_id: Option<String>,
    /// The parent that was recognised.
    pub(super) parent_session_id: Option<String>,
    /// Whether id and parent are what it sent.
    pub(super) identity_right: bool,
    /// Where the identity was found.
    pub(super) source: Option<IdentitySource>,
    /// Turns in the trace.
    pub(super) turns: u32,
    /// Prompt tokens of all its turns.
    pub(super) input_tokens: u64,
    /// Of these, taken from a cache.
    pub(super) cached_tokens: u64,
    /// Of these, computed.
    pub(super) prefilled_tokens: u64,
    /// Tokens generated.
    pub(super) output_tokens: u64,
    /// Workers that it ran on.
    pub(super) workers: BTreeSet<u64>,
}

/// Everything that a report is made of.
pub(super) struct Outcome<'a> {
    pub(super) plans: &'a [AgentPlan],
    pub(super) calls: &'a [Call],
    pub(super) rows: &'a [Record],
    pub(super) trace: String,
    pub(super) gateway: String,
    pub(super) seconds: f64,
}

/// Puts the report together.
pub(super) fn build(outcome: &Outcome<'_>) -> Report {
    let mut faults: Vec<String> =
        outcome.calls.iter().filter_map(|c| c.error.as_ref().map(|e| format!("{}: {e}", c.agent))).collect();
    let ends: Vec<&Record> = outcome.rows.iter().filter(|r| r.event_type == EventType::RequestEnd).collect();
    let mut by_id: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for row in ends.iter().copied().filter(|r| is_turn(r)) {
        let id = row.agent_context.as_ref().map_or("", |c| c.session_id.as_str());
        by_id.entry(id).or_default().push(row);
    }
    let plans = flat(outcome.plans);
    let agents: Vec<AgentRow> = plans.iter().map(|plan| agent_row(plan, &by_id, &mut faults)).collect();
    let expected = outcome.plans.iter().map(AgentPlan::calls).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let turns = Count { made: expected.0, completed: completed(outcome.calls, true) };
    let side_calls = Count { made: expected.1, completed: completed(outcome.calls, false) };
    for (what, count) in [("turns", &turns), ("side calls", &side_calls)] {
        if count.made != count.completed {
            faults.push(format!("{} of {} {what} completed", count.completed, count.made));
        }
    }
    if ends.len() != outcome.calls.len() {
        faults.push(format!("{} calls were made but the trace has {} rows", outcome.calls.len(), ends.len()));
    }
    Report {
        ok: faults.is_empty(),
        turns,
        side_calls,
        dialects: plans.iter().map(|p| p.dialect).collect::<BTreeSet<_>>().into_iter().collect(),
        input_tokens: agents.iter().map(|a| a.input_tokens).sum(),
        cached_tokens: agents.iter().map(|a| a.cached_tokens).sum(),
        agents,
        faults,
        trace: outcome.trace.clone(),
        seconds: outcome.seconds,
        gateway: outcome.gateway.clone(),
    }
}

fn completed(calls: &[Call], turn: bool) -> u32 {
    let count = calls.iter().filter(|c| c.turn == turn && c.error.is_none()).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn is_turn(row: &Record) -> bool {
    row.tandem.as_ref().is_none_or(|t| t.class.is_turn())
}

fn flat(plans: &[AgentPlan]) -> Vec<&AgentPlan> {
    plans.iter().flat_map(|p| std::iter::once(p).chain(flat(&p.children))).collect()
}

fn agent_row(plan: &AgentPlan, by_id: &BTreeMap<&str, Vec<&Record>>, faults: &mut Vec<String>) -> AgentRow {
    let rows = by_id.get(plan.expect_id.as_str()).map(Vec::as_slice).unwrap_or_default();
    let context = rows.first().and_then(|r| r.agent_context.as_ref());
    let parents_right = rows
        .iter()
        .all(|row| row.agent_context.as_ref().is_some_and(|c| c.parent_session_id == plan.expect_parent));
    let wanted = plan.tool_turns as usize + 1;
    if rows.len() != wanted {
        faults.push(format!(
            "{}: {} of {wanted} turns were traced under {}",
            plan.name,
            rows.len(),
            plan.expect_id
        ));
    }
    if !parents_right {
        faults.push(format!("{}: its parent should be {:?}", plan.name, plan.expect_parent));
    }
    let sum = |of: fn(&Record) -> Option<u64>| rows.iter().filter_map(|r| of(r)).sum::<u64>();
    let input_tokens = sum(|r| r.request.as_ref()?.input_tokens);
    let cached_tokens = sum(|r| r.request.as_ref()?.cached_tokens);
    AgentRow {
        name: plan.name.clone(),
        harness: plan.harness,
        dialect: plan.dialect,
        session_id: context.map(|c| c.session_id.clone()),
        parent_session_id: context.and_then(|c| c.parent_session_id.clone()),
        identity_right: !rows.is_empty() && parents_right,
        source: rows.first().and_then(|r| r.tandem.as_ref()?.identity_source),
        turns: u32::try_from(rows.len()).unwrap_or(u32::MAX),
        input_tokens,
        cached_tokens,
        prefilled_tokens: input_tokens.saturating_sub(cached_tokens),
        output_tokens: sum(|r| r.request.as_ref()?.output_tokens),
        workers: rows.iter().filter_map(|r| r.request.as_ref()?.worker.as_ref()?.decode_worker_id).collect(),
    }
}

/// The report for people.
pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<24} {:<14} {:<12} {:<15} {:>5} {:>9} {:>9} {:>10} {:>5}  worker",
        "agent", "harness", "api", "recognised by", "turns", "prompt", "cached", "prefilled", "hit"
    );
    for agent in &report.agents {
        let workers: Vec<String> = agent.workers.iter().map(u64::to_string).collect();
        let _ = writeln!(
            out,
            "{:<24} {:<14} {:<12} {:<15} {:>5} {:>9} {:>9} {:>10} {:>4.0}%  {}",
            agent.name,
            agent.harness,
            word(&agent.dialect),
            agent.source.as_ref().map_or_else(|| "nothing".to_owned(), word),
            agent.turns,
            agent.input_tokens,
            agent.cached_tokens,
            agent.prefilled_tokens,
            percent(agent.cached_tokens, agent.input_tokens),
            workers.join(","),
        );
        if let Some(parent) = &agent.parent_session_id {
            let _ = writeln!(out, "{:<24} child of {parent}", "");
        }
    }
    let _ = writeln!(
        out,
        "\n{} of {} turns and {} of {} side calls completed in {:.1} s; {} of {} prompt tokens came from a cache ({:.1} %).",
        report.turns.completed,
        report.turns.made,
        report.side_calls.completed,
        report.side_calls.made,
        report.seconds,
        report.cached_tokens,
        report.input_tokens,
        percent(report.cached_tokens, report.input_tokens),
    );
    let _ = writeln!(out, "trace: {}", report.trace);
    for fault in &report.faults {
        let _ = writeln!(out, "fault: {fault}");
    }
    out
}

/// The word that serde writes for a plain enum value.
fn word<T: Serialize>(value: &T) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}
