//! Recorded sequences, and short ways to say things.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tandem_lineage::{Arrival, Arriving, Ended, Lineage, LineageConfig, Outline, outline};
use tandem_types::{
    AgentId, Dialect, EngineKind, Harness, ProgramKey, SessionId, TenantId, Time, ToolCall, Usage,
};

/// One recorded request.
pub(crate) struct Recorded {
    /// Its number in the recording.
    pub(crate) index: usize,
    pub(crate) dialect: Dialect,
    /// The session id that its headers or body carry.
    pub(crate) session: Option<String>,
    pub(crate) agent: Option<String>,
    /// Ids of the tool calls that it was answered with.
    pub(crate) calls: Vec<String>,
    pub(crate) body: Value,
}

impl Recorded {
    pub(crate) fn outline(&self) -> Outline {
        read(self.dialect, &self.body)
    }

    /// The program as the headers tell it.
    pub(crate) fn program(&self) -> ProgramKey {
        let mut key = program(self.session.as_deref().expect("a session id"));
        key.agent = self.agent.as_deref().map(|agent| AgentId::new(agent).expect("id"));
        key
    }
}

/// The recorded requests of one harness.
pub(crate) fn recorded(harness: &str) -> Vec<Recorded> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures");
    let text = std::fs::read_to_string(folder.join(format!("{harness}.jsonl"))).expect("fixture");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    lines.iter().map(|line| one(line, &lines)).collect()
}

fn one(line: &Value, all: &[Value]) -> Recorded {
    let text = |name: &str| line[name].as_str().map(str::to_owned);
    let mut body = line["body"].clone();
    // A list of tools that is that of an earlier request.
    if let Some(index) = body["tools"].as_str().and_then(|text| text.rsplit(':').next()) {
        let index: u64 = index.parse().expect("index");
        let like = all.iter().find(|line| line["index"].as_u64() == Some(index)).expect("that request");
        body["tools"] = like["body"]["tools"].clone();
    }
    inflate(&mut body);
    Recorded {
        index: usize::try_from(line["index"].as_u64().expect("index")).expect("small"),
        dialect: serde_json::from_value(line["dialect"].clone()).expect("dialect"),
        session: text("session"),
        agent: text("agent"),
        calls: line["calls"]
            .as_array()
            .map(|calls| calls.iter().map(|id| id.as_str().expect("id").to_owned()).collect())
            .unwrap_or_default(),
        body,
    }
}

/// Gives texts the length that they had: `words [chars=N]` becomes N characters.
fn inflate(value: &mut Value) {
    match value {
        Value::String(text) => {
            let Some((words, count)) = text.split_once(" [chars=") else { return };
            let count = count.strip_suffix(']').expect("a count").parse().expect("a count");
            *text = words.chars().cycle().take(count).collect();
        }
        Value::Array(items) => items.iter_mut().for_each(inflate),
        Value::Object(members) => members.values_mut().for_each(inflate),
        _ => {}
    }
}

pub(crate) fn read(dialect: Dialect, body: &Value) -> Outline {
    outline(dialect, EngineKind::Vllm, body.to_string().as_bytes()).expect("an outline")
}

pub(crate) fn program(session: &str) -> ProgramKey {
    ProgramKey::root(TenantId::default(), SessionId::new(session).expect("id"))
}

pub(crate) fn lineage() -> Lineage {
    Lineage::new(LineageConfig::default())
}

pub(crate) const fn arriving(outline: &Outline) -> Arriving<'_> {
    Arriving { outline, tokens: None, harness: Harness::Unknown, compacted: false, side: false }
}

/// An answer of a turn: prompt, answer and cached tokens, and ids of its tool calls.
pub(crate) struct Answer {
    pub(crate) usage: Usage,
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) block_size: Option<u32>,
    pub(crate) tokens: Option<Arc<[u32]>>,
    pub(crate) text: Option<&'static str>,
    pub(crate) lost: bool,
}

impl Answer {
    pub(crate) fn new(prompt: u64, answer: u64, cached: Option<u64>) -> Self {
        let usage =
            Usage { input_tokens: prompt, output_tokens: answer, cached_tokens: cached, ..Usage::default() };
        Self { usage, calls: Vec::new(), block_size: Some(16), tokens: None, text: None, lost: false }
    }

    pub(crate) fn calling(mut self, ids: &[&str]) -> Self {
        let call = |(index, id): (usize, &&str)| ToolCall {
            choice_index: 0,
            tool_call_index: u32::try_from(index).expect("few"),
            id: Some((*id).to_owned()),
            name: None,
        };
        self.calls = ids.iter().enumerate().map(call).collect();
        self
    }

    pub(crate) fn end(&self, lineage: &mut Lineage, arrival: &Arrival, now: Time) {
        let ended = Ended {
            usage: Some(self.usage),
            tool_calls: &self.calls,
            answer: self.tokens.as_ref(),
            block_size: self.block_size,
            text: self.text.map(str::as_bytes),
            lost: self.lost,
        };
        lineage.ended(arrival.ticket, &ended, now);
    }
}

/// About the tokens of a prompt.
pub(crate) fn tokens(outline: &Outline) -> u64 {
    outline.bytes() / 4
}

/// A chat body: model, system prompt, two tools and these messages.
pub(crate) fn chat(messages: &[Value]) -> Value {
    let tool = |name: &str| serde_json::json!({"type": "function", "function": {"name": name, "description": "does things"}});
    let mut all = vec![serde_json::json!({"role": "system", "content": "You are an agent. ".repeat(20)})];
    all.extend_from_slice(messages);
    serde_json::json!({"model": "m", "tools": [tool("read"), tool("write")], "messages": all})
}

pub(crate) fn user(text: &str) -> Value {
    serde_json::json!({"role": "user", "content": text})
}

pub(crate) fn assistant(text: &str) -> Value {
    serde_json::json!({"role": "assistant", "content": text})
}

pub(crate) fn thinking(reasoning: &str, text: &str) -> Value {
    serde_json::json!({"role": "assistant", "content": text, "reasoning_content": reasoning})
}
