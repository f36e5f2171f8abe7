//! Chat completions, and what the dialects share.

use super::SegmentKind;
use super::build::{Builder, MARKS};
use crate::json::Node;

/// Members of a text part that reach no prompt.
const PART_MARKS: &[&str] = &["cache_control", "annotations", "logprobs"];

pub(super) fn body(body: &Node<'_>, builder: &mut Builder) {
    let messages = body.get("messages").map(Node::items).unwrap_or_default();
    let system = messages.iter().take_while(|message| is_system(message)).count();
    let (system, conversation) = messages.split_at(system);
    for message in system {
        self::message(message, SegmentKind::System, builder);
    }
    tools(body, builder);
    for message in conversation {
        self::message(message, SegmentKind::Note, builder);
    }
}

/// A system or developer message.
pub(super) fn is_system(message: &Node<'_>) -> bool {
    matches!(message.text_of("role"), Some("system" | "developer"))
}

/// One segment for each tool.
pub(super) fn tools(body: &Node<'_>, builder: &mut Builder) {
    for tool in body.get("tools").map(Node::items).unwrap_or_default() {
        if builder.shows(super::tool_name(tool)) {
            builder.begin(&[], "");
            builder.value_part(SegmentKind::Tool, tool, MARKS);
        }
    }
}

fn message(message: &Node<'_>, of_system: SegmentKind, builder: &mut Builder) {
    let role = message.text_of("role").unwrap_or_default();
    let kind = role_kind(role, of_system);
    let name = message.text_of("name").unwrap_or_default();
    builder.begin(&[role, name], message.text_of("tool_call_id").unwrap_or_default());
    let reasoning = message.text_of("reasoning_content").or_else(|| message.text_of("reasoning"));
    if let Some(reasoning) = reasoning.filter(|text| !text.is_empty()) {
        builder.text_part(SegmentKind::Reasoning, reasoning);
    }
    content(message.get("content"), kind, builder);
    for call in message.get("tool_calls").map(Node::items).unwrap_or_default() {
        builder.call_part(call, call.text_of("id"), &["index"]);
    }
    if let Some(call) = message.get("function_call") {
        builder.call_part(call, None, &[]);
    }
    builder.end(kind);
}

pub(super) fn role_kind(role: &str, of_system: SegmentKind) -> SegmentKind {
    match role {
        "system" | "developer" => of_system,
        "user" => SegmentKind::User,
        "assistant" => SegmentKind::Assistant,
        "tool" | "function" => SegmentKind::ToolResult,
        _ => SegmentKind::Other,
    }
}

/// A content: a text, one part or a list of parts. An empty text is no part.
pub(super) fn content(content: Option<&Node<'_>>, kind: SegmentKind, builder: &mut Builder) {
    match content {
        Some(Node::List(parts)) => {
            for part in parts {
                self::part(part, kind, builder);
            }
        }
        Some(one) => part(one, kind, builder),
        None => {}
    }
}

fn part(part: &Node<'_>, kind: SegmentKind, builder: &mut Builder) {
    if let Some(text) = part.as_text() {
        if !text.is_empty() {
            builder.text_part(kind, text);
        }
        return;
    }
    match (part.text_of("type").unwrap_or_default(), part.text_of("text")) {
        ("text" | "input_text" | "output_text" | "", Some(text)) => builder.text_part(kind, text),
        ("thinking" | "reasoning" | "redacted_thinking", _) => match part.text_of("thinking") {
            // The signature is proof for a vendor's service and reaches no prompt of an open model.
            Some(text) => builder.text_part(SegmentKind::Reasoning, text),
            None => builder.value_part(SegmentKind::Reasoning, part, MARKS),
        },
        ("tool_use" | "server_tool_use" | "mcp_tool_use", _) => {
            builder.call_part(part, part.text_of("id"), MARKS);
        }
        (name, _) if is_media(name) => builder.value_part(SegmentKind::Media, part, MARKS),
        _ => builder.value_part(kind, part, PART_MARKS),
    }
}

fn is_media(name: &str) -> bool {
    ["image", "audio", "video", "file", "document"].iter().any(|word| name.contains(word))
}
