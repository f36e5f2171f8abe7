//! Where KV lies, for people: `GET /kv`, `POST /kv/match`, `POST /kv/store/contains`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use tandem_dialect::parse_request;
use tandem_engines::{KvStatus, StoreStatus};
use tandem_kvplane::{Knowledge, PlaneStats};
use tandem_types::{Dialect, Harness, PrefixMatch, TenantId, WorkerId};

use super::Kv;
use super::blocks::{self, Query};
use crate::app::App;
use crate::turn::prepare;

/// What is known of the fleet's caches.
#[derive(Serialize)]
pub(crate) struct Picture {
    version: u64,
    /// How far the task that takes events in is behind.
    pace: &'static str,
    workers: Vec<WorkerPicture>,
    sessions: usize,
    predicted_blocks: usize,
    believed_blocks: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<StorePicture>,
}

#[derive(Serialize)]
struct WorkerPicture {
    worker: WorkerId,
    knowledge: &'static str,
    /// Tokens in a block; 0 = not known.
    block_size: u32,
    /// Blocks that it holds, in whatever tier.
    blocks: usize,
    /// It holds blocks of which its events never told.
    hollow: bool,
    /// Blocks that became resident, that left, and that could not be taken in.
    stored: u64,
    removed: u64,
    unknown: u64,
    refused: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<KvStatus>,
}

#[derive(Serialize)]
struct StorePicture {
    objects: u64,
    pages: usize,
    doubted: bool,
    odd_keys: u64,
    stream: StoreStatus,
}

/// What is known now; `None` = it is over.
pub(crate) async fn picture(kv: &Kv) -> Option<Picture> {
    let stats: PlaneStats = kv.stats().await?;
    let streams = kv.events.as_ref().map(tandem_engines::KvEvents::status).unwrap_or_default();
    let mut streams: BTreeMap<WorkerId, KvStatus> =
        streams.into_iter().map(|status| (status.worker, status)).collect();
    let workers = stats.workers.iter().map(|worker| WorkerPicture {
        worker: worker.worker,
        knowledge: Knowledge::as_str(worker.knowledge),
        block_size: worker.block_size,
        blocks: worker.blocks,
        hollow: worker.hollow,
        stored: worker.events.stored,
        removed: worker.events.removed,
        unknown: worker.events.unknown,
        refused: worker.events.refused,
        stream: streams.remove(&worker.worker),
    });
    let workers = workers.collect();
    let store = kv.store.as_ref().map(|store| StorePicture {
        objects: stats.store.objects,
        pages: stats.store.pages,
        doubted: stats.store.doubted,
        odd_keys: stats.store.odd_keys,
        stream: store.status(),
    });
    Some(Picture {
        version: stats.version,
        pace: stats.pace.as_str(),
        workers,
        sessions: stats.sessions.sessions,
        predicted_blocks: stats.predicted,
        believed_blocks: stats.believed,
        store,
    })
}

/// What is known of a request's prompt.
#[derive(Serialize)]
pub(crate) struct Match {
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens: Option<u64>,
    #[serde(rename = "match")]
    found: PrefixMatch,
}

/// Looks a request up as if it had arrived, without sending it anywhere.
pub(crate) async fn look_up(
    app: &App,
    kv: &Arc<Kv>,
    dialect: Dialect,
    tenant: &TenantId,
    body: bytes::Bytes,
) -> Result<Match, String> {
    let parsed = parse_request(dialect, &body).map_err(|error| error.to_string())?;
    let edited = prepare::edit(app, dialect, tenant, Harness::Unknown, &parsed, None, body);
    let query = Query {
        dialect,
        model: parsed.facts.model.as_deref(),
        body: &edited.body,
        client_tokens: parsed.facts.prompt_tokens.as_deref(),
        program: None,
        is_turn: false,
        harness: Harness::Unknown,
        compacted: false,
        salt: edited.salt.as_deref().map(Arc::from),
    };
    let found = blocks::find(kv, &query).await;
    Ok(Match { source: found.source.word(), prompt_tokens: found.exact_tokens(), found: found.prefix })
}
