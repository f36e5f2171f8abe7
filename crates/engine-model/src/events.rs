//! Cache changes in the form and grouping in which engines publish them.

use std::sync::Arc;

use tandem_types::{BlockRemoved, BlockStored, KvEvent, Tier};

use crate::config::Flavor;
use crate::seq::Seq;

/// Notes that a cached block was evicted. vLLM sends one event per block, SGLang one per run.
pub(crate) fn removed(events: &mut Vec<KvEvent>, flavor: Flavor, key: u64) {
    if flavor == Flavor::Sglang
        && let Some(KvEvent::Removed(last)) = events.last_mut()
    {
        last.block_hashes.push(key);
        return;
    }
    events.push(KvEvent::Removed(BlockRemoved { block_hashes: vec![key], tier: Tier::Device }));
}

/// Notes that blocks `from .. to` of a request became findable.
pub(crate) fn stored(
    events: &mut Vec<KvEvent>,
    flavor: Flavor,
    seq: &Seq,
    block_size: u32,
    from: usize,
    to: usize,
) {
    let block_hashes: Vec<u64> = (from..to).map_while(|i| seq.chain.get(i)).collect();
    if block_hashes.is_empty() {
        return;
    }
    let blocks = block_hashes.len();
    events.push(KvEvent::Stored(BlockStored {
        parent: from.checked_sub(1).and_then(|i| seq.chain.get(i)),
        tokens: seq.tokens(from * block_size as usize, blocks * block_size as usize),
        block_hashes,
        block_size,
        tier: Tier::Device,
        lora: seq.namespace.lora.clone(),
        extra_keys: extra_keys(seq, flavor, from, blocks),
        session: seq.session.clone(),
    }));
}

/// vLLM mixes the adapter into every block and the salt into the first; SGLang's salt goes with each event.
fn extra_keys(seq: &Seq, flavor: Flavor, from: usize, blocks: usize) -> Vec<Option<Vec<String>>> {
    let owned = |text: &Arc<str>| text.as_ref().to_owned();
    let lora = seq.namespace.lora.iter().map(owned).collect::<Vec<_>>();
    let salt = seq.namespace.salt.iter().map(owned).collect::<Vec<_>>();
    if lora.is_empty() && salt.is_empty() {
        return Vec::new();
    }
    (from..from + blocks)
        .map(|i| {
            let salted = i == 0 || flavor == Flavor::Sglang;
            let keys: Vec<String> =
                lora.iter().chain(if salted { salt.as_slice() } else { &[] }).cloned().collect();
            (!keys.is_empty()).then_some(keys)
        })
        .collect()
}
