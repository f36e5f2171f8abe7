//! Token counts without a tokenizer, for `POST /v1/messages/count_tokens` on engines that lack the route.
//!
//! - Input: a Messages body. Output: about how many tokens its prompt has.
//! - Rule: four bytes of ASCII text make a token, three bytes of other text make one (a CJK character, half an
//!   emoji); texts count wherever they stand in `system`, `messages` and `tools`, in tools with the names of
//!   members, since templates print schemas. Each message, tool and content block costs [`ITEM_TOKENS`] of
//!   framing, an image or file [`MEDIA_TOKENS`], whatever its encoded size. A harness decides by this number when
//!   to compact its history, so base64 must not count as text.
//! - Accuracy: within a factor of about 1.5 of the usual tokenizers for prose and code; metrics mark it as an
//!   estimate.
//! - Deliberately absent: a vocabulary. The engine's own count wins wherever there is one.

use crate::json::{Kind, Scan, Scanner};

/// Framing of a message, tool or content block, in tokens.
const ITEM_TOKENS: u64 = 4;

/// An image or file, in tokens: Anthropic's documented bound for an image at full size is about 1,600.
const MEDIA_TOKENS: u64 = 1600;

#[derive(Debug, Default, Clone, Copy)]
struct Weight {
    ascii: u64,
    other: u64,
    items: u64,
    media: u64,
}

impl Weight {
    fn text(&mut self, text: &[u8]) {
        let ascii = u64::try_from(text.iter().filter(|byte| byte.is_ascii()).count()).unwrap_or(u64::MAX);
        self.ascii = self.ascii.saturating_add(ascii);
        self.other = self.other.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX) - ascii);
    }

    fn tokens(self) -> u64 {
        let framing =
            self.items.saturating_mul(ITEM_TOKENS).saturating_add(self.media.saturating_mul(MEDIA_TOKENS));
        self.ascii.div_ceil(4).saturating_add(self.other.div_ceil(3)).saturating_add(framing)
    }
}

/// About how many tokens the prompt of a Messages body has; at least 1. A body that cannot be read counts as
/// plain text.
#[must_use]
pub fn estimate_tokens(body: &[u8]) -> u64 {
    let mut weight = Weight::default();
    let mut scan = Scanner::new(body, false);
    scan.byte_order_mark();
    let read = scan.members(|scan, key| match key {
        b"messages" | b"system" => walk(scan, &mut weight, false),
        b"tools" => walk(scan, &mut weight, true),
        _ => scan.skip(),
    });
    if read.is_err() {
        weight = Weight::default();
        weight.text(body);
    }
    weight.tokens().max(1)
}

/// The answer to `POST /v1/messages/count_tokens`.
#[must_use]
pub fn count_tokens_body(input_tokens: u64) -> Vec<u8> {
    format!("{{\"input_tokens\":{input_tokens}}}").into_bytes()
}

fn walk(scan: &mut Scanner<'_>, weight: &mut Weight, names: bool) -> Scan {
    match scan.peek()? {
        Kind::Text => {
            weight.text(&scan.text()?);
            Ok(())
        }
        Kind::Array => scan.array(|scan, _| {
            weight.items += u64::from(scan.peek()? == Kind::Object);
            walk(scan, weight, names)
        }),
        Kind::Object => scan.object(|scan, key| {
            if names {
                weight.text(key);
            }
            match key {
                b"source" => source(scan, weight),
                // Marks for programs, which no template prints.
                b"type" | b"id" | b"tool_use_id" | b"cache_control" | b"signature" if !names => scan.skip(),
                _ => walk(scan, weight, names),
            }
        }),
        Kind::Number | Kind::Bool | Kind::Null => {
            let start = scan.position();
            scan.skip()?;
            weight.ascii += u64::try_from(scan.position() - start).unwrap_or_default();
            Ok(())
        }
    }
}

/// The source of an image or document block: text counts as such, anything else as one piece of media.
fn source(scan: &mut Scanner<'_>, weight: &mut Weight) -> Scan {
    let mut inside = Weight::default();
    let mut text = false;
    scan.members(|scan, key| {
        if key == b"type" {
            text = scan.text_or_skip()?.is_some_and(|kind| matches!(&*kind, b"text" | b"content"));
            return Ok(());
        }
        walk(scan, &mut inside, false)
    })?;
    if text {
        weight.ascii = weight.ascii.saturating_add(inside.ascii);
        weight.other = weight.other.saturating_add(inside.other);
    } else {
        weight.media += 1;
    }
    Ok(())
}
