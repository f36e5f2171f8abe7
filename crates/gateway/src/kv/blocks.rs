//! A prompt's blocks, when it arrives.
//!
//! - Purpose: what of a prompt each worker could reuse, known before it is sent anywhere.
//! - Inputs: the body as engines will get it, its identity, token ids that came with it. Output: [`Found`].
//! - Sources, in the configured order, the first that has the blocks: token ids that the client sent (always
//!   first), a tokenizer here, the session's lineage, an engine that tokenizes, the text.
//! - Each source is bounded in time and in how many use it at once; none can fail a request. Work in proportion to a
//!   large prompt is not done on a thread that serves connections. A lineage that is only estimated counts when no
//!   other source has anything.
//! - Deliberately absent: prompts with pictures and the like, unless an engine or the client gives their tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tandem_kvplane::PromptChain;
use tandem_lineage::{Arrival, Arriving, Basis, Outline, Relation, outline, text_blocks};
use tandem_types::{Dialect, EngineKind, Harness, PrefixMatch, ProgramKey, TenantId, Time, WorkerPrefix};

use super::Kv;
use super::local::{self, Ask, Refused};
use crate::config::PromptSource;
use crate::metrics::Family;

/// Bodies and prompts larger than this are worked on beside the threads that serve connections.
const SMALL_BYTES: usize = 32 << 10;

/// Bytes of text in a block, where text stands for tokens: about the 16 tokens of most engines' blocks.
const TEXT_BLOCK_BYTES: usize = 64;

/// The same in tokens.
const TEXT_BLOCK_TOKENS: u32 = 16;

/// Where a prompt's blocks came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Source {
    /// Token ids that the client sent.
    Client,
    /// A tokenizer here.
    Local,
    /// The session's earlier prompts.
    Lineage,
    /// An engine.
    Engine,
    /// Its text.
    Text,
    /// Nowhere.
    #[default]
    None,
}

impl Source {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Local => "local",
            Self::Lineage => "lineage",
            Self::Engine => "engine",
            Self::Text => "text",
            Self::None => "none",
        }
    }
}

/// A prompt whose blocks are wanted.
pub(crate) struct Query<'a> {
    pub(crate) dialect: Dialect,
    pub(crate) model: Option<&'a str>,
    /// As engines get it.
    pub(crate) body: &'a Bytes,
    pub(crate) client_tokens: Option<&'a [u32]>,
    pub(crate) program: Option<&'a ProgramKey>,
    /// Whether it is a step of its program, to be compared with those before.
    pub(crate) is_turn: bool,
    pub(crate) harness: Harness,
    pub(crate) compacted: bool,
    pub(crate) salt: Option<Arc<str>>,
}

/// What is known of a prompt. The default: nothing.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) source: Source,
    pub(crate) tokens: Option<Arc<[u32]>>,
    pub(crate) seek: Option<Seek>,
    pub(crate) prefix: PrefixMatch,
    /// The tokenizer that was used.
    pub(crate) tokenizer: Option<Arc<local::Model>>,
    /// What it has to do with the program's earlier prompts.
    pub(crate) arrival: Option<Arrival>,
}

impl Found {
    /// The prompt's length, where it is exact.
    pub(crate) fn exact_tokens(&self) -> Option<u64> {
        self.tokens.as_ref().map(|tokens| tokens.len() as u64)
    }
}

/// An engine that does not answer in time is not asked for a while.
#[derive(Default)]
pub(crate) struct EnginePatience {
    failures: AtomicU32,
    until: AtomicU64,
}

impl EnginePatience {
    const FAILURES_MAX: u32 = 3;
    const PAUSE: Duration = Duration::from_secs(10);

    fn may_ask(&self, now: Time) -> bool {
        now.0 >= self.until.load(Ordering::Relaxed)
    }

    fn answered(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    fn timed_out(&self, now: Time) {
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= Self::FAILURES_MAX {
            self.failures.store(0, Ordering::Relaxed);
            self.until.store((now + Self::PAUSE).0, Ordering::Relaxed);
        }
    }
}

/// Finds the blocks of a prompt and what of them lies where.
pub(crate) async fn find(kv: &Arc<Kv>, query: &Query<'_>) -> Found {
    let mut found = Found::default();
    let mut estimated: Option<Lineage> = None;
    let client = query.client_tokens.map(|_| None).into_iter();
    for source in client.chain(kv.settings.sources.iter().copied().map(Some)) {
        let word = source.map_or("client", source_word);
        let began = Instant::now();
        let outcome = ask(kv, query, source, &mut found, &mut estimated).await;
        kv.metrics.lasted(Family::KvSourceSeconds, &[("source", word)], began.elapsed());
        let said = outcome.err().unwrap_or("found");
        kv.metrics.inc(Family::KvSources, &[("source", word), ("outcome", said)]);
        if outcome.is_ok() {
            break;
        }
    }
    if found.seek.is_none()
        && let Some(lineage) = estimated
    {
        lineage.fill(&mut found);
    }
    if found.arrival.is_none() {
        found.arrival = arrive(kv, query, found.tokens.as_ref()).await;
    }
    kv.metrics.inc(Family::KvPrompts, &[("source", found.source.word())]);
    if let Some(wanted) = &found.seek {
        found.prefix = seek(kv, wanted);
    }
    found
}

/// What to look up.
#[derive(Debug, Clone)]
pub(crate) struct Seek {
    pub(crate) chain: PromptChain,
    /// How much of the prompt the chain is, where the chain may go on with other tokens; `None` = the chain is the
    /// prompt's own.
    pub(crate) reach: Option<Reach>,
}

/// Leading tokens of a prompt that are in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reach {
    /// What is reckoned with.
    pub(crate) tokens: u64,
    /// At least.
    pub(crate) low: u64,
    /// At most; `u64::MAX` = not known.
    pub(crate) high: u64,
}

/// Looks a prompt up.
pub(crate) fn seek(kv: &Kv, seek: &Seek) -> PrefixMatch {
    let prefix = kv.reader.find(&seek.chain, kv.clock.now());
    match seek.reach {
        Some(reach) => clip(prefix, reach.tokens),
        None => prefix,
    }
}

/// A match within the leading tokens that the prompt is known to share with what was looked up.
fn clip(mut prefix: PrefixMatch, reach: u64) -> PrefixMatch {
    let Some(blocks) = reach.checked_div(u64::from(prefix.block_size)) else { return prefix };
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX).min(prefix.blocks);
    let clipped = |held: WorkerPrefix| {
        let WorkerPrefix { device, host, disk, .. } = held;
        WorkerPrefix { device: device.min(blocks), host: host.min(blocks), disk: disk.min(blocks), ..held }
    };
    prefix.workers = prefix.workers.iter().map(clipped).collect();
    // What a worker could load lies right behind what it holds.
    for shared in prefix.loadable.iter_mut().flatten() {
        let held = prefix.workers.get(shared.worker).map_or(0, |held| held.disk);
        shared.blocks = shared.blocks.min(blocks.saturating_sub(held));
    }
    prefix.shared.retain_mut(|run| {
        run.end = run.end.min(blocks);
        run.start < run.end
    });
    prefix.blocks = blocks;
    prefix
}

async fn ask(
    kv: &Arc<Kv>,
    query: &Query<'_>,
    source: Option<PromptSource>,
    found: &mut Found,
    estimated: &mut Option<Lineage>,
) -> Result<(), Refused> {
    match source {
        None => client(kv, query, found).await,
        Some(PromptSource::Local) => local(kv, query, found).await,
        Some(PromptSource::Lineage) => {
            found.arrival = arrive(kv, query, None).await;
            let lineage = lineage(kv, query, found.arrival.as_ref())?;
            if lineage.exact {
                lineage.fill(found);
                return Ok(());
            }
            *estimated = Some(lineage);
            Err("estimated")
        }
        Some(PromptSource::Engine) => engine(kv, query, found).await,
        Some(PromptSource::Text) => text(kv, query, found).await,
    }
}

const fn source_word(source: PromptSource) -> &'static str {
    match source {
        PromptSource::Local => "local",
        PromptSource::Lineage => "lineage",
        PromptSource::Engine => "engine",
        PromptSource::Text => "text",
    }
}

/// The make of engine and the adapter that a model's name stands for.
fn served(kv: &Kv, model: Option<&str>) -> (EngineKind, Option<Arc<str>>) {
    let serving = kv.fleet.serving(model, &kv.engines);
    let kind = serving.first().map_or(EngineKind::Vllm, |seen| seen.kind);
    (kind, model.and_then(|model| kv.engines.adapter(model)).map(Arc::from))
}

async fn client(kv: &Arc<Kv>, query: &Query<'_>, found: &mut Found) -> Result<(), Refused> {
    let ids: Arc<[u32]> = query.client_tokens.unwrap_or_default().into();
    let (_, lora) = served(kv, query.model);
    found.seek = Some(Seek { chain: chain(kv, &ids, lora, query.salt.clone()).await?, reach: None });
    (found.source, found.tokens) = (Source::Client, Some(ids));
    Ok(())
}

async fn local(kv: &Arc<Kv>, query: &Query<'_>, found: &mut Found) -> Result<(), Refused> {
    let (kind, lora) = served(kv, query.model);
    let tokens = kv
        .tokenizers
        .tokens(Ask {
            dialect: query.dialect,
            kind,
            model: query.model,
            body: query.body,
            program: query.program,
            lora,
            salt: query.salt.clone(),
            reader: &kv.reader,
        })
        .await?;
    found.source = Source::Local;
    found.seek = Some(Seek { chain: tokens.chain, reach: None });
    (found.tokens, found.tokenizer) = (Some(tokens.ids), Some(tokens.model));
    Ok(())
}

/// What a session's lineage says of its next prompt.
struct Lineage {
    seek: Seek,
    exact: bool,
}

impl Lineage {
    fn fill(self, found: &mut Found) {
        found.source = Source::Lineage;
        found.seek = Some(self.seek);
    }
}

fn lineage(kv: &Kv, query: &Query<'_>, arrival: Option<&Arrival>) -> Result<Lineage, Refused> {
    let program = query.program.ok_or("no_session")?;
    let arrival = arrival.ok_or("no_session")?;
    let expected = arrival.expected;
    // The prompt alone leaves out the answer, which most harnesses send back.
    let sure = match expected.basis {
        Basis::Nothing if arrival.relation == Relation::First => return earlier(kv, program),
        Basis::Nothing => return Err("first_turn"),
        Basis::Estimated | Basis::Prompt => false,
        Basis::PromptAndAnswer | Basis::Tokens => true,
    };
    let source = arrival.alike.as_ref().unwrap_or(program);
    let chain = kv.reader.session_path(source).ok_or("no_path")?;
    // An engine that does not echo sessions leaves the path as it was told last.
    let block = u64::from(chain.block_sizes().max().unwrap_or(0));
    let whole = (chain.tokens() as u64).saturating_add(block) >= expected.tokens;
    let mut reach = Reach { tokens: expected.tokens, low: expected.low, high: expected.high };
    if arrival.remembered {
        reach = after_restart(reach, arrival, chain.tokens() as u64, block);
    }
    // Whatever of the answer comes back: the number of blocks is the same.
    let same_blocks = reach.low.checked_div(block) == reach.high.checked_div(block);
    let sure = sure && (!arrival.remembered || reach.high < u64::MAX);
    Ok(Lineage { seek: Seek { chain, reach: Some(reach) }, exact: (sure || same_blocks) && whole })
}

/// What repeats of a prompt whose session was known before the last restart. What was noted may be older than the last
/// turn: then the session's path, which engines' events tell, is another one than the noted turn left, and where it is
/// longer a prompt that only grew repeats it rather.
fn after_restart(reach: Reach, arrival: &Arrival, path: u64, block: u64) -> Reach {
    let noted = arrival.history.checked_div(block);
    if noted.is_some() && noted == path.checked_div(block) {
        return reach;
    }
    let grew = arrival.relation == Relation::Appends && arrival.divergence.is_none();
    let tokens = if grew && path > arrival.history { path } else { reach.tokens };
    Reach { tokens, high: u64::MAX, ..reach }
}

/// A session's first prompt here, where engines' events name the session already: it is older than this process, and
/// most harnesses send back all that was said.
fn earlier(kv: &Kv, program: &ProgramKey) -> Result<Lineage, Refused> {
    let chain = kv.reader.session_path(program).ok_or("first_turn")?;
    let reach = Reach { tokens: u64::MAX, low: 0, high: u64::MAX };
    Ok(Lineage { seek: Seek { chain, reach: Some(reach) }, exact: false })
}

async fn engine(kv: &Arc<Kv>, query: &Query<'_>, found: &mut Found) -> Result<(), Refused> {
    let now = kv.clock.now();
    if !kv.patience.may_ask(now) {
        return Err("paused");
    }
    let serving = kv.fleet.serving(query.model, &kv.engines);
    let seen = serving.get(kv.turn_of(serving.len())).ok_or("no_engine")?;
    let lora = query.model.and_then(|model| kv.engines.adapter_at(seen.worker, model)).map(Arc::from);
    let asking = async {
        let _slot = kv.lookups.acquire().await.map_err(|_| "shutdown")?;
        let answer = kv.engines.render(seen.worker, query.dialect, query.body.clone()).await;
        answer.map_err(|error| match error {
            tandem_engines::RenderError::Unsupported => "unsupported",
            tandem_engines::RenderError::Refused(_) => "refused",
            tandem_engines::RenderError::Busy => "busy",
            _ => "failed",
        })
    };
    let answer = tokio::time::timeout(kv.settings.engine_timeout, asking).await;
    let ids: Arc<[u32]> = match answer {
        Ok(Ok(ids)) => ids.into(),
        Ok(Err(refused)) => return Err(refused),
        Err(_) => {
            kv.patience.timed_out(kv.clock.now());
            return Err("timeout");
        }
    };
    kv.patience.answered();
    found.seek = Some(Seek { chain: chain(kv, &ids, lora, query.salt.clone()).await?, reach: None });
    (found.source, found.tokens) = (Source::Engine, Some(ids));
    Ok(())
}

async fn text(kv: &Arc<Kv>, query: &Query<'_>, found: &mut Found) -> Result<(), Refused> {
    let (dialect, body) = (query.dialect, query.body.clone());
    let (kind, _) = served(kv, query.model);
    let own = namespace(query.model, query.salt.as_deref());
    let hashes = aside(query.body.len(), move || {
        let mut hashes = text_blocks(dialect, kind, &body, TEXT_BLOCK_BYTES).map_err(|_| "unreadable")?;
        hashes.iter_mut().for_each(|hash| *hash ^= own);
        Ok::<_, Refused>(hashes)
    })
    .await??;
    if hashes.is_empty() {
        return Err("short");
    }
    let chain = kv.reader.chain_of_blocks(TEXT_BLOCK_TOKENS, &hashes);
    found.seek = Some(Seek { chain, reach: None });
    found.source = Source::Text;
    Ok(())
}

/// Keeps equal texts for different models and of different tenants apart.
fn namespace(model: Option<&str>, salt: Option<&str>) -> u64 {
    let mut hash = Sha256::new();
    hash.update(model.unwrap_or_default().as_bytes());
    hash.update([0]);
    hash.update(salt.unwrap_or_default().as_bytes());
    hash.finalize().iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

async fn chain(
    kv: &Arc<Kv>,
    ids: &Arc<[u32]>,
    lora: Option<Arc<str>>,
    salt: Option<Arc<str>>,
) -> Result<PromptChain, Refused> {
    let (reader, ids) = (kv.reader.clone(), Arc::clone(ids));
    aside(ids.len() * 4, move || reader.chain(&ids, lora.as_deref(), salt.as_deref(), None)).await
}

/// Compares a turn with its program's earlier ones.
async fn arrive(kv: &Arc<Kv>, query: &Query<'_>, tokens: Option<&Arc<[u32]>>) -> Option<Arrival> {
    let program = query.program?;
    let (dialect, body) = (query.dialect, query.body.clone());
    let (kind, _) = served(kv, query.model);
    let outline: Outline =
        aside(query.body.len(), move || outline(dialect, kind, &body).ok()).await.ok()??;
    let arriving = Arriving {
        outline: &outline,
        tokens,
        harness: query.harness,
        compacted: query.compacted,
        side: !query.is_turn,
    };
    Some(kv.lineage().arrived(program, &arriving, kv.clock.now()))
}

/// The session whose next turn a request without identity is, or one of its own.
pub(crate) async fn infer(
    kv: &Arc<Kv>,
    tenant: &TenantId,
    dialect: Dialect,
    body: &Bytes,
) -> Option<ProgramKey> {
    let read = body.clone();
    let (kind, _) = served(kv, None);
    let outline: Outline = aside(body.len(), move || outline(dialect, kind, &read).ok()).await.ok()??;
    let inferred = kv.lineage().identify(tenant, &outline, kv.clock.now())?;
    Some(inferred.program)
}

/// Does work on so many bytes: here, or where it holds up no connection.
async fn aside<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refused> {
    if bytes <= SMALL_BYTES {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|_| "failed")
}

#[cfg(test)]
mod tests {
    use tandem_types::{EngineId, MatchSource, SharedPrefix, WorkerId};

    use super::*;

    const fn worker(engine: u32) -> WorkerId {
        WorkerId { engine: EngineId(engine), rank: 0 }
    }

    #[test]
    fn a_lineage_match_ends_where_the_prompt_stops_repeating() {
        let held =
            WorkerPrefix { worker: worker(1), device: 5, host: 7, disk: 9, source: MatchSource::Exact };
        let found = PrefixMatch {
            block_size: 16,
            blocks: 12,
            workers: [held].into_iter().collect(),
            shared: vec![2..4, 6..12],
            loadable: Some(vec![
                SharedPrefix { worker: worker(1), blocks: 3 },
                SharedPrefix { worker: worker(2), blocks: 12 },
            ]),
            ..PrefixMatch::unknown()
        };
        // 6 whole blocks and a bit.
        let clipped = clip(found.clone(), 6 * 16 + 7);
        assert_eq!(clipped.blocks, 6);
        let expected = WorkerPrefix { device: 5, host: 6, disk: 6, ..held };
        assert_eq!(clipped.workers, [expected].into_iter().collect());
        assert_eq!(clipped.shared.as_slice(), std::slice::from_ref(&(2..4)));
        let loadable: Vec<u32> = clipped.loadable.expect("kept").iter().map(|shared| shared.blocks).collect();
        assert_eq!(loadable, [0, 6]);
        assert_eq!(clip(found.clone(), 1 << 40), found);
        assert_eq!(clip(PrefixMatch::unknown(), 5), PrefixMatch::unknown());
    }

    #[test]
    fn equal_texts_of_two_models_or_tenants_are_not_the_same_blocks() {
        let all =
            [(None, None), (Some("a"), None), (Some("a"), Some("s")), (Some("as"), None), (None, Some("a"))];
        let mut seen: Vec<u64> = all.iter().map(|(model, salt)| namespace(*model, *salt)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), all.len());
    }

    #[test]
    fn an_engine_that_never_answers_in_time_is_left_alone_for_a_while() {
        let patience = EnginePatience::default();
        let at = |seconds: u64| Time::from_millis(seconds * 1000);
        patience.timed_out(at(1));
        patience.timed_out(at(2));
        patience.answered();
        patience.timed_out(at(3));
        patience.timed_out(at(4));
        assert!(patience.may_ask(at(4)));
        patience.timed_out(at(5));
        assert!(!patience.may_ask(at(14)) && patience.may_ask(at(15)));
    }
}
