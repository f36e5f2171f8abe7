//! Event batches of the Mooncake master: any bytes are decoded without a panic, what is decoded goes through
//! the wire unchanged, and keys that are understood are written again as they were.

use tandem_kvwire::mooncake::event::{StoreLabels, decode, encode};
use tandem_kvwire::mooncake::{ObjectChange, ObjectKey};

/// The data is a payload.
pub fn check(data: &[u8]) {
    let Ok(first) = decode(data) else { return };
    for event in &first.batch.events {
        let (ObjectChange::Stored(key) | ObjectChange::Removed(key)) = &event.change else { continue };
        match ObjectKey::parse(key) {
            Some(ObjectKey::Vllm(parsed)) => assert_eq!(parsed.to_string(), **key),
            Some(ObjectKey::Sglang(parsed)) => assert_eq!(parsed.to_string(), **key),
            None => {}
        }
    }
    let mut batch = first.batch;
    for event in &mut batch.events {
        // A clearing names no group.
        if event.change == ObjectChange::Cleared {
            event.group = None;
        }
    }
    let second = decode(&encode(&batch, &StoreLabels::default())).expect("own bytes");
    assert_eq!(second.batch, batch);
    assert_eq!(second.skipped.total(), 0);
}
