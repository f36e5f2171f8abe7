//! `/v1/responses`.

use serde_json::Value;

use super::{Body, Context, check_auto_choice, common, content};
use crate::asked::{Asked, PromptIn, Sampling, ToolChoice};
use crate::conversation::{Call, Conversation, Part, Role, Tool, Turn, canonical_text};
use crate::error::{Api, ApiError};

pub(super) fn parse(body: Body<'_>, context: Context<'_>) -> Result<Asked, ApiError> {
    let mut asked = common(Api::Responses, body, context)?;
    // The stream's last event always carries usage.
    asked.include_usage = true;
    asked.sampling = Sampling {
        max_tokens: body.count("max_output_tokens", 1)?,
        ignore_eos: body.flag("ignore_eos")?,
        stop: body.texts("stop")?.into_iter().filter(|s| !s.is_empty()).collect(),
        seed: body.int("seed")?,
        ..Sampling::default()
    };
    asked.parallel_calls = body.get("parallel_tool_calls") != Some(&Value::Bool(false));
    if let Some(previous) = body.text("previous_response_id")? {
        return Err(not_found(previous));
    }
    let mut conversation = Conversation { tools: tools(body)?, turns: Vec::new() };
    asked.choice = choice(body, &conversation.tools)?;
    if asked.choice == ToolChoice::None {
        conversation.tools.clear();
    }
    if let Some(instructions) = body.text("instructions")? {
        conversation.push(Turn::text(Role::System, instructions));
    }
    match body.get("input").ok_or_else(|| ApiError::missing("input"))? {
        Value::String(text) => conversation.push(Turn::text(Role::User, text.as_str())),
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                if let Some(turn) = turn(item)? {
                    conversation.push(turn);
                }
            }
        }
        Value::Array(_) => {
            let says = "List should have at least 1 item after validation, not 0";
            return Err(ApiError::validation("too_short", "'input'", says));
        }
        _ => return Err(ApiError::wrong_type("input", "string")),
    }
    asked.prompts = vec![PromptIn { tokens: conversation.render(true), text: None }];
    asked.conversation = Some(conversation);
    check_auto_choice(&asked, context)?;
    Ok(asked)
}

/// Engines keep no responses unless they are told to.
pub(crate) fn not_found(id: &str) -> ApiError {
    ApiError::new(404, "invalid_request_error", format!("Response with id '{id}' not found."))
        .with_param("response_id")
}

fn turn(item: &Value) -> Result<Option<Turn>, ApiError> {
    let Value::Object(map) = item else { return Err(ApiError::wrong_type("input", "dictionary")) };
    let item_body = Body(map);
    let kind = item_body.text("type")?.unwrap_or("message");
    Ok(match kind {
        "message" => {
            let role = item_body.text("role")?.ok_or_else(|| ApiError::missing("role"))?;
            Some(Turn { role: content::role(role), parts: content::parts(item_body.get("content"))? })
        }
        "function_call" | "custom_tool_call" => {
            let name = item_body.text("name")?.ok_or_else(|| ApiError::missing("name"))?;
            let key = if kind == "function_call" { "arguments" } else { "input" };
            let namespace = item_body.text("namespace")?.map(str::to_owned);
            let call = Call::new(namespace, name.to_owned(), item_body.text(key)?.unwrap_or_default());
            Some(Turn { role: Role::Assistant, parts: vec![Part::Call(call)] })
        }
        "function_call_output" | "custom_tool_call_output" => {
            Some(Turn { role: Role::Tool, parts: content::parts(item_body.get("output"))? })
        }
        "reasoning" | "item_reference" | "compaction" => None,
        // Calls of built-in tools: their text stands for them.
        other if other.ends_with("_output") => Some(Turn::text(Role::Tool, canonical_text(item))),
        _ => Some(Turn::text(Role::Assistant, canonical_text(item))),
    })
}

fn tools(body: Body<'_>) -> Result<Vec<Tool>, ApiError> {
    let mut tools = Vec::new();
    for tool in body.list("tools")?.unwrap_or_default() {
        flatten(tool, None, &mut tools)?;
    }
    Ok(tools)
}

/// Functions and custom tools have names, built-in tools have types only, namespaces hold more tools.
fn flatten(tool: &Value, namespace: Option<&str>, tools: &mut Vec<Tool>) -> Result<(), ApiError> {
    let kind = tool.get("type").and_then(Value::as_str).unwrap_or("function");
    let name = tool.get("name").and_then(Value::as_str);
    match (kind, name) {
        ("namespace", Some(name)) if namespace.is_none() => {
            for inner in tool.get("tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default() {
                flatten(inner, Some(name), tools)?;
            }
            Ok(())
        }
        ("function" | "namespace", None) => Err(ApiError::missing("name")),
        (kind, name) => {
            let parameters = tool.get("parameters");
            let mut flat = content::tool(name.unwrap_or(kind), tool.get("description"), parameters);
            flat.namespace = namespace.map(str::to_owned);
            tools.push(flat);
            Ok(())
        }
    }
}

fn choice(body: Body<'_>, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let Some(choice) = body.get("tool_choice") else { return Ok(ToolChoice::Auto) };
    let word = choice.as_str();
    if word != Some("none") && word != Some("auto") && tools.is_empty() {
        let message = "When using `tool_choice`, `tools` must be set.";
        return Err(ApiError::bad_request(message).with_param("tool_choice"));
    }
    match (word, choice) {
        (Some("auto"), _) => Ok(ToolChoice::Auto),
        (Some("none"), _) => Ok(ToolChoice::None),
        (Some("required"), _) => Ok(ToolChoice::Required),
        (None, Value::Object(map)) => match map.get("name").and_then(Value::as_str) {
            Some(name) => super::chat::named(name, tools),
            None => Ok(ToolChoice::Auto),
        },
        _ => Err(ApiError::wrong_type("tool_choice", "string")),
    }
}
