//! Traces as operations on an index: for each request a match, then the events of the worker that took it.
//!
//! Workers are modelled as caches of a fixed number of blocks that forget what was used least recently,
//! tails before heads, as engines do. A store event carries up to 128 blocks, a removal event the same.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use flate2::read::MultiGzDecoder;
use rustc_hash::FxHashMap;
use serde::Deserialize;
use tandem_kvindex::chain;

/// Most blocks in one event.
const EVENT_BLOCKS: usize = 128;

/// The blocks of one prompt.
#[derive(Debug)]
pub struct Prompt {
    /// Hash of each block by itself.
    pub locals: Vec<u64>,
    /// Hash of each block with all before it.
    pub contents: Vec<u64>,
    /// Who asks: requests of one session follow each other.
    pub session: Option<u32>,
    /// Who takes it.
    pub worker: u32,
}

/// One operation.
#[derive(Debug)]
pub enum Op {
    /// Match this prompt.
    Find(u32),
    /// These blocks of this prompt became resident.
    Stored { worker: u32, prompt: u32, from: u32, to: u32 },
    /// Blocks left.
    Removed { worker: u32, contents: Vec<u64> },
}

/// A whole load.
#[derive(Debug, Default)]
pub struct Load {
    pub prompts: Vec<Prompt>,
    pub ops: Vec<Op>,
    /// Blocks in matches.
    pub find_blocks: u64,
    /// Blocks in events.
    pub event_blocks: u64,
    /// Blocks resident at the end, summed over workers.
    pub memberships: u64,
    /// Different blocks resident at the end.
    pub distinct: u64,
}

/// The id under which an engine knows a block.
#[must_use]
pub fn engine_id(content: u64) -> u64 {
    mix(content, 0x5eed)
}

fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

#[derive(Debug, Deserialize)]
struct Row {
    hash_ids: Vec<u64>,
}

#[derive(Debug, Deserialize)]
struct Session {
    tool_tokens: u64,
    system_tokens: u64,
    block_size: u64,
    requests: Vec<Call>,
}

#[derive(Debug, Deserialize)]
struct Call {
    t: f64,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

/// A trace file.
#[derive(Debug)]
pub struct Trace {
    /// Prompts in order of time: session, if known, and local hashes before salting.
    calls: Vec<(Option<u32>, Vec<u64>)>,
}

fn lines(path: &Path) -> Result<impl Iterator<Item = std::io::Result<String>>> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    Ok(BufReader::new(MultiGzDecoder::new(file)).lines())
}

impl Trace {
    /// Rows of the Mooncake trace; each of their blocks is cut into `parts`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn mooncake(path: &Path, parts: u64) -> Result<Self> {
        let mut calls = Vec::new();
        for line in lines(path)? {
            let row: Row = serde_json::from_str(&line?)?;
            let locals = row.hash_ids.iter().flat_map(|id| (0..parts).map(move |p| mix(*id, p + 1)));
            calls.push((None, locals.collect()));
        }
        Ok(Self { calls })
    }

    /// Claude Code sessions; sessions with equal tools share the blocks of tools and system prompt.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn claude(paths: &[PathBuf], per_session: usize) -> Result<Self> {
        let mut timed: Vec<(f64, u32, Vec<u64>)> = Vec::new();
        let mut number = 0u32;
        for path in paths {
            for line in lines(path)? {
                let session: Session = serde_json::from_str(&line?)?;
                let shared = (session.tool_tokens + session.system_tokens) / session.block_size;
                for call in session.requests.into_iter().filter(|c| !c.hash_ids.is_empty()).take(per_session)
                {
                    let locals = call.hash_ids.iter().enumerate().map(|(at, id)| {
                        if (at as u64) < shared {
                            mix(session.tool_tokens + 1, at as u64 + 1)
                        } else {
                            mix(u64::from(number) + 1_000_000_007, *id)
                        }
                    });
                    timed.push((call.t, number, locals.collect()));
                }
                number += 1;
            }
        }
        timed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        Ok(Self { calls: timed.into_iter().map(|(_, s, l)| (Some(s), l)).collect() })
    }
}

/// One worker's cache.
#[derive(Debug, Default)]
struct Cache {
    /// Block to the time of its last use.
    resident: FxHashMap<u64, u64>,
    /// Uses in order of time; only the last use of a block counts.
    uses: VecDeque<(u64, u64)>,
}

/// Makes loads, pass by pass, keeping the workers' caches in between.
#[derive(Debug)]
pub struct Maker {
    caches: Vec<Cache>,
    owner: FxHashMap<u64, u32>,
    taken: Vec<u64>,
    capacity: usize,
    clock: u64,
}

impl Maker {
    /// `workers` caches of `capacity` blocks each.
    #[must_use]
    pub fn new(workers: u32, capacity: usize) -> Self {
        Self {
            caches: (0..workers).map(|_| Cache::default()).collect(),
            owner: FxHashMap::default(),
            taken: vec![0; workers as usize],
            capacity,
            clock: 0,
        }
    }

    /// One pass over the trace, `copies` times side by side; each copy has its own sessions and prompts, and
    /// different passes share none.
    pub fn pass(&mut self, trace: &Trace, pass: u64, copies: u32) -> Load {
        let mut load = Load::default();
        self.owner.clear();
        for (session, base) in &trace.calls {
            for copy in 0..copies {
                let salt = pass * 1_000 + u64::from(copy) + 1;
                let locals: Vec<u64> = base.iter().map(|l| mix(*l, salt)).collect();
                let contents = chain::chain(&locals);
                let session = session.map(|s| s * copies + copy);
                self.request(&mut load, Prompt { locals, contents, session, worker: 0 });
            }
        }
        let mut distinct = FxHashMap::default();
        for cache in &self.caches {
            load.memberships += cache.resident.len() as u64;
            distinct.extend(cache.resident.keys().map(|k| (*k, ())));
        }
        load.distinct = distinct.len() as u64;
        load
    }

    /// The worker of the request's session; without sessions that which has most of the prompt, if it has
    /// half of it and is not far busier than the rest, else the one that had fewest.
    fn place(&self, prompt: &Prompt) -> u32 {
        let workers = self.caches.len() as u64;
        if let Some(session) = prompt.session {
            return (u64::from(session) % workers) as u32;
        }
        let least = (0..self.taken.len()).min_by_key(|w| self.taken[*w]).unwrap_or(0);
        let known = prompt.contents.iter().rposition(|c| self.owner.contains_key(c));
        if let Some(depth) = known
            && (depth + 1) * 2 >= prompt.contents.len()
        {
            let owner = self.owner[&prompt.contents[depth]];
            if self.taken[owner as usize] <= self.taken[least] * 5 / 4 + 8 {
                return owner;
            }
        }
        least as u32
    }

    fn request(&mut self, load: &mut Load, mut prompt: Prompt) {
        let number = load.prompts.len() as u32;
        load.ops.push(Op::Find(number));
        load.find_blocks += prompt.contents.len() as u64;
        let worker = self.place(&prompt);
        prompt.worker = worker;
        self.taken[worker as usize] += 1;
        let take = prompt.contents.len().min(self.capacity);
        let contents = &prompt.contents[..take];
        let cache = &mut self.caches[worker as usize];
        let held = contents.iter().take_while(|c| cache.resident.contains_key(*c)).count();
        for (back, content) in contents.iter().rev().enumerate() {
            let stamp = self.clock + back as u64;
            cache.resident.insert(*content, stamp);
            cache.uses.push_back((stamp, *content));
        }
        self.clock += take as u64;
        let mut gone = Vec::new();
        while cache.resident.len() > self.capacity {
            let Some((stamp, content)) = cache.uses.pop_front() else { break };
            if cache.resident.get(&content) == Some(&stamp) {
                cache.resident.remove(&content);
                gone.push(content);
            }
        }
        for part in gone.chunks(EVENT_BLOCKS) {
            load.event_blocks += part.len() as u64;
            load.ops.push(Op::Removed { worker, contents: part.to_vec() });
        }
        let mut from = held;
        while from < take {
            let to = (from + EVENT_BLOCKS).min(take);
            load.event_blocks += (to - from) as u64;
            load.ops.push(Op::Stored { worker, prompt: number, from: from as u32, to: to as u32 });
            from = to;
        }
        if prompt.session.is_none() {
            for content in contents {
                self.owner.insert(*content, worker);
            }
        }
        load.prompts.push(prompt);
    }
}
