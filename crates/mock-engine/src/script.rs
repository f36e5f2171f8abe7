//! What a mock engine answers: ordered rules, then a fallback.
//!
//! - Purpose: let a test or a demo decide texts and tool calls without touching the engine's faithfulness.
//! - Inputs: a [`Script`] (from code, JSON or TOML) and what a request asks; output: the items of the answer.
//!   The first rule whose `when` matches wins; rules are tried in order.
//! - Invariants: I-SCR-1 the choice depends on the request and on how often rules with `times` have fired,
//!   on nothing else; I-SCR-2 a forced `tool_choice` is honoured whatever the script says.
//! - Deliberately absent: scripting languages and regular expressions.

use serde::{Deserialize, Serialize};
use tandem_types::Dialect;

/// Ordered rules and a fallback.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// Tried in order.
    pub rules: Vec<Rule>,
    /// What happens when no rule matches.
    pub fallback: Fallback,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// The requests it is for.
    pub when: When,
    /// The answer: items in order.
    pub reply: Vec<ReplyItem>,
    /// Modelled milliseconds before the request reaches the engine.
    pub think_ms: u64,
    /// How often it may fire; `None` = always.
    pub times: Option<u32>,
}

/// Conditions, all of which must hold; an absent one always holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    /// The model asked for.
    pub model: Option<String>,
    /// A tool of this name is offered.
    pub tool: Option<String>,
    /// The engine session id (header or body).
    pub session: Option<String>,
    /// Role of the last message: `system`, `user`, `assistant`, `tool`.
    pub last_role: Option<String>,
    /// The last message contains this text.
    pub last_contains: Option<String>,
    /// Any user message contains this text.
    pub prompt_contains: Option<String>,
    /// The number of assistant messages already in the prompt: 0 is a session's first turn.
    pub turn: Option<u32>,
    /// The API spoken.
    pub dialect: Option<Dialect>,
}

/// One item of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyItem {
    /// This text.
    Text(String),
    /// Made-up text of this many tokens.
    Words(u32),
    /// A call of a tool.
    ToolCall {
        /// Its name.
        name: String,
        /// Its arguments.
        arguments: serde_json::Value,
    },
}

/// What happens when no rule matches.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// Made-up text whose length follows from seed and prompt.
    #[default]
    Text,
    /// The built-in agent: shell calls for some turns, then a text; spawns subagents when the prompt says so.
    Agent(AgentScript),
}

/// The built-in agent script. A user message may steer it: `[[tools 3]]` asks for three shell turns,
/// `[[spawn 2]]` for two subagents first, where the harness offers a tool for that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentScript {
    /// Shell turns before the final text.
    pub tool_turns: u32,
    /// The command that the shell is given.
    pub command: String,
    /// The final text.
    pub final_text: String,
}

impl Default for AgentScript {
    fn default() -> Self {
        Self { tool_turns: 2, command: "ls".to_owned(), final_text: "All done.".to_owned() }
    }
}

impl Script {
    /// The built-in agent with `tool_turns` shell turns.
    #[must_use]
    pub fn agent(tool_turns: u32) -> Self {
        Self { rules: Vec::new(), fallback: Fallback::Agent(AgentScript { tool_turns, ..AgentScript::default() }) }
    }

    /// Adds a rule at the end.
    #[must_use]
    pub fn rule(mut self, when: When, reply: Vec<ReplyItem>) -> Self {
        self.rules.push(Rule { when, reply, ..Rule::default() });
        self
    }
}
