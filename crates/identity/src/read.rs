//! Reading header values within bounds.
//!
//! - Purpose: one place where text from outside becomes an id, a boolean or a number, so that every
//!   unusable value is counted in the same way.
//! - Invariants: I-REA-1 only the first value of a header counts; I-REA-2 empty and white space are absent
//!   without a warning; I-REA-3 everything else that cannot be used leaves exactly one warning per field.

use http::HeaderMap;
use tandem_types::IdError;

use crate::identify::{IdentityWarning, WarningKind};

/// Headers, and the warnings that reading them left.
pub(crate) struct Reader<'a> {
    headers: &'a HeaderMap,
    warnings: Vec<IdentityWarning>,
}

/// What became of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value<T> {
    /// Not there, or empty.
    Absent,
    /// There, but not usable; a warning was left.
    Unusable,
    /// Usable.
    Usable(T),
}

impl<T> Value<T> {
    pub(crate) fn usable(self) -> Option<T> {
        match self {
            Self::Usable(value) => Some(value),
            Self::Absent | Self::Unusable => None,
        }
    }
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(headers: &'a HeaderMap) -> Self {
        Self { headers, warnings: Vec::new() }
    }

    pub(crate) const fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    pub(crate) fn warn(&mut self, field: &'static str, kind: WarningKind) {
        let warning = IdentityWarning { field, kind };
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    pub(crate) fn into_warnings(self) -> Vec<IdentityWarning> {
        self.warnings
    }

    pub(crate) fn has(&self, field: &str) -> bool {
        self.headers.get(field).is_some_and(|v| !v.as_bytes().trim_ascii().is_empty())
    }

    /// The first value as trimmed text; control bytes and bytes beyond ASCII make it unusable.
    pub(crate) fn text(&mut self, field: &'static str) -> Value<&'a str> {
        let Some(value) = self.headers.get(field) else { return Value::Absent };
        let Ok(text) = value.to_str() else {
            self.warn(field, WarningKind::NotVisibleAscii);
            return Value::Unusable;
        };
        match text.trim() {
            "" => Value::Absent,
            text => Value::Usable(text),
        }
    }

    /// The first value as an id.
    pub(crate) fn id<T>(
        &mut self,
        field: &'static str,
        make: impl Fn(&str) -> Result<T, IdError>,
    ) -> Value<T> {
        match self.text(field) {
            Value::Absent => Value::Absent,
            Value::Unusable => Value::Unusable,
            Value::Usable(text) => self.check(field, make(text)),
        }
    }

    /// The first of several headers that has a usable id, and its name.
    pub(crate) fn first_id<T>(
        &mut self,
        fields: &[&'static str],
        make: impl Fn(&str) -> Result<T, IdError>,
    ) -> Option<(T, &'static str)> {
        fields.iter().find_map(|field| Some((self.id(field, &make).usable()?, *field)))
    }

    /// Takes a checked id of any field, header or not.
    pub(crate) fn check<T>(&mut self, field: &'static str, id: Result<T, IdError>) -> Value<T> {
        match id {
            Ok(id) => Value::Usable(id),
            Err(IdError::Empty) => Value::Absent,
            Err(IdError::TooLong) => {
                self.warn(field, WarningKind::TooLong);
                Value::Unusable
            }
            Err(IdError::NotVisibleAscii) => {
                self.warn(field, WarningKind::NotVisibleAscii);
                Value::Unusable
            }
        }
    }

    /// The first of several headers that holds a boolean.
    pub(crate) fn first_bool(&mut self, fields: &[&'static str]) -> Option<bool> {
        for field in fields {
            if let Value::Usable(text) = self.text(field) {
                match parse_bool(text) {
                    Some(value) => return Some(value),
                    None => self.warn(field, WarningKind::Malformed),
                }
            }
        }
        None
    }
}

/// A boolean as people write it: 1/0, true/false, yes/no, on/off in any case.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|w| text.trim().eq_ignore_ascii_case(w));
    if is(["1", "true", "yes", "on"]) {
        Some(true)
    } else if is(["0", "false", "no", "off"]) {
        Some(false)
    } else {
        None
    }
}

/// The trace id of a W3C `traceparent` value: 32 lower-case hex digits, not all zero.
pub(crate) fn parse_trace_id(value: &str) -> Option<&str> {
    let hex = |s: &str, len: usize| {
        s.len() == len && s.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let nonzero = |s: &str| s.bytes().any(|b| b != b'0');
    let mut parts = value.trim().split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let well_formed = hex(version, 2)
        && version != "ff"
        && hex(trace, 32)
        && nonzero(trace)
        && hex(span, 16)
        && nonzero(span)
        && hex(flags, 2)
        // Only versions after 00 may have more parts.
        && (version != "00" || parts.next().is_none());
    well_formed.then_some(trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_read_tolerantly() {
        for text in ["1", "true", "TRUE", " yes", "On"] {
            assert_eq!(parse_bool(text), Some(true), "{text}");
        }
        for text in ["0", "False", "no ", "OFF"] {
            assert_eq!(parse_bool(text), Some(false), "{text}");
        }
        for text in ["", "2", "final", "truee"] {
            assert_eq!(parse_bool(text), None, "{text}");
        }
    }

    #[test]
    fn trace_contexts_follow_the_w3c_form() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let parse = |text: &str| parse_trace_id(text).map(str::to_owned);
        // The example of the W3C recommendation, section 3.2.
        assert_eq!(parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").as_deref(), Some(trace));
        assert_eq!(
            parse("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x").as_deref(),
            Some(trace)
        );
        for bad in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
