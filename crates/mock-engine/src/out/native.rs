//! SGLang's `/generate`.

use super::{DONE, Face, Render, data, matched_stop};
use crate::answer::{Delta, Ending};
use crate::generate::{Counts, Generation, Run};
use crate::json::{Json, Object, object};

fn finish(ending: &Ending, tokens: usize) -> Json {
    match ending {
        Ending::Length => object! { "type": "length", "length": tokens },
        other => object! { "type": "stop", "matched": matched_stop(other) },
    }
}

/// `meta_info` once `tokens` tokens are there.
fn meta(face: &Face, g: &Generation, run: &Run, tokens: usize, counts: Counts, finish: Option<Json>) -> Json {
    let prompt = g.asked.prompts.get(run.prompt).map_or(0, |p| p.tokens.len());
    let id = match g.runs.len() {
        1 => g.id.clone(),
        _ => face.hex(run.index as usize + 1, 32),
    };
    let weights = [object! { "version": "default", "start": 0_u32, "end": tokens }];
    let mut meta = Object::default();
    meta.put("id", &id);
    meta.put("finish_reason", &finish);
    meta.put("prompt_tokens", &prompt);
    meta.put("weight_version", "default");
    meta.put("num_retractions", &0_u32);
    meta.put("storage_prefetch_wait", &0.0);
    meta.put("storage_staging_wait", &0.0);
    #[expect(clippy::cast_precision_loss, reason = "seconds since the epoch are far below 2^53")]
    let received = g.created as f64;
    let elapsed = g.started.elapsed().as_secs_f64();
    meta.put("forward_entry_time", &received);
    meta.put("prefill_finished_time", &received);
    meta.put("queue_time", &0.0);
    meta.put("reasoning_tokens", &0_u32);
    meta.put("completion_tokens", &tokens);
    meta.put("cached_tokens", &counts.cached);
    meta.put("weight_versions", &weights);
    let details = object! {
        "device": counts.cached.saturating_sub(counts.loaded),
        "host": counts.loaded,
    };
    meta.put("cached_tokens_details", &(counts.cached > 0).then_some(details));
    meta.put("dp_rank", &g.asked.rank);
    meta.put("e2e_latency", &elapsed);
    meta.put("request_received_ts", &received);
    meta.put("first_token_latency", &elapsed);
    meta.put("api_server_dispatch_finish_ts", &received);
    meta.put("request_finished_ts", &(received + elapsed));
    let throughput = u32::try_from(tokens).map_or(0.0, f64::from) / elapsed.max(1e-6);
    meta.put("decode_throughput", &throughput);
    meta.put("response_sent_to_client_ts", &(received + elapsed));
    meta.end()
}

pub(super) fn whole(face: &Face, g: &Generation, counts: Counts, aborted: &[bool]) -> Json {
    let one = |i: usize, run: &Run| {
        let tokens = run.answer.tokens.len();
        let finish = if aborted.get(i) == Some(&true) {
            object! { "type": "abort", "message": "Abort before prefill" }
        } else {
            finish(&run.answer.ending, tokens)
        };
        object! {
            "text": run.answer.text(),
            "output_ids": &run.answer.tokens[..],
            "meta_info": meta(face, g, run, tokens, counts, Some(finish)),
        }
    };
    match g.runs.as_slice() {
        [run] => one(0, run),
        runs => {
            use crate::json::ToJson;
            let all: Vec<Json> = runs.iter().enumerate().map(|(i, run)| one(i, run)).collect();
            let mut text = String::new();
            all.write(&mut text);
            Json(text)
        }
    }
}

/// The stream: every chunk repeats all text so far.
pub(super) struct Stream {
    face: Face,
    texts: Vec<String>,
}

impl Stream {
    pub(super) fn new(face: Face, g: &Generation) -> Self {
        Self { face, texts: vec![String::new(); g.runs.len()] }
    }

    fn chunk(
        &self,
        g: &Generation,
        run: usize,
        tokens: usize,
        counts: Counts,
        finish: Option<Json>,
    ) -> String {
        let Some(r) = g.runs.get(run) else { return String::new() };
        let mut chunk = Object::default();
        chunk.put("text", &self.texts.get(run).map(String::as_str));
        chunk.put("output_ids", r.answer.tokens.get(..tokens).unwrap_or_default());
        chunk.put("meta_info", &meta(&self.face, g, r, tokens, counts, finish));
        if g.runs.len() > 1 {
            chunk.put("index", &r.index);
        }
        data(&chunk.end())
    }
}

impl Render for Stream {
    fn head(&mut self, _: &Generation, _: Counts, _: &mut Vec<String>) {}

    fn token(&mut self, g: &Generation, run: usize, index: usize, counts: Counts, out: &mut Vec<String>) {
        let Some(r) = g.runs.get(run) else { return };
        if let (Delta::Text { text, .. }, Some(all)) = (r.answer.delta(index), self.texts.get_mut(run)) {
            all.push_str(text);
        }
        let tokens = index + 1;
        let finish = (tokens == r.answer.tokens.len()).then(|| finish(&r.answer.ending, tokens));
        out.push(self.chunk(g, run, tokens, counts, finish));
    }

    fn aborted(&mut self, g: &Generation, run: usize, counts: Counts, out: &mut Vec<String>) {
        let finish = object! { "type": "abort", "message": "Aborted" };
        out.push(self.chunk(g, run, 0, counts, Some(finish)));
    }

    fn end(&mut self, _: &Generation, _: Counts, out: &mut Vec<String>) {
        out.push(DONE.to_owned());
    }
}
