//! Prompts tokenized here: models by name, what is remembered of sessions, and what is done about a tokenizer
//! that is wrong.
//!
//! - Purpose: the exact token ids of a prompt before any engine has seen it, for the price of its new tail.
//! - Inputs: request bodies as engines will get them; the engines' own counts afterwards. Output: [`Tokens`].
//! - Tokenizing never runs on a thread that serves connections.
//! - Invariants: I-KVL-1 never more prompts are tokenized at once than configured; I-KVL-2 a call waits no longer
//!   than the configured time, and what is then still under way ends by itself and is remembered; I-KVL-3 what is
//!   remembered is bounded in bytes, the longest unused goes first; I-KVL-4 a tokenizer whose count differs from the
//!   engine's so many times in a row is not asked again; I-KVL-5 a prompt has the same ids and the same chain whether
//!   or not an earlier one of its session is remembered.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tandem_kvplane::{Plane, PlaneConfig};
    use tandem_types::{SessionId, TenantId};

    use super::*;

    fn program(name: &str) -> ProgramKey {
        ProgramKey::root(TenantId::default(), SessionId::new(name).unwrap())
    }

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../prompt/tests/fixtures/model")
    }

    fn settings(model: &str) -> KvSettings {
        KvSettings {
            events: true,
            sources: Vec::new(),
            tokenizers: BTreeMap::from([(model.to_owned(), folder())]),
            tokenizer_threads: 1,
            tokenizer_timeout: Duration::from_secs(60),
            tokenizer_faults: 3,
            engine_lookups: 1,
            engine_timeout: Duration::from_secs(1),
            tell_sessions: true,
            predict: Duration::from_secs(10),
            lag_max: Duration::from_secs(1),
            stale_after: Duration::from_secs(60),
            memory: 1 << 20,
            store: None,
            uses: Vec::new(),
        }
    }

    struct Bench {
        metrics: Metrics,
        tokenizers: Tokenizers,
        plane: Plane,
    }

    async fn bench(settings: &KvSettings) -> Bench {
        let metrics = Metrics::new().unwrap();
        let tokenizers = Tokenizers::load(settings, &metrics).await.unwrap();
        Bench { metrics, tokenizers, plane: Plane::new(PlaneConfig::default()) }
    }

    /// A chat whose system prompt has so many words.
    fn chat(words: usize, tail: &str) -> Bytes {
        let system = "word ".repeat(words);
        format!(
            r#"{{"model":"tiny","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{tail}"}}]}}"#
        )
        .into()
    }

    impl Bench {
        async fn ask(&self, session: Option<&ProgramKey>, body: &Bytes) -> Result<Tokens, Refused> {
            let reader = self.plane.reader();
            let ask = Ask {
                dialect: Dialect::Chat,
                kind: EngineKind::Vllm,
                model: Some("tiny"),
                body,
                program: session,
                lora: None,
                salt: None,
                reader: &reader,
            };
            self.tokenizers.tokens(ask).await
        }
    }

    /// I-KVL-1, I-KVL-2: the one thread is taken, so that the call waits in vain, and nothing runs beside it.
    #[tokio::test]
    async fn a_call_waits_for_a_thread_and_not_for_ever() {
        let bench = bench(&KvSettings { tokenizer_timeout: Duration::ZERO, ..settings("*") }).await;
        let taken = Arc::clone(&bench.tokenizers.threads).acquire_owned().await.unwrap();
        assert_eq!(bench.ask(None, &chat(1, "hi")).await.err(), Some("timeout"));
        assert_eq!(bench.tokenizers.threads.available_permits(), 0);
        drop(taken);
        assert_eq!(bench.tokenizers.threads.available_permits(), 1);
    }

    /// I-KVL-2: nobody waits for it any more, and it is remembered all the same.
    #[tokio::test]
    async fn what_came_too_late_is_remembered() {
        let bench = bench(&KvSettings { tokenizer_timeout: Duration::ZERO, ..settings("*") }).await;
        let session = program("late");
        assert_eq!(bench.ask(Some(&session), &chat(2000, "hi")).await.err(), Some("timeout"));
        // The thread is given back when all is done.
        let _done = bench.tokenizers.threads.acquire().await.unwrap();
        assert!(bench.tokenizers.bytes() > 10_000, "{}", bench.tokenizers.bytes());
        bench.tokenizers.forget(&session);
        assert_eq!(bench.tokenizers.bytes(), 0);
    }

    /// I-KVL-3: room for two of three equal memos.
    #[tokio::test]
    async fn the_memo_that_was_unused_longest_goes_first() {
        let bench = bench(&settings("*")).await;
        let tokens = bench.ask(Some(&program("seed")), &chat(100, "hi")).await.unwrap();
        let kept = lock(&bench.tokenizers.memos).get(&program("seed")).unwrap();
        assert_eq!(kept.chain.tokens(), tokens.ids.len());
        let one = kept.bytes();
        let mut memos = Memos::new(one * 2 + one / 2);
        let [a, b, c] = ["a", "b", "c"].map(program);
        memos.put(a.clone(), kept.clone());
        memos.put(b.clone(), kept.clone());
        assert!(memos.get(&a).is_some());
        memos.put(c.clone(), kept.clone());
        assert_eq!([&a, &b, &c].map(|key| memos.get(key).is_some()), [true, false, true]);
        assert_eq!((memos.bytes, memos.kept.len(), memos.by_use.len()), (one * 2, 2, 2));
        // Put again it counts once; one that is larger than all the room is not kept, and takes no other with it twice.
        memos.put(a.clone(), kept.clone());
        assert_eq!(memos.bytes, one * 2);
        let mut narrow = Memos::new(one - 1);
        narrow.put(a, kept);
        assert_eq!((narrow.bytes, narrow.kept.len(), narrow.by_use.len()), (0, 0, 0));
    }

    /// I-KVL-4: three differences in a row, not three in all.
    #[tokio::test]
    async fn a_tokenizer_that_is_wrong_too_often_is_switched_off() {
        let bench = bench(&settings("tiny")).await;
        let model = bench.ask(None, &chat(1, "hi")).await.unwrap().model;
        for (ours, engine) in [(5, 6), (5, 6), (5, 5), (5, 4), (5, 4)] {
            bench.tokenizers.counted(&model, ours, engine);
        }
        assert!(bench.ask(None, &chat(1, "hi")).await.is_ok());
        assert!(bench.metrics.render().contains("tandem_kv_tokenizer_used{tokenizer=\"tiny\"} 1"));
        bench.tokenizers.counted(&model, 5, 4);
        assert_eq!(bench.ask(None, &chat(1, "hi")).await.err(), Some("switched_off"));
        assert!(bench.metrics.render().contains("tandem_kv_tokenizer_used{tokenizer=\"tiny\"} 0"));
    }

    /// I-KVL-5.
    #[tokio::test]
    async fn a_memo_changes_no_token() {
        let bench = bench(&settings("*")).await;
        let session = program("grows");
        bench.ask(Some(&session), &chat(300, "hi")).await.unwrap();
        let longer = chat(300, "hi and more words");
        let (with, without) =
            (bench.ask(Some(&session), &longer).await.unwrap(), bench.ask(None, &longer).await.unwrap());
        assert_eq!(with.ids, without.ids);
        assert_eq!(format!("{:?}", with.chain), format!("{:?}", without.chain));
    }

    #[tokio::test]
    async fn a_model_without_a_tokenizer_of_its_own_has_that_of_all() {
        let only = bench(&settings("other")).await;
        assert_eq!(only.ask(None, &chat(1, "hi")).await.err(), Some("no_tokenizer"));
        let all = bench(&settings("*")).await;
        assert_eq!(all.ask(None, &chat(1, "hi")).await.unwrap().model.name, "*");
    }

    #[tokio::test]
    async fn a_folder_without_a_tokenizer_is_named() {
        let mut bad = settings("tiny");
        bad.tokenizers.insert("tiny".to_owned(), PathBuf::from("nowhere"));
        let error = Tokenizers::load(&bad, &Metrics::new().unwrap()).await.err().unwrap();
        assert!(error.to_string().starts_with("tokenizer for \"tiny\" (nowhere): "), "{error}");
    }
}
