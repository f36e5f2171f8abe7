//! Request bodies of all APIs -> [`Asked`], with the refusals of the real engines.
//!
//! - Purpose: be as strict and as lenient as vLLM and SGLang are: unknown fields are ignored, known fields of
//!   the wrong type are refused.
//! - Inputs: a JSON body and a few headers; output: [`Asked`] or an [`ApiError`].
//! - Invariants: I-PRS-1 no body panics; I-PRS-2 what is refused is refused before the modelled engine sees
//!   anything.
//! - Deliberately absent: logprobs, guided decoding, multimodal preprocessing: such fields are ignored.
//! - Sources: vLLM 0.32 (`entrypoints/openai`, `entrypoints/anthropic`), SGLang 0.5.23 (`entrypoints`).

mod chat;
mod completions;
mod content;
mod messages;
mod native;
mod responses;

use http::HeaderMap;
use serde_json::{Map, Value};

use crate::asked::{Asked, Sampling, ToolChoice};
use crate::config::{MockConfig, MockKind};
use crate::error::{Api, ApiError};

pub(crate) use messages::conversation as messages_conversation;
pub(crate) use native::{parse_detokenize, parse_tokenize};
pub(crate) use responses::not_found as response_not_found;

/// Most prompts or choices of one request.
const FAN_OUT_MAX: u32 = 128;

/// A JSON object with typed access. `null` counts as absent, as it does for the engines.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a>(pub(crate) &'a Map<String, Value>);

impl<'a> Body<'a> {
    pub(crate) fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    pub(crate) fn text(self, key: &'static str) -> Result<Option<&'a str>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::wrong_type(key, "string")),
        }
    }

    pub(crate) fn flag(self, key: &'static str) -> Result<bool, ApiError> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(on)) => Ok(*on),
            Some(_) => Err(ApiError::wrong_type(key, "boolean")),
        }
    }

    pub(crate) fn int(self, key: &'static str) -> Result<Option<i64>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => value.as_i64().map(Some).ok_or_else(|| ApiError::wrong_type(key, "integer")),
        }
    }

    pub(crate) fn number(self, key: &'static str) -> Result<Option<f64>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| ApiError::wrong_type(key, "number")),
        }
    }

    pub(crate) fn list(self, key: &'static str) -> Result<Option<&'a [Value]>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(ApiError::wrong_type(key, "list")),
        }
    }

    pub(crate) fn object(self, key: &'static str) -> Result<Option<Body<'a>>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Body(map))),
            Some(_) => Err(ApiError::wrong_type(key, "dictionary")),
        }
    }

    /// A count of tokens: an integer of at least `least`.
    fn count(self, key: &'static str, least: i64) -> Result<Option<u32>, ApiError> {
        let Some(value) = self.int(key)? else { return Ok(None) };
        if value < least {
            let message = format!("{key} must be at least {least}, got {value}.");
            return Err(ApiError::bad_request(message).with_param(key));
        }
        Ok(Some(u32::try_from(value).unwrap_or(u32::MAX)))
    }

    /// A text or a list of texts.
    fn texts(self, key: &'static str) -> Result<Vec<String>, ApiError> {
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text.clone()]),
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| {
                    item.as_str().map(str::to_owned).ok_or_else(|| ApiError::wrong_type(key, "string"))
                })
                .collect(),
            Some(_) => Err(ApiError::wrong_type(key, "string")),
        }
    }
}

/// What a body is read against.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) config: &'a MockConfig,
    pub(crate) headers: &'a HeaderMap,
}

impl<'a> Context<'a> {
    fn header(self, name: &str) -> Option<&'a str> {
        self.headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim).filter(|v| !v.is_empty())
    }

    fn kind(self) -> MockKind {
        self.config.kind
    }
}

/// Reads a JSON object.
pub(crate) fn object_of(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(ApiError::validation(
            "model_attributes_type",
            "",
            "Input should be a valid dictionary or object to extract fields from",
        )),
        Err(error) => {
            Err(ApiError::validation("json_invalid", &error.column().to_string(), "JSON decode error"))
        }
    }
}

/// Reads a request to generate.
pub(crate) fn parse(api: Api, body: Body<'_>, context: Context<'_>) -> Result<Asked, ApiError> {
    match api {
        Api::Chat | Api::Utility => chat::parse(body, context),
        Api::Completions => completions::parse(body, context),
        Api::Responses => responses::parse(body, context),
        Api::Messages => messages::parse(body, context),
        Api::Generate => native::parse(body, context),
    }
}

/// The fields that all APIs share.
fn common(api: Api, body: Body<'_>, context: Context<'_>) -> Result<Asked, ApiError> {
    let (model, lora) = model(body, context)?;
    Ok(Asked {
        api,
        model,
        lora,
        stream: body.flag("stream")?,
        include_usage: false,
        continuous_usage: false,
        prompts: Vec::new(),
        conversation: None,
        choice: ToolChoice::Auto,
        parallel_calls: true,
        sampling: Sampling::default(),
        return_token_ids: body.flag("return_token_ids")?,
        echo: false,
        session: session(body, context)?,
        salt: salt(body)?,
        priority: priority(body, context)?,
        rank: rank(body, context)?,
        request_id: request_id(body, context)?,
        fetched: 0,
        kv_transfer: None,
    })
}

/// vLLM serves the names it was given; SGLang answers under any name.
fn model(body: Body<'_>, context: Context<'_>) -> Result<(String, Option<String>), ApiError> {
    let models = &context.config.models;
    let Some(name) = body.text("model")? else {
        return Ok((models.first().map(|m| m.id.clone()).unwrap_or_default(), None));
    };
    match models.iter().find(|m| m.id == name) {
        Some(found) => Ok((name.to_owned(), found.parent.is_some().then(|| name.to_owned()))),
        None if context.kind() == MockKind::Sglang => Ok((name.to_owned(), None)),
        None => {
            let names: Vec<&str> = models.iter().map(|m| m.id.as_str()).collect();
            let message = format!("The model `{name}` does not exist. Valid aliases: {}.", names.join(", "));
            Err(ApiError::new(404, "NotFoundError", message).with_param("model"))
        }
    }
}

/// vLLM: body, then header, then `vllm_xargs`; SGLang: body only.
fn session(body: Body<'_>, context: Context<'_>) -> Result<Option<String>, ApiError> {
    if let Some(session) = body.text("session_id")? {
        if context.kind() == MockKind::Sglang && body.get("session_params").is_some() {
            let message = "session_id and session_params cannot be used together";
            return Err(ApiError::bad_request(message));
        }
        return Ok(Some(session.to_owned()));
    }
    if context.kind() == MockKind::Sglang {
        return Ok(None);
    }
    if let Some(session) = context.header("x-session-id") {
        return Ok(Some(session.to_owned()));
    }
    let xargs = body.object("vllm_xargs")?;
    Ok(xargs.and_then(|x| x.get("session_id")).and_then(Value::as_str).map(str::to_owned))
}

fn salt(body: Body<'_>) -> Result<Option<String>, ApiError> {
    match body.get("cache_salt") {
        None => Ok(None),
        Some(Value::String(salt))
            if !salt.is_empty() && salt.chars().count() <= 128 && !salt.contains(['@', '/', '\\', '\0']) =>
        {
            Ok(Some(salt.clone()))
        }
        Some(_) => {
            let message = "Parameter 'cache_salt' must be a non-empty string of at most 128 characters \
                           without '@', '/', '\\' and NUL if provided.";
            Err(ApiError::bad_request(message).with_param("cache_salt"))
        }
    }
}

/// vLLM: the header beats the body, and a priority that would be ignored is refused. SGLang ignores it.
fn priority(body: Body<'_>, context: Context<'_>) -> Result<i32, ApiError> {
    let header = match context.kind() {
        MockKind::Vllm => "x-vllm-priority",
        MockKind::Sglang => "x-override-priority",
    };
    let asked = match context.header(header) {
        Some(text) => {
            Some(text.parse().map_err(|_| ApiError::bad_request(format!("{header} must be an integer.")))?)
        }
        None => body.int("priority")?,
    };
    let asked = asked.unwrap_or(0).clamp(i32::MIN.into(), i32::MAX.into());
    let priority = i32::try_from(asked).unwrap_or_default();
    if context.config.flags.priority_scheduling {
        return Ok(priority);
    }
    if priority != 0 && context.kind() == MockKind::Vllm {
        let message = format!("Got priority {priority} but Priority scheduling is not enabled.");
        return Err(ApiError::bad_request(message).with_param("priority"));
    }
    Ok(0)
}

fn rank(body: Body<'_>, context: Context<'_>) -> Result<Option<u32>, ApiError> {
    let asked = match context.header("x-data-parallel-rank") {
        Some(text) => Some(text.parse::<i64>().map_err(|_| {
            ApiError::bad_request(format!("X-data-parallel-rank must be an integer, got {text}."))
        })?),
        None if context.kind() == MockKind::Sglang => match body.int("routed_dp_rank")? {
            Some(rank) => Some(rank),
            None => body.int("data_parallel_rank")?,
        },
        None => None,
    };
    let ranks = context.config.dp_ranks;
    match asked {
        None => Ok(None),
        Some(rank) => match u32::try_from(rank) {
            Ok(rank) if rank < ranks => Ok(Some(rank)),
            _ => {
                let message = format!("data_parallel_rank {rank} is out of range [0, {ranks}).");
                Err(ApiError::bad_request(message).with_param("data_parallel_rank"))
            }
        },
    }
}

fn request_id(body: Body<'_>, context: Context<'_>) -> Result<Option<String>, ApiError> {
    if context.kind() == MockKind::Sglang {
        // `rid` may be a list for batches.
        let rid = body.get("rid").and_then(Value::as_str);
        return Ok(context.header("x-override-rid").or(rid).map(str::to_owned));
    }
    let id = body.text("request_id")?.or_else(|| context.header("x-request-id"));
    Ok(id.map(str::to_owned))
}

/// `stream_options`, which vLLM refuses without `stream`.
fn stream_options(body: Body<'_>, context: Context<'_>, asked: &mut Asked) -> Result<(), ApiError> {
    let options = body.object("stream_options")?;
    if options.is_some() && !asked.stream && context.kind() == MockKind::Vllm {
        let message = "Stream options can only be defined when `stream=True`.";
        return Err(ApiError::bad_request(message).with_param("stream_options"));
    }
    if let Some(options) = options {
        asked.include_usage = options.flag("include_usage")?;
        asked.continuous_usage = asked.include_usage && options.flag("continuous_usage_stats")?;
    }
    if context.config.flags.force_include_usage {
        asked.include_usage = true;
        asked.continuous_usage |= context.kind() == MockKind::Vllm;
    }
    Ok(())
}

/// Sampling fields of the OpenAI bodies.
fn openai_sampling(body: Body<'_>) -> Result<Sampling, ApiError> {
    if let Some(temperature) = body.number("temperature")?
        && temperature < 0.0
    {
        let message = format!("temperature must be non-negative, got {temperature:?}.");
        return Err(ApiError::bad_request(message).with_param("temperature"));
    }
    if let Some(top_p) = body.number("top_p")?
        && !(top_p > 0.0 && top_p <= 1.0)
    {
        let message = format!("top_p must be in (0, 1], got {top_p:?}.");
        return Err(ApiError::bad_request(message).with_param("top_p"));
    }
    let n = body.count("n", 1)?.unwrap_or(1);
    if n > FAN_OUT_MAX {
        return Err(
            ApiError::bad_request(format!("n must be at most {FAN_OUT_MAX}, got {n}.")).with_param("n")
        );
    }
    Ok(Sampling {
        max_tokens: match body.count("max_completion_tokens", 1)? {
            Some(most) => Some(most),
            None => body.count("max_tokens", 1)?,
        },
        min_tokens: body.count("min_tokens", 0)?.unwrap_or(0),
        ignore_eos: body.flag("ignore_eos")?,
        stop: body.texts("stop")?.into_iter().filter(|s| !s.is_empty()).collect(),
        include_stop: body.flag("include_stop_str_in_output")?,
        n,
        seed: body.int("seed")?,
    })
}

/// Refuses automatic tool choice where the engine was started without a parser.
fn check_auto_choice(asked: &Asked, context: Context<'_>) -> Result<(), ApiError> {
    let has_tools = asked.conversation.as_ref().is_some_and(|c| !c.tools.is_empty());
    if has_tools
        && asked.choice == ToolChoice::Auto
        && !context.config.flags.auto_tool_choice
        && context.kind() == MockKind::Vllm
    {
        let message =
            "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set";
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// JSON made of the words that the readers look for.
    fn json() -> impl Strategy<Value = Value> {
        let word = prop::sample::select(vec![
            "model",
            "messages",
            "input",
            "prompt",
            "role",
            "user",
            "assistant",
            "tool",
            "content",
            "text",
            "type",
            "tool_use",
            "tool_result",
            "tool_calls",
            "function",
            "name",
            "arguments",
            "tools",
            "namespace",
            "system",
            "input_schema",
            "parameters",
            "tool_choice",
            "auto",
            "required",
            "any",
            "n",
            "max_tokens",
            "stop",
            "stream",
            "max_output_tokens",
            "stream_options",
            "include_usage",
            "session_id",
            "cache_salt",
            "priority",
            "seed",
            "kv_hints",
            "actions",
            "sampling_params",
            "input_ids",
            "function_call",
            "function_call_output",
            "output",
            "call_id",
            "message",
            "image",
            "thinking",
            "id",
            "input_text",
            "instructions",
            "vllm_xargs",
            "rid",
        ]);
        let leaf = prop_oneof![
            word.clone().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-3_i64..3).prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
            Just(json!("é")),
        ];
        leaf.prop_recursive(5, 48, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::hash_map(word.clone(), inner, 0..7)
                    .prop_map(|map| Value::Object(map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
            ]
        })
    }

    /// A body that gets past the first checks, with something odd in it.
    fn body() -> impl Strategy<Value = Map<String, Value>> {
        (json(), prop::collection::vec((0_usize..8, json()), 0..4)).prop_map(|(odd, fields)| {
            let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "input": "hi", "prompt": "hi",
                "text": "hi", "max_tokens": 5});
            let keys = ["messages", "input", "prompt", "text", "tools", "tool_choice", "sampling_params", "system"];
            for (key, value) in fields {
                body[keys[key]] = value;
            }
            if let (Value::Object(body), Value::Object(odd)) = (&mut body, odd) {
                body.extend(odd);
            }
            body.as_object().cloned().unwrap_or_default()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// I-PRS-1.
        #[test]
        fn no_body_panics(body in body(), sglang in any::<bool>()) {
            let kind = if sglang { MockKind::Sglang } else { MockKind::Vllm };
            let config = MockConfig { kind, ..MockConfig::default() };
            let headers = HeaderMap::new();
            let context = Context { config: &config, headers: &headers };
            for api in [Api::Chat, Api::Completions, Api::Responses, Api::Messages, Api::Generate] {
                if let Ok(asked) = parse(api, Body(&body), context) {
                    prop_assert!(!asked.prompts.is_empty());
                    prop_assert!(asked.prompts.iter().all(|prompt| !prompt.tokens.is_empty()));
                }
            }
        }
    }
}
