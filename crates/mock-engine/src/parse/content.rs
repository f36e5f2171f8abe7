//! Message contents and tools, which the APIs write in different ways.

use serde_json::Value;

use crate::conversation::{Part, Role, Tool, canonical_text};
use crate::error::ApiError;

/// The role that the template renders for a role name.
pub(super) fn role(name: &str) -> Role {
    match name {
        "system" | "developer" => Role::System,
        "assistant" | "model" => Role::Assistant,
        "tool" | "function" => Role::Tool,
        _ => Role::User,
    }
}

/// A stand-in for media: equal media have equal digests.
pub(super) fn media(part: &Value) -> Part {
    Part::Media(format!("{:016x}", xxhash_rust::xxh3::xxh3_64(canonical_text(part).as_bytes())))
}

/// Contents that are a text or a list of parts, in any of the APIs. Reasoning is left out.
pub(super) fn parts(content: Option<&Value>) -> Result<Vec<Part>, ApiError> {
    match content {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![Part::Text(text.clone())]),
        Some(Value::Array(items)) => {
            let mut parts = Vec::with_capacity(items.len());
            for item in items {
                parts.extend(part(item)?);
            }
            Ok(parts)
        }
        Some(_) => Err(ApiError::wrong_type("content", "string")),
    }
}

fn part(item: &Value) -> Result<Option<Part>, ApiError> {
    if let Value::String(text) = item {
        return Ok(Some(Part::Text(text.clone())));
    }
    let kind = item.get("type").and_then(Value::as_str).unwrap_or("text");
    match kind {
        "text" | "input_text" | "output_text" | "refusal" => {
            let key = if kind == "refusal" { "refusal" } else { "text" };
            match item.get(key) {
                Some(Value::String(text)) => Ok(Some(Part::Text(text.clone()))),
                _ => Err(ApiError::wrong_type("content", "string")),
            }
        }
        "image" | "image_url" | "input_image" | "input_audio" | "audio_url" | "video_url" | "file"
        | "input_file" | "document" | "image_pil" | "search_result" => Ok(Some(media(item))),
        "thinking" | "redacted_thinking" | "reasoning" | "reasoning_text" | "summary_text" => Ok(None),
        _ => Err(ApiError::bad_request(format!("Unknown part type: {kind}"))),
    }
}

/// A tool from its parts.
pub(super) fn tool(name: &str, description: Option<&Value>, parameters: Option<&Value>) -> Tool {
    Tool {
        namespace: None,
        name: name.to_owned(),
        description: description.and_then(Value::as_str).unwrap_or_default().to_owned(),
        parameters: parameters.cloned().unwrap_or(Value::Null),
    }
}
