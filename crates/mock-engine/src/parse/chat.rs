//! `/v1/chat/completions`.

use serde_json::Value;

use super::{Body, Context, check_auto_choice, common, content, openai_sampling, stream_options};
use crate::asked::{Asked, PromptIn, ToolChoice};
use crate::conversation::{Call, Conversation, Part, Tool, Turn};
use crate::error::{Api, ApiError};

pub(super) fn parse(body: Body<'_>, context: Context<'_>) -> Result<Asked, ApiError> {
    let mut asked = common(Api::Chat, body, context)?;
    stream_options(body, context, &mut asked)?;
    asked.sampling = openai_sampling(body)?;
    asked.parallel_calls = body.get("parallel_tool_calls") != Some(&Value::Bool(false));
    let mut conversation = Conversation { tools: tools(body)?, turns: Vec::new() };
    asked.choice = choice(body, &conversation.tools)?;
    if asked.choice == ToolChoice::None {
        // What the model must not call it is not shown.
        conversation.tools.clear();
    }
    for message in messages(body)? {
        conversation.push(turn(message)?);
    }
    let generate = body.get("add_generation_prompt") != Some(&Value::Bool(false));
    asked.prompts = vec![PromptIn { tokens: conversation.render(generate), text: None }];
    asked.conversation = Some(conversation);
    check_auto_choice(&asked, context)?;
    Ok(asked)
}

/// The non-empty list of messages.
pub(super) fn messages<'a>(body: Body<'a>) -> Result<&'a [Value], ApiError> {
    let messages = body.list("messages")?.ok_or_else(|| ApiError::missing("messages"))?;
    if messages.is_empty() {
        let says = "List should have at least 1 item after validation, not 0";
        return Err(ApiError::validation("too_short", "'messages'", says));
    }
    Ok(messages)
}

fn turn(message: &Value) -> Result<Turn, ApiError> {
    let Value::Object(map) = message else { return Err(ApiError::wrong_type("messages", "dictionary")) };
    let message = Body(map);
    let name = message.text("role")?.ok_or_else(|| ApiError::missing("role"))?;
    let mut parts = content::parts(message.get("content"))?;
    for call in message.list("tool_calls")?.unwrap_or_default() {
        let function = call.get("function").ok_or_else(|| ApiError::missing("function"))?;
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        let arguments = match function.get("arguments") {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        parts.push(Part::Call(Call::new(None, name.to_owned(), &arguments)));
    }
    Ok(Turn { role: content::role(name), parts })
}

pub(super) fn tools(body: Body<'_>) -> Result<Vec<Tool>, ApiError> {
    body.list("tools")?
        .unwrap_or_default()
        .iter()
        .map(|tool| {
            let function = tool.get("function").ok_or_else(|| ApiError::missing("function"))?;
            let name =
                function.get("name").and_then(Value::as_str).ok_or_else(|| ApiError::missing("name"))?;
            Ok(content::tool(name, function.get("description"), function.get("parameters")))
        })
        .collect()
}

fn choice(body: Body<'_>, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let Some(choice) = body.get("tool_choice") else { return Ok(ToolChoice::Auto) };
    if choice == "none" {
        return Ok(ToolChoice::None);
    }
    if body.get("tools").is_none() {
        let message = "When using `tool_choice`, `tools` must be set.";
        return Err(ApiError::bad_request(message).with_param("tool_choice"));
    }
    let name = match choice {
        Value::String(word) if word == "auto" => return Ok(ToolChoice::Auto),
        Value::String(word) if word == "required" => return Ok(ToolChoice::Required),
        Value::Object(_) => {
            choice.pointer("/function/name").or_else(|| choice.get("name")).and_then(Value::as_str)
        }
        _ => None,
    };
    let Some(name) = name else {
        let message = "Invalid value for `tool_choice`: it must be \"none\", \"auto\", \"required\" or a named \
                       tool.";
        return Err(ApiError::bad_request(message).with_param("tool_choice"));
    };
    named(name, tools)
}

/// A tool choice by name, which must be the name of a tool on offer.
pub(super) fn named(name: &str, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(ToolChoice::Named(name.to_owned()));
    }
    let message = "The tool specified in `tool_choice` does not match any of the specified `tools`";
    Err(ApiError::bad_request(message).with_param("tool_choice"))
}
