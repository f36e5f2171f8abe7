//! Values as people write them: durations (`250ms`, `1m30s`), sizes (`64MiB`), secrets.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text is not a duration or size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not of the form number and unit.
    #[error("{text:?} is not {expected}")]
    Malformed {
        /// What was written.
        text: String,
        /// What would have been right.
        expected: &'static str,
    },
    /// Larger than we can count.
    #[error("{text:?} is too large")]
    TooLarge {
        /// What was written.
        text: String,
    },
}

const DURATION_FORM: &str = "a duration such as 250ms, 5s, 1m30s or 2h";
const SIZE_FORM: &str = "a size such as 4096, 64KiB, 9MB or 1GiB";

/// A duration in a form such as `250ms`, `5s`, `1m30s`, `2h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub Duration);

impl Span {
    /// So many seconds.
    #[must_use]
    pub const fn secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// So many milliseconds.
    #[must_use]
    pub const fn millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        span.0
    }
}

/// Splits `text` into its leading decimal number and the rest.
fn number(text: &str) -> Option<(u64, &str)> {
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    digits.parse().ok().map(|n| (n, rest))
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let malformed = || UnitError::Malformed { text: text.to_owned(), expected: DURATION_FORM };
        let too_large = || UnitError::TooLarge { text: text.to_owned() };
        let mut rest = text.trim();
        let mut total_ms: u64 = 0;
        if rest.is_empty() {
            return Err(malformed());
        }
        while !rest.is_empty() {
            let (count, after) = number(rest).ok_or_else(malformed)?;
            let end = after.bytes().position(|b| b.is_ascii_digit()).unwrap_or(after.len());
            let (unit, next) = after.split_at(end);
            let unit_ms: u64 = match unit.trim() {
                "ms" => 1,
                "s" => 1_000,
                "m" | "min" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return Err(malformed()),
            };
            let part = count.checked_mul(unit_ms).ok_or_else(too_large)?;
            total_ms = total_ms.checked_add(part).ok_or_else(too_large)?;
            rest = next.trim_start();
        }
        Ok(Self(Duration::from_millis(total_ms)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ms = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if ms == 0 {
            return f.write_str("0s");
        }
        for (unit, size) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
            if ms >= size {
                write!(f, "{}{unit}", ms / size)?;
                ms %= size;
            }
        }
        Ok(())
    }
}

/// A number of bytes in a form such as `4096`, `64KiB`, `9MB`, `1GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Size(pub u64);

impl Size {
    /// So many KiB.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// So many MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// As a length in memory, saturating.
    #[must_use]
    pub fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let malformed = || UnitError::Malformed { text: text.to_owned(), expected: SIZE_FORM };
        let (count, unit) = number(text.trim()).ok_or_else(malformed)?;
        let factor: u64 = match unit.trim() {
            "" | "B" => 1,
            "KiB" | "K" | "k" => 1 << 10,
            "MiB" | "M" => 1 << 20,
            "GiB" | "G" => 1 << 30,
            "TiB" | "T" => 1 << 40,
            "kB" | "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            _ => return Err(malformed()),
        };
        count.checked_mul(factor).map(Self).ok_or_else(|| UnitError::TooLarge { text: text.to_owned() })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if self.0 >= 1 << shift && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// A text that is never shown: in logs, errors and `config show` it is written as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the place that needs it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "writeOnly": true})
    }
}

macro_rules! text_unit {
    ($name:ident, $form:expr, $pattern:expr) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "description": $form, "pattern": $pattern})
            }
        }
    };
}

text_unit!(Span, DURATION_FORM, "^([0-9]+ *(ms|s|m|min|h|d) *)+$");
text_unit!(Size, SIZE_FORM, "^[0-9]+ *(B|[KMGT]i?B?|k|kB)?$");

/// Writes an engine's text; a key in its options is written as `***`.
pub(super) fn url_without_key<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&without_key(text))
}

/// [`url_without_key`] for a list.
pub(super) fn urls_without_keys<S: Serializer>(list: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(list.iter().map(|text| without_key(text)))
}

fn without_key(text: &str) -> String {
    let Some((address, options)) = text.split_once('@') else { return text.to_owned() };
    let options: Vec<&str> = options
        .split(',')
        .map(|option| match option.split_once('=') {
            Some((key, _)) if key.trim() == "api_key" => "api_key=***",
            _ => option,
        })
        .collect();
    format!("{address}@{}", options.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_write() {
        for (text, ms, back) in [
            ("250ms", 250, "250ms"),
            ("5s", 5_000, "5s"),
            ("1m30s", 90_000, "1m30s"),
            ("90s", 90_000, "1m30s"),
            ("2h", 7_200_000, "2h"),
            ("1d", 86_400_000, "24h"),
            ("0s", 0, "0s"),
        ] {
            let span: Span = text.parse().expect(text);
            assert_eq!(span.0, Duration::from_millis(ms), "{text}");
            assert_eq!(span.to_string(), back);
        }
        for bad in ["", "5", "s", "5 parsecs", "-1s", "1.5s"] {
            assert!(matches!(bad.parse::<Span>(), Err(UnitError::Malformed { .. })), "{bad}");
        }
        assert!(matches!("99999999999999999999s".parse::<Span>(), Err(UnitError::Malformed { .. })));
        assert!(matches!("18446744073709551615h".parse::<Span>(), Err(UnitError::TooLarge { .. })));
    }

    #[test]
    fn sizes_read_and_write() {
        for (text, bytes, back) in [
            ("4096", 4096, "4KiB"),
            ("64MiB", 64 << 20, "64MiB"),
            ("9MB", 9_000_000, "9000000"),
            ("1 GiB", 1 << 30, "1GiB"),
            ("0", 0, "0"),
        ] {
            let size: Size = text.parse().expect(text);
            assert_eq!(size.0, bytes, "{text}");
            assert_eq!(size.to_string(), back);
        }
        for bad in ["", "MiB", "1.5MiB", "12 bytes"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn secrets_are_never_shown() {
        let secret = Secret::new("k-123".to_owned());
        assert_eq!(format!("{secret:?}"), "***");
        assert_eq!(serde_json::to_string(&secret).expect("a string"), "\"***\"");
        assert_eq!(secret.reveal(), "k-123");
    }
}
