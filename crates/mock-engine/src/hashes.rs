//! Block names as the real engines give them.
//!
//! - Purpose: publish the ids that vLLM 0.32 and SGLang 0.5.23 would publish for the same tokens, and name
//!   objects in a store as vLLM does.
//! - Inputs: a request's tokens, adapter and salt. Outputs: an id per full block, object names.
//! - Deliberately absent: an adapter's path, which goes into vLLM's hash: the mock's adapters have their name
//!   as path; SGLang's objects.

use std::sync::Arc;

use tandem_kvwire::hash::sglang::{event_id, event_seed, prompt};
use tandem_kvwire::hash::vllm::{VllmAlgorithm, VllmDigest, VllmHasher, VllmKey, VllmKeyForm};
use tandem_kvwire::mooncake::vllm::VllmLayout;

use crate::config::{MockConfig, MockKind};
use crate::store::Names;

/// Names of all full blocks of a text.
pub(crate) struct Named {
    pub(crate) ids: Arc<[u64]>,
    pub(crate) objects: Names,
}

/// Names the blocks of `tokens`, prompt and answer together; `None` where the engine's own hash is not asked
/// for.
pub(crate) fn name(
    config: &MockConfig,
    tokens: &[u32],
    lora: Option<&str>,
    salt: Option<&str>,
) -> Option<Named> {
    let store = config.tiers.store.as_ref();
    if store.is_none() && !config.engine_hashes {
        return None;
    }
    let block_size = config.block_size as usize;
    Some(match config.kind {
        MockKind::Vllm => {
            let digests = vllm(tokens, block_size, lora, salt)?;
            let objects = store.map(|store| {
                let base = config.models.first().map(|model| model.id.as_str()).unwrap_or_default();
                let directory = base.rsplit('/').next().unwrap_or(base);
                let layout = VllmLayout::single(store.head.as_deref().unwrap_or(directory));
                Names::vllm(&layout, &digests)
            });
            let ids = digests.iter().map(VllmDigest::id).collect();
            Named { ids, objects: objects.unwrap_or_default() }
        }
        MockKind::Sglang => {
            let digests = prompt(event_seed(salt), tokens, block_size, false);
            Named { ids: digests.iter().map(event_id).collect(), objects: Names::default() }
        }
    })
}

fn vllm(
    tokens: &[u32],
    block_size: usize,
    lora: Option<&str>,
    salt: Option<&str>,
) -> Option<Vec<VllmDigest>> {
    let hasher = VllmHasher::reproducible(VllmAlgorithm::Sha256, VllmKeyForm::Tagged)?;
    let every: Vec<VllmKey<'_>> = lora.map(|name| VllmKey::Lora { name, path: name }).into_iter().collect();
    let first: Vec<VllmKey<'_>> = every.iter().copied().chain(salt.map(VllmKey::Salt)).collect();
    Some(hasher.prompt(tokens, block_size, |block| if block == 0 { &first } else { &every }))
}
