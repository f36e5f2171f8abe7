//! A conversation on its way into the chat template: what is the same for every dialect and engine.

use crate::error::RenderError;
use crate::json::{Json, Object};

/// What a chat template is given.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chat {
    /// Messages in the shape that templates expect.
    pub(crate) messages: Vec<Object>,
    /// Tools; `None` where the request has none (a template can tell it from an empty list).
    pub(crate) tools: Option<Vec<Json>>,
    /// Documents for retrieval.
    pub(crate) documents: Json,
    /// Whether the template opens the answer.
    pub(crate) add_generation_prompt: bool,
    /// Whether the last message is left open instead.
    pub(crate) continue_final_message: bool,
    /// Further variables, in the order in which they were given.
    pub(crate) variables: Object,
    /// Whether the tokenizer adds its special tokens to the rendered text.
    pub(crate) add_special_tokens: bool,
}

/// Shorthand for an object literal.
pub(crate) fn object<const N: usize>(members: [(&str, Json); N]) -> Object {
    members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

pub(crate) fn unsupported<T>(why: &'static str) -> Result<T, RenderError> {
    Err(RenderError::Unsupported { why })
}

pub(crate) fn invalid<T>(why: &str) -> Result<T, RenderError> {
    Err(RenderError::Invalid(why.to_owned()))
}

/// A member that is there and not null.
pub(crate) fn given<'a>(object: &'a Object, name: &str) -> Option<&'a Json> {
    object.get(name).filter(|value| !value.is_null())
}

/// A text member; `None` where it is absent or null.
pub(crate) fn text<'a>(object: &'a Object, name: &str) -> Result<Option<&'a str>, RenderError> {
    match given(object, name) {
        None => Ok(None),
        Some(value) => value.as_str().map(Some).map_or_else(|| invalid(&format!("{name} is no text")), Ok),
    }
}

/// A boolean member with its default.
pub(crate) fn flag(object: &Object, name: &str, default: bool) -> Result<bool, RenderError> {
    match given(object, name) {
        None => Ok(default),
        Some(Json::Bool(value)) => Ok(*value),
        Some(_) => invalid(&format!("{name} is no boolean")),
    }
}

/// A member that is a list; `None` where it is absent or null.
pub(crate) fn list<'a>(object: &'a Object, name: &str) -> Result<Option<&'a [Json]>, RenderError> {
    match given(object, name) {
        None => Ok(None),
        Some(value) => value.as_list().map(Some).map_or_else(|| invalid(&format!("{name} is no list")), Ok),
    }
}

/// A member that is an object; `None` where it is absent or null.
pub(crate) fn map<'a>(object: &'a Object, name: &str) -> Result<Option<&'a Object>, RenderError> {
    match given(object, name) {
        None => Ok(None),
        Some(value) => {
            value.as_object().map(Some).map_or_else(|| invalid(&format!("{name} is no object")), Ok)
        }
    }
}

/// `object` with the members of `order` first, in that order, as a validated request has them.
pub(crate) fn reordered(object: &Object, order: &[&str]) -> Object {
    let mut out: Object =
        order.iter().filter_map(|name| Some(((*name).to_owned(), object.get(*name)?.clone()))).collect();
    for (name, value) in object {
        out.entry(name.clone()).or_insert_with(|| value.clone());
    }
    out
}

/// `json.loads` of a tool call's arguments: the object, or an empty one where the text is none.
pub(crate) fn arguments(text: &str) -> Result<Json, RenderError> {
    match Json::parse(text.as_bytes()) {
        Ok(Json::Object(object)) => Ok(Json::Object(object)),
        Ok(_) => Ok(Json::Object(Object::new())),
        // Python reads these words as numbers.
        Err(RenderError::Invalid(_)) if text.contains("NaN") || text.contains("Infinity") => {
            unsupported("numbers that JSON has not")
        }
        Err(RenderError::Invalid(_)) => Ok(Json::Object(Object::new())),
        Err(other) => Err(other),
    }
}

/// A `tool_use` block of Anthropic's Messages as a tool call of chat completions; vLLM and SGLang agree on it.
pub(crate) fn tool_use(block: &Object) -> Result<Json, RenderError> {
    // Without an id the engine makes one of the time.
    let Some(id) = text(block, "id")?.filter(|id| !id.is_empty()) else {
        return unsupported("a tool call without an id");
    };
    let input = map(block, "input")?.cloned().unwrap_or_default();
    let function = object([
        ("name", Json::str(text(block, "name")?.unwrap_or_default())),
        ("arguments", Json::Str(Json::Object(input).dumps(true))),
    ]);
    Ok(Json::Object(object([
        ("id", Json::str(id)),
        ("type", Json::str("function")),
        ("function", Json::Object(function)),
    ])))
}
