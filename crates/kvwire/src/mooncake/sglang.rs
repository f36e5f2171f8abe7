//! Object keys of SGLang's HiCache.
//!
//! - Purpose: name all objects that together hold a page on a worker of a given layout, and read keys.
//! - Inputs: layout, page digest; or a key. Outputs: keys; or their parts.
//! - Invariants:
//!   - I-MKS-1 a page is complete on a worker when every key of [`SglangLayout::keys`] is there; they are
//!     K and V of each rank and stage, or one object per stage (and per context-parallel shard) for MLA;
//!   - I-MKS-2 with split heads keys follow the grid of the least common multiple, not the worker's own ranks;
//!   - I-MKS-3 a parsed key is written again to the same text.
//! - Deliberately absent: side pools (Mamba, sliding window, draft, indexer): their keys are parsed as
//!   [`SglangPart::Pool`] with the suffix as it is, since which of them count depends on the model.
//! - Sources: SGLang 0.5.10 to 0.5.23 (`mem_cache/storage/mooncake_store/mooncake_store.py`), captured keys.

use std::fmt;

use crate::hash::sglang::PageDigest;
use crate::mooncake::vllm::number;
use crate::mooncake::{digest, push_hex};

/// How a worker's pages are spread over objects. All workers that share pages have the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SglangLayout {
    /// What precedes the page's digest, without the underscore between them (see [`SglangLayout::prefix`]).
    /// `Some("")` still has the underscore.
    pub prefix: Option<String>,
    /// Attention's tensor-parallel size.
    pub tp_size: u32,
    /// Pipeline stages.
    pub pp_size: u32,
    /// MLA: all tensor-parallel ranks hold the same and store it once.
    pub mla: bool,
    /// Heads are split over this many ranks in the store, whatever the worker's own size is.
    pub tp_lcm_size: Option<u32>,
    /// Decode-context-parallel size; above 1 for MLA only.
    pub dcp_size: u32,
    /// Context-parallel size of attention; counts with [`SglangLayout::dcp_size`] above 1 only.
    pub cp_size: u32,
}

impl SglangLayout {
    /// Keys of 0.5.18 and later begin with tag and model, earlier ones with the tag alone (`model: None`).
    /// `dcp_page`: tokens of a logical page, given when decode context parallelism is on; ranks and page size
    /// are then part of the prefix.
    #[must_use]
    pub fn with_prefix(mut self, tag: Option<&str>, model: Option<&str>, dcp_page: Option<u32>) -> Self {
        let mut parts: Vec<String> = Vec::new();
        parts.extend(tag.map(str::to_owned));
        parts.extend(model.filter(|name| !name.is_empty()).map(|name| name.replace('/', "-")));
        if let Some(page) = dcp_page
            && self.dcp_size > 1
        {
            let Self { tp_size, dcp_size, pp_size, cp_size, .. } = self;
            parts.push(format!("tp{tp_size}_dcp{dcp_size}_page{page}_pp{pp_size}_cp{cp_size}"));
        }
        self.prefix = (!parts.is_empty()).then(|| parts.join("_"));
        self
    }

    /// A layout without prefix.
    #[must_use]
    pub const fn new(tp_size: u32, pp_size: u32, mla: bool) -> Self {
        Self { prefix: None, tp_size, pp_size, mla, tp_lcm_size: None, dcp_size: 1, cp_size: 1 }
    }

    /// Objects per page.
    #[must_use]
    pub fn objects(&self) -> u64 {
        let stages = u64::from(self.pp_size.max(1));
        if self.mla { stages * self.shards() } else { stages * u64::from(self.ranks()) * 2 }
    }

    fn ranks(&self) -> u32 {
        self.tp_lcm_size.unwrap_or(self.tp_size).max(self.tp_size).max(1)
    }

    /// Context-parallel shards that MLA stores apart.
    fn shards(&self) -> u64 {
        if self.dcp_size > 1 { u64::from(self.dcp_size) * u64::from(self.cp_size.max(1)) } else { 1 }
    }

    /// Prefix and digest: what all objects of a page begin with.
    #[must_use]
    pub fn page_key(&self, page: &PageDigest) -> String {
        let prefix = self.prefix.as_deref();
        let mut key = String::with_capacity(65 + prefix.map_or(0, str::len));
        if let Some(prefix) = prefix {
            key.push_str(prefix);
            key.push('_');
        }
        push_hex(&mut key, page);
        key
    }

    /// The group under which the page's objects are evicted together, where the deployment uses groups.
    #[must_use]
    pub fn group_id(&self, page: &PageDigest) -> String {
        format!("sglang-hicache:{}", self.page_key(page))
    }

    /// Keys of all objects that together hold the page.
    #[must_use]
    pub fn keys(&self, page: &PageDigest) -> Vec<String> {
        let page = self.page_key(page);
        let staged = self.pp_size > 1;
        let mut keys = Vec::new();
        for stage in 0..self.pp_size.max(1) {
            let pp_rank = staged.then_some(stage);
            if !self.mla {
                for rank in 0..self.ranks() {
                    for half in [Half::Key, Half::Value] {
                        keys.push(format!("{page}{}", SglangPart::Heads { rank, pp_rank, half }));
                    }
                }
            } else if self.dcp_size > 1 {
                for dcp_rank in 0..self.dcp_size {
                    for cp_rank in 0..self.cp_size.max(1) {
                        keys.push(format!("{page}{}", SglangPart::Shard { dcp_rank, cp_rank, pp_rank }));
                    }
                }
            } else {
                keys.push(format!("{page}{}", SglangPart::Latent { pp_rank }));
            }
        }
        keys
    }
}

/// Which half of a page's KV an object holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Half {
    /// Keys.
    Key,
    /// Values.
    Value,
}

/// Which part of a page an object holds: what a key ends with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SglangPart {
    /// The heads of one rank.
    Heads {
        /// Rank in the store's grid.
        rank: u32,
        /// Stage, when there are several.
        pp_rank: Option<u32>,
        /// Keys or values.
        half: Half,
    },
    /// MLA's latent KV of a stage.
    Latent {
        /// Stage, when there are several.
        pp_rank: Option<u32>,
    },
    /// MLA's latent KV of a context-parallel shard.
    Shard {
        /// Decode-context-parallel rank.
        dcp_rank: u32,
        /// Context-parallel rank.
        cp_rank: u32,
        /// Stage, when there are several.
        pp_rank: Option<u32>,
    },
    /// Something else than the KV of full attention: the suffix as it is.
    Pool(String),
}

impl fmt::Display for SglangPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = |f: &mut fmt::Formatter<'_>, rank: Option<u32>| match rank {
            Some(rank) => write!(f, "_{rank}"),
            None => Ok(()),
        };
        match self {
            Self::Heads { rank, pp_rank, half } => {
                write!(f, "_{rank}")?;
                stage(f, *pp_rank)?;
                f.write_str(if *half == Half::Key { "_k" } else { "_v" })
            }
            // Without stages the middle part is empty: two underscores.
            Self::Latent { pp_rank: None } => f.write_str("__k"),
            Self::Latent { pp_rank: Some(rank) } => write!(f, "_{rank}_k"),
            Self::Shard { dcp_rank, cp_rank, pp_rank } => {
                write!(f, "_dcp{dcp_rank}_cp{cp_rank}")?;
                stage(f, *pp_rank)?;
                f.write_str("_k")
            }
            Self::Pool(suffix) => f.write_str(suffix),
        }
    }
}

impl SglangPart {
    /// `_0_k` may be the keys of rank 0 or MLA's latent KV of stage 0: it is read as the former. Which it is,
    /// the layout tells.
    fn parse(suffix: &str) -> Self {
        Self::known(suffix).unwrap_or_else(|| Self::Pool(suffix.to_owned()))
    }

    fn known(suffix: &str) -> Option<Self> {
        let body = suffix.strip_prefix('_')?;
        let (middle, half) = match body.strip_suffix("_k") {
            Some(middle) => (middle, Half::Key),
            None => (body.strip_suffix("_v")?, Half::Value),
        };
        if middle.is_empty() {
            return (half == Half::Key).then_some(Self::Latent { pp_rank: None });
        }
        let mut parts = middle.split('_');
        let first = parts.next()?;
        if let Some(dcp) = first.strip_prefix("dcp") {
            let dcp_rank = number(dcp)?;
            let cp_rank = number(parts.next()?.strip_prefix("cp")?)?;
            let pp_rank = parts.next().map(|text| number(text).ok_or(())).transpose().ok()?;
            let whole = parts.next().is_none() && half == Half::Key;
            return whole.then_some(Self::Shard { dcp_rank, cp_rank, pp_rank });
        }
        let rank = number(first)?;
        let pp_rank = parts.next().map(|text| number(text).ok_or(())).transpose().ok()?;
        parts.next().is_none().then_some(Self::Heads { rank, pp_rank, half })
    }
}

/// A key in its parts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SglangKey {
    /// What precedes the digest, without the underscore between them.
    pub prefix: Option<String>,
    /// The page.
    pub page: PageDigest,
    /// Which part of it.
    pub part: SglangPart,
}

impl SglangKey {
    /// Reads a key: 64 hex digits between underscores or the ends. `None` = there are none. The last such run
    /// counts, since a tag may hold anything.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        let mut end = key.len();
        loop {
            let head = key.get(..end)?;
            let start = head.rfind('_').map_or(0, |at| at + 1);
            if let Some(page) = head.get(start..).and_then(digest) {
                let prefix = start.checked_sub(1).and_then(|at| key.get(..at)).map(str::to_owned);
                let part = SglangPart::parse(key.get(end..)?);
                return Some(Self { prefix, page, part });
            }
            end = start.checked_sub(1)?;
        }
    }
}

impl fmt::Display for SglangKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(prefix) = &self.prefix {
            write!(f, "{prefix}_")?;
        }
        let mut page = String::with_capacity(64);
        push_hex(&mut page, &self.page);
        write!(f, "{page}{}", self.part)
    }
}
