//! Request bodies of the bundled agents and what their answers add to the history, per dialect.

use serde_json::{Value, json};
use tandem_types::Dialect;

use super::plan::AgentPlan;

/// Paragraphs of which system prompts and tool results are made.
const PARAGRAPHS: [&str; 6] = [
    "You work in a repository of many small crates. Read before you write, run the tests after each change, and keep commits small.",
    "Prefer the tools you are given over guessing. When a command fails, read its whole output before you try again.",
    "Paths are relative to the root of the repository. Generated files live under target and are never edited by hand.",
    "State what you are about to do in one sentence, do it, then state what you saw. Do not repeat long outputs.",
    "Numbers in reports come from commands that were run in this session; say which command gave which number.",
    "When two ways are open, take the one that leaves less code behind, and say why the other was not taken.",
];

/// The bundled model's name at the mock engines.
pub(super) const MODEL: &str = "tandem-demo";

/// A conversation as one agent keeps it.
#[derive(Debug)]
pub(super) struct Conversation {
    dialect: Dialect,
    /// Messages, input items, or (completions) one string.
    items: Vec<Value>,
    text: String,
    /// Mixed into what tools return, so that no two agents read the same.
    salt: u32,
}

/// What an answer said: its text and the tool calls (id, name, arguments) in order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) tool_calls: Vec<(String, String, String)>,
}

impl Conversation {
    pub(super) fn new(plan: &AgentPlan) -> Self {
        let text = match plan.dialect {
            Dialect::Completions => format!("{}\n\nTask: {}\n", system_text(), plan.task),
            Dialect::Chat | Dialect::Responses | Dialect::Messages => String::new(),
        };
        let user = match plan.dialect {
            Dialect::Completions => Vec::new(),
            Dialect::Chat => vec![
                json!({"role": "system", "content": system_text()}),
                json!({"role": "user", "content": plan.task}),
            ],
            Dialect::Messages => {
                vec![json!({"role": "user", "content": [{"type": "text", "text": plan.task}]})]
            }
            Dialect::Responses => vec![
                json!({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": system_text()}]}),
                json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": plan.task}]}),
            ],
        };
        let salt = plan
            .name
            .bytes()
            .fold(7, |salt: u32, byte| salt.wrapping_mul(31).wrapping_add(u32::from(byte)) % 9973);
        Self { dialect: plan.dialect, items: user, text, salt }
    }

    /// The body of the next request.
    pub(super) fn body(&self, plan: &AgentPlan, may_call_tools: bool) -> Value {
        let mut body = match self.dialect {
            Dialect::Completions => json!({"prompt": self.text, "return_token_ids": true}),
            Dialect::Chat => json!({"messages": self.items, "tools": chat_tools()}),
            Dialect::Responses => json!({"input": self.items, "tools": response_tools()}),
            Dialect::Messages => json!({
                "system": [
                    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332.7f3; cc_entrypoint=sdk-cli;"},
                    {"type": "text", "text": system_text(), "cache_control": {"type": "ephemeral"}},
                ],
                "messages": self.items,
                "tools": message_tools(),
            }),
        };
        body["model"] = json!(MODEL);
        body["stream"] = json!(plan.stream);
        if let Some(extra) = plan.extra.as_object() {
            for (key, value) in extra {
                body[key.as_str()] = value.clone();
            }
        }
        if may_call_tools && self.dialect != Dialect::Completions {
            body["tool_choice"] = match self.dialect {
                Dialect::Messages => json!({"type": "any"}),
                Dialect::Chat | Dialect::Responses | Dialect::Completions => json!("required"),
            };
        }
        body
    }

    /// A title call of this conversation: no tools, the first user message only.
    pub(super) fn title_body(&self, plan: &AgentPlan) -> Value {
        json!({
            "model": MODEL,
            "stream": plan.stream,
            "max_tokens": 24,
            "messages": [
                {"role": "system", "content": "Write a title of at most six words for this conversation."},
                {"role": "user", "content": plan.task},
            ],
        })
    }

    /// Appends an answer and the results of its tool calls.
    pub(super) fn extend(&mut self, answer: &Answer, turn: u32) {
        match self.dialect {
            Dialect::Completions => {
                self.text.push_str(&answer.text);
                self.text.push_str(&format!("\nObservation: {}\n", tool_result(self.salt, turn)));
            }
            Dialect::Chat => self.extend_chat(answer, turn),
            Dialect::Responses => self.extend_responses(answer, turn),
            Dialect::Messages => self.extend_messages(answer, turn),
        }
    }

    fn extend_chat(&mut self, answer: &Answer, turn: u32) {
        let calls: Vec<Value> = answer
            .tool_calls
            .iter()
            .map(|(id, name, arguments)| {
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
            })
            .collect();
        self.items.push(json!({"role": "assistant", "content": answer.text, "tool_calls": calls}));
        for (id, ..) in &answer.tool_calls {
            self.items
                .push(json!({"role": "tool", "tool_call_id": id, "content": tool_result(self.salt, turn)}));
        }
    }

    fn extend_responses(&mut self, answer: &Answer, turn: u32) {
        if !answer.text.is_empty() {
            self.items.push(json!({"type": "message", "role": "assistant",
                "content": [{"type": "output_text", "text": answer.text}]}));
        }
        for (id, name, arguments) in &answer.tool_calls {
            self.items
                .push(json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments}));
            self.items
                .push(json!({"type": "function_call_output", "call_id": id, "output": tool_result(self.salt, turn)}));
        }
    }

    fn extend_messages(&mut self, answer: &Answer, turn: u32) {
        let mut content = Vec::new();
        if !answer.text.is_empty() {
            content.push(json!({"type": "text", "text": answer.text}));
        }
        let mut results = Vec::new();
        for (id, name, arguments) in &answer.tool_calls {
            let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
            content.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
            results.push(
                json!({"type": "tool_result", "tool_use_id": id, "content": tool_result(self.salt, turn)}),
            );
        }
        self.items.push(json!({"role": "assistant", "content": content}));
        if results.is_empty() {
            results.push(json!({"type": "text", "text": "Go on."}));
        }
        self.items.push(json!({"role": "user", "content": results}));
    }
}

/// About two thousand tokens of instructions, the same for every agent.
fn system_text() -> String {
    let mut text = String::from("You are a coding agent.\n");
    for round in 1..=10 {
        for (number, paragraph) in PARAGRAPHS.iter().enumerate() {
            text.push_str(&format!("{round}.{}. {paragraph}\n", number + 1));
        }
    }
    text
}

/// A few hundred tokens that differ from agent to agent and from turn to turn.
fn tool_result(salt: u32, turn: u32) -> String {
    (0..24)
        .map(|line| {
            format!(
                "src/part_{salt}_{}.rs:{}: {}\n",
                turn * 31 + line,
                line * 7 + turn,
                PARAGRAPHS[(turn + line) as usize % 6]
            )
        })
        .collect()
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"command": {"type": "string", "description": "What to run."}},
        "required": ["command"]})
}

const TOOLS: [(&str, &str); 3] = [
    ("Bash", "Runs a shell command and returns what it prints."),
    ("Read", "Reads a file and returns it with line numbers."),
    ("Edit", "Replaces a text in a file by another."),
];

fn chat_tools() -> Vec<Value> {
    TOOLS
        .iter()
        .map(|(name, text)| {
            json!({"type": "function", "function": {"name": name, "description": text, "parameters": schema()}})
        })
        .collect()
}

fn response_tools() -> Vec<Value> {
    TOOLS
        .iter()
        .map(|(name, text)| json!({"type": "function", "name": name, "description": text, "parameters": schema()}))
        .collect()
}

fn message_tools() -> Vec<Value> {
    TOOLS
        .iter()
        .map(|(name, text)| json!({"name": name, "description": text, "input_schema": schema()}))
        .collect()
}
