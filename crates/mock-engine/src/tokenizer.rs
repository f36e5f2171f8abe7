//! The mock's own tokenizer: stateless, reversible, about four characters to a token.
//!
//! - Purpose: token ids that behave as a real tokenizer's do for caching (equal text, equal ids; appended
//!   text leaves all but the last id alone) without a vocabulary file.
//! - Inputs: text or ids; outputs: ids or text.
//! - Form of an id: bits 28..31 hold a kind, bits 0..28 a payload. Kind 0: a special token or an id of
//!   somebody else's vocabulary (payload = its number). Kinds 1 to 4: that many ASCII characters, 7 bits
//!   each. Kinds 5 to 7: one to three bytes of other text. Runs of ASCII are cut every four characters, runs
//!   of other bytes every three.
//! - Invariants: I-TOK-1 decoding the encoding of a text gives the text; I-TOK-2 if text A is a prefix of B,
//!   all but the last id of A are the first ids of B; I-TOK-3 ids are below 2^31.
//! - Deliberately absent: merges, normalisation, any likeness to a real model's ids.

/// Opens a message of the chat template.
pub(crate) const START: u32 = 1;
/// Closes a message, and ends an answer.
pub(crate) const END: u32 = 2;
/// Opens a tool call.
pub(crate) const CALL: u32 = 3;
/// Closes a tool call.
pub(crate) const CALL_END: u32 = 4;
/// Stands before the digest of an image or file.
pub(crate) const MEDIA: u32 = 5;

const SPECIAL: [(u32, &str); 5] = [
    (START, "<|im_start|>"),
    (END, "<|im_end|>"),
    (CALL, "<tool_call>"),
    (CALL_END, "</tool_call>"),
    (MEDIA, "<|media|>"),
];

const KIND_SHIFT: u32 = 28;
const PAYLOAD: u32 = (1 << KIND_SHIFT) - 1;

/// Appends the ids of `text`. Special tokens cannot be written as text.
pub(crate) fn encode(text: &str, out: &mut Vec<u32>) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(first) = bytes.get(at) {
        let ascii = first.is_ascii();
        let (most, bits, base) = if ascii { (4, 7, 0) } else { (3, 8, 4) };
        let len = bytes.iter().skip(at).take(most).take_while(|b| b.is_ascii() == ascii).count();
        let payload =
            bytes.iter().skip(at).take(len).fold(0_u32, |packed, b| (packed << bits) | u32::from(*b));
        let kind = base + u32::try_from(len).unwrap_or_default();
        out.push((kind << KIND_SHIFT) | payload);
        at += len;
    }
}

/// The ids of `text`.
pub(crate) fn tokens(text: &str) -> Vec<u32> {
    let mut out = Vec::with_capacity(text.len() / 4 + 1);
    encode(text, &mut out);
    out
}

/// Appends the bytes of one id; special ids and ids of other vocabularies have none.
pub(crate) fn bytes_of(id: u32, out: &mut Vec<u8>) {
    let payload = id & PAYLOAD;
    let (len, bits) = match id >> KIND_SHIFT {
        kind @ 1..=4 => (kind, 7),
        kind @ 5..=7 => (kind - 4, 8),
        _ => return,
    };
    for i in (0..len).rev() {
        // Masked to the width of one character.
        out.push(((payload >> (i * bits)) & ((1 << bits) - 1)) as u8);
    }
}

/// The text of `ids`, without special tokens; bytes that are no text become U+FFFD.
pub(crate) fn decode(ids: &[u32]) -> String {
    let mut bytes = Vec::with_capacity(ids.len() * 4);
    for &id in ids {
        bytes_of(id, &mut bytes);
    }
    String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// One id as `/tokenize` shows it with `return_token_strs`.
pub(crate) fn show(id: u32) -> String {
    match SPECIAL.iter().find(|(special, _)| *special == id) {
        Some((_, name)) => (*name).to_owned(),
        None => decode(&[id]),
    }
}

/// The number of bytes of `ids[..n]` that end on a character boundary of `text`, where `ids` are the ids of
/// `text`.
pub(crate) fn boundary(text: &str, bytes: usize) -> usize {
    let mut at = bytes.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Bytes of text in one id.
pub(crate) const fn len_of(id: u32) -> usize {
    match id >> KIND_SHIFT {
        kind @ 1..=4 => kind as usize,
        kind @ 5..=7 => kind as usize - 4,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_are_as_documented() {
        let ids = tokens("abcdefé日");
        let abcd = [b'a', b'b', b'c', b'd'].iter().fold(0, |n, b| (n << 7) | u32::from(*b));
        let ef = (u32::from(b'e') << 7) | u32::from(b'f');
        // "é" is c3 a9, "日" is e6 97 a5.
        assert_eq!(ids, [(4 << 28) | abcd, (2 << 28) | ef, (7 << 28) | 0x00c3_a9e6, (6 << 28) | 0x97a5]);
        assert_eq!(decode(&ids), "abcdefé日");
        assert_eq!((show(END).as_str(), decode(&[START, 17]).as_str()), ("<|im_end|>", ""));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// I-TOK-1, I-TOK-3.
        #[test]
        fn decoding_undoes_encoding(text in "\\PC{0,200}|[ -~\\n\\t\\x00]{0,200}") {
            let ids = tokens(&text);
            prop_assert!(ids.iter().all(|id| *id < 1 << 31));
            prop_assert_eq!(ids.iter().map(|id| len_of(*id)).sum::<usize>(), text.len());
            prop_assert_eq!(decode(&ids), text);
        }

        /// I-TOK-2.
        #[test]
        fn appending_changes_the_last_id_only(a in "\\PC{0,60}", b in "\\PC{0,60}") {
            let short = tokens(&a);
            let long = tokens(&format!("{a}{b}"));
            let kept = short.len().saturating_sub(1);
            prop_assert_eq!(&short[..kept], &long[..kept]);
        }

        #[test]
        fn any_ids_decode(ids in prop::collection::vec(any::<u32>(), 0..50)) {
            let _ = decode(&ids);
        }
    }
}
