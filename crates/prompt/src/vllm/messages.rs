//! How vLLM reads an Anthropic Messages request: as the chat-completions request that it makes of it.
//!
//! - Deliberately absent: images, tool references, tools added in mid-conversation.
//! - Sources: vLLM 0.32.0: `entrypoints/anthropic/serving.py` and `protocol.py`.

use super::{BILLING_LINE, PartNames, finish, function_definition, normal};
use crate::chat::{Chat, given, invalid, list, map, object, text, tool_use, unsupported};
use crate::error::RenderError;
use crate::json::{Json, Object};
use crate::model::Setup;

/// Converts a Messages body.
pub(crate) fn chat(body: &Object, setup: &Setup) -> Result<Chat, RenderError> {
    if map(body, "kv_transfer_params")?.is_some_and(|p| given(p, "prompt_token_ids").is_some()) {
        return unsupported("forwarded prompt token ids");
    }
    let sent = list(body, "messages")?.unwrap_or_default();
    let mut messages = Vec::with_capacity(sent.len() + 1);
    if let Some(system) = system(body, sent, setup.merge_inline_system)? {
        messages.push(system);
    }
    for message in sent {
        let Some(message) = message.as_object() else { return invalid("a message is no object") };
        add(&mut messages, message, setup.merge_inline_system)?;
    }
    let messages = messages.iter().map(normal).collect::<Result<Vec<_>, _>>()?;
    let tools =
        list(body, "tools")?.map(|t| t.iter().map(tool).collect::<Result<Vec<_>, _>>()).transpose()?;
    let none = map(body, "tool_choice")?.and_then(|c| c.get("type")).and_then(Json::as_str) == Some("none");
    let tools = tools.filter(|_| !(none && setup.options.exclude_tools_when_tool_choice_none));
    let mut effort = map(body, "output_config")?.map(|c| text(c, "effort")).transpose()?.flatten();
    if map(body, "thinking")?.and_then(|t| t.get("type")).and_then(Json::as_str) == Some("disabled") {
        effort = Some(setup.disabled_effort);
    }
    let extra = [("add_generation_prompt", Json::Bool(true)), ("continue_final_message", Json::Bool(false))];
    let variables = map(body, "chat_template_kwargs")?;
    finish(setup, &messages, PartNames::Chat, tools, variables, &extra, effort, false)
}

/// The leading system message: the system field, and where the template wants it so the later ones too.
fn system(body: &Object, sent: &[Json], merge: bool) -> Result<Option<Object>, RenderError> {
    let mut out = String::new();
    match given(body, "system") {
        None => {}
        // As text it is taken whole, billing line or not.
        Some(Json::Str(system)) => out.push_str(system),
        Some(Json::List(blocks)) => out.push_str(&texts(blocks)?),
        Some(_) => return invalid("system is neither text nor blocks"),
    }
    for message in sent.iter().filter(|_| merge).filter_map(Json::as_object) {
        if text(message, "role")? == Some("system") {
            out.push_str(&system_text(message)?);
        }
    }
    Ok((!out.is_empty()).then(|| object([("role", Json::str("system")), ("content", Json::Str(out))])))
}

fn system_text(message: &Object) -> Result<String, RenderError> {
    match message.get("content") {
        Some(Json::Str(text)) if text.starts_with(BILLING_LINE) => Ok(String::new()),
        Some(Json::Str(text)) => Ok(text.clone()),
        Some(Json::List(blocks)) => texts(blocks),
        _ => invalid("content is neither text nor blocks"),
    }
}

/// The text blocks run together, without those that begin with the billing line.
fn texts(blocks: &[Json]) -> Result<String, RenderError> {
    let mut out = String::new();
    for block in blocks {
        let Some(block) = block.as_object() else { return invalid("a block is no object") };
        match text(block, "type")? {
            Some("text") => {}
            Some("tool_addition" | "tool_removal") => {
                return unsupported("tools changed in the conversation");
            }
            _ => continue,
        }
        let said = text(block, "text")?.unwrap_or_default();
        if !said.starts_with(BILLING_LINE) {
            out.push_str(said);
        }
    }
    Ok(out)
}

/// Adds the chat messages that one message makes: its tool results first, each one of its own.
fn add(messages: &mut Vec<Object>, message: &Object, merge: bool) -> Result<(), RenderError> {
    let Some(role) = text(message, "role")? else { return invalid("a message lacks a role") };
    if role == "system" {
        let said = if merge { String::new() } else { system_text(message)? };
        if !said.is_empty() {
            messages.push(object([("role", Json::str("system")), ("content", Json::Str(said))]));
        }
        return Ok(());
    }
    let mut out = object([("role", Json::str(role))]);
    match message.get("content") {
        Some(Json::Str(text)) => {
            out.insert("content".to_owned(), Json::str(text));
        }
        Some(Json::List(blocks)) => {
            let mut said = Said::default();
            for block in blocks {
                let Some(block) = block.as_object() else { return invalid("a block is no object") };
                said.block(messages, block, role)?;
            }
            said.finish(&mut out);
        }
        _ => return invalid("content is neither text nor blocks"),
    }
    if role != "user" || out.contains_key("content") {
        messages.push(out);
    }
    Ok(())
}

/// What the blocks of one message come to.
#[derive(Default)]
struct Said {
    parts: Vec<Json>,
    calls: Vec<Json>,
    thoughts: Option<String>,
}

impl Said {
    fn block(&mut self, messages: &mut Vec<Object>, block: &Object, role: &str) -> Result<(), RenderError> {
        match text(block, "type")?.unwrap_or_default() {
            "text" => {
                if let Some(said) = text(block, "text")?.filter(|t| !t.is_empty()) {
                    self.part(said.to_owned());
                }
            }
            "thinking" => {
                if let Some(thought) = text(block, "thinking")? {
                    self.thoughts.get_or_insert_default().push_str(thought);
                }
            }
            "redacted_thinking" => {}
            "tool_use" => self.calls.push(tool_use(block)?),
            "tool_result" if role == "user" => messages.push(tool_result(block)?),
            "tool_result" => match block.get("content") {
                None | Some(Json::Null) => self.part("Tool result: ".to_owned()),
                Some(Json::Str(text)) => self.part(format!("Tool result: {text}")),
                Some(_) => return unsupported("a tool result of the assistant in parts"),
            },
            _ => return unsupported("blocks of other kinds"),
        }
        Ok(())
    }

    fn part(&mut self, text: String) {
        self.parts.push(Json::Object(object([("type", Json::str("text")), ("text", Json::Str(text))])));
    }

    fn finish(mut self, message: &mut Object) {
        if let Some(thoughts) = self.thoughts {
            message.insert("reasoning".to_owned(), Json::Str(thoughts));
        }
        if !self.calls.is_empty() {
            message.insert("tool_calls".to_owned(), Json::List(self.calls));
        }
        if self.parts.len() > 1 {
            message.insert("content".to_owned(), Json::List(self.parts));
        } else if let Some(Json::Object(mut only)) = self.parts.pop()
            && let Some(text) = only.shift_remove("text")
        {
            message.insert("content".to_owned(), text);
        }
    }
}

fn tool_result(block: &Object) -> Result<Object, RenderError> {
    let content = match block.get("content") {
        None | Some(Json::Null) => String::new(),
        Some(Json::Str(text)) => text.clone(),
        Some(Json::List(items)) => {
            let mut texts = Vec::with_capacity(items.len());
            for item in items {
                let Some(item) = item.as_object() else {
                    return invalid("a tool result's part is no object");
                };
                match text(item, "type")? {
                    Some("text") => texts.push(text(item, "text")?.unwrap_or_default()),
                    _ => return unsupported("a tool result that is not all text"),
                }
            }
            texts.join("\n")
        }
        Some(_) => return invalid("a tool result is neither text nor parts"),
    };
    Ok(object([
        ("role", Json::str("tool")),
        ("tool_call_id", Json::str(text(block, "tool_use_id")?.unwrap_or_default())),
        ("content", Json::Str(content)),
    ]))
}

fn tool(tool: &Json) -> Result<Json, RenderError> {
    let Some(tool) = tool.as_object() else { return invalid("a tool is no object") };
    let Some(mut schema) = map(tool, "input_schema")?.cloned() else {
        return invalid("a tool lacks its input_schema");
    };
    schema.entry("type".to_owned()).or_insert_with(|| Json::str("object"));
    let mut function = tool.clone();
    function.insert("parameters".to_owned(), Json::Object(schema));
    let function = function_definition(&function, None)?;
    Ok(Json::Object(object([("type", Json::str("function")), ("function", Json::Object(function))])))
}
