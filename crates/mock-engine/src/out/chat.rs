//! `/v1/chat/completions`.

use super::{
    DONE, FINGERPRINT, Face, Render, data, finish_reason, matched_stop, running_usage, stop_reason,
    stream_usage, usage, weights,
};
use crate::answer::{Answer, AnswerCall, Delta};
use crate::config::MockKind;
use crate::generate::{Counts, Generation, Run};
use crate::json::{Json, Null, Object, object};

fn id(face: &Face, g: &Generation) -> String {
    match face.kind {
        MockKind::Vllm => format!("chatcmpl-{}", g.id),
        MockKind::Sglang => g.id.clone(),
    }
}

/// A number for the `part`-th part of run `run` that no other part has.
const fn place(run: usize, part: usize) -> usize {
    run * 256 + part + 1
}

pub(super) fn whole(face: &Face, g: &Generation, counts: Counts, aborted: &[bool]) -> Json {
    let choices: Vec<Json> = g
        .runs
        .iter()
        .enumerate()
        .map(|(run, r)| choice(face, g, run, r, aborted.get(run) == Some(&true)))
        .collect();
    let prompt = g.asked.return_token_ids.then(|| g.asked.prompts.first().map(|p| &p.tokens)).flatten();
    match face.kind {
        MockKind::Vllm => object! {
            "id": id(face, g),
            "object": "chat.completion",
            "created": g.created,
            "model": g.asked.model,
            "choices": choices,
            "service_tier": Null,
            "system_fingerprint": FINGERPRINT,
            "usage": usage(face, counts),
            "prompt_logprobs": Null,
            "prompt_token_ids": prompt,
            "prompt_text": Null,
            "kv_transfer_params": g.asked.kv_transfer,
            "ec_transfer_params": Null,
            "metrics": Null,
        },
        MockKind::Sglang => object! {
            "id": id(face, g),
            "object": "chat.completion",
            "created": g.created,
            "model": g.asked.model,
            "choices": choices,
            "usage": usage(face, counts),
            "metadata": weights(counts.completion),
        },
    }
}

fn choice(face: &Face, g: &Generation, run: usize, r: &Run, aborted: bool) -> Json {
    let answer = &r.answer;
    let finish = if aborted { "abort" } else { finish_reason(&answer.ending) };
    let mut choice = Object::default();
    choice.put("index", &r.index);
    choice.put("message", &message(face, run, answer));
    choice.put("logprobs", &Null);
    choice.put("finish_reason", finish);
    match face.kind {
        MockKind::Vllm => {
            choice.put("stop_reason", &stop_reason(&answer.ending));
            choice.put("token_ids", &g.asked.return_token_ids.then_some(&answer.tokens[..]));
            choice.put("routed_experts", &Null);
        }
        MockKind::Sglang => choice.put("matched_stop", &matched_stop(&answer.ending)),
    }
    choice.end()
}

fn message(face: &Face, run: usize, answer: &Answer) -> Json {
    let calls: Vec<Json> =
        answer.calls().map(|(part, call)| tool_call(face, place(run, part), call)).collect();
    let text = answer.text();
    // An answer of calls alone has no content.
    let content = (calls.is_empty() || !text.is_empty()).then_some(text);
    let mut message = Object::default();
    message.put("role", "assistant");
    message.put("content", &content);
    if face.kind == MockKind::Sglang {
        message.put("reasoning_content", &Null);
    } else {
        for absent in ["refusal", "annotations", "audio", "function_call"] {
            message.put(absent, &Null);
        }
    }
    if !calls.is_empty() {
        message.put("tool_calls", &calls);
    }
    if face.kind == MockKind::Vllm {
        message.put("reasoning", &Null);
    }
    message.end()
}

fn tool_call(face: &Face, place: usize, call: &AnswerCall) -> Json {
    object! {
        "id": face.call_id(place),
        "type": "function",
        "function": object! { "name": call.call.name, "arguments": call.call.arguments },
    }
}

/// The stream.
pub(super) struct Stream {
    face: Face,
    id: String,
    /// Per run: token ids not yet sent.
    ids: Vec<Vec<u32>>,
    /// Per run: calls begun.
    calls: Vec<u32>,
    /// Runs that have not ended.
    open: usize,
}

impl Stream {
    pub(super) fn new(face: Face, g: &Generation) -> Self {
        let id = id(&face, g);
        Self {
            face,
            id,
            ids: vec![Vec::new(); g.runs.len()],
            calls: vec![0; g.runs.len()],
            open: g.runs.len(),
        }
    }

    fn chunk(&self, g: &Generation, choices: &[Json], counts: Counts) -> Object {
        let mut chunk = Object::default();
        chunk.put("id", &self.id);
        chunk.put("object", "chat.completion.chunk");
        chunk.put("created", &g.created);
        chunk.put("model", &g.asked.model);
        chunk.put("choices", choices);
        if g.asked.continuous_usage && self.face.kind == MockKind::Vllm {
            chunk.put("usage", &running_usage(counts));
        }
        chunk
    }

    /// A choice with this delta; `finish` on its last chunk.
    fn choice(&mut self, g: &Generation, run: usize, delta: &Json, finish: Option<&str>) -> Json {
        let Some(r) = g.runs.get(run) else { return object! {} };
        let mut choice = Object::default();
        choice.put("index", &r.index);
        choice.put("delta", delta);
        choice.put("logprobs", &Null);
        choice.put("finish_reason", &finish);
        if self.face.kind == MockKind::Sglang {
            let matched = match finish {
                Some(_) => matched_stop(&r.answer.ending),
                None => Json("null".to_owned()),
            };
            choice.put("matched_stop", &matched);
            return choice.end();
        }
        if finish.is_some() {
            choice.put("stop_reason", &stop_reason(&r.answer.ending));
        }
        let ids = self.ids.get_mut(run).map(std::mem::take).unwrap_or_default();
        choice.put("token_ids", &g.asked.return_token_ids.then_some(ids));
        choice.end()
    }

    fn send(
        &mut self,
        g: &Generation,
        run: usize,
        delta: &Json,
        finish: Option<&str>,
        counts: Counts,
    ) -> String {
        let choice = self.choice(g, run, delta, finish);
        let mut chunk = self.chunk(g, &[choice], counts);
        if g.asked.continuous_usage && self.face.kind == MockKind::Sglang && finish.is_none() {
            chunk.put("usage", &stream_usage(&self.face, counts));
        }
        self.open -= usize::from(finish.is_some()).min(self.open);
        // The stream's last chunk carries it: this one, unless a usage chunk follows.
        if self.face.kind == MockKind::Vllm && self.open == 0 && !g.asked.include_usage {
            chunk.put("system_fingerprint", FINGERPRINT);
        }
        data(&chunk.end())
    }

    fn text(&self, text: &str) -> Json {
        self.delta(None, Some(text), None)
    }

    fn delta(&self, role: Option<&str>, content: Option<&str>, calls: Option<Json>) -> Json {
        let mut delta = Object::default();
        if self.face.kind == MockKind::Sglang {
            delta.put("reasoning_content", &Null);
        }
        if let Some(role) = role {
            delta.put("role", role);
        }
        if let Some(content) = content {
            delta.put("content", content);
        }
        if let Some(call) = calls {
            delta.put("tool_calls", &[call]);
        }
        delta.end()
    }
}

impl Render for Stream {
    fn head(&mut self, g: &Generation, counts: Counts, out: &mut Vec<String>) {
        let vllm = self.face.kind == MockKind::Vllm;
        for r in &g.runs {
            let mut choice = Object::default();
            choice.put("index", &r.index);
            choice.put("delta", &self.delta(Some("assistant"), Some(""), None));
            choice.put("logprobs", &Null);
            choice.put("finish_reason", &Null);
            if !vllm {
                choice.put("matched_stop", &Null);
            }
            let mut chunk = self.chunk(g, &[choice.end()], Counts { completion: 0, ..counts });
            if vllm {
                let prompt = g.asked.prompts.first().map(|p| &p.tokens);
                chunk.put("prompt_token_ids", &prompt.filter(|_| g.asked.return_token_ids));
                chunk.put("prompt_text", &Null);
            }
            out.push(data(&chunk.end()));
        }
    }

    fn token(&mut self, g: &Generation, run: usize, index: usize, counts: Counts, out: &mut Vec<String>) {
        let Some(r) = g.runs.get(run) else { return };
        if let (Some(ids), Some(id)) = (self.ids.get_mut(run), r.answer.tokens.get(index)) {
            ids.push(*id);
        }
        let last = index + 1 == r.answer.tokens.len();
        let finish = last.then(|| finish_reason(&r.answer.ending));
        let begun = self.calls.get(run).copied().unwrap_or(0);
        let delta = match r.answer.delta(index) {
            Delta::Nothing if !last => return,
            Delta::Nothing => self.text(""),
            Delta::Text { text, .. } => self.text(text),
            Delta::CallStart { part, arguments } => {
                if let Some(calls) = self.calls.get_mut(run) {
                    *calls += 1;
                }
                let name = r.answer.call(part).map(|call| call.call.name.as_str()).unwrap_or_default();
                let call = object! {
                    "id": self.face.call_id(place(run, part)),
                    "type": "function",
                    "index": begun,
                    "function": object! { "name": name, "arguments": arguments },
                };
                self.delta(None, None, Some(call))
            }
            Delta::Arguments { arguments, .. } => {
                let call = object! {
                    "index": begun.saturating_sub(1),
                    "function": object! { "arguments": arguments },
                };
                self.delta(None, None, Some(call))
            }
        };
        if self.face.kind == MockKind::Sglang && last {
            // The reason has a chunk of its own.
            if !matches!(r.answer.delta(index), Delta::Nothing) {
                out.push(self.send(g, run, &delta, None, counts));
            }
            let empty = self.delta(None, None, None);
            out.push(self.send(g, run, &empty, finish, counts));
            return;
        }
        out.push(self.send(g, run, &delta, finish, counts));
    }

    fn aborted(&mut self, g: &Generation, run: usize, counts: Counts, out: &mut Vec<String>) {
        let delta = self.text("");
        out.push(self.send(g, run, &delta, Some("abort"), counts));
    }

    fn end(&mut self, g: &Generation, counts: Counts, out: &mut Vec<String>) {
        if g.asked.include_usage {
            let mut chunk = Object::default();
            chunk.put("id", &self.id);
            chunk.put("object", "chat.completion.chunk");
            chunk.put("created", &g.created);
            chunk.put("model", &g.asked.model);
            chunk.put("choices", &Vec::<Json>::new());
            chunk.put("usage", &stream_usage(&self.face, counts));
            if self.face.kind == MockKind::Vllm {
                chunk.put("system_fingerprint", FINGERPRINT);
            }
            out.push(data(&chunk.end()));
        }
        out.push(DONE.to_owned());
    }
}
