//! Answers in the form of each engine and API.
//!
//! - Purpose: the same keys, in the same order and of the same types, as vLLM 0.32 and SGLang 0.5.23 write.
//! - Inputs: a [`Generation`] and its progress; outputs: a JSON body, or events one by one.
//! - Invariants: I-OUT-1 the texts and arguments of a stream, joined, are those of the whole answer; I-OUT-2
//!   every stream ends with what its clients need to see: a finish reason, or the API's last event.
//! - Deliberately absent: logprobs, reasoning, keep-alive events (vLLM and SGLang send none).

mod chat;
mod completions;
mod messages;
mod native;
mod responses;

use crate::answer::Ending;
use crate::config::{EngineFlags, MockKind};
use crate::error::Api;
use crate::generate::{Counts, Generation};
use crate::json::{Json, Null, object};
use crate::words;

/// What answers say of the engine.
#[derive(Debug, Clone)]
pub(crate) struct Face {
    pub(crate) kind: MockKind,
    pub(crate) flags: EngineFlags,
    /// Seed of the ids inside this answer.
    pub(crate) ids: u64,
}

/// vLLM's version and the hash of its configuration.
pub(crate) const VLLM_VERSION: &str = "0.32.0";
pub(crate) const FINGERPRINT: &str = "vllm-0.32.0-d1aaad67";
/// SGLang's version.
pub(crate) const SGLANG_VERSION: &str = "0.5.23";

impl Face {
    /// The `place`-th id of this answer, of so many hex digits.
    pub(crate) fn hex(&self, place: usize, digits: usize) -> String {
        let mut text = String::with_capacity(digits + 16);
        let mut state = self.ids.wrapping_add((place as u64).wrapping_mul(0x1000));
        while text.len() < digits {
            let (following, drawn) = words::next(state);
            state = following;
            text.push_str(&format!("{drawn:016x}"));
        }
        text.truncate(digits);
        text
    }

    /// Id of a tool call.
    fn call_id(&self, place: usize) -> String {
        match self.kind {
            MockKind::Vllm => format!("chatcmpl-tool-{}", self.hex(place, 32)),
            MockKind::Sglang => format!("call_{}", self.hex(place, 24)),
        }
    }
}

/// Writes a stream.
pub(crate) trait Render: Send {
    /// Whether [`Render::head`] comes before the first token is there.
    fn eager(&self) -> bool {
        false
    }

    /// What comes first.
    fn head(&mut self, g: &Generation, counts: Counts, out: &mut Vec<String>);

    /// What the `index`-th token of run `run` shows.
    fn token(&mut self, g: &Generation, run: usize, index: usize, counts: Counts, out: &mut Vec<String>);

    /// Run `run` was aborted by the engine before its end.
    fn aborted(&mut self, g: &Generation, run: usize, counts: Counts, out: &mut Vec<String>);

    /// What comes last.
    fn end(&mut self, g: &Generation, counts: Counts, out: &mut Vec<String>);
}

/// The writer of a stream of this API.
pub(crate) fn stream(api: Api, face: Face, g: &Generation) -> Box<dyn Render> {
    match api {
        Api::Chat | Api::Utility => Box::new(chat::Stream::new(face, g)),
        Api::Completions => Box::new(completions::Stream::new(face, g)),
        Api::Responses => Box::new(responses::Stream::new(face)),
        Api::Messages => Box::new(messages::Stream::new(face)),
        Api::Generate => Box::new(native::Stream::new(face, g)),
    }
}

/// The whole answer of this API; `aborted[run]` tells which runs the engine aborted.
pub(crate) fn whole(api: Api, face: &Face, g: &Generation, counts: Counts, aborted: &[bool]) -> Json {
    match api {
        Api::Chat | Api::Utility => chat::whole(face, g, counts, aborted),
        Api::Completions => completions::whole(face, g, counts, aborted),
        Api::Responses => responses::whole(face, g, counts),
        Api::Messages => messages::whole(face, g, counts),
        Api::Generate => native::whole(face, g, counts, aborted),
    }
}

/// An unnamed event.
fn data(json: &Json) -> String {
    format!("data: {}\n\n", json.0)
}

/// A named event.
fn event(name: &str, json: &Json) -> String {
    format!("event: {name}\ndata: {}\n\n", json.0)
}

const DONE: &str = "data: [DONE]\n\n";

/// `finish_reason` of the OpenAI APIs.
const fn finish_reason(ending: &Ending) -> &'static str {
    match ending {
        Ending::Stop | Ending::StopString(_) => "stop",
        Ending::Length => "length",
        Ending::ToolCalls => "tool_calls",
    }
}

/// vLLM's `stop_reason`: the stop string, if one ended the answer.
fn stop_reason(ending: &Ending) -> Option<&str> {
    match ending {
        Ending::StopString(stop) => Some(stop),
        _ => None,
    }
}

/// SGLang's `matched_stop`: the stop string or the id of the end token.
fn matched_stop(ending: &Ending) -> Json {
    use crate::json::ToJson;
    let mut text = String::new();
    match ending {
        Ending::StopString(stop) => stop.write(&mut text),
        Ending::Stop | Ending::ToolCalls => crate::tokenizer::END.write(&mut text),
        Ending::Length => Null.write(&mut text),
    }
    Json(text)
}

/// `usage` of a whole answer on the OpenAI routes.
fn usage(face: &Face, counts: Counts) -> Json {
    let total = counts.prompt + counts.completion;
    let details = face.flags.prompt_tokens_details.then(|| match face.kind {
        MockKind::Vllm => object! {
            "cached_tokens": counts.cached,
            "created_cache_tokens": counts.created,
            "multimodal_tokens": Null,
        },
        MockKind::Sglang => object! { "cached_tokens": counts.cached },
    });
    match face.kind {
        MockKind::Vllm => object! {
            "prompt_tokens": counts.prompt,
            "total_tokens": total,
            "completion_tokens": counts.completion,
            "prompt_tokens_details": details,
            "completion_tokens_details": Null,
        },
        MockKind::Sglang => object! {
            "prompt_tokens": counts.prompt,
            "total_tokens": total,
            "completion_tokens": counts.completion,
            "prompt_tokens_details": details,
            "reasoning_tokens": 0_u32,
            "completion_tokens_details": Null,
        },
    }
}

/// `usage` of a stream's last chunk; SGLang writes the same as in whole answers.
fn stream_usage(face: &Face, counts: Counts) -> Json {
    if face.kind == MockKind::Sglang {
        return usage(face, counts);
    }
    let total = counts.prompt + counts.completion;
    if !face.flags.prompt_tokens_details {
        return running_usage(counts);
    }
    object! {
        "prompt_tokens": counts.prompt,
        "total_tokens": total,
        "completion_tokens": counts.completion,
        "prompt_tokens_details": object! {
            "cached_tokens": counts.cached,
            "created_cache_tokens": counts.created,
        },
    }
}

/// `usage` of a chunk before the last, with continuous usage.
fn running_usage(counts: Counts) -> Json {
    object! {
        "prompt_tokens": counts.prompt,
        "total_tokens": counts.prompt + counts.completion,
        "completion_tokens": counts.completion,
    }
}

/// SGLang's note on which weights answered.
fn weights(tokens: u32) -> Json {
    object! {
        "weight_version": "default",
        "weight_versions": [object! { "version": "default", "start": 0_u32, "end": tokens }],
    }
}
