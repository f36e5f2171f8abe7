//! `/v1/completions`.

use serde_json::Value;

use super::{Body, Context, FAN_OUT_MAX, common, openai_sampling, stream_options};
use crate::asked::{Asked, PromptIn};
use crate::error::{Api, ApiError};
use crate::tokenizer::tokens;

/// The API's own default.
const MAX_TOKENS: u32 = 16;

pub(super) fn parse(body: Body<'_>, context: Context<'_>) -> Result<Asked, ApiError> {
    let mut asked = common(Api::Completions, body, context)?;
    stream_options(body, context, &mut asked)?;
    asked.sampling = openai_sampling(body)?;
    asked.sampling.max_tokens.get_or_insert(MAX_TOKENS);
    asked.echo = body.flag("echo")?;
    let prompt = body.get("prompt").ok_or_else(|| ApiError::missing("prompt"))?;
    asked.prompts = prompts(prompt)?;
    Ok(asked)
}

/// A text, token ids, or a list of either.
pub(super) fn prompts(prompt: &Value) -> Result<Vec<PromptIn>, ApiError> {
    let wrong = || ApiError::wrong_type("prompt", "string");
    let prompts = match prompt {
        Value::String(text) => vec![text_prompt(text)],
        Value::Array(items) if items.iter().all(Value::is_number) && !items.is_empty() => {
            vec![id_prompt(items)?]
        }
        Value::Array(items) => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(text_prompt(text)),
                Value::Array(ids) => id_prompt(ids),
                _ => Err(wrong()),
            })
            .collect::<Result<_, _>>()?,
        _ => return Err(wrong()),
    };
    if prompts.is_empty() || prompts.iter().any(|p| p.tokens.is_empty()) {
        return Err(ApiError::bad_request("The prompt cannot be empty").with_param("prompt"));
    }
    if prompts.len() > FAN_OUT_MAX as usize {
        let message = format!("At most {FAN_OUT_MAX} prompts are accepted, got {}", prompts.len());
        return Err(ApiError::bad_request(message).with_param("prompt"));
    }
    Ok(prompts)
}

pub(super) fn text_prompt(text: &str) -> PromptIn {
    PromptIn { tokens: tokens(text), text: Some(text.to_owned()) }
}

pub(super) fn id_prompt(ids: &[Value]) -> Result<PromptIn, ApiError> {
    let tokens = ids
        .iter()
        .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
        .collect::<Option<Vec<u32>>>()
        .ok_or_else(|| ApiError::wrong_type("prompt", "integer"))?;
    Ok(PromptIn { tokens, text: None })
}
