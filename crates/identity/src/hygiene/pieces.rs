//! The forms of volatile text, found in the text of one system prompt.
//!
//! - Purpose: from the units of a string to the pieces that change between sessions or turns.
//! - Invariants: I-PCE-1 only a run of pieces at the very head counts (white space aside), so no text that a
//!   person wrote is ever touched; I-PCE-2 a piece that is not exactly of its known form is none; I-PCE-3
//!   a frozen piece is constant where it was volatile and as long as before.
//! - Sources: Claude Code 2.1.332 (`x-anthropic-billing-header: cc_version=2.1.332.1a9; cc_entrypoint=cli;
//!   cc_is_subagent=true;`: the last part of the version depends on the first user prompt); the vendor's
//!   description of context awareness (`<budget:token_budget>`, `<system_warning>Token usage: ...`);
//!   OpenHands 1.16.0 (its start time in ISO form with microseconds).

use std::ops::Range;

use tandem_types::BodyEdit;

use super::VolatileKind;
use super::scan::Unit;

/// One piece of volatile text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) kind: VolatileKind,
    /// The text with its line end, where it fills its line.
    pub(super) range: Range<usize>,
    /// What freezing it would change.
    pub(super) frozen: Vec<BodyEdit>,
}

pub(super) const BILLING: &str = "x-anthropic-billing-header:";
/// Opening, closing, and what must follow the opening.
const BUDGETS: &[(&str, &str, &str)] = &[
    ("<budget:token_budget>", "</budget:token_budget>", ""),
    ("<system_warning>", "</system_warning>", "Token usage:"),
];
/// Longest billing line or budget marker, in characters. Real ones have about 100.
const PIECE_CHARS_MAX: usize = 1024;

/// A look-ahead over units.
#[derive(Clone)]
struct Look<I: Iterator<Item = Unit> + Clone> {
    units: I,
    left: usize,
}

impl<I: Iterator<Item = Unit> + Clone> Look<I> {
    fn peek(&self) -> Option<Unit> {
        if self.left == 0 { None } else { self.units.clone().next() }
    }

    fn next(&mut self) -> Option<Unit> {
        self.left = self.left.checked_sub(1)?;
        self.units.next()
    }

    fn next_if(&mut self, test: impl Fn(u8) -> bool) -> Option<Unit> {
        let unit = self.peek()?;
        if u8::try_from(unit.code).is_ok_and(test) { self.next() } else { None }
    }

    fn skip(&mut self, test: impl Fn(u8) -> bool) {
        while self.next_if(&test).is_some() {}
    }

    /// Takes `word` whole or nothing.
    fn word(&mut self, word: &str) -> Option<Range<usize>> {
        let mut ahead = self.clone();
        let mut range: Option<Range<usize>> = None;
        for byte in word.bytes() {
            let unit = ahead.next_if(|b| b == byte)?;
            range.get_or_insert(unit.start..unit.end).end = unit.end;
        }
        *self = ahead;
        range
    }
}

/// What stands at the head of a text.
pub(super) struct Head {
    pub(super) pieces: Vec<Piece>,
    /// Nothing but pieces and white space.
    pub(super) whole: bool,
}

/// Finds the run of pieces at the head of a text.
pub(super) fn head(units: impl Iterator<Item = Unit> + Clone) -> Head {
    let mut pieces = Vec::new();
    let mut look = Look { units, left: PIECE_CHARS_MAX };
    loop {
        let mut ahead = look.clone();
        ahead.skip(|b| b.is_ascii_whitespace());
        ahead.left = PIECE_CHARS_MAX;
        let piece = billing(&mut ahead).or_else(|| budget(&mut ahead));
        let Some(piece) = piece else {
            let whole = !pieces.is_empty() && ahead.peek().is_none();
            return Head { pieces, whole };
        };
        pieces.push(piece);
        look = ahead;
        look.left = PIECE_CHARS_MAX;
    }
}

/// `x-anthropic-billing-header:` and its `name=value;` fields.
fn billing<I: Iterator<Item = Unit> + Clone>(look: &mut Look<I>) -> Option<Piece> {
    let mut ahead = look.clone();
    let mut range = ahead.word(BILLING)?;
    let mut frozen = Vec::new();
    let mut fields = 0;
    while let Some(end) = field(&mut ahead, &mut frozen) {
        range.end = end;
        fields += 1;
    }
    if fields == 0 || ahead.left == 0 {
        return None;
    }
    range.end = line_end(&mut ahead).unwrap_or(range.end);
    *look = ahead;
    Some(Piece { kind: VolatileKind::BillingLine, range, frozen })
}

/// One field; gives where it ends.
fn field<I: Iterator<Item = Unit> + Clone>(look: &mut Look<I>, frozen: &mut Vec<BodyEdit>) -> Option<usize> {
    let mut ahead = look.clone();
    ahead.skip(|b| b == b' ' || b == b'\t');
    let mut name = String::new();
    while let Some(unit) = ahead.next_if(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
        name.extend(char::from_u32(unit.code));
    }
    if name.is_empty() {
        return None;
    }
    let mut end = ahead.next_if(|b| b == b'=')?.end;
    // The volatile part: of the version what follows its third full stop, of a checksum all.
    let mut dots = if name == "cch" { 3 } else { 0 };
    let freezes = name == "cch" || name == "cc_version";
    while let Some(unit) = ahead.next_if(|b| b.is_ascii_graphic() && b != b';') {
        if freezes && dots >= 3 && unit.code != u32::from(b'0') {
            frozen.push(BodyEdit { range: unit.start..unit.end, with: b"0".to_vec() });
        }
        dots += usize::from(unit.code == u32::from(b'.'));
        end = unit.end;
    }
    if let Some(unit) = ahead.next_if(|b| b == b';') {
        end = unit.end;
    }
    *look = ahead;
    Some(end)
}

/// A token budget or usage marker.
fn budget<I: Iterator<Item = Unit> + Clone>(look: &mut Look<I>) -> Option<Piece> {
    let (ahead, range, frozen) = BUDGETS.iter().find_map(|(open, close, then)| {
        let mut ahead = look.clone();
        let mut range = ahead.word(open)?;
        if !then.is_empty() {
            ahead.word(then)?;
        }
        let mut frozen = Vec::new();
        let mut digits = 0;
        // Rounded down to one digit: the model still learns the magnitude.
        while let Some(unit) = ahead.next_if(|b| b.is_ascii_graphic() && b != b'<' || b == b' ') {
            let digit = char::from_u32(unit.code).is_some_and(|c| c.is_ascii_digit());
            if digit && digits > 0 && unit.code != u32::from(b'0') {
                frozen.push(BodyEdit { range: unit.start..unit.end, with: b"0".to_vec() });
            }
            digits = if digit { digits + 1 } else { 0 };
        }
        range.end = ahead.word(close)?.end;
        Some((ahead, range, frozen))
    })?;
    let mut range = range;
    *look = ahead;
    range.end = line_end(look).unwrap_or(range.end);
    Some(Piece { kind: VolatileKind::TokenBudget, range, frozen })
}

/// Takes the end of the line, if nothing else is left on it; gives where the next line starts.
fn line_end<I: Iterator<Item = Unit> + Clone>(look: &mut Look<I>) -> Option<usize> {
    let mut ahead = look.clone();
    ahead.skip(|b| b == b' ' || b == b'\t');
    ahead.skip(|b| b == b'\r');
    let end = ahead.next_if(|b| b == b'\n')?.end;
    *look = ahead;
    Some(end)
}

/// Words that introduce OpenHands' start time.
pub(super) const DATE_WORDS: &str = "date and time";
/// How far behind those words the time itself may stand, in bytes.
const DATE_GAP_MAX: usize = 48;

/// Finds start times in a text as it is written. Neither the words nor the time hold anything that JSON
/// must escape.
pub(super) fn date_times(body: &[u8], text: &Range<usize>) -> Vec<Piece> {
    let Some(raw) = body.get(text.clone()) else { return Vec::new() };
    memchr::memmem::find_iter(raw, DATE_WORDS)
        .filter_map(|at| {
            let from = at + DATE_WORDS.len();
            let gap = raw.get(from..)?.iter().take(DATE_GAP_MAX).position(u8::is_ascii_digit)?;
            let start = from + gap;
            let len = iso_len(raw.get(start..)?)?;
            // The date stays; hours, minutes, seconds and their fraction become zero.
            let time = start + "2026-01-01T".len()..start + len;
            let frozen =
                raw[time.clone()].iter().map(|b| if b.is_ascii_digit() { b'0' } else { *b }).collect();
            let shift = |r: Range<usize>| text.start + r.start..text.start + r.end;
            Some(Piece {
                kind: VolatileKind::DateTime,
                range: shift(start..start + len),
                frozen: vec![BodyEdit { range: shift(time), with: frozen }],
            })
        })
        .collect()
}

/// The length of `2026-11-29T16:00:00.123456` (fraction optional, a space for the T) at the head of `text`.
fn iso_len(text: &[u8]) -> Option<usize> {
    const FORM: &[u8] = b"dddd-dd-ddTdd:dd:dd";
    let head = text.get(..FORM.len())?;
    let fits = head.iter().zip(FORM).all(|(byte, form)| match form {
        b'd' => byte.is_ascii_digit(),
        b'T' => *byte == b'T' || *byte == b' ',
        other => byte == other,
    });
    if !fits {
        return None;
    }
    let rest = &text[FORM.len()..];
    let fraction = match rest.first() {
        Some(b'.') => rest[1..].iter().take_while(|b| b.is_ascii_digit()).count(),
        _ => 0,
    };
    Some(FORM.len() + if fraction > 0 { fraction + 1 } else { 0 })
}
