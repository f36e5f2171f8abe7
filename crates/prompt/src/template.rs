//! A chat template, run as the engines' Jinja2 with transformers' extensions runs it.
//!
//! - Purpose: text for text what `apply_chat_template` gives.
//! - Invariants:
//!   - I-PRM-2 a template and a body together cannot take more than [`FUEL`] steps, [`OUTPUT_MAX`] bytes or
//!     a bounded recursion;
//!   - I-PRM-3 what a template uses and this interpreter does not know is "unsupported", not a different text.
//! - Deliberately absent: a clock. `strftime_now` prints the time that the caller hands in.
//! - Sources: `transformers/utils/chat_template_utils.py` of transformers 5.19 (environment, `tojson`,
//!   `raise_exception`, `strftime_now`, `generation` blocks).

use std::io::{Error as IoError, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

use crate::detect;
use crate::error::RenderError;
use crate::json::{Json, Object, float_repr, write_str};
use crate::time::LocalTime;

/// Most interpreter steps for one prompt: a prompt of a thousand messages takes a few hundredths.
pub(crate) const FUEL: u64 = 3_000_000;
/// Longest prompt text, in bytes.
pub(crate) const OUTPUT_MAX: usize = 16 << 20;
/// Deepest nesting of macros and of values that are printed.
const RECURSION_MAX: usize = 128;
/// The context variable that holds the time; no template can spell it.
const NOW: &str = "\0now";
const NO_TIME: &str = "the chat template asks for the time";

/// A compiled chat template.
#[derive(Debug)]
pub(crate) struct Template {
    env: Environment<'static>,
    source: String,
    /// Whether vLLM, or SGLang, hands it content as a list of parts.
    pub(crate) vllm_parts: bool,
    pub(crate) sglang_parts: bool,
    /// Whether it knows the role `developer`, by vLLM's test.
    pub(crate) developer_role: bool,
}

impl Template {
    pub(crate) fn new(source: &str) -> Result<Self, String> {
        let mut env = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        env.set_syntax(syntax.build().map_err(|e| e.to_string())?);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_fuel(Some(FUEL));
        env.set_recursion_limit(RECURSION_MAX);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_filter("tojson", tojson);
        env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message.to_string()))
        });
        env.add_function("strftime_now", strftime_now);
        let plain = without_generation_tags(source);
        let (vllm_parts, sglang_parts) = (detect::vllm_parts(&plain), detect::sglang_parts(&plain));
        env.add_template_owned("chat", plain).map_err(|e| format!("{e:#}"))?;
        let developer_role = ["\"developer\"", "'developer'"].iter().any(|role| source.contains(role));
        Ok(Self { env, source: source.to_owned(), vllm_parts, sglang_parts, developer_role })
    }

    /// The text as it was given.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Whether it marks what an assistant writes.
    pub(crate) fn has_generation_tag(&self) -> bool {
        without_generation_tags(&self.source) != self.source
    }

    /// Runs the template over `variables`.
    pub(crate) fn render(&self, variables: &Object, now: Option<LocalTime>) -> Result<String, RenderError> {
        let mut context: Vec<(String, Value)> = Vec::with_capacity(variables.len() + 1);
        for (name, value) in variables {
            context.push((name.clone(), to_value(value)?));
        }
        context.push((NOW.to_owned(), now.map_or(Value::UNDEFINED, Value::from_object)));
        let template = self.env.get_template("chat").map_err(|e| explain(&e))?;
        let mut out = Bounded(Vec::new());
        template.render_captured_to(Value::from_pairs(context), &mut out).map_err(|e| explain(&e))?;
        String::from_utf8(out.0).map_err(|_| RenderError::Template("output is not UTF-8".into()))
    }
}

/// Output that stops growing at [`OUTPUT_MAX`].
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT_MAX {
            return Err(IoError::other("too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn explain(error: &Error) -> RenderError {
    match error.kind() {
        ErrorKind::OutOfFuel => RenderError::Bound("template steps"),
        ErrorKind::WriteFailure => RenderError::Bound("prompt length"),
        ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownMethod
        | ErrorKind::SyntaxError => {
            RenderError::Unsupported { why: "the chat template uses what is not known here" }
        }
        _ if error.detail() == Some(NO_TIME) => RenderError::Unsupported { why: NO_TIME },
        _ => RenderError::Template(error.detail().unwrap_or("failed").to_owned()),
    }
}

/// `{% generation %}` marks what an assistant wrote, for training; it prints its body. It opens a scope.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let (tag, after) = tag.split_at(tag.find("%}").map_or(tag.len(), |end| end + 2));
        let word = tag.trim_start_matches("{%").trim_end_matches("%}");
        let word = word.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        match word {
            "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}

fn to_value(json: &Json) -> Result<Value, RenderError> {
    Ok(match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(small), _) => Value::from(small),
            (_, Ok(positive)) => Value::from(positive),
            _ => Value::from(*value),
        },
        // Outside this range Python prints exponents where the interpreter prints digits.
        Json::Float(value) if *value != 0.0 && !(1e-4..1e16).contains(&value.abs()) => {
            return Err(RenderError::Unsupported { why: "a very large or small fraction" });
        }
        Json::Float(value) => Value::from(*value),
        Json::Str(text) => Value::from(text.as_str()),
        Json::List(list) => Value::from(list.iter().map(to_value).collect::<Result<Vec<_>, _>>()?),
        Json::Object(object) => {
            let members = object.iter().map(|(key, value)| Ok((key.clone(), to_value(value)?)));
            Value::from_pairs(members.collect::<Result<Vec<_>, RenderError>>()?)
        }
    })
}

/// transformers' `tojson`: `json.dumps` without escaping for HTML.
fn tojson(value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let place = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        Ok(kwargs.get::<Option<Value>>(name)?.or_else(|| args.get(at).cloned()))
    };
    let ascii = place(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent = place(1, "indent")?.filter(|v| !v.is_none());
    let separators = place(2, "separators")?.filter(|v| !v.is_none());
    let sort = place(3, "sort_keys")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let indent = match indent {
        None => None,
        Some(text) if text.as_str().is_some() => Some(text.to_string()),
        Some(width) => Some(" ".repeat(usize::try_from(width)?.min(64))),
    };
    let (mut item, mut key) = (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if let Some(pair) = separators {
        item = pair.get_item(&Value::from(0))?.to_string();
        key = pair.get_item(&Value::from(1))?.to_string();
    }
    let mut writer = Dump { out: String::new(), ascii, indent, item, key, sort };
    writer.value(&value, 0)?;
    Ok(Value::from(writer.out))
}

struct Dump {
    out: String,
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
}

impl Dump {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > RECURSION_MAX {
            return Err(Error::new(ErrorKind::InvalidOperation, "value nests too deep"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float_repr(f64::try_from(value.clone())?)),
            ValueKind::String => write_str(&mut self.out, value.as_str().unwrap_or_default(), self.ascii),
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.group(('[', ']'), depth, items, |dump, item| dump.value(&item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort {
                    keys.sort();
                }
                self.group(('{', '}'), depth, keys, |dump, key| {
                    let Some(name) = key.as_str() else {
                        return Err(Error::new(ErrorKind::UnknownFilter, "tojson of keys that are no text"));
                    };
                    write_str(&mut dump.out, name, dump.ascii);
                    dump.out.push_str(&dump.key.clone());
                    dump.value(&value.get_item(&key)?, depth + 1)
                })?;
            }
            _ => return Err(Error::new(ErrorKind::BadSerialization, "value is not JSON serializable")),
        }
        Ok(())
    }

    fn group(
        &mut self,
        (open, close): (char, char),
        depth: usize,
        items: Vec<Value>,
        mut write: impl FnMut(&mut Self, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        let empty = items.is_empty();
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 {
                self.out.push_str(&self.item.clone());
            }
            self.line(depth + 1);
            write(self, item)?;
            if self.out.len() > OUTPUT_MAX {
                return Err(Error::from(ErrorKind::WriteFailure));
            }
        }
        if !empty {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }
}

fn strftime_now(state: &State<'_, '_>, format: &str) -> Result<Value, Error> {
    let now = state.lookup(NOW);
    let now = now.as_ref().and_then(|value| value.downcast_object_ref::<LocalTime>());
    let now = now.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, NO_TIME))?;
    now.strftime(format).map(Value::from).ok_or_else(|| {
        Error::new(ErrorKind::UnknownFunction, "strftime_now with a directive that is not known here")
    })
}
