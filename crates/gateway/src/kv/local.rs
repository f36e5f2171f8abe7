//! Prompts tokenized here: models by name, what is remembered of sessions, and what is done about a tokenizer
//! that is wrong.
//!
//! - Purpose: the exact token ids of a prompt before any engine has seen it, for the price of its new tail.
//! - Inputs: request bodies as engines will get them; the engines' own counts afterwards. Output: [`Tokens`].
//! - Tokenizing never runs on a thread that serves connections, and never on more threads than configured.
//! - A call waits no longer than the configured time: what is then still under way ends by itself and is remembered.
//! - What is remembered is bounded in bytes, the longest unused goes first.
//! - A tokenizer whose count differs from the engine's so many times in a row is not asked again.
//! - Deliberately absent: rendering and tokenizing themselves (the prompt crate).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tandem_kvplane::{PlaneReader, PromptChain};
use tandem_prompt::{LoadError, LoadOptions, Memo, PromptModel, RenderError};
use tandem_types::{Dialect, EngineKind, ProgramKey};
use tokio::sync::Semaphore;

use crate::config::KvSettings;
use crate::metrics::{Family, Metrics};

/// The name that stands for every model without a folder of its own.
const ANY: &str = "*";

/// One model's tokenizer.
pub(crate) struct Model {
    /// As in the configuration.
    pub(crate) name: String,
    prompt: PromptModel,
    /// Differences in a row.
    faults: AtomicU32,
    off: AtomicBool,
}

/// The tokenizers.
pub(crate) struct Tokenizers {
    models: BTreeMap<String, Arc<Model>>,
    threads: Arc<Semaphore>,
    timeout: Duration,
    faults_max: u32,
    memos: Arc<Mutex<Memos>>,
    metrics: Metrics,
}

/// A prompt to tokenize.
pub(crate) struct Ask<'a> {
    pub(crate) dialect: Dialect,
    pub(crate) kind: EngineKind,
    pub(crate) model: Option<&'a str>,
    pub(crate) body: &'a Bytes,
    pub(crate) program: Option<&'a ProgramKey>,
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) salt: Option<Arc<str>>,
    pub(crate) reader: &'a PlaneReader,
}

/// A tokenized prompt.
pub(crate) struct Tokens {
    pub(crate) ids: Arc<[u32]>,
    pub(crate) chain: PromptChain,
    pub(crate) model: Arc<Model>,
}

/// Why there are none: a word for the metric.
pub(crate) type Refused = &'static str;

/// A folder that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("tokenizer for {model:?} ({}): {source}; it takes the model's folder, with tokenizer.json in it", folder.display())]
pub struct TokenizerError {
    model: String,
    folder: PathBuf,
    source: LoadError,
}

impl Tokenizers {
    /// Loads every tokenizer that is configured.
    pub(crate) async fn load(settings: &KvSettings, metrics: &Metrics) -> Result<Self, TokenizerError> {
        let mut models = BTreeMap::new();
        for (name, folder) in settings.tokenizers.clone() {
            let path = folder.clone();
            let loading =
                tokio::task::spawn_blocking(move || PromptModel::load(&path, LoadOptions::default()));
            let loaded = loading.await.unwrap_or_else(|error| {
                Err(LoadError::Invalid { path: folder.clone(), why: error.to_string() })
            });
            let prompt = loaded.map_err(|source| TokenizerError {
                model: name.clone(),
                folder: folder.clone(),
                source,
            })?;
            let model =
                Model { name: name.clone(), prompt, faults: AtomicU32::new(0), off: AtomicBool::new(false) };
            metrics.set(Family::KvTokenizerUsed, &[("tokenizer", &name)], 1);
            models.insert(name, Arc::new(model));
        }
        Ok(Self {
            models,
            threads: Arc::new(Semaphore::new(settings.tokenizer_threads.max(1))),
            timeout: settings.tokenizer_timeout,
            faults_max: settings.tokenizer_faults,
            memos: Arc::new(Mutex::new(Memos::new(settings.memory))),
            metrics: metrics.clone(),
        })
    }

    /// The tokenizer of a model, if there is one in use.
    fn model(&self, name: Option<&str>) -> Result<&Arc<Model>, Refused> {
        let named = name.and_then(|name| self.models.get(name));
        let model = named.or_else(|| self.models.get(ANY)).ok_or("no_tokenizer")?;
        if model.off.load(Ordering::Relaxed) { Err("switched_off") } else { Ok(model) }
    }

    /// The tokens of a prompt, or why there are none.
    pub(crate) async fn tokens(&self, ask: Ask<'_>) -> Result<Tokens, Refused> {
        let model = self.model(ask.model)?;
        let waited = tokio::time::timeout(self.timeout, self.tokenize(Arc::clone(model), ask));
        waited.await.unwrap_or(Err("timeout"))
    }

    async fn tokenize(&self, model: Arc<Model>, ask: Ask<'_>) -> Result<Tokens, Refused> {
        let thread = Arc::clone(&self.threads).acquire_owned().await.map_err(|_| "shutdown")?;
        let Ask { dialect, kind, lora, salt, .. } = ask;
        let (body, reader, program) = (ask.body.clone(), ask.reader.clone(), ask.program.cloned());
        let memos = Arc::clone(&self.memos);
        let job = tokio::task::spawn_blocking(move || {
            let before = program.as_ref().and_then(|program| lock(&memos).get(program));
            let (memo, chain) = before.map_or((None, None), |kept| (Some(kept.memo), Some(kept.chain)));
            let rendered = model.prompt.render(dialect, kind, &body).map_err(|error| refused(&error))?;
            let tokens = model.prompt.tokens(&rendered, memo.as_ref()).map_err(|error| refused(&error))?;
            let chain = reader.chain(&tokens.ids, lora.as_deref(), salt.as_deref(), chain.as_ref());
            if let Some(program) = program {
                lock(&memos).put(program, Kept { memo: tokens.memo, chain: chain.clone() });
            }
            drop(thread);
            Ok(Tokens { ids: tokens.ids, chain, model })
        });
        job.await.unwrap_or(Err("failed"))
    }

    /// The engine counted a prompt that was tokenized here.
    pub(crate) fn counted(&self, model: &Model, ours: u64, engine: u64) {
        if ours == engine {
            model.faults.store(0, Ordering::Relaxed);
            return;
        }
        let faults = model.faults.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if faults >= self.faults_max && !model.off.swap(true, Ordering::Relaxed) {
            self.metrics.set(Family::KvTokenizerUsed, &[("tokenizer", &model.name)], 0);
            tracing::warn!(
                tokenizer = model.name,
                ours,
                engine,
                in_a_row = faults,
                "prompts tokenized here have other lengths than the engine's: this tokenizer is no longer used; \
                 is its folder the one that the engine serves, with the same chat template?"
            );
        }
    }

    /// A program will not come back.
    pub(crate) fn forget(&self, program: &ProgramKey) {
        lock(&self.memos).remove(program);
    }

    /// Bytes remembered.
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.memos).bytes
    }
}

fn refused(error: &RenderError) -> Refused {
    match error {
        RenderError::Unsupported { .. } => "unsupported",
        RenderError::Invalid(_) => "invalid",
        RenderError::Template(_) => "template",
        RenderError::Bound(_) => "bound",
        RenderError::Tokenizer(_) => "failed",
    }
}

fn lock(memos: &Mutex<Memos>) -> std::sync::MutexGuard<'_, Memos> {
    memos.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is remembered of a session's last prompt.
#[derive(Clone)]
struct Kept {
    memo: Memo,
    chain: PromptChain,
}

impl Kept {
    fn bytes(&self) -> usize {
        // The ids' hashes of a few block sizes come to about the ids themselves.
        self.memo.bytes().saturating_mul(2)
    }
}

/// Memos by program, the longest unused first to go.
struct Memos {
    kept: BTreeMap<ProgramKey, (u64, Kept)>,
    by_use: BTreeMap<u64, ProgramKey>,
    uses: u64,
    bytes: usize,
    bytes_max: usize,
}

impl Memos {
    const fn new(bytes_max: usize) -> Self {
        Self { kept: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0, bytes: 0, bytes_max }
    }

    fn get(&mut self, program: &ProgramKey) -> Option<Kept> {
        let (used, kept) = self.kept.get_mut(program)?;
        self.uses += 1;
        if let Some(key) = self.by_use.remove(used) {
            self.by_use.insert(self.uses, key);
        }
        *used = self.uses;
        Some(kept.clone())
    }

    fn put(&mut self, program: ProgramKey, kept: Kept) {
        self.remove(&program);
        self.uses += 1;
        self.bytes = self.bytes.saturating_add(kept.bytes());
        self.by_use.insert(self.uses, program.clone());
        self.kept.insert(program, (self.uses, kept));
        while self.bytes > self.bytes_max {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, program: &ProgramKey) {
        let Some((used, kept)) = self.kept.remove(program) else { return };
        self.by_use.remove(&used);
        self.bytes = self.bytes.saturating_sub(kept.bytes());
    }
}
