//! kv-cache-tester's sessions: one JSON object per session, subagents nested.
//!
//! Times of nested requests count from their marker in the files of kv-cache-tester and from the session's start in
//! the corpora published from them; a nested time before its marker shows the former, for the whole file.

use std::sync::Arc;

use serde::Deserialize;

use super::{ImportError, ImportOptions, rows, seconds};
use crate::build::{Draft, Turn, Wait};
use crate::graph::Trigger;
use crate::ids::{mix, of_text};
use crate::repair::{Repair, Repairs};

#[derive(Deserialize)]
struct Row {
    id: String,
    #[serde(default)]
    models: Vec<String>,
    #[serde(default)]
    block_size: Option<u32>,
    #[serde(default)]
    hash_id_scope: Option<String>,
    #[serde(default)]
    tool_tokens: u64,
    #[serde(default)]
    system_tokens: u64,
    requests: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    t: f64,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    model: Option<String>,
    #[serde(rename = "in", default)]
    input: u64,
    #[serde(rename = "out", default)]
    output: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
    #[serde(default)]
    stop: Option<String>,
    #[serde(default)]
    api_time: Option<f64>,
    #[serde(default)]
    agent_id: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    tool_tokens: u64,
    #[serde(default)]
    system_tokens: u64,
    #[serde(default)]
    requests: Vec<Entry>,
}

impl Entry {
    fn is_subagent(&self) -> bool {
        self.kind == "subagent" || !self.requests.is_empty()
    }
}

/// What names the blocks of one prompt.
struct Ids<'a> {
    local: bool,
    share: bool,
    session: u64,
    block_size: u64,
    tools: u64,
    system: u64,
    model: &'a str,
}

impl Ids<'_> {
    fn id(&self, index: usize, id: u64) -> u64 {
        let end = (index as u64 + 1) * self.block_size;
        if !self.local {
            mix(0, id)
        } else if self.share && end <= self.tools {
            mix(mix(of_text(self.model), self.tools), index as u64)
        } else if self.share && end <= self.tools + self.system {
            mix(mix(mix(of_text(self.model), self.tools), self.system), index as u64)
        } else {
            mix(self.session, id)
        }
    }
}

pub(super) fn read(
    text: &[u8],
    options: &ImportOptions,
    repairs: &mut Repairs,
) -> Result<(Vec<Draft>, u32), ImportError> {
    let rows: Vec<(usize, Row)> = match serde_json::from_slice::<Row>(text) {
        Ok(row) => vec![(1, row)],
        Err(_) => rows(text, repairs)?,
    };
    let told = rows.iter().find_map(|(_, row)| row.block_size);
    let block_size = told.or(options.block_size).unwrap_or(64).max(1);
    let nested = || rows.iter().flat_map(|(_, row)| &row.requests).filter(|entry| entry.is_subagent());
    let relative = nested().any(|marker| marker.requests.iter().any(|entry| entry.t < marker.t));
    if let Some(marker) = nested().next() {
        let basis = if relative { "their marker" } else { "the session's start" };
        let name = marker.agent_id.as_deref().unwrap_or_default();
        repairs.note(Repair::GuessedTimeBasis, format_args!("{name}: nested times count from {basis}"))?;
    }
    let mut reader = Reader { options, repairs, block_size, relative, drafts: Vec::new() };
    for (number, row) in &rows {
        reader.session(*number, row)?;
    }
    Ok((reader.drafts, block_size))
}

struct Reader<'a> {
    options: &'a ImportOptions,
    repairs: &'a mut Repairs,
    block_size: u32,
    relative: bool,
    drafts: Vec<Draft>,
}

impl Reader<'_> {
    fn session(&mut self, number: usize, row: &Row) -> Result<(), ImportError> {
        let name: Arc<str> = row.id.as_str().into();
        let place = format!("line {number}: {name}");
        let local = row.hash_id_scope.as_deref() != Some("global");
        let mut draft = Draft { id: Arc::clone(&name), ..Draft::default() };
        let mut children = Vec::new();
        // Subagents whose end the next turn waits for.
        let mut joins: Vec<Wait> = Vec::new();
        for entry in &row.requests {
            if entry.is_subagent() {
                let spawner = draft.turns.last().and_then(|turn| turn.id.clone());
                let child = self.subagent(row, entry, children.len(), spawner, local)?;
                if let Some(last) = child.turns.last().and_then(|turn| turn.id.clone())
                    && !child.background
                {
                    joins.push(Wait { on: last, trigger: Trigger::Completion, delay: None });
                }
                children.push(child);
                continue;
            }
            if entry.model.as_ref().is_some_and(|model| !row.models.is_empty() && !row.models.contains(model))
            {
                self.repairs.note(Repair::UnlistedModel, &place)?;
            }
            let heads = (row.tool_tokens, row.system_tokens);
            let Some(mut turn) = self.turn(entry, 0.0, &name, draft.turns.len(), heads, local)? else {
                continue;
            };
            if !joins.is_empty() {
                let before = draft.turns.last().and_then(|turn| turn.id.clone());
                let before = before.map(|on| Wait { on, trigger: Trigger::Completion, delay: None });
                turn.waits = Some(before.into_iter().chain(joins.drain(..)).collect());
            }
            draft.turns.push(turn);
        }
        self.drafts.push(draft);
        self.drafts.extend(children);
        Ok(())
    }

    fn subagent(
        &mut self,
        row: &Row,
        marker: &Entry,
        index: usize,
        spawner: Option<Arc<str>>,
        local: bool,
    ) -> Result<Draft, ImportError> {
        let agent = marker.agent_id.clone().unwrap_or_else(|| index.to_string());
        let name: Arc<str> = format!("{}/{agent}#{index}", row.id).into();
        let mut child = Draft {
            id: Arc::clone(&name),
            parent: Some(row.id.as_str().into()),
            background: marker.status.as_deref() == Some("async_launched"),
            ..Draft::default()
        };
        let base = if self.relative { marker.t } else { 0.0 };
        for entry in marker.requests.iter().filter(|entry| !entry.is_subagent()) {
            let heads = (marker.tool_tokens, marker.system_tokens);
            let Some(mut turn) = self.turn(entry, base, &name, child.turns.len(), heads, local)? else {
                continue;
            };
            if child.turns.is_empty()
                && let Some(on) = &spawner
            {
                turn.waits =
                    Some(vec![Wait { on: Arc::clone(on), trigger: Trigger::Completion, delay: None }]);
            }
            child.turns.push(turn);
        }
        Ok(child)
    }

    fn turn(
        &mut self,
        entry: &Entry,
        base: f64,
        session: &Arc<str>,
        index: usize,
        (tools, system): (u64, u64),
        local: bool,
    ) -> Result<Option<Turn>, ImportError> {
        if entry.input == 0 {
            self.repairs.note(Repair::EmptyPrompt, session)?;
            return Ok(None);
        }
        let ids = Ids {
            local,
            share: self.options.share_heads,
            session: of_text(session),
            block_size: u64::from(self.block_size),
            tools,
            system,
            model: entry.model.as_deref().unwrap_or_default(),
        };
        let start = seconds(base + entry.t);
        Ok(Some(Turn {
            id: Some(format!("{session}:{index}").into()),
            start: Some(start),
            end: Some(start + seconds(entry.api_time.unwrap_or(0.0))),
            input: entry.input,
            output: entry.output,
            ids: entry.hash_ids.iter().enumerate().map(|(at, id)| ids.id(at, *id)).collect(),
            tools: entry.stop.as_deref() == Some("tool_use"),
            model: entry.model.as_deref().map(Into::into),
            ..Turn::default()
        }))
    }
}
