//! Prompts as chains of content hashes.

use std::sync::Arc;

use tandem_kvwire::hash::block::Media;

/// A prompt as an engine will see it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prompt<'a> {
    /// Token ids.
    pub tokens: &'a [u32],
    /// The adapter.
    pub lora: Option<&'a str>,
    /// The cache salt.
    pub salt: Option<&'a str>,
    /// Pictures and the like, in order of their starts.
    pub media: &'a [Media],
}

/// A prompt's content hashes for every block size in use. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct PromptChain {
    inner: Arc<()>,
}

impl PromptChain {
    /// Tokens of the prompt that whole blocks cover, in the finest cut.
    #[must_use]
    pub fn tokens(&self) -> usize {
        let _ = &self.inner;
        0
    }
}
