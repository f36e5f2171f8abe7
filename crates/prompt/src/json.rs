//! JSON as Python's `json` module reads and writes it, which is how the engines see a request.
//!
//! - Purpose: keep what a template may print: order of keys, whole numbers of any usual size, `1.0` apart
//!   from `1`.
//! - Invariants: I-PRM-1 no input panics or nests deeper than [`DEPTH_MAX`]; what is read and written again
//!   is what Python's `json.dumps(json.loads(text), ensure_ascii=False)` gives.
//! - Deliberately absent: `NaN`, lone surrogates, numbers beyond 128 bits. Python reads them; a body that has
//!   them is refused.

use std::fmt::Write as _;

use indexmap::IndexMap;

use crate::error::RenderError;

/// Deepest nesting of lists and objects.
pub(crate) const DEPTH_MAX: usize = 128;

/// An object's members in the order of the text; of a repeated key the last value, at the first place.
pub(crate) type Object = IndexMap<String, Json>;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
    List(Vec<Json>),
    Object(Object),
}

impl Json {
    /// Reads one value and nothing after it.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, RenderError> {
        let text = std::str::from_utf8(text).map_err(|_| invalid("not UTF-8"))?;
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0)?;
        reader.space();
        if reader.at == text.len() { Ok(value) } else { Err(invalid("text after the JSON value")) }
    }

    pub(crate) fn str(text: impl Into<String>) -> Self {
        Self::Str(text.into())
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        if let Self::Str(text) = self { Some(text) } else { None }
    }

    pub(crate) fn as_object(&self) -> Option<&Object> {
        if let Self::Object(object) = self { Some(object) } else { None }
    }

    pub(crate) fn as_list(&self) -> Option<&[Json]> {
        if let Self::List(list) = self { Some(list) } else { None }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Python's idea of truth.
    pub(crate) fn truthy(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::List(list) => !list.is_empty(),
            Self::Object(object) => !object.is_empty(),
        }
    }

    /// `json.dumps(self)` with Python's default separators.
    pub(crate) fn dumps(&self, ensure_ascii: bool) -> String {
        let mut out = String::new();
        self.write(&mut out, ensure_ascii);
        out
    }

    fn write(&self, out: &mut String, ascii: bool) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Int(value) => {
                let _ = write!(out, "{value}");
            }
            Self::Float(value) => out.push_str(&float_repr(*value)),
            Self::Str(text) => write_str(out, text, ascii),
            Self::List(list) => {
                out.push('[');
                for (at, item) in list.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { ", " });
                    item.write(out, ascii);
                }
                out.push(']');
            }
            Self::Object(object) => {
                out.push('{');
                for (at, (key, value)) in object.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { ", " });
                    write_str(out, key, ascii);
                    out.push_str(": ");
                    value.write(out, ascii);
                }
                out.push('}');
            }
        }
    }
}

/// Writes a string with its quotes as Python's `json` does.
pub(crate) fn write_str(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c if ascii && !(' '..='~').contains(&c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Python's `repr` of a finite float: the shortest digits that read back, in positional notation where the
/// decimal exponent is from -4 to 15.
pub(crate) fn float_repr(value: f64) -> String {
    let shortest = format!("{value:e}");
    let Some((digits, exponent)) = shortest.split_once('e') else { return shortest };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn invalid(why: &str) -> RenderError {
    RenderError::Invalid(why.to_owned())
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Result<(), RenderError> {
        if self.peek() == Some(byte) {
            self.at += 1;
            return Ok(());
        }
        Err(RenderError::Invalid(format!("JSON: expected '{}' at byte {}", char::from(byte), self.at)))
    }

    fn value(&mut self, depth: usize) -> Result<Json, RenderError> {
        if depth > DEPTH_MAX {
            return Err(RenderError::Bound("JSON nesting"));
        }
        self.space();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => Ok(Json::Str(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                for (word, value) in
                    [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))]
                {
                    if self.rest().starts_with(word) {
                        self.at += word.len();
                        return Ok(value);
                    }
                }
                Err(RenderError::Invalid(format!("JSON: no value at byte {}", self.at)))
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, RenderError> {
        self.at += 1;
        let mut object = Object::new();
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Json::Object(object));
        }
        loop {
            self.space();
            let key = self.string()?;
            self.space();
            self.take(b':')?;
            object.insert(key, self.value(depth + 1)?);
            self.space();
            if self.peek() == Some(b',') {
                self.at += 1;
                continue;
            }
            self.take(b'}')?;
            return Ok(Json::Object(object));
        }
    }

    fn list(&mut self, depth: usize) -> Result<Json, RenderError> {
        self.at += 1;
        let mut list = Vec::new();
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Json::List(list));
        }
        loop {
            list.push(self.value(depth + 1)?);
            self.space();
            if self.peek() == Some(b',') {
                self.at += 1;
                continue;
            }
            self.take(b']')?;
            return Ok(Json::List(list));
        }
    }

    fn number(&mut self) -> Result<Json, RenderError> {
        let rest = self.rest().as_bytes();
        let digits = |from: usize| rest.iter().skip(from).take_while(|b| b.is_ascii_digit()).count();
        let sign = usize::from(rest.first() == Some(&b'-'));
        let whole = digits(sign);
        if whole == 0 || (whole > 1 && rest.get(sign) == Some(&b'0')) {
            return Err(RenderError::Invalid(format!("JSON: bad number at byte {}", self.at)));
        }
        let mut end = sign + whole;
        let mut float = false;
        if rest.get(end) == Some(&b'.') && digits(end + 1) > 0 {
            end += 1 + digits(end + 1);
            float = true;
        }
        if matches!(rest.get(end), Some(b'e' | b'E')) {
            let signed = usize::from(matches!(rest.get(end + 1), Some(b'+' | b'-')));
            let exponent = digits(end + 1 + signed);
            if exponent > 0 {
                end += 1 + signed + exponent;
                float = true;
            }
        }
        let text = self.rest().get(..end).unwrap_or_default();
        let value = if float {
            let value: f64 = text.parse().map_err(|_| invalid("JSON: bad number"))?;
            if !value.is_finite() {
                return Err(RenderError::Unsupported { why: "a number out of range" });
            }
            Json::Float(value)
        } else {
            let value =
                text.parse().map_err(|_| RenderError::Unsupported { why: "a number out of range" })?;
            Json::Int(value)
        };
        self.at += end;
        Ok(value)
    }

    fn string(&mut self) -> Result<String, RenderError> {
        self.take(b'"')?;
        let mut out = String::new();
        loop {
            let rest = self.rest();
            let plain = rest.bytes().position(|b| b == b'"' || b == b'\\' || b < b' ');
            let plain = plain.ok_or_else(|| invalid("JSON: a string without an end"))?;
            out.push_str(rest.get(..plain).unwrap_or_default());
            self.at += plain + 1;
            match self.text.as_bytes().get(self.at - 1) {
                Some(b'"') => return Ok(out),
                Some(b'\\') => out.push(self.escape()?),
                _ => return Err(invalid("JSON: a control character in a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, RenderError> {
        let byte = self.peek().ok_or_else(|| invalid("JSON: a string without an end"))?;
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode(),
            _ => return Err(invalid("JSON: an unknown escape")),
        })
    }

    fn unicode(&mut self) -> Result<char, RenderError> {
        let lone = RenderError::Unsupported { why: "a lone surrogate" };
        let high = self.unit()?;
        if !(0xd800..0xe000).contains(&high) {
            return char::from_u32(high).ok_or(lone);
        }
        if high >= 0xdc00 || !self.rest().starts_with("\\u") {
            return Err(lone);
        }
        self.at += 2;
        let low = self.unit()?;
        if !(0xdc00..0xe000).contains(&low) {
            return Err(lone);
        }
        char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)).ok_or(lone)
    }

    fn unit(&mut self) -> Result<u32, RenderError> {
        let hex = self.rest().get(..4).filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit()));
        let unit = hex.and_then(|h| u32::from_str_radix(h, 16).ok());
        self.at += 4;
        unit.ok_or_else(|| invalid("JSON: a bad \\u escape"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(text: &str) -> String {
        Json::parse(text.as_bytes()).unwrap().dumps(false)
    }

    /// I-PRM-1: expected texts are `json.dumps(json.loads(text), ensure_ascii=False)` of CPython 3.11.
    #[test]
    fn reads_and_writes_as_python_does() {
        for (text, want) in [
            (
                r#"{"b":1,"a":[1.0,-0.0,1e5,1E+16,1e-5,0.0001,123456789012345678901234567890],"b":2}"#,
                r#"{"b": 2, "a": [1.0, -0.0, 100000.0, 1e+16, 1e-05, 0.0001, 123456789012345678901234567890]}"#,
            ),
            (r#"  "\u00e9\ud83d\ude00\u0007\/<\u2028" "#, "\"é😀\\u0007/<\u{2028}\""),
            ("[true,false,null,{},[]]", "[true, false, null, {}, []]"),
            (
                "[5e-324,1.7976931348623157e308,9007199254740993.0,999999999999999.9]",
                "[5e-324, 1.7976931348623157e+308, 9007199254740992.0, 999999999999999.9]",
            ),
        ] {
            assert_eq!(round(text), want);
        }
        assert_eq!(Json::str("é😀\u{7f}").dumps(true), "\"\\u00e9\\ud83d\\ude00\\u007f\"");
    }

    /// I-PRM-1: bad texts are errors, deep ones too.
    #[test]
    fn refuses() {
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\" 1}",
            "01",
            "-",
            "nul",
            "\"\n\"",
            "\"\\x\"",
            "\"\\u12\"",
            "1 2",
            "NaN",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\\u12é",
            "1e999",
            "'a'",
            "{1:2}",
        ] {
            assert!(Json::parse(text.as_bytes()).is_err(), "{text}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(Json::parse(deep.as_bytes()), Err(RenderError::Bound("JSON nesting")));
        assert!(Json::parse(b"\"\xff\"").is_err());
    }
}
