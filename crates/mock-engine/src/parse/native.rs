//! SGLang's `/generate`, and `/tokenize` and `/detokenize` of both engines.

use serde_json::Value;

use super::{Body, Context, FAN_OUT_MAX, common, completions};
use crate::asked::{Asked, PromptIn, Sampling};
use crate::error::{Api, ApiError};

/// The API's own default.
const MAX_NEW_TOKENS: u32 = 128;

pub(super) fn parse(body: Body<'_>, context: Context<'_>) -> Result<Asked, ApiError> {
    let mut asked = common(Api::Generate, body, context)?;
    asked.include_usage = true;
    hints(body)?;
    let empty = serde_json::Map::new();
    let sampling = body.object("sampling_params")?.unwrap_or(Body(&empty));
    let n = sampling.count("n", 1)?.unwrap_or(1);
    if n > FAN_OUT_MAX {
        return Err(ApiError::bad_request(format!("n must be at most {FAN_OUT_MAX}, got {n}.")));
    }
    asked.sampling = Sampling {
        max_tokens: Some(sampling.count("max_new_tokens", 1)?.unwrap_or(MAX_NEW_TOKENS)),
        min_tokens: sampling.count("min_new_tokens", 0)?.unwrap_or(0),
        ignore_eos: sampling.flag("ignore_eos")?,
        stop: sampling.texts("stop")?.into_iter().filter(|s| !s.is_empty()).collect(),
        include_stop: false,
        n,
        seed: sampling.int("sampling_seed")?,
    };
    asked.prompts = match (body.get("text"), body.get("input_ids")) {
        (Some(text), None) if text.is_string() || text.is_array() => completions::prompts(text)?,
        (None, Some(ids)) if ids.is_array() => completions::prompts(ids)?,
        (Some(_), Some(_)) | (None, None) => {
            return Err(ApiError::bad_request("Either text, input_ids or input_embeds should be provided."));
        }
        _ => return Err(ApiError::bad_request("text must be a string and input_ids a list of integers.")),
    };
    Ok(asked)
}

/// Hints are checked and then ignored, for the engine executes none.
fn hints(body: Body<'_>) -> Result<(), ApiError> {
    let Some(hints) = body.get("kv_hints") else { return Ok(()) };
    let envelopes = match hints {
        Value::Array(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    let malformed = |what: &str| ApiError::bad_request(format!("Malformed kv_hints envelope: {what}"));
    let missing = |field: &str| malformed(&format!("Object missing required field `{field}`"));
    for envelope in envelopes {
        let Value::Object(_) = envelope else { return Err(malformed("Expected `object`")) };
        for field in ["protocol_version", "message_id"] {
            if !envelope.get(field).is_some_and(Value::is_string) {
                return Err(missing(field));
            }
        }
        let actions = envelope.get("actions").and_then(Value::as_array);
        for action in actions.map(Vec::as_slice).unwrap_or_default() {
            for field in ["action_id", "action_type", "action_version"] {
                if !action.get(field).is_some_and(Value::is_string) {
                    return Err(missing(field));
                }
            }
        }
    }
    Ok(())
}

/// The ids of `/tokenize`'s prompt: plain text, or a conversation.
pub(crate) fn parse_tokenize(body: Body<'_>, context: Context<'_>) -> Result<Vec<u32>, ApiError> {
    if body.get("messages").is_some() {
        let asked = super::parse(Api::Chat, body, context)?;
        return Ok(asked.prompts.into_iter().next().unwrap_or_default().tokens);
    }
    super::model(body, context)?;
    match body.get("prompt").ok_or_else(|| ApiError::missing("prompt"))? {
        Value::String(text) => Ok(completions::text_prompt(text).tokens),
        _ => Err(ApiError::wrong_type("prompt", "string")),
    }
}

/// The ids that `/detokenize` is to turn into text.
pub(crate) fn parse_detokenize(body: Body<'_>, context: Context<'_>) -> Result<PromptIn, ApiError> {
    super::model(body, context)?;
    let ids = body.list("tokens")?.ok_or_else(|| ApiError::missing("tokens"))?;
    completions::id_prompt(ids)
}
