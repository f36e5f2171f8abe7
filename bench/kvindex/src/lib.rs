//! Worker indexes side by side: Tandem's, Dynamo's concurrent tree and positional index, SMG's run index, and
//! a naive map.
//!
//! `speed` applies and matches a trace's operations and prints rates and latencies; `memory` counts the bytes
//! that each index asks the allocator for, and again after the caches were filled anew ten times over; `oracle` compares
//! Tandem's indexes with naive ones.

pub mod candidate;
pub mod options;
pub mod oracle;
pub mod workload;

#[cfg(test)]
mod tests {
    use dynamo_kv_router::protocols::{
        BlockHashOptions, compute_block_hash_for_seq, compute_seq_hash_for_block,
    };
    use tandem_kvindex::chain::{Namespace, chain};

    #[test]
    fn hashes_are_those_of_dynamo() {
        let tokens: Vec<u32> = (1..=64).collect();
        for (lora, salt) in
            [(None, None), (Some("adapter"), None), (None, Some("tenant")), (Some("a"), Some("b"))]
        {
            let options =
                BlockHashOptions { lora_name: lora, cache_namespace: salt, ..BlockHashOptions::default() };
            let theirs = compute_block_hash_for_seq(&tokens, 16, options);
            let namespace = Namespace::new(lora, salt);
            let ours: Vec<u64> = tokens.chunks(16).map(|block| namespace.local(block)).collect();
            assert_eq!(ours, theirs.iter().map(|h| h.0).collect::<Vec<_>>());
            assert_eq!(chain(&ours), compute_seq_hash_for_block(&theirs));
        }
    }
}
