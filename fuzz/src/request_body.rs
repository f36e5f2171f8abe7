//! Request bodies of all dialects, with `serde_json` as the oracle.

use serde_json::Value;
use tandem_dialect::limits::DIGEST_UNORDERED_MEMBERS_MAX;
use tandem_dialect::{BodyError, ParsedRequest, apply_edits, estimate_tokens, parse_request};
use tandem_types::Dialect;

/// The first byte picks the dialect, the rest is the body.
pub fn check(data: &[u8]) {
    let [pick, body @ ..] = data else { return };
    let dialect = match pick % 4 {
        0 => Dialect::Chat,
        1 => Dialect::Completions,
        2 => Dialect::Responses,
        _ => Dialect::Messages,
    };
    let parsed = parse_request(dialect, body);
    assert!(estimate_tokens(body) > 0);
    let oracle: Result<Value, _> = serde_json::from_slice(body);
    match (&oracle, &parsed) {
        (Ok(Value::Object(members)), Ok(parsed)) => {
            let model = members.get("model").and_then(Value::as_str);
            assert_eq!(parsed.facts.model.as_deref(), model, "model");
            same_meaning_same_digest(dialect, &Value::Object(members.clone()), parsed);
        }
        (Ok(value), Err(error)) => {
            assert!(matches!(error, BodyError::WrongType { .. }) || !value.is_object(), "refused: {error}")
        }
        (Ok(value), Ok(_)) => panic!("taken for an object: {value}"),
        (Err(_), _) => {}
    }
    if let Ok(parsed) = parsed {
        usage_is_asked_once(dialect, body, &parsed, oracle.ok());
    }
}

fn same_meaning_same_digest(dialect: Dialect, value: &Value, parsed: &ParsedRequest) {
    if !plain(value) {
        return;
    }
    let again = serde_json::to_vec_pretty(value).expect("a value can be written");
    let again = parse_request(dialect, &again).expect("a written value can be read");
    assert_eq!(again.facts.digest, parsed.facts.digest, "digest");
}

/// Written again by `serde_json`, this value means what it meant: no numbers that it turns into doubles, no
/// objects with more members than the digest takes in any order.
fn plain(value: &Value) -> bool {
    match value {
        Value::Number(number) => !number.is_f64(),
        Value::Array(items) => items.iter().all(plain),
        Value::Object(members) => {
            members.len() <= DIGEST_UNORDERED_MEMBERS_MAX && members.values().all(plain)
        }
        _ => true,
    }
}

fn usage_is_asked_once(dialect: Dialect, body: &[u8], parsed: &ParsedRequest, oracle: Option<Value>) {
    let Some(edit) = parsed.ask_for_usage() else { return };
    let edited = apply_edits(body, &mut [edit]);
    let again = parse_request(dialect, &edited).expect("an edited body can be read");
    assert!(again.facts.include_usage && again.ask_for_usage().is_none(), "asked");
    let Some(mut before) = oracle else { return };
    let mut after: Value = serde_json::from_slice(&edited).expect("an edited body is json");
    for value in [&mut before, &mut after] {
        if let Some(members) = value.as_object_mut() {
            match members.get_mut("stream_options").and_then(Value::as_object_mut) {
                Some(options) => drop(options.remove("include_usage")),
                None => {
                    drop(members.insert("stream_options".to_owned(), Value::Object(serde_json::Map::new())))
                }
            }
            if members.get("stream_options") == Some(&Value::Null) {
                members.insert("stream_options".to_owned(), Value::Object(serde_json::Map::new()));
            }
        }
    }
    assert_eq!(before, after, "something else changed");
}
