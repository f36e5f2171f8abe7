//! How vLLM turns a chat request into what its chat template is given.
//!
//! - Purpose: the same messages, tools and variables, member for member, as vLLM's validated request has.
//! - Inputs: a chat-completions body (the other dialects are converted to one, or to its messages, by
//!   [`responses`] and [`messages`]). Output: [`Chat`].
//! - Invariants: I-PRM-4 a body that holds what is not converted here (media, its own template, forwarded
//!   token ids, truncation) is unsupported.
//! - Sources: vLLM 0.32.0: `entrypoints/openai/chat_completion/protocol.py`, `renderers/chat_utils.py`,
//!   `renderers/hf.py`, `renderers/params.py`.

pub(crate) mod messages;
pub(crate) mod responses;

use crate::chat::{Chat, arguments, flag, given, invalid, list, map, object, reordered, text, unsupported};
use crate::error::RenderError;
use crate::json::{Json, Object};
use crate::model::{ContentFormat, Setup};

/// The first words of a line that Claude Code puts into its system prompt and that changes with every request.
const BILLING_LINE: &str = "x-anthropic-billing-header";

/// Members of a content part that its validated forms know; the others reach the template.
const PART_FIELDS: [&str; 18] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
    "video_embeds",
    "video_url",
];

/// Arguments of `apply_chat_template` that a request's template variables would collide with.
const TAKEN: [&str; 11] = [
    "chat_template",
    "conversation",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "self",
    "tokenize",
    "truncation",
];

/// Which content parts hold text: a Responses request has names of its own for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartNames {
    /// `text`, `refusal`, `thinking`.
    Chat,
    /// Those and `input_text`, `output_text`.
    Responses,
}

/// Converts a chat-completions body.
pub(crate) fn chat(body: &Object, setup: &Setup) -> Result<Chat, RenderError> {
    for (name, why) in [
        ("chat_template", "a chat template in the request"),
        ("truncate_prompt_tokens", "a truncated prompt"),
    ] {
        if given(body, name).is_some() {
            return unsupported(why);
        }
    }
    if map(body, "kv_transfer_params")?.is_some_and(|p| given(p, "prompt_token_ids").is_some()) {
        return unsupported("forwarded prompt token ids");
    }
    let Some(sent) = list(body, "messages")? else { return invalid("no messages") };
    let mut messages = Vec::with_capacity(sent.len());
    for message in sent {
        let Some(message) = message.as_object() else { return invalid("a message is no object") };
        messages.push(normal(message)?);
    }
    let tools = match list(body, "tools")? {
        Some([]) => return invalid("tools is empty"),
        tools => tools.map(|t| t.iter().map(tool).collect::<Result<Vec<_>, _>>()).transpose()?,
    };
    let none = given(body, "tool_choice").and_then(Json::as_str) == Some("none");
    let tools = tools.filter(|_| !(none && setup.options.exclude_tools_when_tool_choice_none));
    let extra = [
        ("documents", body.get("documents").cloned().unwrap_or(Json::Null)),
        ("add_generation_prompt", Json::Bool(flag(body, "add_generation_prompt", true)?)),
        ("continue_final_message", Json::Bool(flag(body, "continue_final_message", false)?)),
    ];
    let effort = text(body, "reasoning_effort")?;
    let special = flag(body, "add_special_tokens", false)?;
    finish(
        setup,
        &messages,
        PartNames::Chat,
        tools,
        map(body, "chat_template_kwargs")?,
        &extra,
        effort,
        special,
    )
}

/// A chat message as the validated request holds it.
fn normal(message: &Object) -> Result<Object, RenderError> {
    let mut message = message.clone();
    let old = message.shift_remove("reasoning_content");
    if let Some(old) = old.filter(|old| !old.is_null())
        && given(&message, "reasoning").is_none()
    {
        message.insert("reasoning".to_owned(), old);
    }
    if let Some(calls) = list(&message, "tool_calls")? {
        let calls = calls.iter().map(tool_call).collect::<Result<Vec<_>, _>>()?;
        message.insert("tool_calls".to_owned(), Json::List(calls));
    }
    Ok(message)
}

fn tool_call(call: &Json) -> Result<Json, RenderError> {
    let Some(call) = call.as_object() else { return invalid("a tool call is no object") };
    let Some(function) = map(call, "function")? else {
        return unsupported("tool calls other than functions");
    };
    if text(function, "name")?.is_none()
        || text(function, "arguments")?.is_none()
        || text(call, "id")?.is_none()
    {
        return invalid("a tool call lacks id, name or arguments");
    }
    let mut call = reordered(call, &["id", "function", "type"]);
    call.insert("function".to_owned(), Json::Object(reordered(function, &["arguments", "name"])));
    Ok(Json::Object(call))
}

/// A tool as `model_dump` prints it.
fn tool(tool: &Json) -> Result<Json, RenderError> {
    let Some(tool) = tool.as_object() else { return invalid("a tool is no object") };
    if text(tool, "type")?.unwrap_or("function") != "function" {
        return invalid("a tool is no function");
    }
    let Some(function) = map(tool, "function")? else { return invalid("a tool lacks its function") };
    let deferred = given(tool, "defer_loading").cloned();
    let mut out = object([
        ("type", Json::str("function")),
        ("function", Json::Object(function_definition(function, deferred.as_ref())?)),
    ]);
    if let Some(deferred) = deferred {
        out.insert("defer_loading".to_owned(), deferred);
    }
    Ok(Json::Object(out))
}

/// The members of a function that a template sees, in their order.
pub(crate) fn function_definition(function: &Object, deferred: Option<&Json>) -> Result<Object, RenderError> {
    let Some(name) = text(function, "name")? else { return invalid("a tool lacks a name") };
    let mut out = object([
        ("name", Json::str(name)),
        ("description", text(function, "description")?.map_or(Json::Null, Json::str)),
        ("parameters", map(function, "parameters")?.cloned().map_or(Json::Null, Json::Object)),
    ]);
    if let Some(strict) = given(function, "strict") {
        out.insert("strict".to_owned(), strict.clone());
    }
    if let Some(deferred) = given(function, "defer_loading").or(deferred) {
        out.insert("defer_loading".to_owned(), deferred.clone());
    }
    Ok(out)
}

/// Merges the template's variables and brings the messages into the template's content format.
#[expect(clippy::too_many_arguments, reason = "what the dialects differ in")]
pub(crate) fn finish(
    setup: &Setup,
    messages: &[Object],
    names: PartNames,
    tools: Option<Vec<Json>>,
    request: Option<&Object>,
    extra: &[(&str, Json)],
    effort: Option<&str>,
    add_special_tokens: bool,
) -> Result<Chat, RenderError> {
    let mut variables = setup.default_variables.clone();
    if let Some(tools) = tools {
        variables.insert("tools".to_owned(), Json::List(tools));
    }
    for (name, value) in request.into_iter().flatten() {
        if TAKEN.contains(&name.as_str()) {
            return unsupported("a template variable that collides with an argument");
        }
        set(&mut variables, name, value.clone());
    }
    for (name, value) in extra {
        set(&mut variables, name, value.clone());
    }
    if let Some(effort) = effort {
        set(&mut variables, "reasoning_effort", Json::str(effort));
        if request.is_none_or(|r| !r.contains_key("enable_thinking")) {
            set(&mut variables, "enable_thinking", Json::Bool(effort != "none"));
        }
    }
    let tools = match variables.shift_remove("tools") {
        None => None,
        Some(Json::List(tools)) => Some(tools),
        Some(_) => return unsupported("tools that are no list"),
    };
    let documents = variables.shift_remove("documents").unwrap_or(Json::Null);
    let mut take = |name: &str| match variables.shift_remove(name) {
        Some(Json::Bool(value)) => Ok(value),
        None => Ok(false),
        Some(_) => invalid("a flag that is no boolean"),
    };
    let (add_generation_prompt, continue_final_message) =
        (take("add_generation_prompt")?, take("continue_final_message")?);
    let template = setup.template(tools.is_some()).map_err(|why| RenderError::Unsupported { why })?;
    let parts = match setup.options.content_format {
        ContentFormat::Auto => template.vllm_parts,
        chosen => chosen == ContentFormat::Parts,
    };
    let mut conversation =
        messages.iter().map(|m| message(m, names, parts)).collect::<Result<Vec<_>, _>>()?;
    if conversation.is_empty() {
        return invalid("no messages");
    }
    if !template.developer_role {
        without_developers(&mut conversation);
    }
    Ok(Chat {
        messages: conversation,
        tools,
        documents,
        add_generation_prompt,
        continue_final_message,
        variables,
        add_special_tokens,
    })
}

/// Later settings win, unless they are not set: null and `auto` count as that.
fn set(variables: &mut Object, name: &str, value: Json) {
    if !value.is_null() && value.as_str() != Some("auto") {
        variables.insert(name.to_owned(), value);
    }
}

/// One message as the template sees it.
fn message(message: &Object, names: PartNames, parts: bool) -> Result<Object, RenderError> {
    let Some(role) = text(message, "role")? else { return invalid("a message lacks a role") };
    let mut texts = content(message, role, names)?;
    if !parts {
        // Joined to one text, empty parts leave no blank line.
        texts.retain(|(text, _)| !text.is_empty());
    }
    let content = match (parts, role) {
        (true, "tool") | (false, _) => {
            Json::Str(texts.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join("\n"))
        }
        (true, _) => Json::List(
            texts
                .into_iter()
                .map(|(text, others)| {
                    let mut part = object([("type", Json::str("text")), ("text", Json::Str(text))]);
                    part.extend(others);
                    Json::Object(part)
                })
                .collect(),
        ),
    };
    let mut out = object([("role", Json::str(role)), ("content", content)]);
    if role == "assistant" {
        if let Some(calls) = list(message, "tool_calls")?.filter(|calls| !calls.is_empty()) {
            out.insert(
                "tool_calls".to_owned(),
                Json::List(calls.iter().map(called).collect::<Result<_, _>>()?),
            );
        }
        if let Some(reasoning) = text(message, "reasoning")? {
            out.insert("reasoning".to_owned(), Json::str(reasoning));
            out.insert("reasoning_content".to_owned(), Json::str(reasoning));
        }
    } else if role == "tool"
        && let Some(id) = message.get("tool_call_id")
    {
        out.insert("tool_call_id".to_owned(), id.clone());
    }
    for name in ["name", "task"] {
        if let Some(Json::Str(value)) = message.get(name) {
            out.insert(name.to_owned(), Json::str(value));
        }
    }
    if role == "developer" {
        if given(message, "tools").is_some() {
            return unsupported("tools of a developer message");
        }
        out.insert("tools".to_owned(), Json::Null);
    }
    Ok(out)
}

/// A call with its arguments read: templates expect an object.
fn called(call: &Json) -> Result<Json, RenderError> {
    let mut call = call.clone();
    if let Json::Object(call) = &mut call
        && let Some(Json::Object(function)) = call.get_mut("function")
    {
        let read = match function.get("arguments") {
            Some(Json::Str(text)) if !text.is_empty() => arguments(text)?,
            _ => Json::Object(Object::new()),
        };
        function.insert("arguments".to_owned(), read);
    }
    Ok(call)
}

/// The texts of a message's content, each with the members of its part that reach the template.
fn content(message: &Object, role: &str, names: PartNames) -> Result<Vec<(String, Object)>, RenderError> {
    let mut texts = match message.get("content") {
        None | Some(Json::Null) => Vec::new(),
        Some(Json::Str(text)) => vec![(text.clone(), Object::new())],
        Some(Json::List(parts)) => {
            let mut texts = Vec::with_capacity(parts.len());
            for part in parts {
                let Some(part) = part.as_object() else { return unsupported("content parts of other kinds") };
                texts.extend(part_text(part, names)?);
            }
            texts
        }
        Some(_) => return invalid("content is neither text nor parts"),
    };
    if role == "system" {
        texts.retain_mut(|(text, _)| {
            if !text.starts_with(BILLING_LINE) {
                return true;
            }
            *text = text.split_once('\n').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
            !text.is_empty()
        });
    }
    Ok(texts)
}

fn part_text(part: &Object, names: PartNames) -> Result<Option<(String, Object)>, RenderError> {
    let kind = text(part, "type")?.unwrap_or_default();
    let member = match (kind, names) {
        ("text", _) => "text",
        ("input_text" | "output_text", PartNames::Responses) => "text",
        ("refusal", _) => "refusal",
        ("thinking", PartNames::Chat) => "thinking",
        _ => return unsupported("content parts of other kinds"),
    };
    if given(part, "uuid").is_some() {
        return unsupported("content parts with a uuid");
    }
    let Some(content) = text(part, member)? else { return Ok(None) };
    let others = part.iter().filter(|(name, _)| !PART_FIELDS.contains(&name.as_str()));
    Ok(Some((content.to_owned(), others.map(|(name, value)| (name.clone(), value.clone())).collect())))
}

/// A template that has no `developer` role gets system messages instead, all in one at the head.
fn without_developers(messages: &mut Vec<Object>) {
    let is = |message: &Object, role: &str| message.get("role").and_then(Json::as_str) == Some(role);
    if !messages.iter().any(|m| is(m, "developer")) {
        return;
    }
    for message in messages.iter_mut().filter(|m| is(m, "developer")) {
        message.insert("role".to_owned(), Json::str("system"));
        message.shift_remove("tools");
    }
    let systems = messages.iter().filter(|m| is(m, "system")).count();
    if systems == 1 && messages.first().is_some_and(|m| is(m, "system")) {
        return;
    }
    let mut texts = Vec::new();
    for message in messages.iter().filter(|m| is(m, "system")) {
        let text = match message.get("content") {
            Some(Json::Str(text)) => text.clone(),
            Some(Json::List(parts)) => {
                let texts = parts.iter().filter_map(|p| p.as_object()?.get("text")?.as_str());
                texts.collect::<Vec<_>>().join("\n")
            }
            _ => String::new(),
        };
        if !text.is_empty() {
            texts.push(text);
        }
    }
    messages.retain(|m| !is(m, "system"));
    messages.insert(0, object([("role", Json::str("system")), ("content", Json::Str(texts.join("\n\n")))]));
}
