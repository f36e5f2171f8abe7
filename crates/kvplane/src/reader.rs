//! Questions, asked by many threads beside the writer.

use tandem_types::{PrefixMatch, ProgramKey, Time, WorkerId};

use crate::{Knowledge, Prompt, PromptChain};

/// A handle for readers.
#[derive(Debug, Clone)]
pub struct PlaneReader {}

/// A dispatch whose prompt is believed to be in the worker's cache from now on.
#[derive(Debug)]
pub struct Dispatched {
    _private: (),
}

/// What sessions keep, for readers.
#[derive(Debug, Clone)]
pub struct Sessions {}

/// A session's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionView {
    /// Different blocks on the session's paths.
    pub blocks: u64,
    /// Its branches.
    pub branches: u64,
    /// Home of the branch used last.
    pub home: Option<WorkerId>,
}

/// What a worker's sessions need it to keep, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkingSet {
    /// Different blocks on the paths of sessions at home there.
    pub tokens: u64,
    /// Those of any session's paths that lie in its device memory, host memory, disk.
    pub resident: [u64; 3],
}

impl Sessions {
    /// A session's numbers.
    #[must_use]
    pub fn session(&self, key: &ProgramKey) -> Option<SessionView> {
        let _ = key;
        None
    }

    /// A worker's numbers; `None` while nothing is known of it.
    #[must_use]
    pub fn worker(&self, worker: WorkerId) -> Option<WorkingSet> {
        let _ = worker;
        None
    }
}

impl PlaneReader {
    /// A prompt's chain. `before` = the chain of a prompt that it may continue, whose work is used again.
    #[must_use]
    pub fn chain(
        &self,
        tokens: &[u32],
        lora: Option<&str>,
        salt: Option<&str>,
        before: Option<&PromptChain>,
    ) -> PromptChain {
        self.chain_of(&Prompt { tokens, lora, salt, media: &[] }, before)
    }

    /// The same for a prompt with media.
    #[must_use]
    pub fn chain_of(&self, prompt: &Prompt<'_>, before: Option<&PromptChain>) -> PromptChain {
        let _ = (prompt, before);
        PromptChain::default()
    }

    /// The chain of a prompt of which only content hashes are known.
    #[must_use]
    pub fn chain_of_blocks(&self, block_size: u32, hashes: &[u64]) -> PromptChain {
        let _ = (block_size, hashes);
        PromptChain::default()
    }

    /// What each worker could reuse of a prompt.
    #[must_use]
    pub fn find(&self, chain: &PromptChain, now: Time) -> PrefixMatch {
        let _ = (chain, now);
        PrefixMatch::unknown()
    }

    /// What each worker holds of a prompt, whether or not its engine would use all of it.
    #[must_use]
    pub fn held(&self, chain: &PromptChain, now: Time) -> PrefixMatch {
        self.find(chain, now)
    }

    /// A prompt goes to a worker: counts at once.
    pub fn dispatched(&self, worker: WorkerId, chain: &PromptChain, now: Time) -> Option<Dispatched> {
        let _ = (worker, chain, now);
        None
    }

    /// A dispatch failed or was cancelled before its prompt was computed.
    pub fn withdrawn(&self, dispatched: Dispatched) {
        let _ = dispatched;
    }

    /// What is known of a worker.
    #[must_use]
    pub fn knowledge(&self, worker: WorkerId) -> Knowledge {
        let _ = worker;
        Knowledge::Blind
    }

    /// What sessions keep.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        Sessions {}
    }

    /// The blocks that a session's next prompt builds on, as it was told or as engines echoed it.
    #[must_use]
    pub fn session_path(&self, key: &ProgramKey) -> Option<PromptChain> {
        let _ = key;
        None
    }
}
