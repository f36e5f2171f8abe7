//! `/v1/responses`.

use super::{Face, Render, event};
use crate::answer::{Answer, AnswerCall, AnswerPart, Delta, Ending};
use crate::asked::ToolChoice;
use crate::config::MockKind;
use crate::generate::{Counts, Generation};
use crate::json::{Json, Null, Object, ToJson, object};

fn id(g: &Generation) -> String {
    if g.id.starts_with("resp_") { g.id.clone() } else { format!("resp_{}", g.id) }
}

fn item_id(face: &Face, kind: &str, part: usize) -> String {
    match face.kind {
        MockKind::Vllm => format!("{kind}_{}", face.hex(part + 1, 16)),
        MockKind::Sglang => format!("{kind}_{}", face.hex(part + 1, 32)),
    }
}

fn phase(face: &Face) -> Option<&'static str> {
    (face.kind == MockKind::Sglang).then_some("final_answer")
}

fn text_part(text: &str) -> Json {
    object! { "annotations": Vec::<Json>::new(), "text": text, "type": "output_text", "logprobs": Null }
}

fn message_item(face: &Face, part: usize, text: &str) -> Json {
    object! {
        "id": item_id(face, "msg", part),
        "content": [text_part(text)],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "phase": phase(face),
    }
}

/// A call, begun (`arguments` empty) or complete.
fn call_item(face: &Face, part: usize, call: &AnswerCall, arguments: &str, status: &str) -> Json {
    let mut item = Object::default();
    item.put("arguments", arguments);
    item.put("call_id", &format!("call_{}", face.hex(part + 1, 24)));
    item.put("name", &call.call.name);
    item.put("type", "function_call");
    item.put("id", &item_id(face, "fc", part));
    if let Some(namespace) = &call.call.namespace {
        item.put("namespace", namespace);
    }
    item.put("status", status);
    item.end()
}

fn items(face: &Face, answer: &Answer) -> Vec<Json> {
    answer
        .parts
        .iter()
        .enumerate()
        .filter_map(|(part, content)| match content {
            AnswerPart::Text(text) if text.is_empty() => None,
            AnswerPart::Text(text) => Some(message_item(face, part, text)),
            AnswerPart::Call(call) if call.complete => {
                Some(call_item(face, part, call, &call.call.arguments, "completed"))
            }
            AnswerPart::Call(call) => Some(message_item(face, part, &call.remains())),
        })
        .collect()
}

fn usage(face: &Face, counts: Counts) -> Json {
    let cached = if face.flags.prompt_tokens_details { counts.cached } else { 0 };
    let none = Vec::<u32>::new();
    let (input, output) = match face.kind {
        MockKind::Vllm => (
            object! {
                "cached_tokens": cached,
                "cache_write_tokens": 0_u32,
                "input_tokens_per_turn": none,
                "cached_tokens_per_turn": none,
            },
            object! {
                "reasoning_tokens": 0_u32,
                "tool_output_tokens": 0_u32,
                "output_tokens_per_turn": none,
                "tool_output_tokens_per_turn": none,
            },
        ),
        MockKind::Sglang => (
            object! { "cached_tokens": cached, "cache_write_tokens": 0_u32 },
            object! { "reasoning_tokens": 0_u32 },
        ),
    };
    object! {
        "input_tokens": counts.prompt,
        "input_tokens_details": input,
        "output_tokens": counts.completion,
        "output_tokens_details": output,
        "total_tokens": counts.prompt + counts.completion,
    }
}

fn tool_choice(g: &Generation, absent: &str) -> String {
    if g.asked.conversation.as_ref().is_none_or(|c| c.tools.is_empty()) {
        return absent.to_owned();
    }
    match &g.asked.choice {
        ToolChoice::Auto => "auto".to_owned(),
        ToolChoice::None => "none".to_owned(),
        ToolChoice::Required | ToolChoice::Named(_) => "required".to_owned(),
    }
}

fn tools(g: &Generation) -> Vec<Json> {
    let tools = g.asked.conversation.as_ref().map(|c| c.tools.as_slice()).unwrap_or_default();
    tools
        .iter()
        .map(|tool| {
            object! {
                "name": tool.name,
                "parameters": tool.parameters,
                "strict": Null,
                "type": "function",
                "description": tool.description,
            }
        })
        .collect()
}

/// How far a response is.
struct Stage<'a> {
    status: &'a str,
    incomplete: bool,
    output: Vec<Json>,
    usage: Option<Json>,
}

fn finished<'a>(face: &Face, g: &Generation, counts: Counts) -> Stage<'a> {
    let answer = g.runs.first().map(|run| &run.answer);
    let incomplete = answer.is_some_and(|answer| answer.ending == Ending::Length);
    Stage {
        status: if incomplete { "incomplete" } else { "completed" },
        incomplete,
        output: answer.map(|answer| items(face, answer)).unwrap_or_default(),
        usage: Some(usage(face, counts)),
    }
}

fn response(face: &Face, g: &Generation, stage: &Stage<'_>) -> Json {
    match face.kind {
        MockKind::Vllm => vllm(g, stage),
        MockKind::Sglang => sglang(g, stage),
    }
}

fn vllm(g: &Generation, stage: &Stage<'_>) -> Json {
    let mut body = Object::default();
    body.put("id", &id(g));
    body.put("created_at", &g.created);
    body.put("incomplete_details", &reason(stage));
    body.put("instructions", &Null);
    body.put("metadata", &Null);
    body.put("model", &g.asked.model);
    body.put("object", "response");
    body.put("output", &stage.output);
    body.put("parallel_tool_calls", &g.asked.parallel_calls);
    body.put("temperature", &1.0);
    body.put("tool_choice", &tool_choice(g, "none"));
    body.put("tools", &tools(g));
    body.put("top_p", &1.0);
    body.put("background", &false);
    body.put("max_output_tokens", &g.asked.sampling.max_tokens.unwrap_or(g.room));
    for absent in ["max_tool_calls", "previous_response_id", "prompt", "reasoning"] {
        body.put(absent, &Null);
    }
    body.put("service_tier", "auto");
    body.put("status", stage.status);
    body.put("text", &Null);
    body.put("top_logprobs", &Null);
    body.put("truncation", "disabled");
    body.put("usage", &stage.usage);
    body.put("user", &Null);
    body.put("presence_penalty", &0.0);
    body.put("frequency_penalty", &0.0);
    body.put("kv_transfer_params", &g.asked.kv_transfer);
    for absent in ["ec_transfer_params", "input_messages", "output_messages"] {
        body.put(absent, &Null);
    }
    body.end()
}

fn sglang(g: &Generation, stage: &Stage<'_>) -> Json {
    let mut body = Object::default();
    body.put("id", &id(g));
    body.put("object", "response");
    body.put("created_at", &g.created);
    body.put("model", &g.asked.model);
    body.put("output", &stage.output);
    body.put("status", stage.status);
    body.put("usage", &stage.usage);
    body.put("parallel_tool_calls", &g.asked.parallel_calls);
    body.put("tool_choice", &tool_choice(g, "auto"));
    body.put("tools", &tools(g));
    body.put("error", &Null);
    body.put("incomplete_details", &reason(stage));
    body.put("instructions", &Null);
    body.put("max_output_tokens", &g.asked.sampling.max_tokens);
    body.put("previous_response_id", &Null);
    body.put("reasoning", &object! { "effort": Null, "summary": Null });
    body.put("store", &true);
    body.put("temperature", &Null);
    body.put("text", &object! { "format": object! { "type": "text" } });
    body.put("top_p", &Null);
    body.put("truncation", "disabled");
    body.put("user", &Null);
    body.put("metadata", &object! {});
    body.end()
}

fn reason(stage: &Stage<'_>) -> Option<Json> {
    stage.incomplete.then(|| object! { "reason": "max_output_tokens" })
}

pub(super) fn whole(face: &Face, g: &Generation, counts: Counts) -> Json {
    response(face, g, &finished(face, g, counts))
}

/// The stream.
pub(super) struct Stream {
    face: Face,
    /// The part whose item is open, and what it shows so far.
    open: Option<(usize, String)>,
    /// Items begun.
    items: u32,
    sequence: u32,
}

impl Stream {
    pub(super) const fn new(face: Face) -> Self {
        Self { face, open: None, items: 0, sequence: 0 }
    }

    /// Fields in alphabetical order with the sequence number and the type at the end, as vLLM has them.
    fn emit(&mut self, name: &str, fields: &[(&str, &dyn Field)], out: &mut Vec<String>) {
        let mut body = Object::default();
        let sequence = self.sequence;
        let mut numbered = false;
        for (key, value) in fields {
            if !numbered && *key > "sequence_number" {
                body.put("sequence_number", &sequence);
                numbered = true;
            }
            body.put(key, &value.json());
        }
        if !numbered {
            body.put("sequence_number", &sequence);
        }
        body.put("type", name);
        self.sequence += 1;
        out.push(event(name, &body.end()));
    }

    fn at(&self) -> u32 {
        self.items.saturating_sub(1)
    }

    fn open_text(&mut self, g: &Generation, part: usize, out: &mut Vec<String>) {
        self.close(g, out);
        self.items += 1;
        self.open = Some((part, String::new()));
        let (at, id) = (self.at(), item_id(&self.face, "msg", part));
        let item = object! {
            "id": id,
            "content": Vec::<Json>::new(),
            "role": "assistant",
            "status": "in_progress",
            "type": "message",
            "phase": phase(&self.face),
        };
        self.emit("response.output_item.added", &[("item", &item), ("output_index", &at)], out);
        let none = Vec::<Json>::new();
        let begun = object! { "annotations": none, "text": "", "type": "output_text", "logprobs": none };
        let fields: [(&str, &dyn Field); 4] =
            [("content_index", &0_u32), ("item_id", &id), ("output_index", &at), ("part", &begun)];
        self.emit("response.content_part.added", &fields, out);
    }

    /// Ends the open item.
    fn close(&mut self, g: &Generation, out: &mut Vec<String>) {
        let Some((part, shown)) = self.open.take() else { return };
        let at = self.at();
        let call = g.runs.first().and_then(|run| run.answer.call(part)).cloned();
        let item = if let Some(call) = call {
            let id = item_id(&self.face, "fc", part);
            let fields: [(&str, &dyn Field); 4] =
                [("arguments", &shown), ("item_id", &id), ("name", &call.call.name), ("output_index", &at)];
            self.emit("response.function_call_arguments.done", &fields, out);
            let status = if call.complete { "completed" } else { "incomplete" };
            call_item(&self.face, part, &call, &shown, status)
        } else {
            let id = item_id(&self.face, "msg", part);
            let none = Vec::<Json>::new();
            let logprobs = object_list(&none);
            let fields: [(&str, &dyn Field); 5] = [
                ("content_index", &0_u32),
                ("item_id", &id),
                ("logprobs", &logprobs),
                ("output_index", &at),
                ("text", &shown),
            ];
            self.emit("response.output_text.done", &fields, out);
            let whole = text_part(&shown);
            let fields: [(&str, &dyn Field); 4] =
                [("content_index", &0_u32), ("item_id", &id), ("output_index", &at), ("part", &whole)];
            self.emit("response.content_part.done", &fields, out);
            message_item(&self.face, part, &shown)
        };
        self.emit("response.output_item.done", &[("item", &item), ("output_index", &at)], out);
    }

    fn arguments(&mut self, part: usize, arguments: &str, out: &mut Vec<String>) {
        if arguments.is_empty() {
            return;
        }
        if let Some((_, shown)) = &mut self.open {
            shown.push_str(arguments);
        }
        let (at, id) = (self.at(), item_id(&self.face, "fc", part));
        let delta = arguments.to_owned();
        let fields: [(&str, &dyn Field); 3] = [("delta", &delta), ("item_id", &id), ("output_index", &at)];
        self.emit("response.function_call_arguments.delta", &fields, out);
    }
}

/// Anything that an event may hold.
trait Field {
    fn json(&self) -> Json;
}

impl<T: ToJson> Field for T {
    fn json(&self) -> Json {
        let mut text = String::new();
        self.write(&mut text);
        Json(text)
    }
}

fn object_list(items: &[Json]) -> Json {
    let mut text = String::new();
    items.write(&mut text);
    Json(text)
}

impl Render for Stream {
    fn eager(&self) -> bool {
        true
    }

    fn head(&mut self, g: &Generation, _: Counts, out: &mut Vec<String>) {
        let stage = Stage { status: "in_progress", incomplete: false, output: Vec::new(), usage: None };
        let body = response(&self.face, g, &stage);
        self.emit("response.created", &[("response", &body)], out);
        self.emit("response.in_progress", &[("response", &body)], out);
    }

    fn token(&mut self, g: &Generation, run: usize, index: usize, _: Counts, out: &mut Vec<String>) {
        let Some(r) = g.runs.get(run) else { return };
        match r.answer.delta(index) {
            Delta::Nothing => {}
            Delta::Text { part, text } => {
                if self.open.as_ref().is_none_or(|(open, _)| *open != part) {
                    self.open_text(g, part, out);
                }
                if let Some((_, shown)) = &mut self.open {
                    shown.push_str(text);
                }
                let (at, id) = (self.at(), item_id(&self.face, "msg", part));
                let (delta, logprobs) = (text.to_owned(), object_list(&[]));
                let fields: [(&str, &dyn Field); 5] = [
                    ("content_index", &0_u32),
                    ("delta", &delta),
                    ("item_id", &id),
                    ("logprobs", &logprobs),
                    ("output_index", &at),
                ];
                self.emit("response.output_text.delta", &fields, out);
            }
            Delta::CallStart { part, arguments } => {
                self.close(g, out);
                self.items += 1;
                self.open = Some((part, String::new()));
                if let Some(call) = r.answer.call(part) {
                    let at = self.at();
                    let item = call_item(&self.face, part, call, "", "in_progress");
                    self.emit("response.output_item.added", &[("item", &item), ("output_index", &at)], out);
                }
                self.arguments(part, arguments, out);
            }
            Delta::Arguments { part, arguments } => self.arguments(part, arguments, out),
        }
    }

    fn aborted(&mut self, _: &Generation, _: usize, _: Counts, _: &mut Vec<String>) {}

    fn end(&mut self, g: &Generation, counts: Counts, out: &mut Vec<String>) {
        self.close(g, out);
        let body = response(&self.face, g, &finished(&self.face, g, counts));
        // vLLM names the last event so even when the response is incomplete.
        self.emit("response.completed", &[("response", &body)], out);
    }
}
