//! `dynamo.request.trace.v1`, with what Tandem adds to it.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::sync::Arc;
use std::time::Duration;

use tandem_trace::reader::{ReadError, ReadOptions, TraceReader};
use tandem_trace::record::{EventType, Record, TraceRow};

use super::{Drafts, ImportError, ImportOptions, millis};
use crate::build::{Draft, Turn, Wait};
use crate::graph::Trigger;
use crate::repair::{Repair, Repairs};

/// What a tool row tells of a subagent.
struct Spawn {
    source: Arc<str>,
    consumer: Option<Arc<str>>,
    background: bool,
}

pub(super) fn read(
    text: &[u8],
    options: &ImportOptions,
    repairs: &mut Repairs,
) -> Result<(Vec<Draft>, u32), ImportError> {
    let read = ReadOptions { strict: options.strict, ..ReadOptions::default() };
    let mut reader = TraceReader::new(BufReader::new(text), read);
    let mut requests = Vec::new();
    let mut spawns: BTreeMap<String, Spawn> = BTreeMap::new();
    loop {
        match reader.next_row() {
            Ok(Some(TraceRow::V1(record))) => match record.event_type {
                EventType::RequestEnd => requests.push(record),
                _ => spawn(&record, &mut spawns),
            },
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(ReadError::Finding(finding)) => {
                return Err(ImportError::Strict { repair: Repair::BadRow, place: finding.to_string() });
            }
            Err(error @ ReadError::Io { .. }) => return Err(ImportError::Gzip(error.to_string())),
        }
    }
    for finding in &reader.into_report().reported {
        repairs.note(Repair::BadRow, finding)?;
    }
    let with = requests.iter().filter(|record| record.agent_context.is_some()).count();
    if with > 0 && with < requests.len() {
        repairs.note(
            Repair::MixedIdentity,
            format_args!("{} of {} rows", requests.len() - with, requests.len()),
        )?;
    }
    let size =
        requests.iter().find_map(|record| Some(record.request.as_ref()?.replay.as_ref()?.trace_block_size));
    let size = size.and_then(|size| u32::try_from(size).ok()).or(options.block_size).unwrap_or(16).max(1);
    let epoch = requests.iter().map(|record| started(record)).min().unwrap_or_default();
    let mut drafts = Drafts::default();
    for record in &requests {
        turn(record, epoch, &mut drafts, repairs)?;
    }
    explicit(&mut drafts, &spawns);
    Ok((drafts.list, size))
}

/// When a request came, in milliseconds since the epoch.
fn started(record: &Record) -> u64 {
    let request = record.request.as_ref();
    let total = request.and_then(|request| request.total_time_ms).unwrap_or(0.0).max(0.0);
    let total = u64::try_from(millis(total).as_millis()).unwrap_or(0);
    let received = request.and_then(|request| request.request_received_ms);
    received.unwrap_or_else(|| record.event_time_unix_ms.saturating_sub(total))
}

fn spawn(record: &Record, spawns: &mut BTreeMap<String, Spawn>) {
    let Some(agent) = record.tool.as_ref().and_then(|tool| tool.claude.as_ref()) else { return };
    let Some(child) = &agent.child_session_id else { return };
    spawns.insert(
        child.clone(),
        Spawn {
            source: agent.source_request_id.as_str().into(),
            consumer: agent.consumer_request_id.as_deref().map(Into::into),
            background: agent.execution_mode == "background",
        },
    );
}

fn turn(record: &Record, epoch: u64, drafts: &mut Drafts, repairs: &mut Repairs) -> Result<(), ImportError> {
    let Some(request) = &record.request else { return Ok(()) };
    let place = &request.request_id;
    let replay = request.replay.as_ref();
    let input = replay.map(|replay| replay.input_length).or(request.input_tokens).unwrap_or(0);
    if input == 0 {
        return repairs.note(Repair::EmptyPrompt, place);
    }
    let agent = record.agent_context.as_ref();
    let name = agent.map_or(place.as_str(), |agent| agent.session_id.as_str());
    let Some(draft) = drafts.of(name) else { return Ok(()) };
    if draft.parent.is_none() {
        draft.parent = agent.and_then(|agent| agent.parent_session_id.as_deref()).map(Into::into);
    }
    let extras = record.tandem.as_deref();
    if draft.group.is_none() {
        draft.group = extras.and_then(|extras| extras.group.as_deref()).map(Into::into);
    }
    let start = Duration::from_millis(started(record).saturating_sub(epoch));
    let total = request.total_time_ms.map_or_else(
        || Duration::from_millis(record.event_time_unix_ms.saturating_sub(epoch)).saturating_sub(start),
        millis,
    );
    let finish = request.finish_reason_metadata.as_ref();
    let waits = replay.filter(|replay| !replay.dependencies.is_empty()).map(|replay| {
        let edge = |dep: &tandem_trace::record::ReplayDependency| Wait {
            on: dep.request_id.as_str().into(),
            trigger: if dep.trigger == "dispatch" { Trigger::Dispatch } else { Trigger::Completion },
            delay: None,
        };
        replay.dependencies.iter().map(edge).collect()
    });
    draft.turns.push(Turn {
        id: Some(request.request_id.as_str().into()),
        start: Some(start),
        end: Some(start + total),
        input,
        output: request.output_tokens.unwrap_or(0),
        ids: replay.map(|replay| replay.input_sequence_hashes.clone()).unwrap_or_default(),
        pause: None,
        tools: finish.is_some_and(|finish| !finish.tool_calls.is_empty()),
        model: request.model.as_deref().map(Into::into),
        priority: 0,
        waits,
    });
    Ok(())
}

/// Edges that tool rows tell replace those that times suggest.
fn explicit(drafts: &mut Drafts, spawns: &BTreeMap<String, Spawn>) {
    let mut joins: BTreeMap<Arc<str>, Vec<Arc<str>>> = BTreeMap::new();
    for draft in &mut drafts.list {
        let Some(spawn) = spawns.get(&*draft.id) else { continue };
        draft.background |= spawn.background;
        if let Some(head) = draft.turns.first_mut() {
            let on = Arc::clone(&spawn.source);
            head.waits.get_or_insert_with(|| vec![Wait { on, trigger: Trigger::Completion, delay: None }]);
        }
        if let (Some(consumer), Some(last)) =
            (&spawn.consumer, draft.turns.last().and_then(|turn| turn.id.clone()))
        {
            joins.entry(Arc::clone(consumer)).or_default().push(last);
        }
    }
    for draft in &mut drafts.list {
        let mut before: Option<Arc<str>> = None;
        for turn in &mut draft.turns {
            let ends = turn.id.as_ref().and_then(|id| joins.get(id));
            if let Some(ends) = ends {
                let on = before.iter().chain(ends);
                let wait =
                    |on: &Arc<str>| Wait { on: Arc::clone(on), trigger: Trigger::Completion, delay: None };
                turn.waits.get_or_insert_with(|| on.map(wait).collect());
            }
            before.clone_from(&turn.id);
        }
    }
}
