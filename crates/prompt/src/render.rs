//! From a request body to the prompt's text.

use std::sync::Arc;

use tandem_types::{Dialect, EngineKind};

use crate::error::RenderError;
use crate::model::PromptModel;
use crate::time::LocalTime;

/// A prompt before it is tokenized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text for the tokenizer.
    Text(Arc<str>),
    /// Token ids that the client sent itself.
    Tokens(Arc<[u32]>),
}

/// A request's prompt, and what else its blocks depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub prompt: Prompt,
    /// Whether the tokenizer adds its own special tokens (such as a BOS) around the text.
    pub add_special_tokens: bool,
    /// The model that the request names: may be a LoRA adapter.
    pub model: Option<String>,
    /// The salt under which the engine caches this prompt.
    pub cache_salt: Option<String>,
}

impl PromptModel {
    /// The prompt that an engine of `kind` makes of `body`. A template that asks for the time is unsupported here.
    ///
    /// # Errors
    /// [`RenderError::Unsupported`] where the prompt cannot be reproduced exactly; the others where the engine
    /// would refuse the request too, or a bound was hit.
    pub fn render(&self, dialect: Dialect, kind: EngineKind, body: &[u8]) -> Result<Rendered, RenderError> {
        self.render_at(dialect, kind, body, None)
    }

    /// [`PromptModel::render`], with the wall time for templates that ask for it.
    ///
    /// # Errors
    /// As [`PromptModel::render`].
    pub fn render_at(
        &self,
        dialect: Dialect,
        kind: EngineKind,
        body: &[u8],
        now: Option<LocalTime>,
    ) -> Result<Rendered, RenderError> {
        let _ = (dialect, kind, body, now, &self.options);
        Err(RenderError::Unsupported { why: "no template" })
    }
}
