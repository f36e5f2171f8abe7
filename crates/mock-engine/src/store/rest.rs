//! The master's HTTP interface, and ours beside it.
//!
//! The master's paths answer as Mooncake 0.3.14 does, byte for byte but for addresses and counters. Ours, for
//! mock engines and for tests, are under `/mock/` and take and give JSON:
//! - `put` `{"keys", "size", "segment", "groups"?}` gives `{"stored": [bool]}`;
//! - `exists` `{"keys"}` gives `{"exists": [bool]}`; `get` too, and counts as a use;
//! - `remove` `{"keys"}` gives `{"removed": n}`;
//! - `evict` `{"count"}` and `unmount` `{"segment"}` give `{"lost": n}` and publish nothing.

use std::fmt::Write as _;
use std::sync::Arc;

use http::{Method, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::store::{Held, Object};

/// Status, content type, body.
pub(crate) type Answer = (StatusCode, Option<&'static str>, String);

const JSON: Option<&str> = Some("application/json; charset=utf-8");
const TEXT: Option<&str> = Some("text/plain; charset=utf-8");
const METRICS: Option<&str> = Some("text/plain; version=0.0.4");

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    keys: Vec<Arc<str>>,
    groups: Vec<Arc<str>>,
    size: u64,
    segment: Option<Arc<str>>,
    count: usize,
}

pub(crate) fn answer(held: &mut Held, method: &Method, path: &str, query: &str, body: &[u8]) -> Answer {
    match (method, path) {
        (&Method::POST, "/api/v1/remove_all") => {
            let count = held.objects.len();
            let changes = held.objects.remove_all();
            held.publish(changes);
            (StatusCode::OK, JSON, format!(r#"{{"success":true,"removed_count":{count}}}"#))
        }
        (&Method::POST, path) if path.starts_with("/mock/") => own(held, path, body),
        (&Method::GET, path) => master(held, path, query).unwrap_or_else(not_found),
        _ => not_found(),
    }
}

fn not_found() -> Answer {
    (StatusCode::NOT_FOUND, None, "404 Not Found".to_owned())
}

fn master(held: &Held, path: &str, query: &str) -> Option<Answer> {
    let ok = |kind, body: String| Some((StatusCode::OK, kind, body));
    let objects = &held.objects;
    match path {
        "/health" => ok(
            JSON,
            r#"{"status":"ok","role":"leader","ha_state":"serving","service_ready":true,"leader_address":null,"view_version":null}"#.to_owned(),
        ),
        "/role" => ok(TEXT, "leader".to_owned()),
        "/ha_status" => ok(TEXT, "serving".to_owned()),
        "/leader" => ok(JSON, r#"{"present":false,"leader_address":null,"view_version":null}"#.to_owned()),
        "/version" => ok(JSON, r#"{"version":"2.0.0","display_version":"0.3.14 (mock)"}"#.to_owned()),
        "/get_all_keys" => ok(METRICS, lines(objects.iter().map(|(key, _)| &**key))),
        "/get_all_segments" => ok(METRICS, lines(objects.segments().keys().map(|name| &**name))),
        "/get_segments_detail" => ok(JSON, segments(held)),
        "/query_segment" => {
            let wanted = value(query, "segment").unwrap_or_default();
            let Some(used) = objects.segments().get(wanted.as_str()).copied() else {
                let body = "Failed to query segment".to_owned();
                return Some((StatusCode::INTERNAL_SERVER_ERROR, METRICS, body));
            };
            let capacity = objects.capacity();
            ok(METRICS, format!("{wanted}\nUsed(bytes): {used}\nCapacity(bytes) : {capacity}\n"))
        }
        "/query_key" => Some(match objects.get(&value(query, "key").unwrap_or_default()) {
            Some(object) => {
                (StatusCode::OK, JSON, format!(r#"{{"success":true,"data":[{}]}}"#, replica(object)))
            }
            None => error(StatusCode::NOT_FOUND, -704, "OBJECT_NOT_FOUND"),
        }),
        "/batch_query_keys" => Some(batch(held, query)),
        "/kv_events/status" => ok(
            JSON,
            format!(
                r#"{{"enabled":{},"published_batches":{},"published_events":{},"dropped_events":0,"skipped_keyless_events":0}}"#,
                held.events.is_some(),
                held.batches,
                held.published
            ),
        ),
        "/metrics" => ok(METRICS, metrics(held)),
        "/api/v1/tenant_quotas" => Some(error(StatusCode::CONFLICT, -1011, "UNAVAILABLE_IN_CURRENT_MODE")),
        _ => None,
    }
}

fn error(status: StatusCode, code: i32, message: &str) -> Answer {
    let body = format!(r#"{{"success":false,"error_code":{code},"error_message":"{message}"}}"#);
    (status, JSON, body)
}

fn lines<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.fold(String::new(), |mut text, name| {
        text.push_str(name);
        text.push('\n');
        text
    })
}

/// A query's value, decoded.
fn value(query: &str, name: &str) -> Option<String> {
    let raw = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    Some(percent_decode_str(&raw.replace('+', " ")).decode_utf8_lossy().into_owned())
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn replica(object: &Object) -> String {
    format!(
        r#"{{"size_":{},"buffer_address_":139863647125504,"protocol_":"tcp","transport_endpoint_":{}}}"#,
        object.size,
        quoted(&object.segment)
    )
}

fn batch(held: &Held, query: &str) -> Answer {
    let keys = value(query, "keys").unwrap_or_default();
    if keys.is_empty() {
        let body = r#"{"success":false,"error":"No keys provided. Use ?keys=key1,key2,..."}"#.to_owned();
        return (StatusCode::BAD_REQUEST, JSON, body);
    }
    let mut body = String::from(r#"{"success":true,"data":{"#);
    for (at, key) in keys.split(',').filter(|key| !key.is_empty()).enumerate() {
        let (ok, error, values) = match held.objects.get(key) {
            Some(object) => (true, "null", format!("[{}]", replica(object))),
            None => (false, r#""OBJECT_NOT_FOUND""#, "null".to_owned()),
        };
        let comma = if at > 0 { "," } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(
            body,
            r#"{comma}{}:{{"ok":{ok},"error":{error},"values":{values},"disk_values":null,"local_disk_values":null,"nof_values":null}}"#,
            quoted(key)
        );
    }
    body.push_str("}}");
    (StatusCode::OK, JSON, body)
}

fn segments(held: &Held) -> String {
    let capacity = held.objects.capacity();
    let all = held.objects.segments();
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let list: Vec<String> = all
        .iter()
        .enumerate()
        .map(|(at, (name, used))| {
            let name = quoted(name);
            let (gib, percent) =
                (capacity as f64 / f64::from(1 << 30), 100.0 * *used as f64 / capacity.max(1) as f64);
            format!(
                r#"{{"segment_name":{name},"segment_id":"0-{at}","client_id":"0-{at}","base_address":"0x7f2330000000","size_bytes":{capacity},"size_human":"{gib:.4} GiB","te_endpoint":{name},"protocol":"tcp","status":"OK","allocator_used_bytes":{used},"allocator_capacity_bytes":{capacity},"allocator_usage_percent":{percent:E}}}"#
            )
        })
        .collect();
    format!(r#"{{"total_segments":{},"segments":[{}]}}"#, list.len(), list.join(","))
}

fn metrics(held: &Held) -> String {
    let mut text = String::new();
    let objects = &held.objects;
    for (name, kind, help, value) in [
        ("master_allocated_bytes", "gauge", "Bytes held by objects", objects.bytes),
        ("master_total_capacity_bytes", "gauge", "Capacity of all segments", objects.capacity()),
        ("master_key_count", "gauge", "Objects", objects.len() as u64),
        ("master_active_clients", "gauge", "Segments in use", objects.segments().len() as u64),
        ("master_evicted_key_count", "counter", "Objects evicted", objects.evicted),
    ] {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
    text
}

fn own(held: &mut Held, path: &str, body: &[u8]) -> Answer {
    let asked: Asked = match serde_json::from_slice(body) {
        Ok(asked) => asked,
        Err(reason) => return (StatusCode::BAD_REQUEST, TEXT, reason.to_string()),
    };
    let reply = match path {
        "/mock/put" => {
            let segment = asked.segment.unwrap_or_else(|| Arc::from("127.0.0.1:17810"));
            let mut stored = Vec::with_capacity(asked.keys.len());
            let mut changes = Vec::new();
            for (at, key) in asked.keys.iter().enumerate() {
                let group = asked.groups.get(at).cloned();
                let change = held.objects.put(key, asked.size, &segment, group);
                stored.push(change.is_some());
                changes.extend(change);
            }
            held.publish(changes);
            json!({ "stored": stored })
        }
        "/mock/exists" => {
            let exists: Vec<bool> = asked.keys.iter().map(|key| held.objects.get(key).is_some()).collect();
            json!({ "exists": exists })
        }
        "/mock/get" => {
            // Last first, so that of a prefix the head is the last to go.
            let mut exists: Vec<bool> = asked.keys.iter().rev().map(|key| held.objects.touch(key)).collect();
            exists.reverse();
            json!({ "exists": exists })
        }
        "/mock/remove" => {
            let changes: Vec<_> = asked.keys.iter().filter_map(|key| held.objects.remove(key)).collect();
            let removed = changes.len();
            held.publish(changes);
            json!({ "removed": removed })
        }
        "/mock/evict" => json!({ "lost": held.objects.evict(asked.count) }),
        "/mock/unmount" => json!({ "lost": held.objects.unmount(&asked.segment.unwrap_or_default()) }),
        _ => return not_found(),
    };
    (StatusCode::OK, JSON, reply.to_string())
}
