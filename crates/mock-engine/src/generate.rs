//! From a checked request to sequences in the engine.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tandem_engine_model::{Namespace, Output, Prompt, Refusal, Request, RequestKey};
use tandem_types::Time;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::answer::{Answer, Ending, Plan};
use crate::asked::Asked;
use crate::config::{MockKind, Speed};
use crate::driver::{Group, Progress, Submission, Ticket};
use crate::error::{Api, ApiError};
use crate::http::State;
use crate::store::Names;
use crate::{hashes, words};

/// Token counts of a request, as far as it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) prompt: u32,
    pub(crate) completion: u32,
    /// Prompt tokens from the cache.
    pub(crate) cached: u32,
    /// Of these, read from host memory or further down.
    pub(crate) loaded: u32,
    /// Prompt tokens newly cached: full blocks that were not there before. Told for conversations only.
    pub(crate) created: Option<u32>,
}

/// One choice.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) answer: Answer,
    /// Which of the request's prompts it answers.
    pub(crate) prompt: usize,
    /// Number of the choice in the answer.
    pub(crate) index: u32,
    _ticket: Ticket,
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) asked: Asked,
    pub(crate) runs: Vec<Run>,
    pub(crate) group: Arc<Group>,
    /// The request's id without the API's prefix.
    pub(crate) id: String,
    /// Seconds since the epoch.
    pub(crate) created: u64,
    /// Tokens in a KV block.
    block_size: u32,
    /// What the client may get, where it set no limit.
    pub(crate) room: u32,
    pub(crate) started: std::time::Instant,
}

impl Generation {
    pub(crate) fn counts(&self, progress: &[Progress]) -> Counts {
        let mut counts = Counts::default();
        let n = self.asked.sampling.n.max(1) as usize;
        for (i, prompt) in self.asked.prompts.iter().enumerate() {
            let length = u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX);
            let cached = progress.get(i * n).map_or(0, |p| p.cached);
            // All that was fetched but the last token, which is computed to answer.
            let cached = cached.max(self.asked.fetched.min(length.saturating_sub(1)));
            counts.prompt += length;
            counts.cached += cached;
            counts.loaded += progress.get(i * n).map_or(0, |p| p.loaded.tokens());
            if self.asked.conversation.is_some() {
                let created = (length / self.block_size * self.block_size).saturating_sub(cached);
                *counts.created.get_or_insert(0) += created;
            }
        }
        counts.completion = progress.iter().map(|p| p.tokens).sum();
        counts
    }
}

/// Checks the length, plans the answers and submits their sequences.
pub(crate) async fn begin(state: &State, asked: Asked) -> Result<Generation, ApiError> {
    let room = room(state, &asked)?;
    let chosen = state.chooser().choose(&asked);
    if let Speed::Times(factor) = state.config.speed
        && !chosen.think.is_zero()
    {
        tokio::time::sleep(chosen.think.div_f64(factor)).await;
    }
    let id = asked.request_id.clone().unwrap_or_else(|| match state.config.kind {
        MockKind::Vllm => state.fresh_id(16),
        MockKind::Sglang => state.fresh_id(32),
    });
    let n = asked.sampling.n.max(1);
    let sequences = asked.prompts.len() * n as usize;
    let group = Group::new(sequences);
    let mut runs = Vec::with_capacity(sequences);
    for (prompt, input) in asked.prompts.iter().enumerate() {
        let tokens: Arc<[u32]> = input.tokens.as_slice().into();
        let tools = asked.conversation.as_ref().map(|c| c.tools.as_slice()).unwrap_or_default();
        for choice in 0..n {
            let seed = seed(state, &asked, &tokens, choice);
            let natural_tokens = natural(state, seed);
            let plan = Plan { sampling: &asked.sampling, tools, room, natural_tokens, seed };
            let answer = plan.answer(chosen.items.as_deref());
            let place = runs.len();
            let text: Vec<u32> = tokens.iter().chain(answer.tokens.iter()).copied().collect();
            let named = hashes::name(&state.config, &text, asked.lora.as_deref(), asked.salt.as_deref());
            let (prompt_form, objects) = match named {
                Some(named) => (Prompt::Named { tokens: Arc::clone(&tokens), ids: named.ids }, named.objects),
                None => (Prompt::Tokens(Arc::clone(&tokens)), Names::default()),
            };
            let submission = Submission {
                rank: asked.rank,
                request: request(state, &asked, prompt_form, &answer),
                objects,
                group: Arc::clone(&group),
                place,
                by_length: answer.ending == Ending::Length,
                max_tokens: asked.sampling.max_tokens.unwrap_or(room).min(room),
                n,
                name: id.clone(),
            };
            let ticket = state.driver.submit(submission).await.map_err(refused)?;
            let index = u32::try_from(place).unwrap_or(u32::MAX);
            runs.push(Run { answer, prompt, index, _ticket: ticket });
        }
    }
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let block_size = state.config.block_size;
    Ok(Generation { asked, runs, group, id, created, block_size, room, started: std::time::Instant::now() })
}

/// Tokens that the longest prompt leaves for its answer.
fn room(state: &State, asked: &Asked) -> Result<u32, ApiError> {
    let context = state.max_model_len;
    let longest = asked.prompts.iter().map(|p| p.tokens.len()).max().unwrap_or(0);
    let longest = u32::try_from(longest).unwrap_or(u32::MAX);
    match state.config.kind {
        MockKind::Vllm => vllm_room(context, longest, asked.sampling.max_tokens),
        MockKind::Sglang => sglang_room(context, longest, asked.sampling.max_tokens, asked.api),
    }
}

fn vllm_room(context: u32, prompt: u32, wanted: Option<u32>) -> Result<u32, ApiError> {
    let refuse = |what: String| {
        let message = format!(
            "This model's maximum context length is {context} tokens. However, {what} \
             (parameter=input_tokens, value={prompt})"
        );
        Err(ApiError::bad_request(message).with_param("input_tokens"))
    };
    if prompt >= context {
        return refuse(format!(
            "your prompt contains {prompt} input tokens, which exceeds this limit even without any output \
             tokens. Please reduce the length of the input prompt."
        ));
    }
    let room = context - prompt;
    match wanted {
        Some(wanted) if wanted > room => refuse(format!(
            "you requested {wanted} output tokens and your prompt contains at least {prompt} input tokens, for \
             a total of at least {} tokens. Please reduce the length of the input prompt or the number of \
             requested output tokens.",
            u64::from(wanted) + u64::from(prompt),
        )),
        _ => Ok(room),
    }
}

/// SGLang refuses a long prompt everywhere, and a long answer on the OpenAI routes; `/generate` clips it.
fn sglang_room(context: u32, prompt: u32, wanted: Option<u32>, api: Api) -> Result<u32, ApiError> {
    if prompt >= context {
        let message = format!(
            "The input ({prompt} tokens) is longer than the model's context length ({context} tokens)."
        );
        return Err(ApiError::bad_request(message));
    }
    let room = context - prompt;
    match wanted {
        Some(wanted) if wanted > room && api != Api::Generate => {
            let total = u64::from(wanted) + u64::from(prompt);
            Err(ApiError::bad_request(format!(
                "Requested token count exceeds the model's maximum context length of {context} tokens. You \
                 requested a total of {total} tokens: {prompt} tokens from the input messages and {wanted} \
                 tokens for the completion. Please reduce the number of tokens in the input messages or the \
                 completion to fit within the limit."
            )))
        }
        _ => Ok(room),
    }
}

/// Made-up text follows from the engine's seed, the client's, the prompt and the choice.
fn seed(state: &State, asked: &Asked, tokens: &[u32], choice: u32) -> u64 {
    let mut hash = xxh3_64_with_seed(&asked.sampling.seed.unwrap_or(0).to_le_bytes(), state.config.seed);
    let mut bytes = Vec::with_capacity(tokens.len() * 4);
    for token in tokens {
        bytes.extend_from_slice(&token.to_le_bytes());
    }
    hash = xxh3_64_with_seed(&bytes, hash);
    xxh3_64_with_seed(&choice.to_le_bytes(), hash)
}

fn natural(state: &State, seed: u64) -> u32 {
    let answer = state.config.answer;
    let span = u64::from(answer.max_tokens.saturating_sub(answer.min_tokens)) + 1;
    let (_, drawn) = words::next(seed);
    answer.min_tokens + u32::try_from(drawn % span).unwrap_or(0)
}

fn request(state: &State, asked: &Asked, prompt: Prompt, answer: &Answer) -> Request {
    let priority = match state.config.kind {
        MockKind::Vllm => asked.priority,
        // SGLang serves higher numbers first, the model lower ones.
        MockKind::Sglang => asked.priority.checked_neg().unwrap_or(i32::MAX),
    };
    Request {
        id: RequestKey(0),
        prompt,
        output: Output::Tokens(Arc::clone(&answer.tokens)),
        max_output_tokens: u32::try_from(answer.tokens.len()).unwrap_or(u32::MAX),
        priority,
        namespace: Namespace {
            lora: asked.lora.as_deref().map(Arc::from),
            salt: asked.salt.as_deref().map(Arc::from),
        },
        session: asked.session.as_deref().map(Arc::from),
        arrival: Time::ZERO,
    }
}

fn refused(refusal: Option<Refusal>) -> ApiError {
    match refusal {
        Some(refusal) => ApiError::bad_request(refusal.to_string()),
        None => ApiError::new(503, "ServiceUnavailableError", "engine is shutting down"),
    }
}
