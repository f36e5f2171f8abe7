//! How SGLang reads an Anthropic Messages request: as the chat-completions request that it makes of it.
//!
//! - Deliberately absent: images, search results, references to tools; reasoning of earlier turns where the markers
//!   of the engine's reasoning parser are not known from the template.
//! - `thinking` is a switch of the engine's reasoning parser, which its requests do not name: SGLang refuses
//!   enabled thinking without one, so it is taken to be there, and to switch what the template reads.
//! - Sources: SGLang 0.5.23: `srt/entrypoints/anthropic/serving.py` and `protocol.py`, `apply_reasoning_enabled` and
//!   `wrap_reasoning_history` of `srt/entrypoints/openai/serving_chat.py`.

use crate::chat::{Chat, given, invalid, list, map, object, text, tool_use, unsupported};
use crate::error::RenderError;
use crate::json::{Json, Object};
use crate::model::Setup;

/// Server tools by the beginnings of their types: the model is not shown them.
const SERVER_TOOLS: [&str; 4] = ["web_search_", "computer_", "bash_", "text_editor_"];
/// Markers of reasoning that nearly all of SGLang's parsers have.
const THINK: (&str, &str) = ("<think>", "</think>");

/// Converts a Messages body.
pub(crate) fn chat(body: &Object, setup: &Setup) -> Result<Chat, RenderError> {
    let thinking = thinking(body)?;
    let sent = list(body, "messages")?.unwrap_or_default();
    let mut messages = Vec::with_capacity(sent.len() + 1);
    messages.extend(system(body, sent, !setup.inline_system)?);
    for message in sent {
        let Some(message) = message.as_object() else { return invalid("a message is no object") };
        let Some(role) = text(message, "role")? else { return invalid("a message lacks a role") };
        if role == "system" && !setup.inline_system {
            continue;
        }
        let markers = thinking == Some(true) && source_has(setup, THINK.0)?;
        add(&mut messages, message, role, markers)?;
    }
    let mut variables = Object::new();
    if let Some(enabled) = thinking {
        if source_has(setup, "thinking_mode")? || source_has(setup, "reasoning_effort")? {
            return unsupported("thinking that the template calls by another name");
        }
        for name in ["thinking", "enable_thinking"] {
            variables.insert(name.to_owned(), Json::Bool(enabled));
        }
    }
    let effort = map(body, "output_config")?.map(|config| text(config, "effort")).transpose()?.flatten();
    if let Some(effort) = effort {
        let effort = if effort == "xhigh" { "max" } else { effort };
        variables.insert("reasoning_effort".to_owned(), Json::str(effort));
    }
    let mut chat = Object::new();
    chat.insert("messages".to_owned(), Json::List(messages.into_iter().map(Json::Object).collect()));
    chat.insert("chat_template_kwargs".to_owned(), Json::Object(variables));
    let tools = tools(body)?;
    if !tools.is_empty() {
        chat.insert("tools".to_owned(), Json::List(tools));
        chat.insert("tool_choice".to_owned(), choice(body)?);
    }
    super::chat(&chat, setup)
}

/// Whether thinking is switched on or off.
fn thinking(body: &Object) -> Result<Option<bool>, RenderError> {
    let kind = map(body, "thinking")?.map(|thinking| text(thinking, "type")).transpose()?.flatten();
    Ok(kind.map(|kind| kind != "disabled"))
}

fn source_has(setup: &Setup, word: &str) -> Result<bool, RenderError> {
    let template = setup.template(false).map_err(|why| RenderError::Unsupported { why })?;
    Ok(template.source().contains(word))
}

/// The leading system message: the system field, and where the template wants it so the later ones too.
fn system(body: &Object, sent: &[Json], merge: bool) -> Result<Option<Object>, RenderError> {
    let mut parts: Vec<String> = Vec::new();
    match given(body, "system") {
        None => {}
        Some(Json::Str(text)) => parts.extend((!text.trim().is_empty()).then(|| text.clone())),
        Some(Json::List(blocks)) => parts.extend(texts(blocks)?.into_iter().map(str::to_owned)),
        Some(_) => return invalid("system is neither text nor blocks"),
    }
    for message in sent.iter().filter(|_| merge).filter_map(Json::as_object) {
        if text(message, "role")? != Some("system") {
            continue;
        }
        let said = match message.get("content") {
            Some(Json::Str(text)) => text.trim().to_owned(),
            Some(Json::List(blocks)) => {
                let texts = texts(blocks)?.into_iter().map(str::trim).filter(|text| !text.is_empty());
                texts.collect::<Vec<_>>().join("\n")
            }
            _ => return invalid("content is neither text nor blocks"),
        };
        parts.extend((!said.is_empty()).then_some(said));
    }
    let system = || object([("role", Json::str("system")), ("content", Json::Str(parts.join("\n")))]);
    Ok((!parts.is_empty()).then(system))
}

/// The texts of text blocks, but empty ones.
fn texts(blocks: &[Json]) -> Result<Vec<&str>, RenderError> {
    let mut out = Vec::new();
    for block in blocks {
        let Some(block) = block.as_object() else { return invalid("a block is no object") };
        if text(block, "type")? == Some("text") {
            out.extend(text(block, "text")?.filter(|text| !text.is_empty()));
        }
    }
    Ok(out)
}

/// Adds the chat messages that one message makes.
fn add(messages: &mut Vec<Object>, message: &Object, role: &str, markers: bool) -> Result<(), RenderError> {
    let blocks = match message.get("content") {
        Some(content @ Json::Str(_)) => {
            messages.push(object([("role", Json::str(role)), ("content", content.clone())]));
            return Ok(());
        }
        Some(Json::List(blocks)) => blocks,
        _ => return invalid("content is neither text nor blocks"),
    };
    let mut parts = Vec::new();
    let mut calls = Vec::new();
    if role == "assistant" {
        parts.extend(thoughts(blocks, markers)?.map(part));
    }
    for block in blocks {
        let Some(block) = block.as_object() else { return invalid("a block is no object") };
        match text(block, "type")?.unwrap_or_default() {
            "thinking" | "redacted_thinking" => {}
            "text" => parts.extend(text(block, "text")?.map(|text| part(text.to_owned()))),
            "tool_use" => calls.push(tool_use(block)?),
            "tool_result" => {
                let (content, said) = result(block)?;
                if role != "user" {
                    parts.push(part(format!("Tool result: {said}")));
                    continue;
                }
                if !parts.is_empty() {
                    messages.push(said_by("user", std::mem::take(&mut parts)));
                }
                let id = given(block, "tool_use_id").or_else(|| given(block, "id"));
                messages.push(object([
                    ("role", Json::str("tool")),
                    ("tool_call_id", id.cloned().unwrap_or_else(|| Json::str(""))),
                    ("content", content),
                ]));
            }
            _ => return unsupported("blocks of other kinds"),
        }
    }
    if parts.is_empty() && calls.is_empty() && role == "user" {
        return Ok(());
    }
    let mut out = if parts.is_empty() {
        object([("role", Json::str(role)), ("content", Json::str(""))])
    } else {
        said_by(role, parts)
    };
    if !calls.is_empty() {
        out.insert("tool_calls".to_owned(), Json::List(calls));
    }
    messages.push(out);
    Ok(())
}

/// What the assistant thought, as a text in its answer.
fn thoughts(blocks: &[Json], markers: bool) -> Result<Option<String>, RenderError> {
    let mut thoughts = Vec::new();
    for block in blocks.iter().filter_map(Json::as_object) {
        match text(block, "type")? {
            Some("redacted_thinking") => return invalid("redacted thinking"),
            Some("thinking") => thoughts.extend(text(block, "thinking")?.filter(|text| !text.is_empty())),
            _ => {}
        }
    }
    if thoughts.is_empty() {
        return Ok(None);
    }
    if !markers {
        return unsupported("reasoning of earlier turns");
    }
    Ok(Some(format!("{}{}\n{}", THINK.0, thoughts.join("\n"), THINK.1)))
}

fn part(text: String) -> Json {
    Json::Object(object([("type", Json::str("text")), ("text", Json::Str(text))]))
}

/// A message of these parts: of a single one the text alone.
fn said_by(role: &str, mut parts: Vec<Json>) -> Object {
    let content = match parts.pop() {
        Some(Json::Object(mut only)) if parts.is_empty() => only.shift_remove("text").unwrap_or(Json::Null),
        last => {
            parts.extend(last);
            Json::List(parts)
        }
    };
    object([("role", Json::str(role)), ("content", content)])
}

/// A tool's result as content, and as one text.
fn result(block: &Object) -> Result<(Json, String), RenderError> {
    match given(block, "content") {
        None => Ok((Json::str(""), String::new())),
        Some(Json::Str(text)) => Ok((Json::str(text), text.clone())),
        Some(Json::List(items)) => {
            let mut texts = Vec::with_capacity(items.len());
            for item in items {
                let Some(item) = item.as_object() else {
                    return invalid("a tool result's part is no object");
                };
                match text(item, "type")? {
                    Some("text") => texts.extend(text(item, "text")?.filter(|text| !text.is_empty())),
                    _ => return unsupported("a tool result that is not all text"),
                }
            }
            let content = match texts.as_slice() {
                [] => Json::str(""),
                [only] => Json::str(*only),
                all => Json::List(all.iter().map(|text| part((*text).to_owned())).collect()),
            };
            Ok((content, texts.join("\n")))
        }
        Some(_) => invalid("a tool result is neither text nor parts"),
    }
}

fn tools(body: &Object) -> Result<Vec<Json>, RenderError> {
    let mut out = Vec::new();
    for tool in list(body, "tools")?.unwrap_or_default() {
        let Some(tool) = tool.as_object() else { return invalid("a tool is no object") };
        let kind = text(tool, "type")?.unwrap_or_default();
        if SERVER_TOOLS.iter().any(|server| kind.starts_with(server)) {
            continue;
        }
        let Some(mut schema) = map(tool, "input_schema")?.cloned() else {
            return invalid("a tool lacks its input_schema");
        };
        schema.entry("type".to_owned()).or_insert_with(|| Json::str("object"));
        let function = object([
            ("name", tool.get("name").cloned().unwrap_or(Json::Null)),
            ("description", Json::str(text(tool, "description")?.unwrap_or_default())),
            ("parameters", Json::Object(schema)),
            ("strict", given(tool, "strict").cloned().unwrap_or(Json::Bool(false))),
        ]);
        let mut shown = object([("type", Json::str("function")), ("function", Json::Object(function))]);
        if let Some(deferred) = given(tool, "defer_loading") {
            shown.insert("defer_loading".to_owned(), deferred.clone());
        }
        out.push(Json::Object(shown));
    }
    Ok(out)
}

fn choice(body: &Object) -> Result<Json, RenderError> {
    let Some(choice) = map(body, "tool_choice")? else { return Ok(Json::str("auto")) };
    Ok(match text(choice, "type")? {
        Some("none") => Json::str("none"),
        Some("any") => Json::str("required"),
        Some("tool") => {
            let name = choice.get("name").cloned().unwrap_or(Json::Null);
            Json::Object(object([
                ("type", Json::str("function")),
                ("function", Json::Object(object([("name", name)]))),
            ]))
        }
        _ => Json::str("auto"),
    })
}
