//! One model's tokenizer and chat template, loaded from its folder.
//!
//! - Sources: transformers 5.19 (`tokenization_utils_base.py`: files, named templates, special tokens);
//!   vLLM 0.32.0 `config/model.py` and `tokenizers/registry.py` (models with encoders of their own).

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use tokenizers::Tokenizer;

use crate::chat::{given, object};
use crate::error::LoadError;
use crate::json::{Json, Object};
use crate::template::Template;
use crate::tokens::Encoder;

/// Largest `tokenizer.json`, in bytes; real ones reach about 35 MB.
const TOKENIZER_MAX: u64 = 128 << 20;
/// Largest of the other files, in bytes.
const CONFIG_MAX: u64 = 16 << 20;
/// Largest chat template, in bytes; real ones reach about 50 kB.
const TEMPLATE_MAX: usize = 1 << 20;

/// Special tokens that templates know by name.
const NAMED_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

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
    pub(crate) setup: Setup,
    pub(crate) encoder: Encoder,
}

/// What the conversions ask about the model.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) options: LoadOptions,
    pub(crate) default_variables: Object,
    /// Special tokens by name.
    pub(crate) special_tokens: Object,
    templates: Result<Templates, &'static str>,
    /// Whether vLLM moves later system messages of a Messages request into the first one.
    pub(crate) merge_inline_system: bool,
    /// Whether SGLang leaves later system messages of Responses and Messages requests where they are.
    pub(crate) inline_system: bool,
    /// The reasoning effort that vLLM makes of a Messages request's disabled thinking.
    pub(crate) disabled_effort: &'static str,
    /// Whether the tokenizer's special tokens are those that the configuration asks for.
    pub(crate) special_tokens_agree: bool,
}

#[derive(Debug)]
struct Templates {
    default: Result<Template, String>,
    tool_use: Option<Result<Template, String>>,
}

impl Setup {
    /// The template for a request with or without tools.
    pub(crate) fn template(&self, tools: bool) -> Result<&Template, &'static str> {
        let templates = self.templates.as_ref().map_err(|why| *why)?;
        let chosen = templates.tool_use.as_ref().filter(|_| tools).unwrap_or(&templates.default);
        chosen.as_ref().map_err(|_| "the chat template uses what is not known here")
    }
}

impl PromptModel {
    /// Reads a model's folder: `tokenizer.json`, and where they are there `tokenizer_config.json`,
    /// `special_tokens_map.json`, `chat_template.jinja` and `config.json`. Blocking; takes up to a second.
    ///
    /// A chat template that is missing or not understood is no error: such a model's chats are unsupported
    /// ([`PromptModel::chat_unsupported`]) and its completions are not.
    ///
    /// # Errors
    /// [`LoadError`] when a needed file is missing, too large, or not what it should be.
    pub fn load(dir: &Path, options: LoadOptions) -> Result<Self, LoadError> {
        let path = dir.join("tokenizer.json");
        let bytes = read(&path, TOKENIZER_MAX)?.ok_or_else(|| LoadError::Read {
            path: path.clone(),
            source: std::io::Error::new(std::io::ErrorKind::NotFound, "not there"),
        })?;
        let bad = |why: String| LoadError::Invalid { path: path.clone(), why };
        let encoder = Tokenizer::from_bytes(bytes).map_err(|e| bad(e.to_string()))?;
        let encoder = Encoder::new(encoder).map_err(bad)?;
        let config = read_object(&dir.join("tokenizer_config.json"))?;
        let special_tokens = special_tokens(&config, &read_object(&dir.join("special_tokens_map.json"))?);
        for token in special_tokens.values().filter_map(Json::as_str) {
            if encoder.id(token).is_none() {
                let why = format!("names a special token that tokenizer.json has not: {token:?}");
                return Err(LoadError::Invalid { path: dir.join("tokenizer_config.json"), why });
            }
        }
        let default_variables = match &options.default_chat_template_kwargs {
            None => Object::new(),
            Some(text) => match Json::parse(text.as_bytes()) {
                Ok(Json::Object(object)) => object,
                _ => {
                    let why = "the default chat template arguments are no JSON object".to_owned();
                    return Err(LoadError::Invalid { path: dir.to_path_buf(), why });
                }
            },
        };
        let templates = match own_encoder(dir, &read_object(&dir.join("config.json"))?) {
            Some(why) => Err(why),
            None => templates(dir, &config, options.chat_template.as_deref())?,
        };
        let mut setup = Setup {
            special_tokens_agree: special_tokens_agree(&config, &special_tokens, &encoder),
            options,
            default_variables,
            special_tokens,
            templates,
            merge_inline_system: true,
            inline_system: false,
            disabled_effort: "none",
        };
        setup.merge_inline_system = [false, true].iter().any(|tools| wants_system_first(&setup, *tools));
        setup.inline_system = prints_later_systems(&setup);
        setup.disabled_effort = disabled_effort(&setup);
        Ok(Self { setup, encoder })
    }

    /// Whether the chat template asks for the time, so that [`PromptModel::render_at`] needs it.
    #[must_use]
    pub fn needs_time(&self) -> bool {
        let uses = |tools| self.setup.template(tools).is_ok_and(|t| t.source().contains("strftime_now"));
        uses(false) || uses(true)
    }

    /// Why no chat of this model can be rendered here, if so: it has no chat template, one that is not
    /// understood, or an encoder of its own in place of one.
    #[must_use]
    pub fn chat_unsupported(&self) -> Option<String> {
        match &self.setup.templates {
            Err(why) => Some((*why).to_owned()),
            Ok(templates) => templates.default.as_ref().err().map(|e| format!("chat template: {e}")),
        }
    }
}

/// A file's bytes; `None` where there is none.
fn read(path: &Path, max: u64) -> Result<Option<Vec<u8>>, LoadError> {
    let failed = |source| LoadError::Read { path: path.to_path_buf(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > max {
        return Err(LoadError::TooLarge { path: path.to_path_buf(), max });
    }
    Ok(Some(bytes))
}

/// An optional JSON file; empty where there is none.
fn read_object(path: &Path) -> Result<Object, LoadError> {
    let Some(bytes) = read(path, CONFIG_MAX)? else { return Ok(Object::new()) };
    match Json::parse(&bytes) {
        Ok(Json::Object(object)) => Ok(object),
        Ok(_) => Err(LoadError::Invalid { path: path.to_path_buf(), why: "no JSON object".to_owned() }),
        Err(e) => Err(LoadError::Invalid { path: path.to_path_buf(), why: e.to_string() }),
    }
}

/// Named special tokens, each as text or as an object with its text.
fn special_tokens(config: &Object, map: &Object) -> Object {
    let mut out = Object::new();
    let content = |value: &Json| match value {
        Json::Object(token) => given(token, "content").and_then(Json::as_str).map(Json::str),
        other => other.as_str().map(Json::str),
    };
    for name in NAMED_TOKENS {
        let value = if config.contains_key(name) { config.get(name) } else { map.get(name) };
        if let Some(text) = value.and_then(content) {
            out.insert(name.to_owned(), text);
        }
    }
    // Tokens of a model's own that have names: `{"image_token": "<image>"}`.
    for (name, value) in given(config, "extra_special_tokens").and_then(Json::as_object).into_iter().flatten()
    {
        if let Some(text) = content(value) {
            out.insert(name.clone(), text);
        }
    }
    out
}

/// `add_bos_token` and `add_eos_token` rewrite what the tokenizer puts around a text: here they must say the same
/// as `tokenizer.json`.
fn special_tokens_agree(config: &Object, tokens: &Object, encoder: &Encoder) -> bool {
    let Some((before, after)) = &encoder.around else { return false };
    [("add_bos_token", "bos_token", before), ("add_eos_token", "eos_token", after)].iter().all(
        |(flag, token, found)| match given(config, flag) {
            None => true,
            Some(Json::Bool(false)) => found.is_empty(),
            Some(_) => {
                let id = tokens.get(*token).and_then(Json::as_str).and_then(|token| encoder.id(token));
                id.is_some_and(|id| **found == [id])
            }
        },
    )
}

/// Why a model's chats are encoded by a program of the engine and by no template.
fn own_encoder(dir: &Path, config: &Object) -> Option<&'static str> {
    const WHY: &str = "the engine encodes this model's chats by a program of its own";
    let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
    let kind = config.get("model_type").map(text).unwrap_or_default();
    let names = config.get("architectures").and_then(Json::as_list).unwrap_or_default();
    let own = ["GptOss", "DeepseekV32", "DeepseekV4", "KimiK3", "MoonshotKimia", "Inkling"];
    let known = kind == "gpt_oss" || names.iter().map(text).any(|n| own.iter().any(|o| n.starts_with(o)));
    (known || dir.join("tekken.json").exists()).then_some(WHY)
}

fn templates(
    dir: &Path,
    config: &Object,
    given_text: Option<&str>,
) -> Result<Result<Templates, &'static str>, LoadError> {
    let file = dir.join("chat_template.jinja");
    let too_large = |path: &Path| LoadError::TooLarge { path: path.to_path_buf(), max: TEMPLATE_MAX as u64 };
    let one = |text: &str| Templates { default: Template::new(text), tool_use: None };
    if let Some(text) = given_text {
        return if text.len() > TEMPLATE_MAX { Err(too_large(dir)) } else { Ok(Ok(one(text))) };
    }
    if let Some(bytes) = read(&file, TEMPLATE_MAX as u64)? {
        let text = String::from_utf8(bytes)
            .map_err(|_| LoadError::Invalid { path: file.clone(), why: "not UTF-8".to_owned() })?;
        if dir.join("additional_chat_templates").exists() {
            return Ok(Err("several chat template files"));
        }
        return Ok(Ok(one(&text)));
    }
    match given(config, "chat_template") {
        None => Ok(Err("the model has no chat template")),
        Some(Json::Str(text)) => Ok(Ok(one(text))),
        Some(Json::List(named)) => {
            let named = |name: &str| {
                let mut all = named.iter().filter_map(Json::as_object);
                all.find(|t| t.get("name").and_then(Json::as_str) == Some(name))
                    .and_then(|t| t.get("template"))
                    .and_then(Json::as_str)
                    .map(Template::new)
            };
            Ok(match named("default") {
                Some(default) => Ok(Templates { default, tool_use: named("tool_use") }),
                None => Err("several chat templates and none is the default"),
            })
        }
        Some(_) => Ok(Err("the chat template is neither text nor a list")),
    }
}

/// Whether a template refuses a system message that is not the first, as vLLM tries it out.
fn wants_system_first(setup: &Setup, tools: bool) -> bool {
    let Ok(template) = setup.template(tools) else { return true };
    let message = |role: &str| Json::Object(object([("role", Json::str(role)), ("content", Json::str("t"))]));
    let messages = ["system", "user", "system", "user"].map(message).to_vec();
    let variables =
        object([("messages", Json::List(messages)), ("add_generation_prompt", Json::Bool(false))]);
    // vLLM's trial knows no `generation` tag.
    template.has_generation_tag() || template.render(&variables, None).is_err()
}

/// SGLang's trial of a system message in mid-conversation: it counts only where the template prints its words.
fn prints_later_systems(setup: &Setup) -> bool {
    const WORDS: &str = "words of a later system message";
    // Of several named templates its trial takes none.
    let Ok(Templates { default: Ok(template), tool_use: None }) = &setup.templates else { return false };
    let message = |role: &str, content: &str| {
        Json::Object(object([("role", Json::str(role)), ("content", Json::str(content))]))
    };
    let messages =
        vec![message("system", "t"), message("user", "t"), message("system", WORDS), message("user", "t")];
    let variables =
        object([("messages", Json::List(messages)), ("add_generation_prompt", Json::Bool(false))]);
    !template.has_generation_tag() && template.render(&variables, None).is_ok_and(|text| text.contains(WORDS))
}

/// vLLM takes `low` for disabled thinking where the template refuses `none` or takes it for another effort.
fn disabled_effort(setup: &Setup) -> &'static str {
    let Ok(template) = setup.template(false) else { return "none" };
    let render = |effort: &str| {
        let user = object([("role", Json::str("user")), ("content", Json::str("Hi"))]);
        let mut variables = setup.special_tokens.clone();
        variables.extend(setup.default_variables.clone());
        variables.extend(object([
            ("messages", Json::List(vec![Json::Object(user)])),
            ("tools", Json::Null),
            ("documents", Json::Null),
            ("add_generation_prompt", Json::Bool(true)),
            ("reasoning_effort", Json::str(effort)),
            ("enable_thinking", Json::Bool(effort != "none")),
        ]));
        template.render(&variables, None).ok()
    };
    let none = render("none");
    let same = none.is_none() || ["low", "medium", "high", "xhigh", "max"].iter().any(|e| render(e) == none);
    if same { "low" } else { "none" }
}
