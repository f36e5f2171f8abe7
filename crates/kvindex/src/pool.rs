//! The shared-pool index: which pages of a shared KV store a worker could load.
//!
//! - Purpose: price the part of a prompt that a worker would not have to compute because a store (Mooncake)
//!   holds it, exactly as far as that worker's engine could use it.
//! - Inputs: objects as the store names them, already taken apart ([`Object`]: tenant, space, page, slot), put,
//!   removed or cleared by numbered event batches ([`PoolIndex::apply`]), and listings of all keys
//!   ([`PoolIndex::begin_listing`]); layouts of workers ([`LayoutSpec`]); time as an argument.
//! - Outputs: pages to credit beyond what the worker holds itself ([`PoolReader::shared_beyond_device`]), hits as
//!   contiguous ranges ([`PoolReader::hits`]), and how far to trust them ([`Layout::freshness`]).
//! - Invariants:
//!   - I-POOL-1 a page counts for a layout only while every object that the layout needs of it is there, and
//!     none that only a worker of another layout would have written (a TP 8 worker's page is none for TP 4,
//!     although every name that TP 4 asks for exists);
//!   - I-POOL-2 credit is the one run of pages that begins where the worker's own prefix ends (or, for engines
//!     that look up from the first page, at page 0) and ends at the first hole: never a page that the worker
//!     holds, never one behind a hole;
//!   - I-POOL-3 tenants and spaces never see each other's objects;
//!   - I-POOL-4 a gap, a restart or a lost connection wipes nothing: it raises a doubt, which the next complete
//!     listing settles;
//!   - I-POOL-5 the generation rule: beginning a listing opens a generation of its tenant. An object that an
//!     event touches after that keeps what the event said, whatever the listing says; an object that neither
//!     the listing nor an event mentioned goes. So once the events under way have arrived, the index equals
//!     the store, as long as the store changed nothing silently after the listing began; what it did change
//!     silently, the next listing finds;
//!   - work per call is bounded: one object, one layout, or the given number of pages
//!     ([`PoolIndex::step`]); a lock is held for [`SWEEP_LOCK_MAX`] pages at most, and a resize moves one of
//!     256 parts;
//!   - I-POOL-7 memory is bounded by [`PoolLimits`]; what is beyond is refused, counted, and asked for again
//!     when there is room. Objects of spaces and slots that no layout claims are not kept.
//! - Deliberately absent: key syntax (the wire's business), sockets, REST, tiers inside the store (moving from
//!   memory to disk is not published), leases. Presence does not promise readability: credit is advisory.
//! - Why the rule of generations and not clocks: store and gateway share none, events carry no version of their
//!   object, and a listing is not atomic. Events of one object do arrive in order, so the last one heard is
//!   either newer than the listing's sample or will be followed by a newer one.
//! - Sources: Mooncake Store 0.3.13 and 0.3.14 (`kv_event`, admin HTTP), measured: watermark eviction, client
//!   death and segment unmount publish nothing; SGLang 0.5.23 (`hicache` object layouts, `all_pages` and
//!   `trailing_pages` hit policies); vLLM's `MooncakeStoreConnector`, which looks up from the first block
//!   whatever it has computed; dynamo-llm 1.6.1 `shared_cache.rs`, whose credit behind holes, single layout and
//!   wipe on gaps this does not repeat.

mod index;
mod layout;
mod listing;
mod pages;
mod reader;

pub use index::{BatchNote, Counters, Doubt, Order, PoolEvent, PoolIndex, PoolLimits};
pub use layout::{ClaimError, Freshness, Layout, LayoutSpec, RunStart, Trailing};
pub use listing::{ListingError, ListingOutcome, Progress};
pub use pages::SWEEP_LOCK_MAX;
pub use reader::{Hits, PoolReader};

/// Most pages (times planes of 64 slots) kept, by default: about 400 MB.
pub const PAGES_MAX: usize = 4_000_000;
/// Most removals remembered while a listing is under way, by default.
pub const TOMBSTONES_MAX: usize = 65_536;
/// Most spaces (key prefixes of one tenant) claimed at once, by default.
pub const SPACES_MAX: usize = 1_024;
/// Most different slots in one space, by default.
pub const SLOTS_PER_SPACE_MAX: usize = 1_024;

/// Name of a page's content in the store, folded to 128 bits from whatever digest the engine writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageHash([u64; 2]);

impl PageHash {
    /// Folds a digest of any length; equal digests give equal names, different ones of 16 bytes or more
    /// different names but for collisions of 128 bits.
    #[must_use]
    pub fn from_digest(digest: &[u8]) -> Self {
        let mut words = [0u64; 2];
        for (at, chunk) in digest.chunks(8).enumerate() {
            let mut bytes = [0u8; 8];
            for (slot, byte) in bytes.iter_mut().zip(chunk) {
                *slot = *byte;
            }
            if let Some(word) = words.get_mut(at & 1) {
                *word = word.rotate_left(1) ^ u64::from_be_bytes(bytes);
            }
        }
        Self(words)
    }

    const fn words(self) -> [u64; 2] {
        self.0
    }
}

/// One object of the store. A page is several of them: one per rank, stage, K or V, as the engine lays it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object<'a> {
    /// The store's tenant; an empty text is the store's `default`.
    pub tenant: &'a str,
    /// What stands before the page hash: tag and model name (SGLang), cache prefix, model and namespace (vLLM).
    pub space: &'a str,
    /// The page.
    pub page: PageHash,
    /// Which of the page's objects: the rest of the key, as the engine writes it (`_0_k`, or `tp_rank:0@...`).
    pub slot: &'a str,
}

/// The store's name for the tenant of those who name none.
const DEFAULT_TENANT: &str = "default";

fn tenant_name(tenant: &str) -> &str {
    if tenant.is_empty() { DEFAULT_TENANT } else { tenant }
}
