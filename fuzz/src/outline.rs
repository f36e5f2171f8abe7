//! Outlines of request bodies, with `serde_json` as the oracle of what two bodies mean.

use serde_json::Value;
use tandem_lineage::limits::SEGMENTS_MAX;
use tandem_lineage::{outline, text_blocks};
use tandem_types::{Dialect, EngineKind};

/// The first byte picks the dialect, the rest is the body.
pub fn check(data: &[u8]) {
    let [pick, body @ ..] = data else { return };
    let dialect = match pick % 4 {
        0 => Dialect::Chat,
        1 => Dialect::Completions,
        2 => Dialect::Responses,
        _ => Dialect::Messages,
    };
    let found = outline(dialect, EngineKind::Vllm, body);
    let blocks = text_blocks(dialect, EngineKind::Vllm, body, 64);
    assert_eq!(found.is_ok(), blocks.is_ok(), "one was read, the other was not");
    let (Ok(found), Ok(blocks)) = (found, blocks) else { return };
    assert!(found.segments().len() <= SEGMENTS_MAX, "too many segments");
    assert!(
        blocks.len() as u64 <= (found.bytes() + 8 * found.segments().len() as u64) / 64 || found.folded()
    );
    let oracle: Result<Value, _> = serde_json::from_slice(body);
    let Ok(value) = oracle else { return };
    assert!(value.is_object(), "taken for an object: {value}");
    if !plain(&value) {
        return;
    }
    let again = serde_json::to_vec_pretty(&value).expect("a value can be written");
    assert_eq!(outline(dialect, EngineKind::Vllm, &again).as_ref(), Ok(&found), "another outline");
    assert_eq!(text_blocks(dialect, EngineKind::Vllm, &again, 64), Ok(blocks), "other blocks");
}

/// Written again by `serde_json`, this value means what it meant: no numbers that it turns into doubles.
fn plain(value: &Value) -> bool {
    match value {
        Value::Number(number) => !number.is_f64(),
        Value::Array(items) => items.iter().all(plain),
        Value::Object(members) => members.values().all(plain),
        _ => true,
    }
}
