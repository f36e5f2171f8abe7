//! The section `[kv]`: how the gateway learns where KV lies, and how it finds a prompt's blocks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tandem_engines::{BaseUrl, StoreSpec, ZmqEndpoint};
use tandem_kvplane::{StoreUse, VllmHashing};
use tandem_kvwire::hash::vllm::{VllmAlgorithm, VllmKeyForm};
use tandem_kvwire::mooncake::sglang::SglangLayout;
use tandem_kvwire::mooncake::vllm::VllmLayout;
use tandem_types::EngineKind;

use super::resolved::{ConfigError, value};
use super::units::{Size, Span};

/// Where KV lies and what prompts need.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Kv {
    /// Whether prompts are looked up in an index of the engines' caches. Unset: where the policy uses it (`kv`).
    pub enabled: Option<bool>,
    /// Follow the cache events that engines publish. Without them a worker is known by what was routed to it.
    pub events: bool,
    /// Where a prompt's blocks come from, the first that has them. Token ids that the client sent always count.
    pub sources: Vec<PromptSource>,
    /// Folders with the tokenizer and chat template of each model, by the name that clients ask for; `*` is for
    /// every model without a folder of its own.
    pub tokenizers: BTreeMap<String, String>,
    /// Most prompts tokenized here at once; 0 = half of the processors.
    pub tokenizer_threads: usize,
    /// Longest time that a call waits for the local tokenizer before the next source is asked.
    pub tokenizer_timeout: Span,
    /// Differences in a row between our prompt length and the engine's after which a model's tokenizer is no
    /// longer used.
    pub tokenizer_faults: u32,
    /// Most prompts that engines are asked to tokenize at once.
    pub engine_lookups: usize,
    /// Longest time that a call waits for an engine to tokenize its prompt.
    pub engine_timeout: Span,
    /// Tell engines the session of each call (`x-session-id`), so that their events name it.
    pub tell_sessions: bool,
    /// How long a dispatch counts as cached before the engine's events confirm it.
    pub predict: Span,
    /// How long events may wait to be taken in before what is known of workers counts as stale.
    pub lag_max: Span,
    /// How long what is stale is believed: of a worker whose events fell silent, were lost, or wait to be taken in.
    pub stale_after: Span,
    /// Memory for what is remembered of the prompts of sessions.
    pub memory: Size,
    /// Shared stores of KV (Mooncake): one entry for each way in which engines name their objects there. All
    /// entries are of one store.
    pub stores: Vec<KvStore>,
}

impl Default for Kv {
    fn default() -> Self {
        Self {
            enabled: None,
            events: true,
            sources: vec![
                PromptSource::Local,
                PromptSource::Lineage,
                PromptSource::Engine,
                PromptSource::Text,
            ],
            tokenizers: BTreeMap::new(),
            tokenizer_threads: 0,
            tokenizer_timeout: Span::millis(500),
            tokenizer_faults: 5,
            engine_lookups: 64,
            engine_timeout: Span::secs(1),
            tell_sessions: true,
            predict: Span::secs(10),
            lag_max: Span::secs(1),
            stale_after: Span::secs(60),
            memory: Size::mib(512),
            stores: Vec::new(),
        }
    }
}

/// Where a prompt's blocks come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PromptSource {
    /// A tokenizer and chat template here (`kv.tokenizers`).
    Local,
    /// What the session's earlier prompts were.
    Lineage,
    /// An engine is asked to tokenize the prompt.
    Engine,
    /// The text itself: finds only what this gateway sent with the same text before.
    Text,
}

impl FromStr for PromptSource {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "local" => Ok(Self::Local),
            "lineage" => Ok(Self::Lineage),
            "engine" => Ok(Self::Engine),
            "text" => Ok(Self::Text),
            _ => Err("expected local, lineage, engine or text"),
        }
    }
}

/// Who names a store's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    /// vLLM's Mooncake connector.
    #[default]
    Vllm,
    /// SGLang's HiCache.
    Sglang,
}

/// A shared store, and one way in which engines use it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KvStore {
    /// The master's event publisher (`--kv_events_bind_endpoint`), such as `tcp://store:5559`; unset: listings
    /// only.
    pub events: Option<String>,
    /// The master's metrics and admin address, such as `http://store:9003`.
    pub admin: String,
    /// Whose object names it holds.
    pub kind: StoreKind,
    /// What object names begin with: vLLM `[prefix@]model[namespace]`, SGLang `[tag_]model`.
    pub head: String,
    /// The store's tenant.
    pub tenant: Option<String>,
    /// Tensor-parallel ranks that write objects of their own.
    pub tp: Option<u32>,
    /// Pipeline stages that write objects of their own.
    pub pp: Option<u32>,
    /// SGLang: the model's attention keeps one object per page (MLA).
    pub mla: bool,
    /// vLLM: `sha256`, `sha256_cbor`, `xxhash` or `xxhash_cbor` (`--prefix-caching-hash-algo`).
    pub hash: Option<String>,
    /// vLLM: `PYTHONHASHSEED` of the engines, where it is set.
    pub hash_seed: Option<String>,
    /// Models whose engines write to it; empty = all engines of that kind.
    pub models: Vec<String>,
}

impl FromStr for KvStore {
    type Err = String;

    /// `events=tcp://..,admin=http://..,kind=vllm,head=..,tenant=..` on the command line.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut store = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("{part:?}: expected NAME=VALUE"))?;
            let number = || value.parse::<u32>().map_err(|_| format!("{name}: expected a number"));
            match name {
                "events" => store.events = Some(value.to_owned()),
                "admin" => value.clone_into(&mut store.admin),
                "kind" => {
                    store.kind = match value {
                        "vllm" => StoreKind::Vllm,
                        "sglang" => StoreKind::Sglang,
                        _ => return Err("kind: expected vllm or sglang".to_owned()),
                    }
                }
                "head" => value.clone_into(&mut store.head),
                "tenant" => store.tenant = Some(value.to_owned()),
                "tp" => store.tp = Some(number()?),
                "pp" => store.pp = Some(number()?),
                "mla" => store.mla = value.parse().map_err(|_| "mla: expected true or false".to_owned())?,
                "hash" => store.hash = Some(value.to_owned()),
                "hash_seed" => store.hash_seed = Some(value.to_owned()),
                "model" => store.models.push(value.to_owned()),
                _ => {
                    return Err(format!(
                        "{name}: expected events, admin, kind, head, tenant, tp, pp, mla, hash, hash_seed or model"
                    ));
                }
            }
        }
        Ok(store)
    }
}

/// `[MODEL=]FOLDER` on the command line; without a model, for all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerArg {
    /// The model, `*` for all.
    pub model: String,
    /// Its folder.
    pub folder: String,
}

impl FromStr for TokenizerArg {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (model, folder) = text.split_once('=').unwrap_or(("*", text));
        if model.is_empty() || folder.is_empty() {
            return Err("expected FOLDER or MODEL=FOLDER");
        }
        Ok(Self { model: model.to_owned(), folder: folder.to_owned() })
    }
}

/// What the gateway runs on.
#[derive(Debug, Clone)]
pub struct KvSettings {
    /// Follow events.
    pub events: bool,
    /// Sources in order.
    pub sources: Vec<PromptSource>,
    /// Tokenizers: model to folder.
    pub tokenizers: BTreeMap<String, PathBuf>,
    /// Prompts tokenized at once.
    pub tokenizer_threads: usize,
    /// Longest wait for the tokenizer.
    pub tokenizer_timeout: Duration,
    /// Differences in a row that end a tokenizer's use.
    pub tokenizer_faults: u32,
    /// Look-ups at engines at once.
    pub engine_lookups: usize,
    /// Longest wait for one.
    pub engine_timeout: Duration,
    /// Tell engines the session.
    pub tell_sessions: bool,
    /// How long a dispatch is believed.
    pub predict: Duration,
    /// How long events may wait.
    pub lag_max: Duration,
    /// How long what is stale is believed.
    pub stale_after: Duration,
    /// Bytes for memos.
    pub memory: usize,
    /// The store.
    pub store: Option<StoreSpec>,
    /// How engines use it.
    pub uses: Vec<KvUse>,
}

/// How some engines use the store.
#[derive(Debug, Clone)]
pub struct KvUse {
    kind: EngineKind,
    models: Vec<String>,
    how: StoreUse,
}

impl KvSettings {
    /// How a worker uses the store, if it does.
    #[must_use]
    pub fn store_use(&self, kind: EngineKind, models: &[String]) -> Option<StoreUse> {
        let serves =
            |one: &KvUse| one.models.is_empty() || one.models.iter().any(|model| models.contains(model));
        self.uses.iter().find(|one| one.kind == kind && serves(one)).map(|one| one.how.clone())
    }
}

pub(super) fn resolve(kv: &Kv, policy: &str) -> Result<Option<KvSettings>, ConfigError> {
    if !kv.enabled.unwrap_or(policy == "kv") {
        return Ok(None);
    }
    let mut sources = kv.sources.clone();
    let mut seen = Vec::new();
    sources.retain(|source| {
        !seen.contains(source) && {
            seen.push(*source);
            true
        }
    });
    let half = std::thread::available_parallelism().map_or(1, |n| n.get().div_ceil(2));
    Ok(Some(KvSettings {
        events: kv.events,
        sources,
        tokenizers: kv.tokenizers.iter().map(|(model, dir)| (model.clone(), PathBuf::from(dir))).collect(),
        tokenizer_threads: if kv.tokenizer_threads == 0 { half } else { kv.tokenizer_threads.min(1024) },
        tokenizer_timeout: kv.tokenizer_timeout.0,
        tokenizer_faults: kv.tokenizer_faults.max(1),
        engine_lookups: kv.engine_lookups.clamp(1, 4096),
        engine_timeout: kv.engine_timeout.0,
        tell_sessions: kv.tell_sessions,
        predict: kv.predict.0,
        lag_max: kv.lag_max.0,
        stale_after: kv.stale_after.0,
        memory: kv.memory.bytes(),
        store: kv.stores.first().map(|first| store_spec(first, &kv.stores)).transpose()?,
        uses: kv.stores.iter().map(store_use).collect::<Result<_, _>>()?,
    }))
}

fn store_spec(first: &KvStore, all: &[KvStore]) -> Result<StoreSpec, ConfigError> {
    if all.iter().any(|other| (&other.admin, &other.events) != (&first.admin, &first.events)) {
        return Err(value("kv.stores", "all entries must name the same store: the same admin and events"));
    }
    let admin = BaseUrl::parse(&first.admin)
        .map_err(|error| value("kv.stores.admin", format!("{:?}: {error}", first.admin)))?;
    let events: Option<ZmqEndpoint> = first
        .events
        .as_ref()
        .map(|text| text.parse().map_err(|error| value("kv.stores.events", format!("{text:?}: {error}"))))
        .transpose()?;
    Ok(StoreSpec { events, admin })
}

fn store_use(store: &KvStore) -> Result<KvUse, ConfigError> {
    if store.head.is_empty() {
        let what = "name what object names begin with: vLLM [prefix@]model, SGLang [tag_]model";
        return Err(value("kv.stores.head", what));
    }
    let tenant = store.tenant.clone().unwrap_or_default();
    let (tp, pp) = (store.tp.unwrap_or(1), store.pp.unwrap_or(1));
    if tp == 0 || pp == 0 {
        return Err(value("kv.stores.tp", "ranks and stages are counted from 1"));
    }
    let (kind, how) = match store.kind {
        StoreKind::Vllm => {
            let layout = VllmLayout { tp_size: tp, pp_size: pp, ..VllmLayout::single(&store.head) };
            let hash = store.hash.as_ref().map(|name| {
                VllmAlgorithm::parse(name).ok_or_else(|| {
                    value("kv.stores.hash", "expected sha256, sha256_cbor, xxhash or xxhash_cbor")
                })
            });
            let hash = hash.transpose()?.map(|algorithm| VllmHashing {
                algorithm,
                seed: store.hash_seed.clone(),
                form: VllmKeyForm::default(),
            });
            (EngineKind::Vllm, StoreUse::Vllm { tenant, layout, hash })
        }
        StoreKind::Sglang => {
            let prefix = Some(store.head.replace('/', "-"));
            let layout = SglangLayout { prefix, ..SglangLayout::new(tp, pp, store.mla) };
            (EngineKind::Sglang, StoreUse::Sglang { tenant, layout, bigram: false, trailing: Vec::new() })
        }
    };
    Ok(KvUse { kind, models: store.models.clone(), how })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_and_tokenizers_are_read_from_the_command_line() {
        let text = "events=tcp://s:5559,admin=http://s:9003,kind=sglang,head=tiny,tenant=t,tp=2,mla=true";
        let store: KvStore = text.parse().expect("valid");
        assert_eq!((store.kind, store.tp, store.mla), (StoreKind::Sglang, Some(2), true));
        assert_eq!((store.head.as_str(), store.tenant.as_deref()), ("tiny", Some("t")));
        assert!("port=1".parse::<KvStore>().expect_err("no such part").contains("expected events"));
        let all: TokenizerArg = "/models/x".parse().expect("valid");
        assert_eq!((all.model.as_str(), all.folder.as_str()), ("*", "/models/x"));
        let one: TokenizerArg = "org/m=/models/y".parse().expect("valid");
        assert_eq!((one.model.as_str(), one.folder.as_str()), ("org/m", "/models/y"));
        assert!("=x".parse::<TokenizerArg>().is_err());
    }

    #[test]
    fn the_index_is_on_where_the_policy_uses_it_or_where_it_is_asked_for() {
        let on =
            |enabled, policy| resolve(&Kv { enabled, ..Kv::default() }, policy).expect("valid").is_some();
        assert!(on(None, "kv") && on(Some(true), "random"));
        assert!(!on(None, "session_affinity") && !on(Some(false), "kv"));
    }

    #[test]
    fn a_source_named_twice_counts_once_and_a_store_needs_a_head() {
        let sources = vec![PromptSource::Text, PromptSource::Engine, PromptSource::Text];
        let kv = Kv { sources, ..Kv::default() };
        let found = resolve(&kv, "kv").expect("valid").expect("on").sources;
        assert_eq!(found, [PromptSource::Text, PromptSource::Engine]);
        let store = KvStore { admin: "http://s:9003".to_owned(), ..KvStore::default() };
        let error = resolve(&Kv { stores: vec![store], ..Kv::default() }, "kv").expect_err("no head");
        assert!(error.to_string().starts_with("kv.stores.head: "), "{error}");
    }
}
