//! How SGLang reads a Responses request: as the chat-completions request that it makes of it.
//!
//! - Purpose: input items to chat messages, tools to functions, as SGLang's handler does before its chat path.
//! - Deliberately absent: stored responses (`previous_response_id`), pictures, reasoning that is only there in
//!   SGLang's packed form, namespaces of tools where the template knows them (one model family's does; for all others
//!   SGLang leaves them out).
//! - Sources: SGLang 0.5.23: `srt/entrypoints/openai/serving_responses.py`, `responses_adapters.py`, `protocol.py`.

use crate::chat::{Chat, given, invalid, list, map, object, text, unsupported};
use crate::error::RenderError;
use crate::json::{Json, Object};
use crate::model::Setup;

/// What SGLang writes before a developer's words, which become the system's.
const DEVELOPER: &str = "Developer instructions:";
/// How the packed form of reasoning begins.
const PACKED_REASONING: &str = "sglang-reasoning-v1.";

/// Converts a Responses body.
pub(crate) fn chat(body: &Object, setup: &Setup) -> Result<Chat, RenderError> {
    if given(body, "previous_response_id").is_some() {
        return unsupported("a stored response");
    }
    let mut messages = Vec::new();
    if let Some(instructions) = text(body, "instructions")?.filter(|text| !text.is_empty()) {
        messages.push(said("system", Json::str(instructions)));
    }
    match body.get("input") {
        Some(Json::Str(input)) => messages.push(said("user", Json::str(input))),
        Some(Json::List(items)) => {
            for item in items {
                let Some(item) = item.as_object() else { return invalid("an input item is no object") };
                messages.extend(self::item(item)?);
            }
        }
        _ => return invalid("no input"),
    }
    let messages = merged(messages);
    let messages = if setup.inline_system { messages } else { one_system(messages) };
    let tools = tools(body, setup)?;
    let mut chat = Object::new();
    chat.insert("messages".to_owned(), Json::List(messages.into_iter().map(Json::Object).collect()));
    if !tools.is_empty() {
        chat.insert("tools".to_owned(), Json::List(tools));
        chat.insert("tool_choice".to_owned(), choice(body)?);
    }
    if let Some(variables) = given(body, "chat_template_kwargs") {
        chat.insert("chat_template_kwargs".to_owned(), variables.clone());
    }
    let effort = map(body, "reasoning")?.and_then(|reasoning| given(reasoning, "effort"));
    if let Some(effort) = effort {
        chat.insert("reasoning_effort".to_owned(), effort.clone());
    }
    super::chat(&chat, setup)
}

fn said(role: &str, content: Json) -> Object {
    object([("role", Json::str(role)), ("content", content)])
}

/// The chat message that an item is; reasoning without a text is none.
fn item(item: &Object) -> Result<Option<Object>, RenderError> {
    match text(item, "type")? {
        Some("function_call") => {
            let arguments = match item.get("arguments") {
                Some(Json::Str(text)) if is_object(text)? => text.clone(),
                Some(Json::Object(object)) => Json::Object(object.clone()).dumps(false),
                _ => "{}".to_owned(),
            };
            Ok(Some(call(item, arguments)))
        }
        Some("custom_tool_call") => {
            let input = text(item, "input")?.unwrap_or_default();
            let input = Json::Object(object([("input", Json::str(input))]));
            Ok(Some(call(item, input.dumps(false))))
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let mut message = said("tool", Json::Str(output(item)?));
            if let Some(id) = given(item, "call_id") {
                message.insert("tool_call_id".to_owned(), id.clone());
            }
            Ok(Some(message))
        }
        Some("reasoning") => reasoning(item),
        None | Some("message") => Ok(Some(message(item)?)),
        _ => unsupported("input items of other kinds"),
    }
}

/// Whether a text is a JSON object.
fn is_object(text: &str) -> Result<bool, RenderError> {
    match Json::parse(text.as_bytes()) {
        Ok(value) => Ok(value.as_object().is_some()),
        Err(RenderError::Invalid(_)) => Ok(false),
        Err(other) => Err(other),
    }
}

fn call(item: &Object, arguments: String) -> Object {
    let id = given(item, "call_id").filter(|id| id.truthy()).or_else(|| item.get("id"));
    let name = item.get("name").cloned().unwrap_or(Json::Null);
    let call = object([
        ("id", id.cloned().unwrap_or(Json::Null)),
        ("type", Json::str("function")),
        ("function", Json::Object(object([("name", name), ("arguments", Json::Str(arguments))]))),
    ]);
    object([("role", Json::str("assistant")), ("tool_calls", Json::List(vec![Json::Object(call)]))])
}

/// A tool's output: its text, or those of its parts run together.
fn output(item: &Object) -> Result<String, RenderError> {
    match item.get("output") {
        None => Ok(String::new()),
        Some(Json::Str(text)) => Ok(text.clone()),
        Some(Json::List(parts)) => {
            let mut out = String::new();
            for part in parts.iter().filter_map(Json::as_object) {
                out.push_str(text(part, "text")?.unwrap_or_default());
            }
            Ok(out)
        }
        Some(_) => invalid("a tool output is neither text nor parts"),
    }
}

/// Reasoning: its summary, else its content.
fn reasoning(item: &Object) -> Result<Option<Object>, RenderError> {
    for name in ["summary", "content"] {
        let mut texts = Vec::new();
        for part in list(item, name)?.unwrap_or_default().iter().filter_map(Json::as_object) {
            texts.extend(text(part, "text")?.filter(|text| !text.is_empty()));
        }
        if !texts.is_empty() {
            return Ok(Some(object([
                ("role", Json::str("assistant")),
                ("reasoning_content", Json::Str(texts.join("\n"))),
            ])));
        }
    }
    let packed = given(item, "encrypted_content").and_then(Json::as_str);
    if packed.is_some_and(|packed| packed.starts_with(PACKED_REASONING)) {
        return unsupported("packed reasoning");
    }
    Ok(None)
}

fn message(item: &Object) -> Result<Object, RenderError> {
    let mut out = Object::new();
    for (name, value) in item {
        if !value.is_null() && !matches!(name.as_str(), "id" | "status" | "type") {
            out.insert(name.clone(), value.clone());
        }
    }
    if let Some(Json::List(parts)) = out.get("content") {
        let parts = parts.iter().map(part).collect::<Result<Vec<_>, _>>()?;
        out.insert("content".to_owned(), Json::List(parts));
    }
    if text(&out, "role")? == Some("developer") {
        out.insert("role".to_owned(), Json::str("system"));
        let content = labelled(out.get("content"))?;
        out.insert("content".to_owned(), content);
    }
    Ok(out)
}

fn part(part: &Json) -> Result<Json, RenderError> {
    let Some(sent) = part.as_object() else { return invalid("a content part is no object") };
    match text(sent, "type")? {
        Some("input_text" | "output_text") => {
            let said = text(sent, "text")?.unwrap_or_default();
            Ok(Json::Object(object([("type", Json::str("text")), ("text", Json::str(said))])))
        }
        _ => Ok(part.clone()),
    }
}

/// A developer's words with the label in front.
fn labelled(content: Option<&Json>) -> Result<Json, RenderError> {
    match content {
        Some(Json::Str(text)) => Ok(Json::Str(format!("{DEVELOPER}\n{text}"))),
        Some(Json::List(parts)) => {
            let mut parts = parts.clone();
            let first = parts.iter_mut().find_map(|part| match part {
                Json::Object(part) => match part.get_mut("text") {
                    Some(Json::Str(text)) => Some(text),
                    _ => None,
                },
                _ => None,
            });
            match first {
                Some(text) => *text = format!("{DEVELOPER}\n{text}"),
                None => return unsupported("a developer message without text"),
            }
            Ok(Json::List(parts))
        }
        _ => invalid("content is neither text nor parts"),
    }
}

/// Runs of assistant messages as one: what one turn said, thought and called.
fn merged(messages: Vec<Object>) -> Vec<Object> {
    let is_assistant = |m: &Object| m.get("role").and_then(Json::as_str) == Some("assistant");
    let mut out: Vec<Object> = Vec::with_capacity(messages.len());
    for message in messages {
        let joins = |before: &&mut Object| {
            let thought = before.len() == 2 && before.contains_key("reasoning_content");
            is_assistant(before) && (before.get("phase") == message.get("phase") || thought)
        };
        match out.last_mut().filter(|_| is_assistant(&message)).filter(joins) {
            Some(before) => merge(before, message),
            None => out.push(message),
        }
    }
    out
}

fn merge(before: &mut Object, mut message: Object) {
    if let Some(phase) = message.shift_remove("phase") {
        before.insert("phase".to_owned(), phase);
    }
    let said = |content: &Json| !matches!(content, Json::Null) && content.as_str() != Some("");
    if let Some(new) = message.shift_remove("content").filter(said) {
        let content = match before.get("content").filter(|old| said(old)).cloned() {
            None => new,
            Some(old) => match (old, new) {
                (Json::Str(old), Json::Str(new)) => Json::Str(format!("{old}\n\n{new}")),
                (old, new) => Json::List([parts(old), parts(new)].concat()),
            },
        };
        before.insert("content".to_owned(), content);
    }
    if let Some(Json::List(new)) = message.shift_remove("tool_calls") {
        match before.get_mut("tool_calls") {
            Some(Json::List(calls)) => calls.extend(new),
            _ => {
                before.insert("tool_calls".to_owned(), Json::List(new));
            }
        }
    }
    if let Some(Json::Str(new)) = message.shift_remove("reasoning_content") {
        match before.get_mut("reasoning_content") {
            Some(Json::Str(old)) => *old = format!("{old}\n{new}"),
            _ => {
                before.insert("reasoning_content".to_owned(), Json::Str(new));
            }
        }
    }
}

fn parts(content: Json) -> Vec<Json> {
    match content {
        Json::List(parts) => parts,
        text => vec![Json::Object(object([("type", Json::str("text")), ("text", text)]))],
    }
}

/// All system messages as one in front, for templates that know no other.
fn one_system(messages: Vec<Object>) -> Vec<Object> {
    let mut texts: Vec<String> = Vec::new();
    let mut out = Vec::with_capacity(messages.len() + 1);
    for message in messages {
        if message.get("role").and_then(Json::as_str) != Some("system") {
            out.push(message);
            continue;
        }
        match message.get("content") {
            Some(Json::Str(text)) => texts.push(text.clone()),
            Some(Json::List(parts)) => {
                let texts_of = parts.iter().filter_map(|part| part.as_object()?.get("text")?.as_str());
                texts.extend(texts_of.map(str::to_owned));
            }
            _ => {}
        }
    }
    if !texts.is_empty() {
        out.insert(0, said("system", Json::Str(texts.join("\n\n"))));
    }
    out
}

/// The tools that the model is shown: functions, and custom tools as functions of one text.
fn tools(body: &Object, setup: &Setup) -> Result<Vec<Json>, RenderError> {
    let mut out = Vec::new();
    for tool in list(body, "tools")?.unwrap_or_default() {
        let Some(tool) = tool.as_object() else { return invalid("a tool is no object") };
        let name = text(tool, "name")?.filter(|name| !name.is_empty());
        let (description, parameters) = match text(tool, "type")? {
            Some("function") if name.is_some() => (
                tool.get("description").cloned().unwrap_or(Json::Null),
                tool.get("parameters").cloned().unwrap_or(Json::Null),
            ),
            Some("function") => return invalid("a tool lacks a name"),
            Some("custom") if name.is_some() => (custom_description(tool)?, custom_parameters()),
            Some("namespace") if knows_namespaces(setup) => return unsupported("tools in namespaces"),
            _ => continue,
        };
        let function = object([
            ("name", Json::str(name.unwrap_or_default())),
            ("description", description),
            ("parameters", parameters),
            ("strict", given(tool, "strict").cloned().unwrap_or(Json::Bool(false))),
        ]);
        let shown = object([("type", Json::str("function")), ("function", Json::Object(function))]);
        out.push(Json::Object(shown));
    }
    Ok(out)
}

/// Whether the template shows tools by the kind `namespace` (which is the name of a function of Jinja's, too).
fn knows_namespaces(setup: &Setup) -> bool {
    setup.template(true).is_ok_and(|template| {
        ["'namespace'", "\"namespace\""].iter().any(|word| template.source().contains(word))
    })
}

fn custom_description(tool: &Object) -> Result<Json, RenderError> {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(text(tool, "description")?.filter(|text| !text.is_empty()).map(str::to_owned));
    if let Some(format) = map(tool, "format")?
        && text(format, "type")? == Some("grammar")
    {
        let syntax = text(format, "syntax")?.filter(|text| !text.is_empty()).unwrap_or("lark");
        let definition = text(format, "definition")?.unwrap_or_default();
        parts.push(format!("The payload must conform to this {syntax} grammar:\n{definition}"));
    }
    Ok(if parts.is_empty() { Json::Null } else { Json::Str(parts.join("\n\n")) })
}

fn custom_parameters() -> Json {
    let input = object([
        ("type", Json::str("string")),
        ("description", Json::str("The freeform text payload for this tool.")),
    ]);
    Json::Object(object([
        ("type", Json::str("object")),
        ("properties", Json::Object(object([("input", Json::Object(input))]))),
        ("required", Json::List(vec![Json::str("input")])),
        ("additionalProperties", Json::Bool(false)),
    ]))
}

/// `tool_choice` as the chat path takes it: of the objects only a named function or custom tool counts.
fn choice(body: &Object) -> Result<Json, RenderError> {
    let auto = Json::str("auto");
    let Some(sent) = given(body, "tool_choice") else { return Ok(auto) };
    let Json::Object(sent) = sent else { return Ok(sent.clone()) };
    let function = map(sent, "function")?.and_then(|function| given(function, "name"));
    let name = given(sent, "name").filter(|name| name.truthy()).or(function);
    match (text(sent, "type")?, name) {
        (Some("function" | "custom"), Some(name)) => Ok(Json::Object(object([
            ("type", Json::str("function")),
            ("function", Json::Object(object([("name", name.clone())]))),
        ]))),
        _ => Ok(auto),
    }
}
