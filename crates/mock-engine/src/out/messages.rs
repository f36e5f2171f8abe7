//! `/v1/messages`.

use super::{Face, Render, event};
use crate::answer::{Answer, AnswerPart, Delta, Ending};
use crate::config::MockKind;
use crate::generate::{Counts, Generation};
use crate::json::{Json, Null, Object, object};

fn id(face: &Face, g: &Generation) -> String {
    match face.kind {
        MockKind::Vllm => format!("chatcmpl-{}", g.id),
        MockKind::Sglang => format!("msg_{}", g.id),
    }
}

const fn stop_reason(ending: &Ending) -> &'static str {
    match ending {
        Ending::Stop => "end_turn",
        Ending::StopString(_) => "stop_sequence",
        Ending::Length => "max_tokens",
        Ending::ToolCalls => "tool_use",
    }
}

/// Tokens read from and written to the cache do not count as input, where the engine tells of them.
fn usage(face: &Face, counts: Counts) -> Json {
    if face.kind == MockKind::Sglang || !face.flags.prompt_tokens_details {
        return object! { "input_tokens": counts.prompt, "output_tokens": counts.completion };
    }
    let created = counts.created.unwrap_or(0);
    object! {
        "input_tokens": counts.prompt.saturating_sub(counts.cached).saturating_sub(created),
        "output_tokens": counts.completion,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": counts.cached,
    }
}

pub(super) fn whole(face: &Face, g: &Generation, counts: Counts) -> Json {
    let mut body = Object::default();
    body.put("id", &id(face, g));
    body.put("type", "message");
    body.put("role", "assistant");
    let answer = g.runs.first().map(|run| &run.answer);
    body.put("content", &answer.map(|answer| content(face, answer)).unwrap_or_default());
    body.put("model", &g.asked.model);
    if let Some(answer) = answer {
        body.put("stop_reason", stop_reason(&answer.ending));
        if let Ending::StopString(stop) = &answer.ending {
            body.put("stop_sequence", stop);
        }
    }
    body.put("usage", &usage(face, counts));
    if g.asked.kv_transfer.is_some() {
        body.put("kv_transfer_params", &g.asked.kv_transfer);
    }
    body.end()
}

fn content(face: &Face, answer: &Answer) -> Vec<Json> {
    let mut blocks = Vec::new();
    for (part, content) in answer.parts.iter().enumerate() {
        let text = match content {
            AnswerPart::Text(text) if text.is_empty() => continue,
            AnswerPart::Text(text) => text.clone(),
            AnswerPart::Call(call) if !call.complete => call.remains(),
            AnswerPart::Call(call) => {
                blocks.push(object! {
                    "type": "tool_use",
                    "id": face.call_id(part + 1),
                    "name": call.call.name,
                    "input": Json(call.call.arguments.clone()),
                });
                continue;
            }
        };
        blocks.push(object! { "type": "text", "text": text });
    }
    blocks
}

/// The stream.
pub(super) struct Stream {
    face: Face,
    /// The part whose block is open.
    open: Option<usize>,
    /// Blocks begun.
    blocks: u32,
    ending: Option<(&'static str, Option<String>)>,
}

impl Stream {
    pub(super) const fn new(face: Face) -> Self {
        Self { face, open: None, blocks: 0, ending: None }
    }

    fn close(&mut self, out: &mut Vec<String>) {
        if self.open.take().is_some() {
            let stop = object! { "type": "content_block_stop", "index": self.blocks.saturating_sub(1) };
            out.push(event("content_block_stop", &stop));
        }
    }

    fn open(&mut self, part: usize, block: Json, out: &mut Vec<String>) {
        self.close(out);
        self.open = Some(part);
        let index = self.blocks;
        self.blocks += 1;
        self.part("content_block_start", index, "content_block", &block, out);
    }

    fn delta(&self, delta: Json, out: &mut Vec<String>) {
        let index = self.blocks.saturating_sub(1);
        self.part("content_block_delta", index, "delta", &delta, out);
    }

    /// SGLang says the index first, vLLM last.
    fn part(&self, name: &str, index: u32, what: &str, value: &Json, out: &mut Vec<String>) {
        let mut part = Object::default();
        part.put("type", name);
        if self.face.kind == MockKind::Sglang {
            part.put("index", &index);
        }
        part.put(what, value);
        if self.face.kind == MockKind::Vllm {
            part.put("index", &index);
        }
        out.push(event(name, &part.end()));
    }

    fn json_delta(&self, arguments: &str, out: &mut Vec<String>) {
        if !arguments.is_empty() {
            self.delta(object! { "type": "input_json_delta", "partial_json": arguments }, out);
        }
    }
}

impl Render for Stream {
    fn head(&mut self, g: &Generation, counts: Counts, out: &mut Vec<String>) {
        let mut message = Object::default();
        message.put("id", &id(&self.face, g));
        message.put("type", "message");
        message.put("role", "assistant");
        message.put("content", &Vec::<Json>::new());
        message.put("model", &g.asked.model);
        if self.face.kind == MockKind::Vllm {
            message.put("stop_reason", &Null);
            message.put("stop_sequence", &Null);
        }
        message.put("usage", &object! { "input_tokens": counts.prompt, "output_tokens": 0_u32 });
        let start = object! { "type": "message_start", "message": message.end() };
        out.push(event("message_start", &start));
    }

    fn token(&mut self, g: &Generation, run: usize, index: usize, _: Counts, out: &mut Vec<String>) {
        let Some(r) = g.runs.get(run) else { return };
        match r.answer.delta(index) {
            Delta::Nothing => {}
            Delta::Text { part, text } => {
                if self.open != Some(part) {
                    self.open(part, object! { "type": "text", "text": "" }, out);
                }
                self.delta(object! { "type": "text_delta", "text": text }, out);
            }
            Delta::CallStart { part, arguments } => {
                let name = r.answer.call(part).map(|call| call.call.name.as_str()).unwrap_or_default();
                let block = object! {
                    "type": "tool_use",
                    "id": self.face.call_id(part + 1),
                    "name": name,
                    "input": object! {},
                };
                self.open(part, block, out);
                self.json_delta(arguments, out);
            }
            Delta::Arguments { arguments, .. } => self.json_delta(arguments, out),
        }
        if index + 1 == r.answer.tokens.len() {
            let stop = match &r.answer.ending {
                Ending::StopString(stop) => Some(stop.clone()),
                _ => None,
            };
            self.ending = Some((stop_reason(&r.answer.ending), stop));
        }
    }

    fn aborted(&mut self, _: &Generation, _: usize, _: Counts, _: &mut Vec<String>) {
        self.ending = Some(("end_turn", None));
    }

    fn end(&mut self, _: &Generation, counts: Counts, out: &mut Vec<String>) {
        self.close(out);
        let (reason, sequence) = self.ending.take().unwrap_or(("end_turn", None));
        let mut delta = Object::default();
        delta.put("stop_reason", reason);
        // SGLang leaves out what is not there.
        if self.face.kind == MockKind::Vllm || sequence.is_some() {
            delta.put("stop_sequence", &sequence);
        }
        let usage = match self.face.kind {
            MockKind::Vllm => usage(&self.face, counts),
            MockKind::Sglang => object! { "output_tokens": counts.completion },
        };
        let last = object! { "type": "message_delta", "delta": delta.end(), "usage": usage };
        out.push(event("message_delta", &last));
        out.push(event("message_stop", &object! { "type": "message_stop" }));
    }
}
