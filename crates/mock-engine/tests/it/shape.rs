//! The form of JSON: keys in their order and types, without values.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape(String);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Seen)
    }
}

struct Seen;

impl<'de> Visitor<'de> for Seen {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Shape, E> {
        Ok(Shape("bool".to_owned()))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Shape, E> {
        Ok(Shape("int".to_owned()))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Shape, E> {
        Ok(Shape("int".to_owned()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Shape, E> {
        Ok(Shape("float".to_owned()))
    }

    fn visit_str<E>(self, _: &str) -> Result<Shape, E> {
        Ok(Shape("text".to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape("null".to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
        let mut items: Vec<String> = Vec::new();
        while let Some(Shape(item)) = seq.next_element()? {
            if items.last() != Some(&item) {
                items.push(item);
            }
        }
        Ok(Shape(format!("[{}]", items.join(","))))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
        let mut fields = Vec::new();
        while let Some((key, Shape(value))) = map.next_entry::<String, Shape>()? {
            fields.push(format!("{key}: {value}"));
        }
        Ok(Shape(format!("{{{}}}", fields.join(", "))))
    }
}

pub(crate) fn of(json: &str) -> Shape {
    serde_json::from_str(json.trim()).unwrap_or_else(|e| panic!("{e}: {json}"))
}

/// The forms of a stream's events with their names; events of equal form in a row count once.
pub(crate) fn of_stream(sse: &str) -> Vec<(String, Shape)> {
    let mut seen: Vec<(String, Shape)> = Vec::new();
    for block in sse.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let name = block.lines().find_map(|l| l.strip_prefix("event: ")).unwrap_or_default();
        let data = block.lines().find_map(|l| l.strip_prefix("data: ")).expect("data");
        let shape = if data == "[DONE]" { Shape(data.to_owned()) } else { of(data) };
        let event = (name.to_owned(), shape);
        if seen.last() != Some(&event) {
            seen.push(event);
        }
    }
    seen
}
