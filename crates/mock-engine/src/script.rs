//! What a mock engine answers: ordered rules, then a fallback.
//!
//! - Purpose: let a test or a demo decide texts and tool calls without touching the engine's faithfulness.
//! - Inputs: a [`Script`] (from code, JSON or TOML) and what a request asks; output: the items of the answer.
//!   The first rule whose `when` matches wins; rules are tried in order.
//! - Invariants: I-SCR-1 the choice depends on the request and on how often rules with `times` have fired,
//!   on nothing else; I-SCR-2 a forced `tool_choice` is honoured whatever the script says.
//! - Deliberately absent: scripting languages and regular expressions.

use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_types::Dialect;

use crate::agent;
use crate::asked::{Asked, ToolChoice};
use crate::conversation::{Conversation, Role, Turn};
use crate::error::Api;

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
        Self {
            rules: Vec::new(),
            fallback: Fallback::Agent(AgentScript { tool_turns, ..AgentScript::default() }),
        }
    }

    /// Adds a rule at the end.
    #[must_use]
    pub fn rule(mut self, when: When, reply: Vec<ReplyItem>) -> Self {
        self.rules.push(Rule { when, reply, ..Rule::default() });
        self
    }
}

/// What a request is answered with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chosen {
    /// The items in order; `None` = made-up text of natural length.
    pub(crate) items: Option<Vec<ReplyItem>>,
    /// Modelled time before the request reaches the engine.
    pub(crate) think: Duration,
}

/// A script with the counts of its rules.
#[derive(Debug)]
pub(crate) struct Chooser {
    script: Script,
    fired: Mutex<Vec<u32>>,
}

impl Chooser {
    pub(crate) fn new(script: Script) -> Self {
        let fired = Mutex::new(vec![0; script.rules.len()]);
        Self { script, fired }
    }

    /// Chooses the answer and counts the rule that gave it.
    pub(crate) fn choose(&self, asked: &Asked) -> Chosen {
        let rule = self.rule(asked);
        let (items, think) = match (rule, &self.script.fallback) {
            (Some(rule), _) => (Some(rule.reply.clone()), Duration::from_millis(rule.think_ms)),
            (None, Fallback::Text) => (None, Duration::ZERO),
            (None, Fallback::Agent(script)) => {
                (asked.conversation.as_ref().map(|c| agent::reply(script, c)), Duration::ZERO)
            }
        };
        Chosen { items: obey(asked, items), think }
    }

    fn rule(&self, asked: &Asked) -> Option<&Rule> {
        let mut fired = self.fired.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.script.rules.iter().zip(fired.iter_mut()).find_map(|(rule, count)| {
            let left = rule.times.is_none_or(|times| *count < times);
            (left && rule.when.holds(asked)).then(|| {
                *count = count.saturating_add(1);
                rule
            })
        })
    }
}

impl When {
    fn holds(&self, asked: &Asked) -> bool {
        fn is<T: PartialEq>(wanted: Option<&T>, found: impl FnOnce(&T) -> bool) -> bool {
            wanted.is_none_or(found)
        }
        let empty = Conversation::default();
        let conversation = asked.conversation.as_ref().unwrap_or(&empty);
        let last = conversation.turns.last();
        let text_contains = |wanted: &String, turn: Option<&Turn>| {
            let in_prompt =
                || asked.prompts.iter().filter_map(|p| p.text.as_ref()).any(|t| t.contains(wanted));
            turn.map_or_else(in_prompt, |turn| turn.joined().contains(wanted))
        };
        is(self.model.as_ref(), |m| *m == asked.model)
            && is(self.tool.as_ref(), |t| conversation.tools.iter().any(|tool| tool.name == *t))
            && is(self.session.as_ref(), |s| asked.session.as_ref() == Some(s))
            && is(self.last_role.as_ref(), |r| last.is_some_and(|turn| turn.role.name() == r))
            && is(self.last_contains.as_ref(), |t| text_contains(t, last))
            && is(self.prompt_contains.as_ref(), |t| {
                conversation.turns.iter().any(|turn| turn.role == Role::User && text_contains(t, Some(turn)))
            })
            && is(self.turn.as_ref(), |n| conversation.answers() == *n as usize)
            && is(self.dialect.as_ref(), |d| dialect(asked.api) == Some(*d))
    }
}

const fn dialect(api: Api) -> Option<Dialect> {
    match api {
        Api::Chat => Some(Dialect::Chat),
        Api::Completions => Some(Dialect::Completions),
        Api::Responses => Some(Dialect::Responses),
        Api::Messages => Some(Dialect::Messages),
        Api::Generate | Api::Utility => None,
    }
}

/// Makes the items obey the request's tool choice.
fn obey(asked: &Asked, items: Option<Vec<ReplyItem>>) -> Option<Vec<ReplyItem>> {
    let is_call = |item: &ReplyItem| matches!(item, ReplyItem::ToolCall { .. });
    let tools = asked.conversation.as_ref().map(|c| c.tools.as_slice()).unwrap_or_default();
    let mut items = match &asked.choice {
        ToolChoice::Auto => items?,
        ToolChoice::None => {
            let texts: Vec<ReplyItem> = items?.into_iter().filter(|item| !is_call(item)).collect();
            if texts.is_empty() {
                return None;
            }
            texts
        }
        ToolChoice::Required => {
            let mut items = items.unwrap_or_default();
            items.retain(is_call);
            if items.is_empty() {
                let tool = tools.iter().find(|tool| agent::is_shell(tool)).or_else(|| tools.first());
                items.extend(tool.map(|tool| agent::call(tool, &agent::Hints::default())));
            }
            items
        }
        ToolChoice::Named(wanted) => {
            let mut items = items.unwrap_or_default();
            items.retain(|item| matches!(item, ReplyItem::ToolCall { name, .. } if name == wanted));
            if items.is_empty() {
                let tool = tools.iter().find(|tool| tool.name == *wanted);
                items.extend(tool.map(|tool| agent::call(tool, &agent::Hints::default())));
            }
            items.truncate(1);
            items
        }
    };
    if !asked.parallel_calls {
        let mut calls = 0;
        items.retain(|item| {
            calls += u32::from(is_call(item));
            calls <= 1 || !is_call(item)
        });
    }
    Some(items)
}
