//! `/v1/completions`.

use super::{
    DONE, FINGERPRINT, Face, Render, data, finish_reason, matched_stop, running_usage, stop_reason,
    stream_usage, usage, weights,
};
use crate::answer::Delta;
use crate::config::MockKind;
use crate::generate::{Counts, Generation, Run};
use crate::json::{Json, Null, Object, object};
use crate::tokenizer::decode;

fn id(face: &Face, g: &Generation) -> String {
    match face.kind {
        MockKind::Vllm => format!("cmpl-{}", g.id),
        MockKind::Sglang => g.id.clone(),
    }
}

/// The prompt's text, which `echo` repeats.
fn echoed(g: &Generation, run: &Run) -> String {
    let prompt = g.asked.prompts.get(run.prompt).filter(|_| g.asked.echo);
    prompt.map(|p| p.text.clone().unwrap_or_else(|| decode(&p.tokens))).unwrap_or_default()
}

fn prompt_ids<'a>(g: &'a Generation, run: &Run) -> Option<&'a [u32]> {
    let prompt = g.asked.prompts.get(run.prompt)?;
    g.asked.return_token_ids.then_some(prompt.tokens.as_slice())
}

pub(super) fn whole(face: &Face, g: &Generation, counts: Counts, aborted: &[bool]) -> Json {
    let choices: Vec<Json> = g
        .runs
        .iter()
        .enumerate()
        .map(|(i, run)| choice(face, g, run, aborted.get(i) == Some(&true)))
        .collect();
    let mut body = Object::default();
    body.put("id", &id(face, g));
    body.put("object", "text_completion");
    body.put("created", &g.created);
    body.put("model", &g.asked.model);
    body.put("choices", &choices);
    if face.kind == MockKind::Vllm {
        body.put("service_tier", &Null);
        body.put("system_fingerprint", FINGERPRINT);
    }
    body.put("usage", &usage(face, counts));
    if face.kind == MockKind::Vllm {
        body.put("kv_transfer_params", &g.asked.kv_transfer);
        body.put("ec_transfer_params", &Null);
        body.put("metrics", &Null);
    } else {
        body.put("metadata", &weights(counts.completion));
    }
    body.end()
}

fn choice(face: &Face, g: &Generation, run: &Run, aborted: bool) -> Json {
    let answer = &run.answer;
    let text = echoed(g, run) + &answer.text();
    let finish = if aborted { "abort" } else { finish_reason(&answer.ending) };
    match face.kind {
        MockKind::Vllm => object! {
            "index": run.index,
            "text": text,
            "logprobs": Null,
            "finish_reason": finish,
            "stop_reason": stop_reason(&answer.ending),
            "token_ids": g.asked.return_token_ids.then_some(&answer.tokens[..]),
            "prompt_logprobs": Null,
            "prompt_token_ids": prompt_ids(g, run),
            "routed_experts": Null,
        },
        MockKind::Sglang => object! {
            "index": run.index,
            "text": text,
            "logprobs": Null,
            "finish_reason": finish,
            "matched_stop": matched_stop(&answer.ending),
        },
    }
}

/// The stream.
pub(super) struct Stream {
    face: Face,
    id: String,
    ids: Vec<Vec<u32>>,
    /// Runs that have not ended.
    open: usize,
}

impl Stream {
    pub(super) fn new(face: Face, g: &Generation) -> Self {
        let id = id(&face, g);
        Self { face, id, ids: vec![Vec::new(); g.runs.len()], open: g.runs.len() }
    }

    fn chunk(
        &mut self,
        g: &Generation,
        run: usize,
        text: &str,
        finish: Option<&str>,
        first: bool,
        counts: Counts,
    ) -> String {
        let Some(r) = g.runs.get(run) else { return String::new() };
        let ids = self.ids.get_mut(run).map(std::mem::take).unwrap_or_default();
        let mut choice = Object::default();
        choice.put("index", &r.index);
        choice.put("text", text);
        choice.put("logprobs", &Null);
        choice.put("finish_reason", &finish);
        if self.face.kind == MockKind::Vllm {
            choice.put("stop_reason", &finish.and(stop_reason(&r.answer.ending)));
            choice.put("prompt_token_ids", &prompt_ids(g, r).filter(|_| first));
            choice.put("token_ids", &g.asked.return_token_ids.then_some(ids));
        } else {
            let matched = finish.map(|_| matched_stop(&r.answer.ending));
            choice.put("matched_stop", &matched);
        }
        let mut chunk = Object::default();
        chunk.put("id", &self.id);
        chunk.put("object", "text_completion");
        chunk.put("created", &g.created);
        chunk.put("model", &g.asked.model);
        chunk.put("choices", &[choice.end()]);
        if g.asked.continuous_usage {
            chunk.put("usage", &running_usage(counts));
        } else if self.face.kind == MockKind::Sglang {
            chunk.put("usage", &Null);
        }
        self.open -= usize::from(finish.is_some()).min(self.open);
        // The stream's last chunk carries it: this one, unless a usage chunk follows.
        if self.face.kind == MockKind::Vllm && self.open == 0 && !g.asked.include_usage {
            chunk.put("system_fingerprint", FINGERPRINT);
        }
        data(&chunk.end())
    }
}

impl Render for Stream {
    fn head(&mut self, _: &Generation, _: Counts, _: &mut Vec<String>) {}

    fn token(&mut self, g: &Generation, run: usize, index: usize, counts: Counts, out: &mut Vec<String>) {
        let Some(r) = g.runs.get(run) else { return };
        if let (Some(ids), Some(id)) = (self.ids.get_mut(run), r.answer.tokens.get(index)) {
            ids.push(*id);
        }
        let last = index + 1 == r.answer.tokens.len();
        let mut text = if index == 0 { echoed(g, r) } else { String::new() };
        if let Delta::Text { text: more, .. } = r.answer.delta(index) {
            text.push_str(more);
        }
        if text.is_empty() && !last && index > 0 {
            return;
        }
        let finish = last.then(|| finish_reason(&r.answer.ending));
        out.push(self.chunk(g, run, &text, finish, index == 0, counts));
    }

    fn aborted(&mut self, g: &Generation, run: usize, counts: Counts, out: &mut Vec<String>) {
        out.push(self.chunk(g, run, "", Some("abort"), false, counts));
    }

    fn end(&mut self, g: &Generation, counts: Counts, out: &mut Vec<String>) {
        if g.asked.include_usage {
            let mut chunk = Object::default();
            chunk.put("id", &self.id);
            chunk.put("object", "text_completion");
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
