//! How vLLM reads a Responses request.
//!
//! - Purpose: input items to chat messages, tools to functions.
//! - Deliberately absent: stored responses (`previous_response_id`): their text is not in the request.
//! - Sources: vLLM 0.32.0: `entrypoints/openai/responses/protocol.py` and `utils.py`, `tool_parsers/utils.py`.

use super::{PartNames, finish, function_definition};
use crate::chat::{Chat, given, invalid, list, map, object, text, unsupported};
use crate::error::RenderError;
use crate::json::{Json, Object};
use crate::model::Setup;

/// Converts a Responses body.
pub(crate) fn chat(body: &Object, setup: &Setup) -> Result<Chat, RenderError> {
    for (name, why) in [
        ("previous_response_id", "a stored response"),
        ("prompt", "a stored prompt"),
        ("previous_input_messages", "previous input messages"),
    ] {
        if given(body, name).is_some() {
            return unsupported(why);
        }
    }
    if body.get("truncation").is_some_and(|t| t.as_str() != Some("disabled")) {
        return unsupported("a truncated prompt");
    }
    let mut messages = Vec::new();
    if let Some(instructions) = text(body, "instructions")?.filter(|i| !i.is_empty()) {
        messages.push(object([("role", Json::str("system")), ("content", Json::str(instructions))]));
    }
    let mut open = false;
    match body.get("input") {
        Some(Json::Str(input)) => {
            messages.push(object([("role", Json::str("user")), ("content", Json::str(input))]));
        }
        Some(Json::List(items)) => {
            let mut converted: Vec<Object> = Vec::with_capacity(items.len());
            for item in items {
                let Some(item) = item.as_object() else { return invalid("an input item is no object") };
                add(&mut converted, item)?;
            }
            messages.extend(converted);
            open = items.last().and_then(Json::as_object).is_some_and(is_open);
        }
        _ => return invalid("no input"),
    }
    let none = given(body, "tool_choice").and_then(Json::as_str) == Some("none");
    let tools = match list(body, "tools")? {
        None | Some([]) => None,
        Some(_) if none && setup.options.exclude_tools_when_tool_choice_none => None,
        Some(tools) => Some(functions(tools)?),
    };
    let effort = map(body, "reasoning")?.map(|r| text(r, "effort")).transpose()?.flatten();
    let extra = [("add_generation_prompt", Json::Bool(!open)), ("continue_final_message", Json::Bool(open))];
    let variables = map(body, "chat_template_kwargs")?;
    finish(setup, &messages, PartNames::Responses, tools, variables, &extra, effort, true)
}

/// Whether the model is to go on with this last item.
fn is_open(item: &Object) -> bool {
    let kind = item.get("type").and_then(Json::as_str).unwrap_or("message");
    matches!(kind, "message" | "reasoning")
        && matches!(item.get("status").and_then(Json::as_str), Some("in_progress" | "incomplete"))
}

/// Adds an item to the messages, or what it says to the assistant message before it.
fn add(messages: &mut Vec<Object>, item: &Object) -> Result<(), RenderError> {
    let role = text(item, "role")?;
    match text(item, "type")? {
        Some("function_call") => {
            let (Some(name), Some(arguments)) = (text(item, "name")?, text(item, "arguments")?) else {
                return invalid("a function call lacks name or arguments");
            };
            let name = match text(item, "namespace")?.filter(|n| !n.is_empty()) {
                Some(namespace) => format!("{namespace}__{name}"),
                None => name.to_owned(),
            };
            call(messages, item, name, arguments.to_owned())
        }
        Some("custom_tool_call") => {
            let Some(name) = text(item, "name")? else { return invalid("a tool call lacks its name") };
            let input = text(item, "input")?.unwrap_or_default();
            let input = Json::Object(object([("input", Json::str(input))]));
            call(messages, item, name.to_owned(), input.dumps(false))
        }
        Some("reasoning") => {
            join(messages, "reasoning", reasoning(item)?);
            Ok(())
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            if item.contains_key("id") && item.get("output").is_some_and(|o| o.as_str().is_none()) {
                return unsupported("a tool output in parts that has an id");
            }
            messages.push(object([
                ("role", Json::str("tool")),
                ("content", item.get("output").cloned().unwrap_or(Json::Null)),
                ("tool_call_id", item.get("call_id").cloned().unwrap_or(Json::Null)),
            ]));
            Ok(())
        }
        None | Some("message") if role == Some("assistant") => {
            let said = match item.get("content") {
                Some(Json::Str(text)) => Some(text.as_str()),
                Some(Json::List(parts)) => {
                    parts.first().and_then(Json::as_object).map(|p| text(p, "text")).transpose()?.flatten()
                }
                _ => None,
            };
            let Some(said) = said else { return unsupported("an assistant message without text") };
            join(messages, "content", said.to_owned());
            Ok(())
        }
        None | Some("message") if role.is_some() => {
            messages.push(item.clone());
            Ok(())
        }
        _ => unsupported("input items of other kinds"),
    }
}

fn call(
    messages: &mut Vec<Object>,
    item: &Object,
    name: String,
    arguments: String,
) -> Result<(), RenderError> {
    let Some(id) = text(item, "call_id")? else { return invalid("a tool call lacks its call_id") };
    let call = Json::Object(object([
        ("id", Json::str(id)),
        ("function", Json::Object(object([("name", Json::Str(name)), ("arguments", Json::Str(arguments))]))),
        ("type", Json::str("function")),
    ]));
    match messages.last_mut().filter(|m| is_assistant(m)) {
        Some(last) => match last.get_mut("tool_calls") {
            Some(Json::List(calls)) => calls.push(call),
            _ => {
                last.insert("tool_calls".to_owned(), Json::List(vec![call]));
            }
        },
        None => {
            messages.push(object([("role", Json::str("assistant")), ("tool_calls", Json::List(vec![call]))]))
        }
    }
    Ok(())
}

/// Puts text into the assistant message before it where that has none yet, else into a new one.
fn join(messages: &mut Vec<Object>, member: &str, text: String) {
    if let Some(last) = messages.last_mut().filter(|m| is_assistant(m))
        && given(last, member).is_none()
    {
        last.insert(member.to_owned(), Json::Str(text));
        return;
    }
    messages.push(object([("role", Json::str("assistant")), (member, Json::Str(text))]));
}

fn is_assistant(message: &Object) -> bool {
    message.get("role").and_then(Json::as_str) == Some("assistant")
}

fn reasoning(item: &Object) -> Result<String, RenderError> {
    if given(item, "encrypted_content").is_some_and(Json::truthy) {
        return invalid("encrypted reasoning");
    }
    let first = |name: &str| -> Result<Option<String>, RenderError> {
        let part = list(item, name)?.and_then(<[Json]>::first).and_then(Json::as_object);
        Ok(part.map(|p| text(p, "text")).transpose()?.flatten().map(str::to_owned))
    };
    if list(item, "summary")?.is_none() {
        return unsupported("reasoning without a summary");
    }
    Ok(first("content")?.or(first("summary")?).unwrap_or_default())
}

/// The tools that the model is shown: functions, those in namespaces, and custom tools as functions of one text.
fn functions(tools: &[Json]) -> Result<Vec<Json>, RenderError> {
    let mut out = Vec::new();
    for tool in tools {
        let Some(tool) = tool.as_object() else { return invalid("a tool is no object") };
        match text(tool, "type")? {
            Some("function") => out.push(function(tool, None)?),
            Some("namespace") => {
                let Some(namespace) = text(tool, "name")? else {
                    return invalid("a namespace lacks its name");
                };
                for inner in list(tool, "tools")?.unwrap_or_default() {
                    let Some(inner) = inner.as_object() else { return invalid("a tool is no object") };
                    if text(inner, "type")? == Some("function") {
                        out.push(function(inner, Some(namespace))?);
                    }
                }
            }
            Some("custom") => out.push(custom(tool)?),
            Some(_) => {}
            None => return invalid("a tool lacks its type"),
        }
    }
    Ok(out)
}

fn function(tool: &Object, namespace: Option<&str>) -> Result<Json, RenderError> {
    let mut definition = function_definition(tool, None)?;
    if let (Some(namespace), Some(Json::Str(name))) = (namespace, definition.get("name")) {
        let flat = format!("{namespace}__{name}");
        definition.insert("name".to_owned(), Json::Str(flat));
    }
    Ok(as_tool(definition))
}

fn custom(tool: &Object) -> Result<Json, RenderError> {
    let input = object([
        ("type", Json::str("string")),
        ("description", Json::str("The freeform text payload for this tool.")),
    ]);
    let parameters = object([
        ("type", Json::str("object")),
        ("properties", Json::Object(object([("input", Json::Object(input))]))),
        ("required", Json::List(vec![Json::str("input")])),
        ("additionalProperties", Json::Bool(false)),
    ]);
    let mut tool = tool.clone();
    tool.insert("parameters".to_owned(), Json::Object(parameters));
    // The shim's own setting of `strict` is not the client's.
    tool.shift_remove("strict");
    Ok(as_tool(function_definition(&tool, None)?))
}

fn as_tool(definition: Object) -> Json {
    Json::Object(object([("type", Json::str("function")), ("function", Json::Object(definition))]))
}
