//! What a call is for.
//!
//! - Purpose: side calls (titles, token counts, probes, compaction) must neither move a program's state nor
//!   be held.
//! - Evidence, best first: the path, the harness's own class headers, the form of the call. A form counts
//!   only together with the harness that was seen to use it: a plain client without tools is a turn.
//! - Invariants: I-CLS-1 a class word that is not known says nothing, and the form decides; I-CLS-2 in
//!   doubt it is a turn.
//! - Known blind spot: Claude Code's compaction without hint headers has the same tools, system prompt and
//!   session id as a turn, and passes as one ([`crate::explain()`] tells how to switch the headers on).
//! - Sources: Claude Code 2.1.332 (hint headers and forms), Codex 0.171.0 (turn metadata), OpenCode 1.18.33
//!   (title calls in all three dialects).

use http::Method;
use tandem_types::{Dialect, Harness, InputTrigger, RequestClass, TurnFacts};

use crate::facts::CodexTurn;
use crate::identify::RequestHead;
use crate::read::{Reader, Value, parse_bool};

/// Ends of paths that ask for a token count.
const COUNT_PATHS: &[&str] = &["/count_tokens", "/input_tokens", "/tokenize"];

/// Ends of paths that generate.
const TURN_PATHS: &[&str] =
    &["/completions", "/responses", "/messages", ":generateContent", ":streamGenerateContent"];

pub(crate) fn classify(
    head: &RequestHead<'_>,
    facts: Option<&TurnFacts>,
    harness: Harness,
    codex: &CodexTurn,
    reader: &mut Reader<'_>,
) -> RequestClass {
    let ends = |list: &[&str]| list.iter().any(|end| head.path_only().ends_with(end));
    if head.method == Method::POST && ends(COUNT_PATHS) {
        return RequestClass::CountTokens;
    }
    if head.method != Method::POST || (facts.is_none() && !ends(TURN_PATHS)) {
        return RequestClass::Probe;
    }
    let by_header = claude_class(reader).or_else(|| codex_class(codex, reader));
    let by_shape = facts.and_then(|facts| shape_class(facts, harness));
    match (by_header, by_shape) {
        // The harness calls its title an auxiliary call; its form tells more.
        (Some(RequestClass::Auxiliary), Some(RequestClass::Title)) => RequestClass::Title,
        (Some(class), _) | (None, Some(class)) => class,
        (None, None) => RequestClass::Turn,
    }
}

fn claude_class(reader: &mut Reader<'_>) -> Option<RequestClass> {
    let class = match reader.text("x-claude-code-request-class").usable()? {
        "main" | "subagent" => Some(RequestClass::Turn),
        "compaction" => Some(RequestClass::Compaction),
        "auxiliary" => Some(RequestClass::Auxiliary),
        _ => None,
    };
    class.or_else(|| match reader.text("x-claude-1p-request-class").usable()? {
        "main" | "blocking-subagent" => Some(RequestClass::Turn),
        "summary-extraction" | "followup-generation" | "cache_touch" => Some(RequestClass::Auxiliary),
        _ => None,
    })
}

fn codex_class(codex: &CodexTurn, reader: &mut Reader<'_>) -> Option<RequestClass> {
    if let Value::Usable(text) = reader.text("x-openai-memgen-request")
        && parse_bool(text) != Some(false)
    {
        return Some(RequestClass::Auxiliary);
    }
    match reader.text("x-openai-subagent").usable() {
        Some("compact") => return Some(RequestClass::Compaction),
        Some("memory_consolidation") => return Some(RequestClass::Auxiliary),
        _ => {}
    }
    match codex.request_kind.as_deref()? {
        "turn" => Some(RequestClass::Turn),
        "compaction" => Some(RequestClass::Compaction),
        "prewarm" => Some(RequestClass::Probe),
        _ => None,
    }
}

fn shape_class(facts: &TurnFacts, harness: Harness) -> Option<RequestClass> {
    let shape = &facts.shape;
    let no_tools = shape.tools.unwrap_or(0) == 0;
    match (harness, facts.dialect) {
        _ if !no_tools => None,
        (Harness::ClaudeCode, Dialect::Messages) if shape.thinking_disabled && shape.json_schema_output => {
            Some(RequestClass::Title)
        }
        (Harness::ClaudeCode, Dialect::Messages)
            if facts.max_output_tokens == Some(1) && shape.messages == 1 =>
        {
            Some(RequestClass::Probe)
        }
        (Harness::Codex, Dialect::Responses) if shape.tools == Some(0) => Some(RequestClass::Compaction),
        // Three messages at most: the title instruction, and the user's first words. Longer ones without
        // tools may be the chain of an agent whose tools are all switched off.
        (Harness::OpenCode, _) if shape.messages <= 3 && facts.input_trigger == InputTrigger::UserMessage => {
            Some(RequestClass::Title)
        }
        _ => None,
    }
}
