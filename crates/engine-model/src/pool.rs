//! The paged KV pool with its prefix cache.
//!
//! - Purpose: hand out blocks, remember full ones by key, find cached prefixes, evict.
//! - Inputs: chains of block keys. Outputs: block numbers, evicted keys.
//! - Invariants:
//!   - I-BLK-1 every block is either held (`refs > 0`) or in the free queue: held + free = total.
//!   - I-BLK-2 the free queue is an LRU list: eviction takes its front; a request's blocks enter it tail
//!     first, so that of its prefix the head goes last.
//!   - I-BLK-3 residency is closed under parents: while a block is cached, so is its whole prefix. (A
//!     block's last user held a copy of each ancestor and freed those later.) For the same reason "held by
//!     somebody" is closed under parents. Both make prefix lookup a binary search.
//!   - I-BLK-4 a key may have several physical copies; lookups take a held copy if there is one, else the
//!     oldest. An eviction removes one copy. Nothing walks the copies of a key: one prompt sent over and over
//!     fills the pool with copies of its last block.
//! - Deliberately absent: lower tiers, whole-branch eviction (SGLang drops a whole leaf of its radix tree at
//!   once, here it is dropped page by page from its end), recency updates by lookups that admit nothing.
//! - Source: vLLM's `BlockPool` and free queue. vLLM takes the oldest copy even if another is held.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::chain::Chain;

/// A physical block's number.
pub(crate) type BlockIx = u32;

const NONE: BlockIx = BlockIx::MAX;

/// One cache line holds two of these and none straddles two: what costs is how many lines a run of blocks
/// touches.
#[derive(Debug, Clone)]
#[repr(align(32))]
struct Block {
    /// Valid while `cached`.
    key: u64,
    refs: u32,
    /// Neighbours in the free queue, valid while `refs == 0`.
    prev: BlockIx,
    next: BlockIx,
    /// Valid while `copied`: its age among the copies of its key, oldest first.
    age: u32,
    /// A guess at the block that continues this one: where a lookup went last time. It spares a visit to
    /// the index, whose entries lie all over the memory.
    child: BlockIx,
    cached: bool,
    /// Whether the key has, or had, other copies: these are then in `Pool::copies`.
    copied: bool,
    /// Whether several blocks went on behind it while it was cached.
    forked: bool,
}

/// The copies of one key, by age.
#[derive(Debug, Clone, Default)]
struct Copies {
    held: BTreeSet<(u32, BlockIx)>,
    free: BTreeSet<(u32, BlockIx)>,
    /// Age of the next one.
    next: u32,
}

impl Copies {
    fn of(&mut self, held: bool) -> &mut BTreeSet<(u32, BlockIx)> {
        if held { &mut self.held } else { &mut self.free }
    }

    /// The one that a lookup takes.
    fn first(&self) -> Option<BlockIx> {
        self.held.first().or_else(|| self.free.first()).map(|copy| copy.1)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Pool {
    /// The blocks that were ever handed out. The others are empty and come before all in the free queue.
    blocks: Vec<Block>,
    total: u32,
    /// Key to its block, or to any of its copies.
    index: HashMap<u64, BlockIx, BuildHasherDefault<KeyHasher>>,
    /// Copies of the keys that have, or had, more than one.
    copies: HashMap<u64, Copies, BuildHasherDefault<KeyHasher>>,
    first_free: BlockIx,
    last_free: BlockIx,
    free: u32,
    /// Free blocks that are cached.
    cached_free: u32,
    /// Whether freed blocks without a key go to the front of the free queue.
    uncached_first: bool,
}

impl Pool {
    /// A pool of `total` empty blocks.
    pub(crate) fn new(total: u32, uncached_first: bool) -> Self {
        Self {
            blocks: Vec::new(),
            total,
            index: HashMap::default(),
            copies: HashMap::default(),
            first_free: NONE,
            last_free: NONE,
            free: total,
            cached_free: 0,
            uncached_first,
        }
    }

    pub(crate) const fn total(&self) -> u32 {
        self.total
    }

    /// Blocks that nobody holds, cached or empty.
    pub(crate) const fn free(&self) -> u32 {
        self.free
    }

    pub(crate) fn used(&self) -> u32 {
        self.total() - self.free
    }

    /// Blocks that nobody holds but that are cached.
    pub(crate) const fn cached_free(&self) -> u32 {
        self.cached_free
    }

    /// Whether there is a copy of this key.
    pub(crate) fn contains(&self, key: u64) -> bool {
        self.index.contains_key(&key)
    }

    /// Number of leading blocks, at most `limit`, that are cached.
    pub(crate) fn cached_prefix(&self, chain: &Chain, limit: usize) -> usize {
        prefix_length(limit.min(chain.len()), |i| {
            chain.get(i).is_some_and(|key| self.index.contains_key(&key))
        })
    }

    /// Of `cached` leading cached blocks, the number that somebody holds.
    pub(crate) fn held_prefix(&self, chain: &Chain, cached: usize) -> usize {
        prefix_length(cached, |i| self.find(chain.get(i)).is_some_and(|block| self.block(block).refs > 0))
    }

    /// Takes hold of up to `count` leading cached blocks; returns how many there were.
    pub(crate) fn hold_prefix(&mut self, chain: &Chain, count: usize, into: &mut Vec<BlockIx>) -> usize {
        let before = into.len();
        let mut parent = NONE;
        for i in 0..count {
            let Some(block) = self.find_after(parent, chain.get(i)) else { break };
            self.hold(block);
            into.push(block);
            parent = block;
        }
        into.len() - before
    }

    /// Takes `count` blocks, evicting cached ones from the front of the free queue; their keys go to
    /// `evicted` in order. Takes nothing and returns `false` when fewer are free.
    pub(crate) fn take(&mut self, count: u32, into: &mut Vec<BlockIx>, mut evicted: impl FnMut(u64)) -> bool {
        if count > self.free {
            return false;
        }
        for _ in 0..count {
            let block = self.next_free();
            if self.block(block).cached {
                let key = self.forget(block);
                evicted(key);
            }
            self.block_mut(block).refs = 1;
            into.push(block);
        }
        true
    }

    /// Takes the block that is to be used next out of the free queue, which is not empty.
    fn next_free(&mut self) -> BlockIx {
        // Fewer than `total`, a u32.
        let unused = self.blocks.len() as u32;
        if unused == self.total {
            let block = self.first_free;
            self.dequeue(block);
            return block;
        }
        self.blocks.push(Block {
            key: 0,
            refs: 0,
            prev: NONE,
            next: NONE,
            age: 0,
            child: NONE,
            cached: false,
            copied: false,
            forked: false,
        });
        self.free -= 1;
        unused
    }

    /// Gives up one hold.
    pub(crate) fn release(&mut self, block: BlockIx) {
        let entry = self.block_mut(block);
        entry.refs -= 1;
        if entry.refs > 0 {
            return;
        }
        if entry.cached {
            self.cached_free += 1;
            self.move_copy(block, false);
            self.enqueue_last(block);
        } else if self.uncached_first {
            self.enqueue_first(block);
        } else {
            self.enqueue_last(block);
        }
    }

    /// Makes a held block findable under `key`, beside other copies of it. `parent` is the block before it in its
    /// prompt; the first one has none.
    pub(crate) fn publish(&mut self, block: BlockIx, parent: Option<BlockIx>, key: u64) {
        if let Some(parent) = parent {
            self.goes_on(parent, block);
        }
        let entry = self.block_mut(block);
        entry.key = key;
        entry.cached = true;
        (entry.copied, entry.forked, entry.child) = (false, false, NONE);
        let other = *self.index.entry(key).or_insert(block);
        if other != block {
            if !self.block(other).copied {
                self.add_copy(other, key);
            }
            self.add_copy(block, key);
        }
    }

    /// Exchanges a held block that has no key for a cached copy of the same content, if there is one.
    pub(crate) fn deduplicate(&mut self, block: BlockIx, key: u64) -> Option<BlockIx> {
        let cached = self.find(Some(key))?;
        self.hold(cached);
        self.release(block);
        Some(cached)
    }

    /// Forgets all keys; refused while a block is held.
    pub(crate) fn clear(&mut self) -> bool {
        if self.used() > 0 {
            return false;
        }
        self.index.clear();
        self.copies.clear();
        self.cached_free = 0;
        for block in &mut self.blocks {
            block.cached = false;
            block.copied = false;
        }
        true
    }

    /// Blocks of a chain that nobody holds, and that nothing but this chain goes on from, are evicted next: from its end
    /// back to the first block that is not so. Returns how many.
    pub(crate) fn demote(&mut self, chain: &Chain) -> u32 {
        let cached = self.cached_prefix(chain, chain.len());
        let (mut blocks, mut next) = (Vec::new(), NONE);
        for i in (0..cached).rev() {
            let Some(at) = self.find(chain.get(i)) else { break };
            let Block { refs, copied, forked, child, .. } = *self.block(at);
            let others = child != next && self.blocks.get(child as usize).is_some_and(|child| child.cached);
            if refs > 0 || copied || forked || others {
                break;
            }
            blocks.push(at);
            next = at;
        }
        for block in blocks.iter().rev() {
            self.dequeue(*block);
            self.enqueue_first(*block);
        }
        // Fewer than `total`, a u32.
        blocks.len() as u32
    }

    /// Notes that `child` goes on behind a block. Two copies of one content are two that go on: when one is evicted the
    /// other is still there.
    fn goes_on(&mut self, parent: BlockIx, child: BlockIx) {
        let known = self.block(parent).child;
        let another = known != child && self.blocks.get(known as usize).is_some_and(|known| known.cached);
        let entry = self.block_mut(parent);
        entry.child = child;
        entry.forked |= another;
    }

    fn find(&self, key: Option<u64>) -> Option<BlockIx> {
        let key = key?;
        let block = *self.index.get(&key)?;
        if self.block(block).copied { self.copies.get(&key)?.first() } else { Some(block) }
    }

    /// As [`find`](Self::find), for the block after `parent`.
    fn find_after(&mut self, parent: BlockIx, key: Option<u64>) -> Option<BlockIx> {
        let guess = self.blocks.get(parent as usize).map_or(NONE, |parent| parent.child);
        if let Some(block) = self.blocks.get(guess as usize)
            && block.cached
            && !block.copied
            && Some(block.key) == key
        {
            return Some(guess);
        }
        let found = self.find(key)?;
        if parent != NONE {
            self.goes_on(parent, found);
        }
        Some(found)
    }

    fn hold(&mut self, block: BlockIx) {
        if self.block(block).refs == 0 {
            self.dequeue(block);
            if self.block(block).cached {
                self.cached_free -= 1;
                self.move_copy(block, true);
            }
        }
        self.block_mut(block).refs += 1;
    }

    /// Takes the key from a cached block that has just left the free queue.
    fn forget(&mut self, block: BlockIx) -> u64 {
        let Block { key, age, copied, .. } = *self.block(block);
        let other = if copied { self.remove_copy(key, age, block) } else { None };
        match other {
            Some(other) => self.index.insert(key, other),
            None => self.index.remove(&key),
        };
        self.cached_free -= 1;
        let entry = self.block_mut(block);
        entry.cached = false;
        entry.copied = false;
        key
    }

    fn add_copy(&mut self, block: BlockIx, key: u64) {
        let held = self.block(block).refs > 0;
        let copies = self.copies.entry(key).or_default();
        let age = copies.next;
        copies.next = age.wrapping_add(1);
        copies.of(held).insert((age, block));
        let entry = self.block_mut(block);
        (entry.age, entry.copied) = (age, true);
    }

    /// Notes that a cached block came to be held, or free.
    fn move_copy(&mut self, block: BlockIx, held: bool) {
        let Block { key, age, copied, .. } = *self.block(block);
        if copied && let Some(copies) = self.copies.get_mut(&key) {
            copies.of(!held).remove(&(age, block));
            copies.of(held).insert((age, block));
        }
    }

    /// Takes a free copy away; gives another one, if there is one.
    fn remove_copy(&mut self, key: u64, age: u32, block: BlockIx) -> Option<BlockIx> {
        let copies = self.copies.get_mut(&key)?;
        copies.free.remove(&(age, block));
        let other = copies.first();
        if other.is_none() {
            self.copies.remove(&key);
        }
        other
    }

    fn enqueue_last(&mut self, block: BlockIx) {
        let last = self.last_free;
        let entry = self.block_mut(block);
        (entry.prev, entry.next) = (last, NONE);
        if last == NONE {
            self.first_free = block;
        } else {
            self.block_mut(last).next = block;
        }
        self.last_free = block;
        self.free += 1;
    }

    fn enqueue_first(&mut self, block: BlockIx) {
        let first = self.first_free;
        let entry = self.block_mut(block);
        (entry.prev, entry.next) = (NONE, first);
        if first == NONE {
            self.last_free = block;
        } else {
            self.block_mut(first).prev = block;
        }
        self.first_free = block;
        self.free += 1;
    }

    fn dequeue(&mut self, block: BlockIx) {
        let (prev, next) = (self.block(block).prev, self.block(block).next);
        if prev == NONE {
            self.first_free = next;
        } else {
            self.block_mut(prev).next = next;
        }
        if next == NONE {
            self.last_free = prev;
        } else {
            self.block_mut(next).prev = prev;
        }
        self.free -= 1;
    }

    fn block(&self, block: BlockIx) -> &Block {
        &self.blocks[block as usize]
    }

    fn block_mut(&mut self, block: BlockIx) -> &mut Block {
        &mut self.blocks[block as usize]
    }
}

/// Length of the leading run of `0..limit` for which `holds`, given that it holds for a prefix only.
fn prefix_length(limit: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, limit);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Folds a key, which may be a hash or a small number, into well spread bits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let product = u128::from(self.0 ^ key ^ 0x2d35_8dcc_aa6c_78a5) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A request on the pool: its chain, its blocks, how many of these are published.
    struct User {
        chain: Chain,
        blocks: Vec<BlockIx>,
        published: usize,
    }

    /// Ids of the first blocks of a text: a binary tree, so that texts share prefixes.
    fn chain(text: u64, length: usize) -> Chain {
        let ids = (0..length as u64).map(|i| (1 << i.min(20)) * 1_000 + (text & ((1 << i.min(3)) - 1)) + i);
        Chain::Hashed(ids.collect())
    }

    /// Copies of a key and of these the held ones, by looking at every block.
    fn copies(pool: &Pool, key: u64) -> (usize, usize) {
        let cached = pool.blocks.iter().filter(|b| b.cached && b.key == key);
        let count = (cached.clone().count(), cached.filter(|b| b.refs > 0).count());
        if let Some(copies) = pool.copies.get(&key) {
            assert_eq!((copies.held.len() + copies.free.len(), copies.held.len()), count);
        }
        count
    }

    fn check(pool: &Pool, users: &[User]) {
        let mut queue = Vec::new();
        let mut block = pool.first_free;
        while block != NONE {
            queue.push(block);
            block = pool.block(block).next;
        }
        let unused = pool.total() as usize - pool.blocks.len();
        assert_eq!(queue.len() + unused, pool.free() as usize);
        assert!(queue.iter().all(|b| pool.block(*b).refs == 0));
        let held = pool.blocks.iter().filter(|b| b.refs > 0).count();
        assert_eq!(held + queue.len() + unused, pool.total() as usize);
        assert_eq!(pool.cached_free() as usize, queue.iter().filter(|b| pool.block(**b).cached).count());
        let holds: usize = users.iter().map(|user| user.blocks.len()).sum();
        assert_eq!(pool.blocks.iter().map(|b| b.refs as usize).sum::<usize>(), holds);
        for text in 0..12 {
            let chain = chain(text, 8);
            let linear = |wanted: fn((usize, usize)) -> bool| {
                (0..8).take_while(|i| chain.get(*i).is_some_and(|key| wanted(copies(pool, key)))).count()
            };
            let cached = pool.cached_prefix(&chain, 8);
            assert_eq!(cached, linear(|(all, _)| all > 0));
            assert_eq!(pool.held_prefix(&chain, cached), linear(|(_, held)| held > 0));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// I-BLK-1, I-BLK-3, I-BLK-4: requests that start, publish and end at random keep the queue whole and
        /// both closures true.
        #[test]
        fn lookups_are_those_of_a_scan(
            acts in prop::collection::vec((0_u64..12, 1_usize..9, 0_u8..4), 1..80),
            total in 6_u32..24,
            uncached_first in any::<bool>(),
        ) {
            let mut pool = Pool::new(total, uncached_first);
            let mut users: Vec<User> = Vec::new();
            for (text, length, act) in acts {
                match act {
                    0 => {
                        let chain = chain(text, length);
                        let mut blocks = Vec::new();
                        // The last block is recomputed, as for a prompt's last token: that makes copies.
                        let cached = pool.cached_prefix(&chain, length - 1);
                        let before = pool.clone();
                        let published = pool.hold_prefix(&chain, cached, &mut blocks);
                        prop_assert_eq!(published, cached);
                        for (i, block) in blocks.iter().enumerate() {
                            let (_, held) = chain.get(i).map_or((0, 0), |key| copies(&before, key));
                            prop_assert_eq!(before.block(*block).refs > 0, held > 0, "a held copy if any");
                        }
                        if pool.take((length - cached) as u32, &mut blocks, |_| ()) {
                            users.push(User { chain, blocks, published });
                        } else {
                            blocks.into_iter().rev().for_each(|block| pool.release(block));
                        }
                    }
                    1 if !users.is_empty() => {
                        let at = length % users.len();
                        let user = &mut users[at];
                        if let (Some(key), Some(block)) =
                            (user.chain.get(user.published), user.blocks.get(user.published))
                        {
                            let parent = user.published.checked_sub(1).and_then(|at| user.blocks.get(at).copied());
                            pool.publish(*block, parent, key);
                            user.published += 1;
                        }
                    }
                    2 => {
                        pool.demote(&chain(text, length));
                    }
                    _ if !users.is_empty() => {
                        let user = users.swap_remove(length % users.len());
                        user.blocks.into_iter().rev().for_each(|block| pool.release(block));
                    }
                    _ => {}
                }
                check(&pool, &users);
            }
        }
    }

    /// I-BLK-2.
    #[test]
    fn evicted_keys_come_in_queue_order_and_empty_blocks_can_go_first() {
        for (uncached_first, expected) in [(false, vec![2, 1]), (true, vec![2])] {
            let mut pool = Pool::new(3, uncached_first);
            let mut blocks = Vec::new();
            assert!(!pool.take(4, &mut blocks, |_| ()));
            assert!(pool.take(3, &mut blocks, |_| ()));
            pool.publish(blocks[0], None, 1);
            pool.publish(blocks[1], Some(blocks[0]), 2);
            blocks[..2].iter().rev().for_each(|block| pool.release(*block));
            pool.release(blocks[2]);
            let mut evicted = Vec::new();
            assert!(pool.take(2, &mut Vec::new(), |key| evicted.push(key)));
            assert_eq!(evicted, expected);
        }
    }

    /// A run of blocks as a request leaves them behind: published, then given up tail first.
    fn leave(pool: &mut Pool, keys: &[u64]) {
        let chain = Chain::Hashed(keys.to_vec());
        let mut blocks = Vec::new();
        let cached = pool.hold_prefix(&chain, keys.len(), &mut blocks);
        assert!(pool.take((keys.len() - cached) as u32, &mut blocks, |_| ()));
        for at in cached..keys.len() {
            pool.publish(blocks[at], at.checked_sub(1).map(|before| blocks[before]), keys[at]);
        }
        blocks.into_iter().rev().for_each(|block| pool.release(block));
    }

    /// What only the demoted request used goes first, tail first; a head from which another request went on, and what is
    /// held, stay where they are.
    #[test]
    fn demoted_blocks_are_evicted_first_and_only_those_of_one_request() {
        let mut pool = Pool::new(8, false);
        leave(&mut pool, &[1, 2, 10]);
        leave(&mut pool, &[1, 2, 20, 21]);
        leave(&mut pool, &[7, 8]);
        let newest = Chain::Hashed(vec![1, 2, 20, 21]);
        assert_eq!(pool.demote(&newest), 2);
        let mut evicted = Vec::new();
        let mut taken = Vec::new();
        assert!(pool.take(4, &mut taken, |key| evicted.push(key)));
        assert_eq!(evicted, [21, 20, 10], "behind the one that is empty");
        let mut held = Vec::new();
        assert_eq!(pool.hold_prefix(&Chain::Hashed(vec![7, 8]), 2, &mut held), 2);
        assert_eq!(pool.demote(&Chain::Hashed(vec![7, 8])), 0, "held");
    }
}
