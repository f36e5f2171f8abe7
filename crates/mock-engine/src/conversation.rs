//! A request's prompt in neutral form, and the chat template.
//!
//! - Purpose: one prompt for one meaning, whichever API it came in by, so that prefix caching behaves as with
//!   a real model's template.
//! - Inputs: turns and tools; output: token ids.
//! - The template: the leading system message, then the tools, each message as `START role "\n" content END
//!   "\n"`, tool calls as `CALL {"name": ..., "arguments": ...} CALL_END` inside the assistant's message with
//!   the arguments in canonical JSON, tool results as messages of role `tool`. Ids, cache marks, reasoning
//!   and names of speakers are not rendered.
//! - Invariants: I-TPL-1 appending messages appends tokens; I-TPL-2 the rendering of a conversation with an
//!   answer appended begins with the prompt's tokens followed by the answer's tokens, if the client sends the
//!   answer back as it got it, in any of the APIs; I-TPL-3 the same conversation gives the same tokens in
//!   chat, Messages and Responses.
//! - Deliberately absent: thinking blocks, per-model templates.

use std::fmt::Write;

use serde_json::Value;

use crate::json::canonical;
use crate::tokenizer::{CALL, CALL_END, END, MEDIA, START, encode};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A piece of a message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Part {
    Text(String),
    /// Digest of an image, sound or file.
    Media(String),
    Call(Call),
}

/// A tool call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    /// JSON text, canonical where it is JSON at all.
    pub(crate) arguments: String,
}

impl Call {
    /// A call whose arguments a client sent as text.
    pub(crate) fn new(namespace: Option<String>, name: String, arguments: &str) -> Self {
        let arguments = match serde_json::from_str::<Value>(arguments) {
            Ok(value) => canonical_text(&value),
            Err(_) => arguments.to_owned(),
        };
        Self { namespace, name, arguments }
    }

    fn full_name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}.{}", self.name),
            None => self.name.clone(),
        }
    }

    /// The text between `CALL` and `CALL_END`, and where the arguments begin in it.
    pub(crate) fn text(&self) -> (String, usize) {
        let mut text = String::from("{\"name\": ");
        canonical(&Value::String(self.full_name()), &mut text);
        text.push_str(", \"arguments\": ");
        let at = text.len();
        text.push_str(&self.arguments);
        text.push('}');
        (text, at)
    }
}

/// Canonical JSON text of a value.
pub(crate) fn canonical_text(value: &Value) -> String {
    let mut text = String::new();
    canonical(value, &mut text);
    text
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Turn {
    pub(crate) role: Role,
    pub(crate) parts: Vec<Part>,
}

impl Turn {
    pub(crate) fn text(role: Role, text: impl Into<String>) -> Self {
        Self { role, parts: vec![Part::Text(text.into())] }
    }

    /// All text of the message.
    pub(crate) fn joined(&self) -> String {
        self.parts.iter().fold(String::new(), |mut all, part| {
            if let Part::Text(text) = part {
                all.push_str(text);
            }
            all
        })
    }

    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.parts.iter().filter_map(|part| match part {
            Part::Call(call) => Some(call),
            _ => None,
        })
    }
}

/// A tool on offer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    /// Codex offers tools inside a namespace.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) description: String,
    /// JSON schema of the arguments; null where there is none.
    pub(crate) parameters: Value,
}

/// A prompt.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Conversation {
    pub(crate) tools: Vec<Tool>,
    pub(crate) turns: Vec<Turn>,
}

impl Conversation {
    /// Adds a message; an assistant's message right after another continues it, since Responses lists the
    /// parts of one answer as items of their own.
    pub(crate) fn push(&mut self, turn: Turn) {
        match self.turns.last_mut() {
            Some(last) if last.role == Role::Assistant && turn.role == Role::Assistant => {
                last.parts.extend(turn.parts);
            }
            _ => self.turns.push(turn),
        }
    }

    /// Assistant messages so far.
    pub(crate) fn answers(&self) -> usize {
        self.turns.iter().filter(|t| t.role == Role::Assistant).count()
    }

    /// The tokens of the prompt, up to where the answer begins when `generate`.
    pub(crate) fn render(&self, generate: bool) -> Vec<u32> {
        let mut out = Vec::new();
        let mut turns = self.turns.as_slice();
        let system = match turns.split_first() {
            Some((first, rest)) if first.role == Role::System => {
                turns = rest;
                Some(first)
            }
            _ => None,
        };
        if system.is_some() || !self.tools.is_empty() {
            open(Role::System, &mut out);
            if let Some(system) = system {
                render_parts(&system.parts, &mut out);
            }
            self.render_tools(&mut out);
            close(&mut out);
        }
        for turn in turns {
            open(turn.role, &mut out);
            render_parts(&turn.parts, &mut out);
            close(&mut out);
        }
        if generate {
            open(Role::Assistant, &mut out);
        }
        out
    }

    fn render_tools(&self, out: &mut Vec<u32>) {
        if self.tools.is_empty() {
            return;
        }
        encode("\n\n# Tools\n", out);
        for tool in &self.tools {
            let mut text = String::new();
            if let Some(namespace) = &tool.namespace {
                // Writing to a string cannot fail.
                let _ = write!(text, "{namespace}.");
            }
            let _ = writeln!(text, "{}: {}", tool.name, tool.description);
            canonical(&tool.parameters, &mut text);
            text.push('\n');
            encode(&text, out);
        }
    }
}

fn open(role: Role, out: &mut Vec<u32>) {
    out.push(START);
    encode(role.name(), out);
    encode("\n", out);
}

fn close(out: &mut Vec<u32>) {
    out.push(END);
    encode("\n", out);
}

/// The tokens of a message's parts. Adjacent texts are one text, so that a client that splits or joins them
/// changes nothing.
pub(crate) fn render_parts(parts: &[Part], out: &mut Vec<u32>) {
    let mut text = String::new();
    for part in parts {
        if let Part::Text(more) = part {
            text.push_str(more);
            continue;
        }
        encode(&text, out);
        text.clear();
        match part {
            Part::Text(_) => {}
            Part::Media(digest) => {
                out.push(MEDIA);
                encode(digest, out);
            }
            Part::Call(call) => {
                out.push(CALL);
                encode(&call.text().0, out);
                out.push(CALL_END);
            }
        }
    }
    encode(&text, out);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part() -> impl Strategy<Value = Part> {
        prop_oneof![
            "[a-zA-Zé \\n]{0,40}".prop_map(Part::Text),
            "[a-f0-9]{8}".prop_map(Part::Media),
            ("[a-z_]{1,10}", "[a-z]{0,20}").prop_map(|(name, value)| Part::Call(Call::new(
                None,
                name,
                &format!("{{\"k\":\"{value}\"}}")
            ))),
        ]
    }

    fn turn() -> impl Strategy<Value = Turn> {
        let role = prop_oneof![Just(Role::User), Just(Role::Tool), Just(Role::Assistant), Just(Role::System)];
        (role, prop::collection::vec(part(), 0..4)).prop_map(|(role, parts)| Turn { role, parts })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// I-TPL-1, I-TPL-2.
        #[test]
        fn the_next_prompt_extends_prompt_and_answer(
            turns in prop::collection::vec(turn(), 0..6),
            answer in prop::collection::vec(part(), 1..4),
            tools in 0_usize..3,
            next in turn(),
        ) {
            let mut c = Conversation { tools: Vec::new(), turns: Vec::new() };
            for i in 0..tools {
                c.tools.push(Tool {
                    namespace: None,
                    name: format!("tool{i}"),
                    description: "does it".to_owned(),
                    parameters: Value::Null,
                });
            }
            for turn in turns {
                c.push(turn);
            }
            c.turns.push(Turn::text(Role::User, "go"));
            let mut expected = c.render(true);
            render_parts(&answer, &mut expected);
            expected.push(END);
            c.push(Turn { role: Role::Assistant, parts: answer });
            prop_assert!(c.render(true).starts_with(&expected));
            let before = c.render(false);
            c.turns.push(next);
            prop_assert!(c.render(true).starts_with(&before));
        }

        #[test]
        fn splitting_a_text_changes_nothing(a in "\\PC{0,30}", b in "\\PC{0,30}") {
            let (mut whole, mut split) = (Vec::new(), Vec::new());
            render_parts(&[Part::Text(format!("{a}{b}"))], &mut whole);
            render_parts(&[Part::Text(a), Part::Text(b)], &mut split);
            prop_assert_eq!(whole, split);
        }
    }

    #[test]
    fn arguments_are_rendered_alike_however_they_are_spaced() {
        let a = Call::new(None, "f".into(), "{\"b\": 1, \"a\": \"x\"}");
        assert_eq!(a, Call::new(None, "f".into(), "{\"a\":\"x\",\"b\":1}"));
        assert_eq!(a.text().0, "{\"name\": \"f\", \"arguments\": {\"a\":\"x\",\"b\":1}}");
        assert_eq!(Call::new(None, "f".into(), "{broken").arguments, "{broken");
    }
}
