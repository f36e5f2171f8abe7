//! The answer, planned before the engine computes it.
//!
//! - Purpose: decide text, tool calls, tokens and end of one choice, and what each token shows to the client.
//! - Inputs: the items of the answer, the sampling fields, the room left in the context, a seed; output:
//!   [`Answer`].
//! - Invariants: I-ANS-1 the pieces of the tokens, joined, are the visible parts; I-ANS-2 tokens are those
//!   that the template renders for the same message, plus `END` where the answer ends by itself; I-ANS-3
//!   never more than `max_tokens` tokens, at least `min_tokens` where a limit or a stop string does not
//!   forbid it; I-ANS-4 equal inputs, equal answer.
//! - Deliberately absent: temperature and the other sampling parameters; a seed is all there is.

use std::sync::Arc;

use crate::asked::Sampling;
use crate::conversation::{Call, Tool, canonical_text};
use crate::script::ReplyItem;
use crate::tokenizer::{CALL, CALL_END, END, boundary, len_of, tokens};
use crate::words;

/// Why an answer ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    Stop,
    StopString(String),
    Length,
    ToolCalls,
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AnswerPart {
    Text(String),
    Call(AnswerCall),
}

/// A tool call of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AnswerCall {
    pub(crate) call: Call,
    /// What stands between the marks of the call.
    text: String,
    /// Where the arguments begin in it.
    arguments_at: usize,
    /// Whether the limit left it whole.
    pub(crate) complete: bool,
}

impl AnswerCall {
    /// What a limit left of an incomplete call, as plain text, which is how the engines' parsers give up.
    pub(crate) fn remains(&self) -> String {
        format!("<tool_call>{}", self.text)
    }
}

/// What one token belongs to.
#[derive(Debug, Clone, Copy)]
struct Piece {
    part: usize,
    from: usize,
    to: usize,
}

/// What one token shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delta<'a> {
    Nothing,
    Text {
        part: usize,
        text: &'a str,
    },
    /// The call's name is known; maybe its first arguments too.
    CallStart {
        part: usize,
        arguments: &'a str,
    },
    Arguments {
        part: usize,
        arguments: &'a str,
    },
}

/// One planned answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) parts: Vec<AnswerPart>,
    pub(crate) tokens: Arc<[u32]>,
    pub(crate) ending: Ending,
    pieces: Vec<Option<Piece>>,
}

impl Answer {
    /// What the `index`-th token (from 0) shows.
    pub(crate) fn delta(&self, index: usize) -> Delta<'_> {
        let Some(Some(piece)) = self.pieces.get(index) else { return Delta::Nothing };
        let part = piece.part;
        match self.parts.get(part) {
            Some(AnswerPart::Text(text)) => match text.get(piece.from..piece.to.min(text.len())) {
                Some(text) if !text.is_empty() => Delta::Text { part, text },
                _ => Delta::Nothing,
            },
            Some(AnswerPart::Call(call)) => {
                let last = call.text.len() - usize::from(call.complete);
                let from = piece.from.max(call.arguments_at);
                let arguments = call.text.get(from..piece.to.min(last)).unwrap_or_default();
                if piece.from < call.arguments_at && piece.to >= call.arguments_at {
                    Delta::CallStart { part, arguments }
                } else if arguments.is_empty() {
                    Delta::Nothing
                } else {
                    Delta::Arguments { part, arguments }
                }
            }
            None => Delta::Nothing,
        }
    }

    /// All visible text, with what is left of an incomplete call.
    pub(crate) fn text(&self) -> String {
        self.parts.iter().fold(String::new(), |mut all, part| {
            match part {
                AnswerPart::Text(text) => all.push_str(text),
                AnswerPart::Call(call) if !call.complete => all.push_str(&call.remains()),
                AnswerPart::Call(_) => {}
            }
            all
        })
    }

    /// The call that is the `part`-th part.
    pub(crate) fn call(&self, part: usize) -> Option<&AnswerCall> {
        match self.parts.get(part) {
            Some(AnswerPart::Call(call)) => Some(call),
            _ => None,
        }
    }

    /// Whole calls with their part numbers.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (usize, &AnswerCall)> {
        self.parts.iter().enumerate().filter_map(|(i, part)| match part {
            AnswerPart::Call(call) if call.complete => Some((i, call)),
            _ => None,
        })
    }
}

/// Bounds and seed of an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub(crate) sampling: &'a Sampling,
    /// Tools on offer, which give the calls their namespaces.
    pub(crate) tools: &'a [Tool],
    /// Tokens that the context has left for the answer, at least 1.
    pub(crate) room: u32,
    /// Length of a made-up answer.
    pub(crate) natural_tokens: u32,
    pub(crate) seed: u64,
}

impl Plan<'_> {
    /// Plans the answer; `None` = a made-up one.
    pub(crate) fn answer(&self, items: Option<&[ReplyItem]>) -> Answer {
        let most = self.sampling.max_tokens.unwrap_or(self.room).min(self.room).max(1) as usize;
        let mut answer = self.draft(items, most);
        stop_at_string(&mut answer, self.sampling);
        cut(&mut answer, most);
        answer
    }

    fn draft(&self, items: Option<&[ReplyItem]>, most: usize) -> Answer {
        let mut parts = match items {
            Some(items) => self.parts(items),
            None => vec![AnswerPart::Text(words::text(self.seed, self.natural_tokens))],
        };
        let mut answer = assemble(std::mem::take(&mut parts));
        let least = match self.sampling.ignore_eos {
            true => most,
            false => (self.sampling.min_tokens as usize).min(most),
        };
        if answer.tokens.len() < least {
            // One token more, because joining texts may save one.
            let short = u32::try_from(least - answer.tokens.len()).unwrap_or(u32::MAX).saturating_add(1);
            let more = words::text(self.seed ^ 1, short);
            parts = answer.parts;
            match parts.last_mut() {
                Some(AnswerPart::Text(text)) => {
                    text.push(' ');
                    text.push_str(&more);
                }
                _ => parts.push(AnswerPart::Text(more)),
            }
            answer = assemble(parts);
        }
        if !self.sampling.ignore_eos {
            answer.tokens = answer.tokens.iter().copied().chain([END]).collect();
            answer.pieces.push(None);
        }
        answer
    }

    fn parts(&self, items: &[ReplyItem]) -> Vec<AnswerPart> {
        let mut parts: Vec<AnswerPart> = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            let text = match item {
                ReplyItem::Text(text) => text.clone(),
                ReplyItem::Words(n) => words::text(self.seed.wrapping_add(i as u64), *n),
                ReplyItem::ToolCall { name, arguments } => {
                    parts.push(AnswerPart::Call(self.call(name, arguments)));
                    continue;
                }
            };
            match parts.last_mut() {
                Some(AnswerPart::Text(before)) => before.push_str(&text),
                _ if text.is_empty() => {}
                _ => parts.push(AnswerPart::Text(text)),
            }
        }
        parts
    }

    fn call(&self, name: &str, arguments: &serde_json::Value) -> AnswerCall {
        let namespace = self.tools.iter().find(|t| t.name == name).and_then(|t| t.namespace.clone());
        let call = Call { namespace, name: name.to_owned(), arguments: canonical_text(arguments) };
        let (text, arguments_at) = call.text();
        AnswerCall { call, text, arguments_at, complete: true }
    }
}

/// Tokens and pieces of parts.
fn assemble(parts: Vec<AnswerPart>) -> Answer {
    let mut all = Vec::new();
    let mut pieces = Vec::new();
    for (part, content) in parts.iter().enumerate() {
        let (text, call) = match content {
            AnswerPart::Text(text) => (text, false),
            AnswerPart::Call(call) => (&call.text, true),
        };
        if call {
            all.push(CALL);
            pieces.push(Some(Piece { part, from: 0, to: 0 }));
        }
        let (mut bytes, mut from) = (0, 0);
        for id in tokens(text) {
            bytes += len_of(id);
            let to = boundary(text, bytes);
            all.push(id);
            pieces.push(Some(Piece { part, from, to }));
            from = to;
        }
        if call {
            all.push(CALL_END);
            pieces.push(Some(Piece { part, from, to: from }));
        }
    }
    let ending =
        if parts.iter().any(|p| matches!(p, AnswerPart::Call(_))) { Ending::ToolCalls } else { Ending::Stop };
    Answer { parts, tokens: all.into(), ending, pieces }
}

/// Ends the answer at the first stop string in its text.
fn stop_at_string(answer: &mut Answer, sampling: &Sampling) {
    let found = answer.parts.iter().enumerate().find_map(|(part, content)| {
        let AnswerPart::Text(text) = content else { return None };
        let hits = sampling.stop.iter().filter_map(|stop| text.find(stop.as_str()).map(|at| (at, stop)));
        // The one that is complete first ends the answer.
        hits.min_by_key(|(at, stop)| at + stop.len()).map(|(at, stop)| (part, at, stop.clone()))
    });
    let Some((part, at, stop)) = found else { return };
    let end = at + stop.len();
    let count = answer
        .pieces
        .iter()
        .position(|piece| piece.is_some_and(|piece| piece.part == part && piece.to >= end))
        .map_or(answer.tokens.len(), |last| last + 1);
    truncate(answer, count);
    if let Some(AnswerPart::Text(text)) = answer.parts.get_mut(part) {
        text.truncate(if sampling.include_stop { end } else { at });
    }
    answer.ending = Ending::StopString(stop);
}

/// Cuts the answer at its limit.
fn cut(answer: &mut Answer, most: usize) {
    if answer.tokens.len() > most {
        truncate(answer, most);
        answer.ending = Ending::Length;
    } else if matches!(answer.ending, Ending::Stop | Ending::ToolCalls) && answer.tokens.last() != Some(&END)
    {
        // `ignore_eos`: nothing but the limit ended it.
        answer.ending = Ending::Length;
    }
}

/// Keeps the first `count` tokens and what they show.
fn truncate(answer: &mut Answer, count: usize) {
    answer.tokens = answer.tokens.iter().copied().take(count).collect();
    answer.pieces.truncate(count);
    let last = answer.pieces.iter().rev().find_map(|piece| *piece);
    let kept = last.map_or(0, |piece| piece.part + 1);
    answer.parts.truncate(kept);
    let ended_call = answer.tokens.last() == Some(&CALL_END) || answer.tokens.last() == Some(&END);
    match (answer.parts.last_mut(), last) {
        (Some(AnswerPart::Text(text)), Some(piece)) => text.truncate(piece.to),
        (Some(AnswerPart::Call(call)), Some(piece)) if !ended_call => {
            call.text.truncate(piece.to);
            call.complete = false;
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::conversation::{Part, render_parts};

    fn plan(sampling: &Sampling) -> Plan<'_> {
        Plan { sampling, tools: &[], room: 10_000, natural_tokens: 20, seed: 7 }
    }

    fn text(t: &str) -> ReplyItem {
        ReplyItem::Text(t.to_owned())
    }

    fn shell() -> ReplyItem {
        ReplyItem::ToolCall { name: "bash".to_owned(), arguments: json!({"command": "ls -la", "b": 1}) }
    }

    /// What a client that joins all deltas sees: texts and argument texts in order.
    fn joined(answer: &Answer) -> Vec<(usize, String)> {
        let mut seen: Vec<(usize, String)> = Vec::new();
        for i in 0..answer.tokens.len() {
            let (part, more) = match answer.delta(i) {
                Delta::Nothing => continue,
                Delta::Text { part, text } => (part, text),
                Delta::CallStart { part, arguments } | Delta::Arguments { part, arguments } => {
                    (part, arguments)
                }
            };
            match seen.last_mut() {
                Some((last, all)) if *last == part => all.push_str(more),
                _ => seen.push((part, more.to_owned())),
            }
        }
        seen
    }

    /// I-ANS-1, I-ANS-2.
    #[test]
    fn texts_and_calls_are_planned_whole() {
        let answer = plan(&Sampling::default()).answer(Some(&[text("Looking – now."), shell()]));
        let arguments = "{\"b\":1,\"command\":\"ls -la\"}";
        assert_eq!(joined(&answer), [(0, "Looking – now.".to_owned()), (1, arguments.to_owned())]);
        assert_eq!((answer.ending.clone(), answer.text().as_str()), (Ending::ToolCalls, "Looking – now."));
        assert_eq!(answer.calls().count(), 1);
        let mut rendered = Vec::new();
        let call = Call::new(None, "bash".to_owned(), arguments);
        render_parts(&[Part::Text("Looking – now.".to_owned()), Part::Call(call)], &mut rendered);
        rendered.push(END);
        assert_eq!(&answer.tokens[..], &rendered[..]);
    }

    #[test]
    fn limits_cut_and_a_cut_call_is_text() {
        let limit = |n| Sampling { max_tokens: Some(n), ..Sampling::default() };
        let whole = plan(&Sampling::default()).answer(Some(&[shell()]));
        let n = u32::try_from(whole.tokens.len()).expect("small");
        assert_eq!(plan(&limit(n)).answer(Some(&[shell()])).ending, Ending::ToolCalls);
        let cut = plan(&limit(5)).answer(Some(&[shell()]));
        assert_eq!((cut.ending.clone(), cut.tokens.len()), (Ending::Length, 5));
        assert_eq!((cut.text().as_str(), cut.calls().count()), ("<tool_call>{\"name\": \"bash\",", 0));
        let no_end = plan(&limit(n - 1)).answer(Some(&[shell()]));
        assert_eq!((no_end.ending.clone(), no_end.calls().count()), (Ending::Length, 1));
    }

    #[test]
    fn ignore_eos_fills_the_limit() {
        let sampling = Sampling { max_tokens: Some(50), ignore_eos: true, ..Sampling::default() };
        for items in [None, Some(vec![text("short")]), Some(vec![shell()])] {
            let answer = plan(&sampling).answer(items.as_deref());
            assert_eq!((answer.tokens.len(), answer.ending), (50, Ending::Length));
        }
    }

    #[test]
    fn stop_strings_end_the_text_before_them() {
        let stop = |include_stop| Sampling {
            stop: vec!["never".to_owned(), " two".to_owned()],
            include_stop,
            ..Sampling::default()
        };
        let answer = plan(&stop(false)).answer(Some(&[text("one two three"), shell()]));
        assert_eq!(joined(&answer), [(0, "one".to_owned())]);
        assert_eq!((answer.ending, answer.tokens.len()), (Ending::StopString(" two".to_owned()), 2));
        assert_eq!(plan(&stop(true)).answer(Some(&[text("one two three")])).text(), "one two");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// I-ANS-1, I-ANS-3.
        #[test]
        fn deltas_are_the_visible_text(
            texts in prop::collection::vec("\\PC{0,40}", 1..4),
            max in 1_u32..60,
            min in 0_u32..60,
            stop in prop::option::of("[a-z ]"),
        ) {
            let items: Vec<ReplyItem> = texts.iter().map(|t| text(t)).collect();
            let sampling = Sampling {
                max_tokens: Some(max), min_tokens: min, stop: stop.into_iter().collect(), ..Sampling::default()
            };
            let answer = plan(&sampling).answer(Some(&items));
            let seen: String = joined(&answer).into_iter().map(|(_, text)| text).collect();
            prop_assert_eq!(&seen, &answer.text());
            prop_assert!(answer.tokens.len() <= max as usize);
            prop_assert!(!answer.tokens.is_empty());
            if !matches!(answer.ending, Ending::StopString(_)) {
                prop_assert!(answer.tokens.len() >= min.min(max) as usize);
            }
        }
    }
}
