//! Token counts without a tokenizer.

/// About how many tokens the prompt of a Messages body has.
#[must_use]
pub fn estimate_tokens(body: &[u8]) -> u64 {
    u64::try_from(body.len() / 4).unwrap_or(u64::MAX)
}

/// The answer to `POST /v1/messages/count_tokens`.
#[must_use]
pub fn count_tokens_body(input_tokens: u64) -> Vec<u8> {
    format!("{{\"input_tokens\":{input_tokens}}}").into_bytes()
}
