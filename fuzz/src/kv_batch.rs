//! Event batches of engines: any bytes are decoded without a panic, what is decoded can be encoded, and a
//! second trip through the wire changes nothing.

use tandem_kvwire::hash::block::{Parent, stored};
use tandem_kvwire::{Layout, decode, encode};
use tandem_types::KvEvent;

/// The data is a payload.
pub fn check(data: &[u8]) {
    let Ok(first) = decode(data) else { return };
    for event in &first.batch.events {
        let KvEvent::Stored(event) = event else { continue };
        let (_, hashes) = stored(Parent::Root, event);
        let blocks = if event.describes() { event.block_hashes.len() } else { 0 };
        assert_eq!(hashes.len(), blocks);
        assert!(event.extra_keys.is_empty() || event.extra_keys.len() == event.block_hashes.len());
        assert!(event.lookahead.is_empty() || event.lookahead.len() == event.block_hashes.len());
    }
    let second = decode(&encode(&first.batch, Layout::Vllm)).expect("own bytes");
    assert_eq!(second.skipped.total(), 0, "{first:?}");
    assert_eq!(second.batch.events.len(), first.batch.events.len());
    let third = decode(&encode(&second.batch, Layout::Vllm)).expect("own bytes");
    assert_eq!(third.batch.events, second.batch.events);
    decode(&encode(&first.batch, Layout::Sglang)).expect("own bytes");
}
