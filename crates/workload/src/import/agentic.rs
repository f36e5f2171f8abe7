//! Agentic Mooncake: rows that say what they wait for; version 2 with a header, and the older form.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::mooncake::{BLOCK_SIZE, block_size, name};
use super::{Drafts, ImportError, ImportOptions, lines, millis, rows};
use crate::build::{Draft, Turn, Wait};
use crate::graph::Trigger;
use crate::ids::{mix, of_text};
use crate::repair::{Repair, Repairs};

#[derive(Deserialize)]
struct Header {
    schema: String,
    version: u32,
    block_size: u32,
    #[serde(default)]
    hash_id_scope: Option<String>,
}

#[derive(Deserialize)]
struct Row {
    request_id: Value,
    #[serde(default)]
    play_id: Option<Value>,
    #[serde(default)]
    session_id: Option<Value>,
    #[serde(default)]
    parent_session_id: Option<Value>,
    #[serde(default)]
    model: Option<String>,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
    #[serde(default, alias = "timestamp")]
    not_before_ms: Option<f64>,
    #[serde(default)]
    recorded_api_time_ms: Option<f64>,
    #[serde(default)]
    priority: Option<i32>,
    #[serde(default)]
    dependencies: Option<Vec<Edge>>,
    #[serde(default)]
    wait_for: Option<Vec<Value>>,
    #[serde(default)]
    delay: Option<f64>,
    #[serde(default)]
    tool_wait_ms: Option<f64>,
}

#[derive(Deserialize)]
struct Edge {
    request_id: Value,
    trigger: String,
    #[serde(default)]
    delay_ms: f64,
}

fn header(text: &[u8]) -> Result<Option<Header>, ImportError> {
    let Some((_, first)) = lines(text).next() else { return Ok(None) };
    let Ok(header) = serde_json::from_slice::<Header>(first) else { return Ok(None) };
    if header.schema == "dynamo.agentic_mooncake" && header.version == 2 {
        return Ok(Some(header));
    }
    let Header { schema, version, .. } = header;
    Err(ImportError::Header(format!("{schema} version {version} is not known here; version 2 is")))
}

pub(super) fn read(
    text: &[u8],
    options: &ImportOptions,
    repairs: &mut Repairs,
) -> Result<(Vec<Draft>, u32), ImportError> {
    let header = header(text)?;
    let body = match &header {
        Some(_) => {
            text.iter().position(|byte| *byte == b'\n').and_then(|at| text.get(at..)).unwrap_or_default()
        }
        None => text,
    };
    let rows: Vec<(usize, Row)> = rows(body, repairs)?;
    let sizes = rows.iter().map(|(_, row)| (row.input_length, row.hash_ids.len()));
    let told = header.as_ref().map(|header| header.block_size);
    let size = told.or(options.block_size).or_else(|| block_size(sizes)).unwrap_or(BLOCK_SIZE).max(1);
    let local = header.as_ref().is_some_and(|header| header.hash_id_scope.as_deref() == Some("local"));
    let mut drafts = Drafts::default();
    for (number, row) in rows {
        if row.input_length == 0 {
            repairs.note(Repair::EmptyPrompt, format_args!("line {number}"))?;
            continue;
        }
        let id = name(&row.request_id);
        let play = row.play_id.as_ref().map(name);
        let scope = if local { play.as_deref().map_or(1, of_text) } else { 0 };
        let session = row.session_id.as_ref().map_or_else(|| id.clone(), name);
        let session = match play.as_deref().filter(|_| local) {
            Some(play) => format!("{play}/{session}"),
            None => session.to_string(),
        };
        let waits = waits(&row);
        let Some(draft) = drafts.of(&session) else { continue };
        draft.parent = row.parent_session_id.as_ref().map(name);
        let start = row.not_before_ms.map(millis).filter(|_| waits.is_empty());
        draft.turns.push(Turn {
            id: Some(id),
            start,
            end: start.map(|start| start + row.recorded_api_time_ms.map(millis).unwrap_or_default()),
            input: row.input_length,
            output: row.output_length,
            ids: row.hash_ids.iter().map(|id| mix(scope, *id)).collect(),
            pause: None,
            tools: row.tool_wait_ms.is_none_or(|wait| wait > 0.0),
            model: row.model.map(Into::into),
            priority: row.priority.unwrap_or(0),
            waits: Some(waits),
        });
    }
    // Turns that wait have no time of their own: the order of rows is theirs.
    for draft in &mut drafts.list {
        let mut last = Duration::ZERO;
        for turn in &mut draft.turns {
            last = turn.start.unwrap_or(Duration::ZERO).max(last + Duration::from_nanos(1));
            turn.start = turn.start.or(Some(last));
        }
    }
    Ok((drafts.list, size))
}

fn waits(row: &Row) -> Vec<Wait> {
    let edges = row.dependencies.iter().flatten().map(|edge| Wait {
        on: name(&edge.request_id),
        trigger: if edge.trigger == "dispatch" { Trigger::Dispatch } else { Trigger::Completion },
        delay: Some(millis(edge.delay_ms)),
    });
    let pause = millis(row.delay.unwrap_or(0.0) + row.tool_wait_ms.unwrap_or(0.0));
    let older = row.wait_for.iter().flatten().map(|on| Wait {
        on: name(on),
        trigger: Trigger::Completion,
        delay: Some(pause),
    });
    edges.chain(older).collect()
}
