//! Responses.

use super::SegmentKind;
use super::build::Builder;
use super::chat::{content, is_system, role_kind, tools};
use crate::json::Node;

/// Members of an item that name it or tell its state.
const ITEM_MARKS: &[&str] = &["id", "status", "cache_control"];

pub(super) fn body(body: &Node<'_>, builder: &mut Builder) {
    if let Some(instructions) = body.text_of("instructions") {
        builder.begin(&["system"], "");
        builder.text_part(SegmentKind::System, instructions);
    }
    let items = body.get("input").map(Node::items).unwrap_or_default();
    let system = items.iter().take_while(|item| is_system(item)).count();
    let (system, conversation) = items.split_at(system);
    for item in system {
        self::item(item, SegmentKind::System, builder);
    }
    tools(body, builder);
    // History that the server keeps: what it says is not known here.
    for name in ["previous_response_id", "conversation"] {
        if let Some(stored) = body.get(name) {
            builder.begin(&[name], "");
            builder.value_part(SegmentKind::Other, stored, &[]);
        }
    }
    if let Some(text) = body.text_of("input") {
        builder.begin(&["user"], "");
        builder.text_part(SegmentKind::User, text);
    }
    for item in conversation {
        self::item(item, SegmentKind::Note, builder);
    }
}

fn item(item: &Node<'_>, of_system: SegmentKind, builder: &mut Builder) {
    let name = item.text_of("type").unwrap_or("message");
    let id = item.text_of("call_id");
    match name {
        "message" => {
            let role = item.text_of("role").unwrap_or_default();
            let kind = role_kind(role, of_system);
            builder.begin(&[role], "");
            content(item.get("content"), kind, builder);
            builder.end(kind);
        }
        "reasoning" => {
            builder.begin(&["assistant"], "");
            builder.value_part(SegmentKind::Reasoning, item, ITEM_MARKS);
        }
        _ if name.ends_with("_call_output") => {
            builder.begin(&["tool"], id.unwrap_or_default());
            content(item.get("output"), SegmentKind::ToolResult, builder);
            builder.end(SegmentKind::ToolResult);
        }
        _ if name.ends_with("_call") => {
            builder.begin(&["assistant"], "");
            builder.call_part(item, id, ITEM_MARKS);
        }
        _ => {
            builder.begin(&[name], "");
            builder.value_part(SegmentKind::Other, item, ITEM_MARKS);
        }
    }
}
