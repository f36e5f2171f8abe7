//! Cache changes in the form and grouping in which engines publish them.

use tandem_types::{BlockRemoved, BlockStored, KvEvent, Tier};

use crate::config::Flavor;
use crate::seq::Seq;

/// Notes that a cached block was evicted. vLLM sends one event per block, SGLang one per run.
pub(crate) fn removed(events: &mut Vec<KvEvent>, flavor: Flavor, key: u64) {
    if flavor == Flavor::Sglang
        && let Some(KvEvent::Removed(last)) = events.last_mut()
        && last.tier == Tier::Device
    {
        last.block_hashes.push(key);
        return;
    }
    events.push(KvEvent::Removed(BlockRemoved { block_hashes: vec![key], ..BlockRemoved::default() }));
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
        lora: seq.namespace.lora.clone(),
        // SGLang says the salt with every store, vLLM with a prompt's first block only.
        salt: seq.namespace.salt.clone().filter(|_| from == 0 || flavor == Flavor::Sglang),
        session: seq.session.clone(),
        ..BlockStored::default()
    }));
}

/// What block `at` of a request is made of, for events of other tiers.
pub(crate) fn text(flavor: Flavor, seq: &Seq, block_size: u32, at: usize) -> BlockStored {
    BlockStored {
        parent: at.checked_sub(1).and_then(|i| seq.chain.get(i)),
        tokens: seq.tokens(at * block_size as usize, block_size as usize),
        block_size,
        lora: seq.namespace.lora.clone(),
        salt: seq.namespace.salt.clone().filter(|_| at == 0 || flavor == Flavor::Sglang),
        session: seq.session.clone(),
        ..BlockStored::default()
    }
}
