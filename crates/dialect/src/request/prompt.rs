//! The part of a body that holds the prompt: how many items, what the last one is, whether there are media.
//!
//! The last item alone decides the trigger, as in Dynamo 1.6.1:
//! chat: role `user` = user message, `tool` and `function` = tool result, else other. Messages: a last message
//! of role `user` is a tool result if any of its blocks is one, else a user message. Responses: a plain text is a
//! user message; outputs of function, custom, shell, local shell, computer and apply-patch calls, and of tool
//! searches that the client executes, are tool results; an input message of role `user` is a user message.
//! Completions: always other.

use tandem_types::InputTrigger;

use crate::json::{Kind, Scan, Scanner};
use crate::limits::TOKEN_IDS_MAX;

/// What a prompt is made of.
#[derive(Debug, Default)]
pub(super) struct Prompt {
    /// Messages, input items or prompts.
    pub(super) items: u32,
    /// What the last item is.
    pub(super) trigger: InputTrigger,
    /// There are images, audio, video or files.
    pub(super) media: bool,
    /// The prompt as token ids.
    pub(super) tokens: Option<Vec<u32>>,
}

/// One message or input item.
#[derive(Debug, Default)]
struct Item {
    user: bool,
    tool: bool,
    /// `type`, where the item has one.
    kind: ItemKind,
    /// `execution: client`.
    client_executes: bool,
    content: Content,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum ItemKind {
    #[default]
    Absent,
    Message,
    ToolOutput,
    ToolSearchOutput,
    Other,
}

/// What a message's content holds.
#[derive(Debug, Default, Clone, Copy)]
struct Content {
    media: bool,
    tool_result: bool,
}

pub(super) fn chat(scan: &mut Scanner<'_>) -> Scan<Prompt> {
    items(scan, |item| match item {
        Item { tool: true, .. } => InputTrigger::ToolResult,
        Item { user: true, .. } => InputTrigger::UserMessage,
        _ => InputTrigger::Other,
    })
}

pub(super) fn messages(scan: &mut Scanner<'_>) -> Scan<Prompt> {
    items(scan, |item| match item {
        Item { user: true, content: Content { tool_result: true, .. }, .. } => InputTrigger::ToolResult,
        Item { user: true, .. } => InputTrigger::UserMessage,
        _ => InputTrigger::Other,
    })
}

pub(super) fn responses(scan: &mut Scanner<'_>) -> Scan<Prompt> {
    if scan.peek()? == Kind::Text {
        scan.skip()?;
        return Ok(Prompt { items: 1, trigger: InputTrigger::UserMessage, ..Prompt::default() });
    }
    items(scan, |item| match item {
        Item { kind: ItemKind::ToolOutput, .. }
        | Item { kind: ItemKind::ToolSearchOutput, client_executes: true, .. } => InputTrigger::ToolResult,
        Item { kind: ItemKind::Absent | ItemKind::Message, user: true, .. } => InputTrigger::UserMessage,
        _ => InputTrigger::Other,
    })
}

/// A text, a list of texts, a list of token ids or a list of such lists.
pub(super) fn completions(scan: &mut Scanner<'_>) -> Scan<Prompt> {
    if scan.peek()? != Kind::Array {
        let items = u32::from(scan.peek()? == Kind::Text);
        scan.skip()?;
        return Ok(Prompt { items, ..Prompt::default() });
    }
    let mut prompts = 0_u32;
    let mut flat = Some(Vec::new());
    let mut list = None;
    scan.array(|scan, _| match scan.peek()? {
        Kind::Number => scan.token_id(&mut flat, TOKEN_IDS_MAX),
        Kind::Array => {
            prompts = prompts.saturating_add(1);
            // Only a single list is kept, so further ones need not be.
            list = if prompts == 1 { scan.token_ids(TOKEN_IDS_MAX)? } else { scan.skip().map(|()| None)? };
            Ok(())
        }
        _ => {
            prompts = prompts.saturating_add(1);
            scan.skip()
        }
    })?;
    let flat = flat.filter(|tokens| !tokens.is_empty());
    Ok(match (prompts, flat) {
        (0, tokens) => Prompt { items: 1, tokens, ..Prompt::default() },
        (1, None) => Prompt { items: 1, tokens: list, ..Prompt::default() },
        (items, _) => Prompt { items, ..Prompt::default() },
    })
}

fn items(scan: &mut Scanner<'_>, trigger: impl Fn(&Item) -> InputTrigger) -> Scan<Prompt> {
    let mut prompt = Prompt::default();
    scan.items(|scan, _| {
        let item = item(scan)?;
        prompt.items = prompt.items.saturating_add(1);
        prompt.media |= item.content.media;
        prompt.trigger = trigger(&item);
        Ok(())
    })?;
    Ok(prompt)
}

fn item(scan: &mut Scanner<'_>) -> Scan<Item> {
    let mut item = Item { kind: ItemKind::Absent, ..Item::default() };
    scan.members(|scan, key| {
        match key {
            b"role" => {
                let role = scan.text_or_skip()?.unwrap_or_default();
                item.user = *role == *b"user";
                item.tool = matches!(&*role, b"tool" | b"function");
            }
            b"type" => item.kind = scan.text_or_skip()?.map_or(ItemKind::Absent, |kind| item_kind(&kind)),
            b"execution" => item.client_executes = scan.text_or_skip()?.is_some_and(|who| *who == *b"client"),
            b"content" | b"output" => {
                let content = content(scan)?;
                item.content.media |= content.media;
                item.content.tool_result |= content.tool_result;
            }
            _ => scan.skip()?,
        }
        Ok(())
    })?;
    Ok(item)
}

fn item_kind(kind: &[u8]) -> ItemKind {
    match kind {
        b"message" => ItemKind::Message,
        b"function_call_output"
        | b"custom_tool_call_output"
        | b"computer_call_output"
        | b"local_shell_call_output"
        | b"shell_call_output"
        | b"apply_patch_call_output" => ItemKind::ToolOutput,
        b"tool_search_output" => ItemKind::ToolSearchOutput,
        _ => ItemKind::Other,
    }
}

/// A message's content: a text, one part or a list of parts.
fn content(scan: &mut Scanner<'_>) -> Scan<Content> {
    let mut all = Content::default();
    match scan.peek()? {
        Kind::Array => scan.array(|scan, _| {
            let one = part(scan)?;
            all.media |= one.media;
            all.tool_result |= one.tool_result;
            Ok(())
        })?,
        Kind::Object => all = part(scan)?,
        _ => scan.skip()?,
    }
    Ok(all)
}

fn part(scan: &mut Scanner<'_>) -> Scan<Content> {
    let mut part = Content::default();
    let mut document = false;
    let mut text_source = false;
    let mut media = false;
    scan.members(|scan, key| {
        match key {
            b"type" => {
                let kind = scan.text_or_skip()?.unwrap_or_default();
                part.tool_result = *kind == *b"tool_result";
                document = *kind == *b"document";
                media = is_media(&kind);
            }
            // vLLM takes such parts without a type.
            b"image_url" | b"input_audio" | b"audio_url" | b"video_url" => {
                part.media |= scan.peek()? != Kind::Null;
                scan.skip()?;
            }
            b"source" => {
                let source = scan.text_at(&[b"type"])?;
                text_source = source.is_some_and(|kind| matches!(&*kind, b"text" | b"content"));
            }
            b"content" => part.media |= content(scan)?.media,
            _ => scan.skip()?,
        }
        Ok(())
    })?;
    part.media |= media || (document && !text_source);
    Ok(part)
}

fn is_media(kind: &[u8]) -> bool {
    matches!(
        kind,
        b"image_url"
            | b"image"
            | b"input_image"
            | b"image_embeds"
            | b"image_pil"
            | b"computer_screenshot"
            | b"input_audio"
            | b"audio_url"
            | b"audio"
            | b"audio_embeds"
            | b"video_url"
            | b"video"
            | b"input_video"
            | b"file"
            | b"input_file"
    )
}
