//! JSON text whose keys keep the order in which they are written.
//!
//! Engines write their fields in a fixed order and clients' captures are compared in that order; the maps of
//! `serde_json` sort theirs.

use std::fmt::Write;

/// JSON text, complete and valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Json(pub(crate) String);

/// JSON `null`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Null;

/// Anything that can be written as JSON.
pub(crate) trait ToJson {
    fn write(&self, out: &mut String);
}

impl ToJson for Json {
    fn write(&self, out: &mut String) {
        out.push_str(&self.0);
    }
}

impl ToJson for Null {
    fn write(&self, out: &mut String) {
        out.push_str("null");
    }
}

impl ToJson for str {
    fn write(&self, out: &mut String) {
        out.push('"');
        for c in self.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                c if u32::from(c) < 0x20 => {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{:04x}", u32::from(c));
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

impl ToJson for String {
    fn write(&self, out: &mut String) {
        self.as_str().write(out);
    }
}

impl ToJson for bool {
    fn write(&self, out: &mut String) {
        out.push_str(if *self { "true" } else { "false" });
    }
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl ToJson for $int {
            fn write(&self, out: &mut String) {
                let _ = write!(out, "{self}");
            }
        }
    )*};
}
integers!(u16, u32, u64, usize, i32, i64);

impl ToJson for f64 {
    /// Whole numbers keep their `.0`, as Python writes them.
    fn write(&self, out: &mut String) {
        if self.is_finite() {
            let _ = write!(out, "{self:?}");
        } else {
            out.push_str("null");
        }
    }
}

impl ToJson for serde_json::Value {
    fn write(&self, out: &mut String) {
        let _ = write!(out, "{self}");
    }
}

impl<T: ToJson + ?Sized> ToJson for &T {
    fn write(&self, out: &mut String) {
        (**self).write(out);
    }
}

impl<T: ToJson> ToJson for Option<T> {
    fn write(&self, out: &mut String) {
        match self {
            Some(value) => value.write(out),
            None => Null.write(out),
        }
    }
}

impl<T: ToJson> ToJson for [T] {
    fn write(&self, out: &mut String) {
        out.push('[');
        for (i, item) in self.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            item.write(out);
        }
        out.push(']');
    }
}

impl<T: ToJson> ToJson for Vec<T> {
    fn write(&self, out: &mut String) {
        self.as_slice().write(out);
    }
}

impl<T: ToJson, const N: usize> ToJson for [T; N] {
    fn write(&self, out: &mut String) {
        self.as_slice().write(out);
    }
}

/// An object under construction.
#[derive(Debug, Default)]
pub(crate) struct Object(String);

impl Object {
    pub(crate) fn put(&mut self, key: &str, value: &(impl ToJson + ?Sized)) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        key.write(&mut self.0);
        self.0.push(':');
        value.write(&mut self.0);
    }

    pub(crate) fn end(mut self) -> Json {
        if self.0.is_empty() {
            self.0.push('{');
        }
        self.0.push('}');
        Json(self.0)
    }
}

/// `object! { "key": value, ... }`: a [`Json`] object with the keys in this order.
macro_rules! object {
    ($($key:literal : $value:expr),* $(,)?) => {{
        #[allow(unused_mut, reason = "an object may be empty")]
        let mut object = $crate::json::Object::default();
        $(object.put($key, &$value);)*
        object.end()
    }};
}
pub(crate) use object;

/// Canonical text of a JSON value: keys sorted, no white space. Equal values have equal texts however a
/// client orders their keys.
pub(crate) fn canonical(value: &serde_json::Value, out: &mut String) {
    match value {
        serde_json::Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            out.push('{');
            for (i, key) in keys.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                key.write(out);
                out.push(':');
                canonical(&map[key], out);
            }
            out.push('}');
        }
        serde_json::Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                canonical(item, out);
            }
            out.push(']');
        }
        scalar => scalar.write(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_text_is_escaped() {
        let inner = object! { "z": 1_u32, "a": Null };
        let text = object! { "b": "q\"\\\n\u{1}é", "a": [inner], "e": object! {}, "f": 2.0 }.0;
        assert_eq!(text, "{\"b\":\"q\\\"\\\\\\n\\u0001é\",\"a\":[{\"z\":1,\"a\":null}],\"e\":{},\"f\":2.0}");
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
    }

    #[test]
    fn canonical_text_is_blind_to_key_order_and_white_space() {
        let text = |json: &str| {
            let mut out = String::new();
            canonical(&serde_json::from_str(json).expect("valid"), &mut out);
            out
        };
        assert_eq!(
            text("{ \"b\" : [1, {\"y\":2,\"x\":null}], \"a\":\"s\" }"),
            "{\"a\":\"s\",\"b\":[1,{\"x\":null,\"y\":2}]}"
        );
    }
}
