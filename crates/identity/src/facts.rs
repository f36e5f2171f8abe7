//! What a harness volunteers beside its identity.
//!
//! - Purpose: tool run times, kind of agent, compaction marks and windows for policies; opaque headers for
//!   the trace.
//! - Invariants: I-FAC-1 every fact is bounded (text as ids are, durations and captured headers by the
//!   named limits); I-FAC-2 a malformed part is counted and skipped, the rest is used; I-FAC-3 captured
//!   values are verbatim or absent, never cut; I-FAC-4 nothing outside the named families is captured, in
//!   particular no credentials.
//! - Deliberately absent: Codex's paths, commits and model name. Its turn metadata is captured only on
//!   request.
//! - Sources: Claude Code 2.1.332 with hint headers, Codex 0.171.0, `dynamo-llm` 1.6.1 (families and limits
//!   of captured headers).

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderMap;
use serde_json::{Map, Value as Json};
use tandem_types::limits::{
    AGENT_HEADER_TOTAL_BYTES_MAX, AGENT_HEADER_VALUE_BYTES_MAX, AGENT_HEADER_VALUES_MAX, ID_BYTES_MAX,
    TOOL_DURATIONS_MAX,
};
use tandem_types::{HarnessFacts, ToolDuration};

use crate::identify::{IdentityConfig, WarningKind};
use crate::read::{Reader, Value};

const DURATIONS: &str = "x-claude-code-prev-tool-durations";
const CODEX_METADATA: &str = "x-codex-turn-metadata";

/// The parts of Codex's turn metadata that matter here.
#[derive(Debug, Default)]
pub(crate) struct CodexTurn {
    pub(crate) request_kind: Option<String>,
    prompt_id: Option<String>,
    window: Option<u64>,
    compaction_trigger: Option<String>,
}

impl CodexTurn {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Self {
        // Read as bytes: paths inside may hold any text.
        let Some(value) = reader.headers().get(CODEX_METADATA) else { return Self::default() };
        let Ok(fields) = serde_json::from_slice::<Map<String, Json>>(value.as_bytes()) else {
            reader.warn(CODEX_METADATA, WarningKind::Malformed);
            return Self::default();
        };
        let text = |key: &str| fields.get(key).and_then(Json::as_str).and_then(bounded);
        Self {
            request_kind: text("request_kind"),
            prompt_id: text("root_turn_id").or_else(|| text("turn_id")),
            window: fields.get("window_number").and_then(Json::as_u64),
            compaction_trigger: fields
                .get("compaction")
                .and_then(|c| c.get("trigger"))
                .and_then(Json::as_str)
                .and_then(bounded),
        }
    }
}

fn bounded(text: &str) -> Option<String> {
    let text = text.trim();
    (!text.is_empty() && text.len() <= ID_BYTES_MAX).then(|| text.to_owned())
}

pub(crate) fn read(reader: &mut Reader<'_>, codex: CodexTurn, config: &IdentityConfig) -> HarnessFacts {
    let subagent = text(reader, "x-openai-subagent");
    HarnessFacts {
        prev_tool_durations: durations(reader),
        agent_type: text(reader, "x-claude-code-agent-type").or(subagent),
        blocking_subagent: blocking(reader),
        compaction: text(reader, "x-claude-code-compaction").or(codex.compaction_trigger),
        context_compacted: text(reader, "x-claude-code-context-compacted"),
        prompt_id: text(reader, "x-claude-code-prompt-id").or(codex.prompt_id),
        window: window(reader).or(codex.window),
        agent_headers: if config.capture_headers { capture(reader, config) } else { BTreeMap::new() },
    }
}

fn text(reader: &mut Reader<'_>, field: &'static str) -> Option<String> {
    let text = reader.text(field).usable()?;
    if text.len() > ID_BYTES_MAX {
        reader.warn(field, WarningKind::TooLong);
        return None;
    }
    Some(text.to_owned())
}

/// Only a subagent blocks a parent. Claude Code tells which kind it is in its second class header.
fn blocking(reader: &mut Reader<'_>) -> Option<bool> {
    let class = reader.text("x-claude-1p-request-class").usable()?;
    if class == "blocking-subagent" {
        return Some(true);
    }
    reader.has("x-claude-code-agent-id").then_some(false)
}

/// `x-codex-window-id` is `<thread>:<number of compactions>`.
fn window(reader: &mut Reader<'_>) -> Option<u64> {
    const FIELD: &str = "x-codex-window-id";
    let Value::Usable(id) = reader.text(FIELD) else { return None };
    let number = id.rsplit_once(':').and_then(|(_, n)| n.parse().ok());
    if number.is_none() {
        reader.warn(FIELD, WarningKind::Malformed);
    }
    number
}

/// `name=milliseconds` pairs separated by semicolons. A tool name may hold an equals sign.
fn durations(reader: &mut Reader<'_>) -> Vec<ToolDuration> {
    let mut found = Vec::new();
    for value in reader.headers().get_all(DURATIONS) {
        let Ok(value) = value.to_str() else {
            reader.warn(DURATIONS, WarningKind::NotVisibleAscii);
            continue;
        };
        for part in value.split(';').map(str::trim).filter(|p| !p.is_empty()) {
            if found.len() == TOOL_DURATIONS_MAX {
                reader.warn(DURATIONS, WarningKind::TooMany);
                return found;
            }
            match duration(part) {
                Some(duration) => found.push(duration),
                None => reader.warn(DURATIONS, WarningKind::Malformed),
            }
        }
    }
    found
}

fn duration(part: &str) -> Option<ToolDuration> {
    let (tool, ms) = part.rsplit_once('=')?;
    let tool = bounded(tool)?;
    let ms = ms.trim();
    let duration = match ms.parse::<u64>() {
        Ok(ms) => Duration::from_millis(ms),
        Err(_) => Duration::try_from_secs_f64(ms.parse::<f64>().ok()? / 1e3).ok()?,
    };
    Some(ToolDuration { tool, duration })
}

/// Whether a header belongs to the families that are kept for the trace.
fn captured(name: &str, headers: &HeaderMap, config: &IdentityConfig) -> bool {
    match name {
        CODEX_METADATA => config.capture_private_headers,
        // The root's id means nothing in a trace without the thread's.
        "session-id" => headers.contains_key("thread-id"),
        "thread-id"
        | "x-openai-subagent"
        | "x-openai-memgen-request"
        | "x-session-id"
        | "x-parent-session-id" => true,
        _ => name.starts_with("x-claude-code-") || name.starts_with("x-codex-"),
    }
}

fn capture(reader: &mut Reader<'_>, config: &IdentityConfig) -> BTreeMap<String, Vec<String>> {
    const FIELD: &str = "captured headers";
    let headers = reader.headers();
    let (mut values, mut bytes) = (0, 0);
    let mut kept: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in headers {
        if !captured(name.as_str(), headers, config) || value.is_sensitive() {
            continue;
        }
        let Ok(text) = value.to_str() else { continue };
        let size = name.as_str().len() + text.len();
        if values == AGENT_HEADER_VALUES_MAX || bytes + size > AGENT_HEADER_TOTAL_BYTES_MAX {
            reader.warn(FIELD, WarningKind::TooMany);
            continue;
        }
        if text.len() > AGENT_HEADER_VALUE_BYTES_MAX {
            reader.warn(FIELD, WarningKind::TooLong);
            continue;
        }
        values += 1;
        bytes += size;
        kept.entry(name.as_str().to_owned()).or_default().push(text.to_owned());
    }
    kept
}
