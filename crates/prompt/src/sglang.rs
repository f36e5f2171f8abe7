//! How SGLang turns a chat request into what its chat template is given.
//!
//! - Purpose: the same messages, tools and variables, member for member, as SGLang's validated request has. The other
//!   dialects are converted to a chat-completions body by [`responses`] and [`messages`].
//! - Deliberately absent: tools inside messages, a continued last message (its tokens are appended one by one),
//!   conversation templates that SGLang has built in.
//! - Sources: SGLang 0.5.23: `srt/entrypoints/openai/protocol.py` and `serving_chat.py`,
//!   `srt/parser/jinja_template_utils.py`.

pub(crate) mod messages;
pub(crate) mod responses;

use crate::chat::{Chat, flag, given, invalid, list, map, object, text, unsupported};
use crate::error::RenderError;
use crate::json::{Json, Object};
use crate::model::{ContentFormat, Setup};

/// Members of a message, in the order in which SGLang's model has them.
const MEMBERS: [&str; 9] = [
    "role",
    "content",
    "tool_call_id",
    "name",
    "phase",
    "reasoning_content",
    "tool_calls",
    "tools",
    "prefix",
];
/// Members of a function.
const FUNCTION: [&str; 5] = ["description", "name", "parameters", "strict", "defer_loading"];

/// Converts a chat-completions body.
pub(crate) fn chat(body: &Object, setup: &Setup) -> Result<Chat, RenderError> {
    for (name, why) in [("input_ids", "input ids"), ("reasoning", "reasoning settings"), ("task", "a task")] {
        if given(body, name).is_some() {
            return unsupported(why);
        }
    }
    let variables = variables(body, setup)?;
    let tools = tools(body)?;
    let template = setup.template(tools.is_some()).map_err(|why| RenderError::Unsupported { why })?;
    if given(body, "thinking").is_some() && template.source().contains("thinking_mode") {
        return unsupported("thinking settings");
    }
    let parts = match setup.options.content_format {
        ContentFormat::Auto => template.sglang_parts,
        chosen => chosen == ContentFormat::Parts,
    };
    let mut messages = Vec::new();
    for sent in list(body, "messages")?.unwrap_or_default() {
        let Some(sent) = sent.as_object() else { return invalid("a message is no object") };
        messages.push(message(sent, parts)?);
    }
    if messages.is_empty() {
        return invalid("no messages");
    }
    if template.source().contains("tool_call_id") && !results_in_order(&messages) {
        return unsupported("tool results out of order");
    }
    // The prompt is to end with a user: what the assistant said last becomes a user's words.
    if let Some(last) = messages.last_mut()
        && last.get("role").and_then(Json::as_str) == Some("assistant")
        && let Some(content @ Json::Str(_)) = last.get("content").cloned()
    {
        if flag(body, "continue_final_message", false)? {
            return unsupported("a continued last message");
        }
        *last = object([("role", Json::str("user")), ("content", content)]);
    }
    Ok(Chat {
        messages,
        tools,
        documents: Json::Null,
        add_generation_prompt: true,
        continue_final_message: false,
        variables,
        add_special_tokens: false,
    })
}

/// The template's variables: the server's defaults, the effort, then what the request says.
fn variables(body: &Object, setup: &Setup) -> Result<Object, RenderError> {
    let mut request = map(body, "chat_template_kwargs")?.cloned().unwrap_or_default();
    let mut effort = given(body, "reasoning_effort").cloned();
    if let Some(effort) = &effort {
        let Some(effort) = effort.as_str() else { return unsupported("a reasoning effort in numbers") };
        for name in ["thinking", "enable_thinking"] {
            request.entry(name.to_owned()).or_insert(Json::Bool(effort != "none"));
        }
    }
    for (name, value) in &setup.default_variables {
        request.entry(name.clone()).or_insert_with(|| value.clone());
    }
    if effort.is_none() {
        effort = given(&request, "reasoning_effort").cloned();
    }
    let mut out = Object::new();
    if let Some(effort) = effort {
        if setup.template(true).is_ok_and(|t| t.source().contains("low_effort")) {
            return unsupported("a reasoning effort that the template calls by another name");
        }
        out.insert("reasoning_effort".to_owned(), effort);
    }
    for (name, value) in request {
        if matches!(
            name.as_str(),
            "messages"
                | "tools"
                | "documents"
                | "add_generation_prompt"
                | "continue_final_message"
                | "tokenize"
                | "chat_template"
                | "conversation"
                | "return_dict"
        ) {
            return unsupported("a template variable that collides with an argument");
        }
        out.insert(name, value);
    }
    Ok(out)
}

fn tools(body: &Object) -> Result<Option<Vec<Json>>, RenderError> {
    let Some(tools) = list(body, "tools")?.filter(|tools| !tools.is_empty()) else { return Ok(None) };
    let wanted = match given(body, "tool_choice") {
        Some(Json::Str(choice)) if choice == "none" => return Ok(None),
        Some(Json::Object(choice)) => map(choice, "function")?.and_then(|f| f.get("name")).cloned(),
        _ => None,
    };
    let mut out = Vec::with_capacity(tools.len());
    for tool in tools {
        let Some(tool) = tool.as_object() else { return invalid("a tool is no object") };
        let Some(sent) = map(tool, "function")? else { return invalid("a tool lacks its function") };
        if text(sent, "name")?.is_none() {
            return invalid("a tool lacks a name");
        }
        if wanted.is_some() && sent.get("name") != wanted.as_ref() {
            continue;
        }
        let deferred = tool.get("defer_loading").cloned().unwrap_or(Json::Null);
        // The client's own order, then what it left out, if that is printed at all.
        let mut function: Object = sent
            .iter()
            .filter(|(name, _)| FUNCTION.contains(&name.as_str()))
            .map(|(n, v)| (n.clone(), v.clone()))
            .collect();
        for name in FUNCTION {
            function.entry(name.to_owned()).or_insert(Json::Null);
        }
        if function.get("defer_loading").is_some_and(Json::is_null) {
            function.insert("defer_loading".to_owned(), deferred.clone());
        }
        function
            .retain(|name, value| !(value.is_null() && matches!(name.as_str(), "strict" | "defer_loading")));
        let kind = text(tool, "type")?.unwrap_or("function");
        out.push(Json::Object(object([
            ("type", Json::str(kind)),
            ("function", Json::Object(function)),
            ("defer_loading", deferred),
        ])));
    }
    Ok((!out.is_empty()).then_some(out))
}

fn message(sent: &Object, parts: bool) -> Result<Object, RenderError> {
    let Some(role) = text(sent, "role")? else { return invalid("a message lacks a role") };
    if role == "user" {
        let content = content(sent, role, parts)?;
        return Ok(object([("role", Json::str("user")), ("content", content)]));
    }
    if given(sent, "tools").is_some() {
        return unsupported("tools inside messages");
    }
    let role = role.to_lowercase();
    let mut out = Object::new();
    for name in MEMBERS {
        let value = match name {
            "role" => Json::str(&role),
            "content" => content(sent, &role, parts)?,
            "tool_calls" => match list(sent, name)? {
                None => continue,
                Some(calls) => {
                    Json::List(calls.iter().map(|c| tool_call(c, &role)).collect::<Result<_, _>>()?)
                }
            },
            _ => match given(sent, name) {
                None => continue,
                Some(value) => value.clone(),
            },
        };
        out.insert(name.to_owned(), value);
    }
    // Content in parts is put back last.
    if matches!(sent.get("content"), Some(Json::List(_)))
        && parts
        && let Some(content) = out.shift_remove("content")
    {
        out.insert("content".to_owned(), content);
    }
    Ok(out)
}

fn content(message: &Object, role: &str, parts: bool) -> Result<Json, RenderError> {
    let sent = match message.get("content") {
        None | Some(Json::Null) => return Ok(Json::str("")),
        Some(Json::Str(text)) => return Ok(Json::str(text)),
        Some(Json::List(sent)) => sent,
        Some(_) => return invalid("content is neither text nor parts"),
    };
    let mut texts = Vec::with_capacity(sent.len());
    for part in sent {
        let Some(part) = part.as_object() else { return unsupported("content parts of other kinds") };
        match (text(part, "type")?, text(part, "text")?) {
            (Some("text"), Some(text)) => texts.push(text),
            _ => return unsupported("content parts of other kinds"),
        }
    }
    if !parts || role == "tool" {
        return Ok(Json::Str(texts.join(" ")));
    }
    let part = |text: &str| Json::Object(object([("type", Json::str("text")), ("text", Json::str(text))]));
    Ok(Json::List(texts.into_iter().map(part).collect()))
}

fn tool_call(call: &Json, role: &str) -> Result<Json, RenderError> {
    let Some(call) = call.as_object() else { return invalid("a tool call is no object") };
    let Some(function) = map(call, "function")? else { return invalid("a tool call lacks its function") };
    let arguments = match function.get("arguments") {
        Some(Json::Str(text)) if role == "assistant" => match Json::parse(text.as_bytes())? {
            Json::Object(object) => Json::Object(object),
            _ => return invalid("the arguments of a tool call are no object"),
        },
        other => other.cloned().unwrap_or(Json::Null),
    };
    let or_null = |object: &Object, name: &str| object.get(name).cloned().unwrap_or(Json::Null);
    let function = object([("name", or_null(function, "name")), ("arguments", arguments)]);
    Ok(Json::Object(object([
        ("id", or_null(call, "id")),
        ("index", or_null(call, "index")),
        ("type", Json::str(text(call, "type")?.unwrap_or("function"))),
        ("function", Json::Object(function)),
    ])))
}

/// Whether the results of each message's calls come in the order of the calls, as SGLang would put them.
fn results_in_order(messages: &[Object]) -> bool {
    let mut calls: Vec<&Json> = Vec::new();
    let mut next = 0;
    for message in messages {
        match message.get("role").and_then(Json::as_str) {
            Some("assistant") => {
                let made = message.get("tool_calls").and_then(Json::as_list).unwrap_or_default();
                calls = made.iter().filter_map(|c| c.as_object()?.get("id")).collect();
                next = 0;
            }
            Some("tool" | "function") => {
                let id = message.get("tool_call_id");
                let Some(at) = calls.iter().skip(next).position(|call| Some(*call) == id) else {
                    return false;
                };
                next += at + 1;
            }
            _ => calls.clear(),
        }
    }
    true
}
