//! Made-up text: deterministic, plain ASCII, of an exact number of tokens.

const WORDS: [&str; 64] = [
    "adapter", "archive", "argument", "balance", "branch", "buffer", "build", "cache", "channel", "check",
    "client", "cluster", "column", "commit", "config", "counter", "cursor", "default", "detail", "error",
    "event", "field", "file", "filter", "folder", "format", "guard", "handle", "header", "index", "input",
    "item", "key", "layer", "ledger", "limit", "line", "list", "loader", "local", "marker", "merge",
    "method", "module", "number", "object", "option", "order", "packet", "parser", "patch", "queue",
    "reader", "record", "report", "result", "route", "sample", "schema", "server", "signal", "status",
    "stream", "table",
];

/// SplitMix64: the next state and its output.
pub(crate) const fn next(state: u64) -> (u64, u64) {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state, z ^ (z >> 31))
}

/// Text of `n` tokens, which is 4 `n` characters, without white space at either end.
pub(crate) fn text(seed: u64, n: u32) -> String {
    let length = (n as usize).saturating_mul(4);
    let mut text = String::with_capacity(length + 16);
    let mut state = seed;
    while text.len() < length {
        let (following, drawn) = next(state);
        state = following;
        if !text.is_empty() {
            // A sentence now and then.
            text.push_str(if drawn >> 60 == 0 { ". " } else { " " });
        }
        // The remainder of 64 is below the number of words.
        text.push_str(WORDS.get((drawn % 64) as usize).copied().unwrap_or_default());
    }
    text.truncate(length);
    if text.ends_with(' ') {
        text.pop();
        text.push('.');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::tokens;

    #[test]
    fn text_has_exactly_the_tokens_asked_for() {
        for n in [0, 1, 2, 17, 400] {
            let made = text(u64::from(n), n);
            assert_eq!((tokens(&made).len(), made.trim()), (n as usize, made.as_str()));
        }
        assert_eq!(text(3, 50), text(3, 50));
        assert_ne!(text(3, 50), text(4, 50));
    }
}
