//! How SGLang turns a chat request into what its chat template is given.

use crate::chat::{Chat, unsupported};
use crate::error::RenderError;
use crate::json::Object;
use crate::model::Setup;

/// Converts a chat-completions body.
pub(crate) fn chat(_body: &Object, _setup: &Setup) -> Result<Chat, RenderError> {
    unsupported("chats on SGLang")
}
