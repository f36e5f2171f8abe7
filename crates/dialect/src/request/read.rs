//! The top level of a request body.

use tandem_types::{BodyIds, Dialect, InputTrigger, PromptShape, TurnFacts};

use super::prompt::{self, Prompt};
use super::{Anchors, BodyError, BodyField, ParsedRequest, StreamOptions};
use crate::json::{Kind, Scan, Scanner};
use crate::limits::{BODY_ID_BYTES_MAX, TOKEN_IDS_MAX};

/// What the top-level fields said, each overwritten when its name comes again.
struct Reader {
    dialect: Dialect,
    model: Option<String>,
    model_wrong: bool,
    stream: bool,
    include_usage: bool,
    n: Option<u64>,
    best_of: Option<u64>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    prompt: Prompt,
    /// SGLang's `input_ids`: the prompt as tokens beside or instead of messages.
    input_ids: Option<Vec<u32>>,
    embeddings: bool,
    tools: Option<u32>,
    functions: Option<u32>,
    /// One flag per field that can ask for a JSON schema.
    schema: [bool; 4],
    /// One flag per field that can switch thinking off.
    no_thinking: [bool; 4],
    ids: BodyIds,
    anchors: Anchors,
}

/// Reads a body from its first byte (behind a byte order mark) to its end.
pub(super) fn request(
    dialect: Dialect,
    body_bytes: usize,
    scan: &mut Scanner<'_>,
) -> Result<ParsedRequest, BodyError> {
    if scan.peek()? != Kind::Object {
        scan.skip()?;
        scan.end()?;
        return Err(BodyError::NotAnObject);
    }
    let mut reader = Reader::new(dialect);
    reader.anchors.start = scan.position() + 1;
    scan.object(|scan, key| {
        reader.anchors.empty = false;
        scan.peek()?;
        let start = scan.position();
        reader.member(scan, key)?;
        if let Some(field) = BodyField::named(key) {
            reader.anchors.fields[field.slot()] = Some(start..scan.position());
        }
        Ok(())
    })?;
    let digest = scan.digest();
    scan.end()?;
    reader.finish(body_bytes, digest)
}

impl Reader {
    fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            model: None,
            model_wrong: false,
            stream: false,
            include_usage: false,
            n: None,
            best_of: None,
            max_tokens: None,
            max_completion_tokens: None,
            max_output_tokens: None,
            prompt: Prompt::default(),
            input_ids: None,
            embeddings: false,
            tools: None,
            functions: None,
            schema: [false; 4],
            no_thinking: [false; 4],
            ids: BodyIds::default(),
            anchors: Anchors { empty: true, ..Anchors::default() },
        }
    }

    fn member(&mut self, scan: &mut Scanner<'_>, key: &[u8]) -> Scan {
        match key {
            b"model" => {
                self.model_wrong = !matches!(scan.peek()?, Kind::Text | Kind::Null);
                self.model = scan.string()?;
            }
            b"stream" => self.stream = scan.truth()?.unwrap_or(false),
            b"stream_options" => self.stream_options(scan)?,
            b"tools" => self.tools = count(scan)?,
            b"session_id" => self.ids.session_id = id(scan)?,
            b"prompt_cache_key" => self.ids.prompt_cache_key = id(scan)?,
            b"chat_template_kwargs" => self.no_thinking[0] = template_without_thinking(scan)?,
            _ => match self.dialect {
                Dialect::Chat => return self.chat(scan, key),
                Dialect::Completions => return self.completions(scan, key),
                Dialect::Responses => return self.responses(scan, key),
                Dialect::Messages => return self.messages(scan, key),
            },
        }
        Ok(())
    }

    fn chat(&mut self, scan: &mut Scanner<'_>, key: &[u8]) -> Scan {
        match key {
            b"messages" => self.prompt = prompt::chat(scan)?,
            b"max_completion_tokens" => self.max_completion_tokens = scan.unsigned()?,
            b"functions" => self.functions = count(scan)?,
            b"thinking" => self.no_thinking[1] = is(scan.text_at(&[b"type"])?, b"disabled"),
            b"reasoning_effort" => self.no_thinking[2] = is(scan.text_or_skip()?, b"none"),
            _ => return self.sampled(scan, key),
        }
        Ok(())
    }

    fn completions(&mut self, scan: &mut Scanner<'_>, key: &[u8]) -> Scan {
        match key {
            b"prompt" => self.prompt = prompt::completions(scan)?,
            b"prompt_embeds" => {
                self.embeddings = scan.peek()? != Kind::Null;
                scan.skip()?;
            }
            _ => return self.sampled(scan, key),
        }
        Ok(())
    }

    /// Fields that chat and completions share.
    fn sampled(&mut self, scan: &mut Scanner<'_>, key: &[u8]) -> Scan {
        match key {
            b"max_tokens" => self.max_tokens = scan.unsigned()?,
            b"n" => self.n = scan.unsigned()?,
            b"best_of" => self.best_of = scan.unsigned()?,
            b"input_ids" => self.input_ids = scan.token_ids(TOKEN_IDS_MAX)?,
            b"response_format" => self.schema[0] = is(scan.text_at(&[b"type"])?, b"json_schema"),
            b"guided_json" => {
                self.schema[1] = scan.peek()? != Kind::Null;
                scan.skip()?;
            }
            b"structured_outputs" => {
                let mut json = false;
                scan.members(|scan, key| {
                    if key == b"json" {
                        json = scan.peek()? != Kind::Null;
                    }
                    scan.skip()
                })?;
                self.schema[2] = json;
            }
            _ => scan.skip()?,
        }
        Ok(())
    }

    fn responses(&mut self, scan: &mut Scanner<'_>, key: &[u8]) -> Scan {
        match key {
            b"input" => self.prompt = prompt::responses(scan)?,
            b"max_output_tokens" => self.max_output_tokens = scan.unsigned()?,
            b"previous_response_id" => self.ids.previous_response_id = id(scan)?,
            b"text" => self.schema[0] = is(scan.text_at(&[b"format", b"type"])?, b"json_schema"),
            b"reasoning" => self.no_thinking[1] = is(scan.text_at(&[b"effort"])?, b"none"),
            _ => scan.skip()?,
        }
        Ok(())
    }

    fn messages(&mut self, scan: &mut Scanner<'_>, key: &[u8]) -> Scan {
        match key {
            b"messages" => self.prompt = prompt::messages(scan)?,
            b"max_tokens" => self.max_tokens = scan.unsigned()?,
            b"metadata" => self.ids.metadata_user_id = scan.text_at(&[b"user_id"])?.and_then(cut),
            b"output_config" => self.schema[0] = is(scan.text_at(&[b"format", b"type"])?, b"json_schema"),
            b"output_format" => self.schema[1] = is(scan.text_at(&[b"type"])?, b"json_schema"),
            b"thinking" => self.no_thinking[1] = is(scan.text_at(&[b"type"])?, b"disabled"),
            _ => scan.skip()?,
        }
        Ok(())
    }

    fn stream_options(&mut self, scan: &mut Scanner<'_>) -> Scan {
        self.include_usage = false;
        self.anchors.stream_options = match scan.peek()? {
            Kind::Null => {
                scan.skip()?;
                StreamOptions::Null
            }
            Kind::Object => {
                let start = scan.position() + 1;
                let (mut empty, mut place, mut asked, mut continuous) = (true, None, false, false);
                scan.object(|scan, key| {
                    empty = false;
                    match key {
                        b"include_usage" => {
                            scan.peek()?;
                            let from = scan.position();
                            asked = scan.truth()?.unwrap_or(false);
                            place = Some(from..scan.position());
                        }
                        b"continuous_usage_stats" => continuous = scan.truth()?.unwrap_or(false),
                        _ => scan.skip()?,
                    }
                    Ok(())
                })?;
                self.include_usage = asked;
                StreamOptions::Object { start, empty, include_usage: place, continuous }
            }
            _ => {
                scan.skip()?;
                StreamOptions::Wrong
            }
        };
        Ok(())
    }

    fn finish(self, body_bytes: usize, digest: u128) -> Result<ParsedRequest, BodyError> {
        if self.model_wrong {
            return Err(BodyError::WrongType { field: "model", expected: "a string" });
        }
        let sampled = matches!(self.dialect, Dialect::Chat | Dialect::Completions);
        let n = if sampled { number_of_choices(self.n) } else { 1 };
        let choices = if sampled { n.max(number_of_choices(self.best_of)) } else { 1 };
        let (trigger, prompts) = match self.dialect {
            Dialect::Completions => (InputTrigger::Other, self.prompt.items.max(1)),
            _ => (self.prompt.trigger, 1),
        };
        let max_output_tokens = match self.dialect {
            Dialect::Chat => self.max_completion_tokens.or(self.max_tokens),
            Dialect::Completions | Dialect::Messages => self.max_tokens,
            Dialect::Responses => self.max_output_tokens,
        };
        let facts = TurnFacts {
            dialect: self.dialect,
            model: self.model,
            stream: self.stream,
            include_usage: self.include_usage,
            choices,
            max_output_tokens,
            multimodal: self.prompt.media || self.embeddings,
            input_trigger: trigger,
            ids: self.ids,
            shape: PromptShape {
                tools: self.tools.or(self.functions),
                messages: self.prompt.items,
                json_schema_output: self.schema.contains(&true),
                thinking_disabled: self.no_thinking.contains(&true),
                body_bytes,
            },
            prompt_tokens: self.input_ids.or(self.prompt.tokens),
            digest,
        };
        Ok(ParsedRequest { facts, prompts, n, anchors: self.anchors })
    }
}

/// `n` and `best_of`: 0 and nonsense are the engine's to refuse and count as 1 here.
fn number_of_choices(value: Option<u64>) -> u32 {
    u32::try_from(value.unwrap_or(1)).unwrap_or(u32::MAX).max(1)
}

/// Number of items of an array; `None` for anything else.
fn count(scan: &mut Scanner<'_>) -> Scan<Option<u32>> {
    if scan.peek()? != Kind::Array {
        return scan.skip().map(|()| None);
    }
    let mut items = 0_u32;
    scan.array(|scan, _| {
        items = items.saturating_add(1);
        scan.skip()
    })?;
    Ok(Some(items))
}

fn is(text: Option<std::borrow::Cow<'_, [u8]>>, word: &[u8]) -> bool {
    text.is_some_and(|text| *text == *word)
}

/// A text that may carry an identity.
fn id(scan: &mut Scanner<'_>) -> Scan<Option<String>> {
    Ok(scan.text_or_skip()?.and_then(cut))
}

/// Cuts a text to what is kept of an id: what is longer is no usable id, but must still be seen to be too long.
fn cut(text: std::borrow::Cow<'_, [u8]>) -> Option<String> {
    let mut text = String::from_utf8(text.into_owned()).ok()?;
    let mut end = text.len().min(BODY_ID_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    Some(text)
}

/// Qwen's `enable_thinking` and DeepSeek's `thinking` template arguments.
fn template_without_thinking(scan: &mut Scanner<'_>) -> Scan<bool> {
    let mut off = false;
    scan.members(|scan, key| match key {
        b"enable_thinking" | b"thinking" => {
            off |= scan.truth()? == Some(false);
            Ok(())
        }
        _ => scan.skip(),
    })?;
    Ok(off)
}
