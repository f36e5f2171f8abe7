//! Anthropic Messages.

use super::SegmentKind;
use super::build::Builder;
use super::chat::{content, role_kind, tools};
use crate::json::Node;

pub(super) fn body(body: &Node<'_>, builder: &mut Builder) {
    if let Some(system) = body.get("system") {
        builder.begin(&["system"], "");
        content(Some(system), SegmentKind::System, builder);
    }
    tools(body, builder);
    for message in body.get("messages").map(Node::items).unwrap_or_default() {
        self::message(message, builder);
    }
}

fn message(message: &Node<'_>, builder: &mut Builder) {
    let role = message.text_of("role").unwrap_or_default();
    let kind = role_kind(role, SegmentKind::Note);
    builder.begin(&[role], "");
    let Some(Node::List(parts)) = message.get("content") else {
        content(message.get("content"), kind, builder);
        builder.end(kind);
        return;
    };
    for part in parts {
        if part.text_of("type").is_some_and(|name| name.ends_with("tool_result")) {
            // Engines render each result as a message of its own.
            let failed = if part.get("is_error") == Some(&Node::Bool(true)) { "error" } else { "" };
            builder.begin(&["tool", failed], part.text_of("tool_use_id").unwrap_or_default());
            content(part.get("content"), SegmentKind::ToolResult, builder);
            builder.end(SegmentKind::ToolResult);
            builder.begin(&[role], "");
        } else {
            content(Some(part), kind, builder);
        }
    }
    if parts.is_empty() {
        builder.end(kind);
    }
}
