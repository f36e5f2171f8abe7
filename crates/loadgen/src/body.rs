//! From blocks to tokens to a request's body.

use std::fmt::Write as _;

use bytes::Bytes;
use tandem_workload::mix;

/// Token ids have three digits: short bodies, and any model's vocabulary has them.
const FIRST: u64 = 100;
const COUNT: u64 = 900;

/// A prompt: its leading whole blocks by name, and the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// `blocks[i]` names the tokens `0 .. (i + 1) * block_size`.
    pub(crate) blocks: Vec<u64>,
    /// Tokens in a block.
    pub(crate) block_size: u32,
    /// All tokens, at least 1.
    pub(crate) tokens: u32,
    /// What no block covers follows from this.
    pub(crate) rest: u64,
}

impl Prompt {
    /// Its token ids.
    pub(crate) fn token_ids(&self) -> impl Iterator<Item = u32> {
        let whole = self.blocks.iter().flat_map(|block| block_tokens(*block).take(self.block_size as usize));
        whole.chain(block_tokens(self.rest)).take(self.tokens as usize)
    }
}

/// Endless tokens for a name.
fn block_tokens(name: u64) -> impl Iterator<Item = u32> {
    (0u64..).flat_map(move |part| {
        let drawn = mix(name, part);
        // Four tokens out of each 64-bit draw.
        (0..4).map(move |lane| {
            let bits = (drawn >> (lane * 16)) & 0xffff;
            u32::try_from(FIRST + bits * COUNT / 0x1_0000).unwrap_or(0)
        })
    })
}

/// A streaming completion of exactly `output` tokens.
pub(crate) fn completion(model: &str, prompt: &Prompt, output: u32) -> Bytes {
    let mut body = String::with_capacity(prompt.tokens as usize * 4 + 256);
    let model = serde_json::Value::from(model);
    let _ = write!(body, r#"{{"model":{model},"prompt":["#);
    for (at, token) in prompt.token_ids().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(body, "{comma}{token}");
    }
    let _ = write!(
        body,
        r#"],"max_tokens":{output},"ignore_eos":true,"stream":true,"stream_options":{{"include_usage":true}}}}"#
    );
    Bytes::from(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(blocks: &[u64], tokens: u32, rest: u64) -> Prompt {
        Prompt { blocks: blocks.to_vec(), block_size: 16, tokens, rest }
    }

    #[test]
    fn equal_blocks_have_equal_tokens_and_others_do_not() {
        let one: Vec<u32> = prompt(&[1, 2], 40, 7).token_ids().collect();
        let two: Vec<u32> = prompt(&[1, 3], 50, 8).token_ids().collect();
        assert_eq!((one.len(), two.len()), (40, 50));
        assert_eq!(one[..16], two[..16]);
        assert_ne!(one[16..32], two[16..32]);
        assert_ne!(one[32..40], two[32..40]);
        assert!(one.iter().chain(&two).all(|token| (100..1000).contains(token)));
    }

    #[test]
    fn bodies_are_json_that_pins_the_answer() {
        let prompt = prompt(&[5], 18, 6);
        let body = completion("a \"model\"", &prompt, 12);
        let body: serde_json::Value = serde_json::from_slice(&body).expect("is JSON");
        assert_eq!(body["model"], "a \"model\"");
        assert_eq!(body["max_tokens"], 12);
        let ids: Vec<u32> = serde_json::from_value(body["prompt"].clone()).expect("is a list of ids");
        assert_eq!(ids, prompt.token_ids().collect::<Vec<_>>());
    }
}
