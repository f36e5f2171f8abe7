//! From a request body to the prompt's text.

use std::sync::Arc;

use tandem_types::{Dialect, EngineKind};

use crate::chat::{Chat, flag, given, invalid, text, unsupported};
use crate::error::RenderError;
use crate::json::{Json, Object};
use crate::model::{PromptModel, Setup};
use crate::time::LocalTime;
use crate::{sglang, vllm};

/// What transformers appends to a message that is to be left open, to find its end again.
const OPEN_END: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A prompt before it is tokenized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text for the tokenizer.
    Text(Arc<str>),
    /// Token ids that the client sent itself.
    Tokens(Arc<[u32]>),
}

/// A request's prompt, and what else its blocks depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub prompt: Prompt,
    /// Whether the tokenizer adds its own special tokens (such as a BOS) around the text.
    pub add_special_tokens: bool,
    /// The model that the request names: may be a LoRA adapter.
    pub model: Option<String>,
    /// The salt under which the engine caches this prompt.
    pub cache_salt: Option<String>,
}

impl PromptModel {
    /// The prompt that an engine of `kind` makes of `body`. A template that asks for the time is unsupported here.
    ///
    /// # Errors
    /// [`RenderError::Unsupported`] where the prompt cannot be reproduced exactly; the others where the engine
    /// would refuse the request too, or a bound was hit.
    pub fn render(&self, dialect: Dialect, kind: EngineKind, body: &[u8]) -> Result<Rendered, RenderError> {
        self.render_at(dialect, kind, body, None)
    }

    /// [`PromptModel::render`], with the wall time for templates that ask for it.
    ///
    /// # Errors
    /// As [`PromptModel::render`].
    pub fn render_at(
        &self,
        dialect: Dialect,
        kind: EngineKind,
        body: &[u8],
        now: Option<LocalTime>,
    ) -> Result<Rendered, RenderError> {
        let body = Json::parse(body)?;
        let Some(body) = body.as_object() else { return invalid("the body is no JSON object") };
        let (prompt, add_special_tokens) = match (dialect, kind) {
            (Dialect::Completions, EngineKind::Vllm | EngineKind::Sglang) => completion(body)?,
            (_, EngineKind::Vllm) => {
                let convert = match dialect {
                    Dialect::Chat => vllm::chat,
                    Dialect::Responses => vllm::responses::chat,
                    _ => vllm::messages::chat,
                };
                self.chat(convert(body, &self.setup)?, now)?
            }
            (_, EngineKind::Sglang) => {
                let convert = match dialect {
                    Dialect::Chat => sglang::chat,
                    Dialect::Responses => sglang::responses::chat,
                    _ => sglang::messages::chat,
                };
                self.chat(convert(body, &self.setup)?, now)?
            }
            (_, EngineKind::OpenAi) => return unsupported("an engine of unknown make"),
        };
        if add_special_tokens && !self.setup.special_tokens_agree {
            return unsupported("special tokens that tokenizer.json and its configuration disagree about");
        }
        Ok(Rendered {
            prompt,
            add_special_tokens,
            model: text(body, "model")?.map(str::to_owned),
            cache_salt: text(body, "cache_salt")?.map(str::to_owned),
        })
    }

    fn chat(&self, chat: Chat, now: Option<LocalTime>) -> Result<(Prompt, bool), RenderError> {
        let special = chat.add_special_tokens;
        Ok((Prompt::Text(apply(&self.setup, chat, now)?.into()), special))
    }
}

/// A completion's prompt is the text itself, or token ids.
fn completion(body: &Object) -> Result<(Prompt, bool), RenderError> {
    for (name, why) in [
        ("suffix", "a suffix"),
        ("prompt_embeds", "prompt embeddings"),
        ("truncate_prompt_tokens", "a truncated prompt"),
        ("input_ids", "input ids"),
    ] {
        if given(body, name).is_some() {
            return unsupported(why);
        }
    }
    let special = flag(body, "add_special_tokens", true)?;
    let prompt = match body.get("prompt") {
        Some(Json::List(list)) => match list.as_slice() {
            [only @ (Json::Str(_) | Json::List(_))] => only,
            [Json::Int(_), ..] => return Ok((tokens(list)?, false)),
            [] => return invalid("the prompt is empty"),
            _ => return unsupported("several prompts"),
        },
        Some(prompt) => prompt,
        None => return invalid("no prompt"),
    };
    match prompt {
        Json::Str(text) => Ok((Prompt::Text(text.as_str().into()), special)),
        Json::List(ids) => Ok((tokens(ids)?, false)),
        _ => invalid("the prompt is neither text nor token ids"),
    }
}

fn tokens(ids: &[Json]) -> Result<Prompt, RenderError> {
    let ids = ids.iter().map(|id| if let Json::Int(id) = id { u32::try_from(*id).ok() } else { None });
    match ids.collect::<Option<Arc<[u32]>>>() {
        Some(ids) => Ok(Prompt::Tokens(ids)),
        None => invalid("a token id is no 32-bit number"),
    }
}

/// transformers' `apply_chat_template`.
fn apply(setup: &Setup, mut chat: Chat, now: Option<LocalTime>) -> Result<String, RenderError> {
    let template = setup.template(chat.tools.is_some()).map_err(|why| RenderError::Unsupported { why })?;
    if chat.continue_final_message && chat.add_generation_prompt {
        return invalid("the last message cannot be continued and answered");
    }
    let open = if chat.continue_final_message {
        if !template.source().contains("content") {
            return invalid("the template prints no content");
        }
        Some(leave_open(&mut chat)?)
    } else {
        None
    };
    let mut variables = setup.special_tokens.clone();
    variables.extend(chat.variables);
    variables
        .insert("messages".to_owned(), Json::List(chat.messages.into_iter().map(Json::Object).collect()));
    variables.insert("tools".to_owned(), chat.tools.map_or(Json::Null, Json::List));
    variables.insert("documents".to_owned(), chat.documents);
    variables.insert("add_generation_prompt".to_owned(), Json::Bool(chat.add_generation_prompt));
    let text = template.render(&variables, now)?;
    match open {
        None => Ok(text),
        Some(last) => close(text, &last),
    }
}

/// Marks the end of the last message's text, which is returned.
fn leave_open(chat: &mut Chat) -> Result<String, RenderError> {
    let content = chat.messages.last_mut().and_then(|message| message.get_mut("content"));
    let text = match content {
        Some(Json::Str(text)) => Some(text),
        Some(Json::List(parts)) => parts.iter_mut().rev().find_map(|part| match part {
            Json::Object(part) => match part.get_mut("text") {
                Some(Json::Str(text)) => Some(text),
                _ => None,
            },
            _ => None,
        }),
        _ => None,
    };
    let Some(text) = text else { return invalid("the last message has no text to continue") };
    let before = text.clone();
    text.push_str(OPEN_END);
    Ok(before)
}

/// Cuts the prompt where the last message's text ends.
fn close(mut text: String, last: &str) -> Result<String, RenderError> {
    let end = text.rfind(OPEN_END.trim_end()).filter(|_| text.contains(last.trim()));
    let Some(end) = end else {
        return invalid("the template does not print the last message");
    };
    let spaced = text.get(end..).is_some_and(|rest| rest.starts_with(OPEN_END));
    text.truncate(end);
    if !spaced {
        text.truncate(text.trim_end().len());
    }
    Ok(text)
}
