//! Prompts and answers on different engines: vLLM's hand-over of KV and SGLang's rendezvous.
//!
//! - vLLM: a call with `do_remote_decode` has its prompt kept under an id, and its answer tells id and address; a call with
//!   `do_remote_prefill` fetches it there and counts it as cached. What is kept is fetched once, within the lease. What
//!   cannot be fetched is computed anew or makes the call fail, as configured.
//! - SGLang: both calls name a room at the prefill engine. The call there gives one token once the other has come; the
//!   other waits for it. Who waits for nobody longer than the patience fails. A call without a room is refused.
//! - The engines reach each other at their HTTP ports (`/mock/kv/ID`, `/mock/room/N`), which stand for NIXL's side channel
//!   and SGLang's bootstrap server: a vLLM mock tells its own, an SGLang mock's bootstrap port is its HTTP port.
//! - Invariant: I-MPD-1 nothing waits longer than the patience.
//! - What is kept is bounded and goes with its lease.
//! - Deliberately absent: the time that a fetched prompt saves (the model computes it all the same).
//! - Sources: vLLM 0.32 and 0.33 (NIXL connector), SGLang 0.5.23 (disaggregation).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::body::Body;
use crate::config::MockKind;
use crate::driver::lock;
use crate::error::ApiError;
use crate::generate::Generation;
use crate::http::{Call, State, plain};

/// Most prompts kept, and most rooms open, at once.
const KEPT_MAX: usize = 10_000;

/// Longest answer of another mock, in bytes.
const ANSWER_MAX: u64 = 4096;

/// The engine's part in split turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MockSplit {
    /// SGLang's `--disaggregation-mode`; vLLM engines do either.
    pub role: MockRole,
    /// How long a vLLM engine keeps a prompt for another, in milliseconds.
    pub lease_ms: u64,
    /// How long the two of an SGLang pair wait for each other, and any for an answer, in milliseconds.
    pub patience_ms: u64,
    /// vLLM's `kv_load_failure_policy`: whether a call fails whose KV cannot be fetched.
    pub fail_if_lost: bool,
}

/// The part that an SGLang engine takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MockRole {
    /// Prompts.
    #[default]
    Prefill,
    /// Answers.
    Decode,
}

impl Default for MockSplit {
    fn default() -> Self {
        Self { role: MockRole::Prefill, lease_ms: 30_000, patience_ms: 30_000, fail_if_lost: false }
    }
}

/// How far the two are that meet in a room.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    /// The worker for answers has come.
    met: bool,
    /// Prompt tokens that are computed.
    ready: Option<u32>,
}

/// What others may fetch here.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    /// Prompt tokens by id, until when.
    kept: Mutex<BTreeMap<String, (u32, Instant)>>,
    rooms: Mutex<BTreeMap<u64, Arc<watch::Sender<Room>>>>,
}

impl Desk {
    fn keep(&self, id: String, tokens: u32, lease: Duration) {
        let mut kept = lock(&self.kept);
        let now = Instant::now();
        kept.retain(|_, (_, until)| *until > now);
        if kept.len() < KEPT_MAX {
            kept.insert(id, (tokens, now + lease));
        }
    }

    fn fetch(&self, id: &str) -> Option<u32> {
        let (tokens, until) = lock(&self.kept).remove(id)?;
        (until > Instant::now()).then_some(tokens)
    }

    /// The room of that number, open from now on.
    fn room(&self, number: u64) -> Option<Arc<watch::Sender<Room>>> {
        let mut rooms = lock(&self.rooms);
        if rooms.len() >= KEPT_MAX && !rooms.contains_key(&number) {
            return None;
        }
        Some(Arc::clone(rooms.entry(number).or_default()))
    }

    fn close(&self, number: u64) {
        lock(&self.rooms).remove(&number);
    }
}

/// A call's part in a split turn.
#[derive(Debug)]
pub(crate) enum Part {
    /// None.
    Whole,
    /// vLLM: its prompt is kept.
    Keep,
    /// So many tokens of its prompt came from elsewhere.
    Fetched(u32),
    /// SGLang: its prompt is for whoever comes to this room.
    Host(u64),
}

/// Finds out what part a call has, and fetches what it is to fetch.
pub(crate) async fn part(
    state: &State,
    call: &Call,
    body: Option<&Map<String, Value>>,
) -> Result<Part, ApiError> {
    let Some(split) = &state.config.split else { return Ok(Part::Whole) };
    match state.config.kind {
        MockKind::Vllm => vllm(split, body).await,
        MockKind::Sglang => sglang(split, call, body).await,
    }
}

async fn vllm(split: &MockSplit, body: Option<&Map<String, Value>>) -> Result<Part, ApiError> {
    let Some(params) = body.and_then(|body| body.get("kv_transfer_params")).and_then(Value::as_object) else {
        return Ok(Part::Whole);
    };
    let on = |name: &str| params.get(name).and_then(Value::as_bool) == Some(true);
    if on("do_remote_decode") {
        return Ok(Part::Keep);
    }
    if !on("do_remote_prefill") {
        return Ok(Part::Whole);
    }
    let text = |name: &str| params.get(name).and_then(Value::as_str);
    let port = params.get("remote_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
    let found = match (text("remote_host"), port, text("remote_request_id")) {
        (Some(host), Some(port), Some(id)) => get(split, host, port, &format!("/mock/kv/{id}")).await,
        _ => None,
    };
    match found {
        Some(tokens) => Ok(Part::Fetched(tokens)),
        None if split.fail_if_lost => {
            Err(ApiError::new(500, "InternalServerError", "KV load failed for the request"))
        }
        None => Ok(Part::Whole),
    }
}

async fn sglang(split: &MockSplit, call: &Call, body: Option<&Map<String, Value>>) -> Result<Part, ApiError> {
    let field = |name: &str, header: &str| {
        let header = call.headers.get(header).and_then(|value| value.to_str().ok());
        match (header, body.and_then(|body| body.get(name))) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Some(Value::String(text))) => Some(text.clone()),
            (None, Some(Value::Number(number))) => Some(number.to_string()),
            (None, _) => None,
        }
    };
    let room = field("bootstrap_room", "x-override-bootstrap-room").and_then(|room| room.parse().ok());
    let Some(room) = room else {
        let message = "Disaggregated request received without bootstrap room id.";
        return Err(ApiError::bad_request(message));
    };
    if split.role == MockRole::Prefill {
        return Ok(Part::Host(room));
    }
    let host = field("bootstrap_host", "x-override-bootstrap-host");
    let port = field("bootstrap_port", "x-override-bootstrap-port").and_then(|port| port.parse().ok());
    let found = match (host, port) {
        (Some(host), Some(port)) => get(split, &host, port, &format!("/mock/room/{room}")).await,
        _ => None,
    };
    let lost = || ApiError::new(500, "InternalServerError", "Decode handshake failed for the request");
    found.map(Part::Fetched).ok_or_else(lost)
}

impl Part {
    /// SGLang's prefill engines stop at the first token, whatever is asked for.
    pub(crate) const fn one_token(&self) -> bool {
        matches!(self, Self::Host(_))
    }

    /// Prompt tokens that count as cached.
    pub(crate) const fn fetched(&self) -> u32 {
        match self {
            Self::Fetched(tokens) => *tokens,
            Self::Whole | Self::Keep | Self::Host(_) => 0,
        }
    }

    /// The prompt is computed: hands it over. What the answer tells of it.
    pub(crate) async fn hand_over(&self, state: &State, g: &Generation) -> Result<Option<Value>, ApiError> {
        let Some(split) = &state.config.split else { return Ok(None) };
        if matches!(self, Self::Keep | Self::Host(_)) {
            g.group.finished().await;
        }
        let tokens: usize = g.asked.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        match self {
            Self::Whole | Self::Fetched(_) => Ok(None),
            Self::Keep => {
                state.desk.keep(g.id.clone(), tokens, Duration::from_millis(split.lease_ms));
                Ok(Some(json!({
                    "do_remote_prefill": true,
                    "do_remote_decode": false,
                    "remote_block_ids": [[0]],
                    "remote_engine_id": state.fresh_id(32),
                    "remote_request_id": g.id,
                    "remote_host": state.addr.ip().to_string(),
                    "remote_port": state.addr.port(),
                    "tp_size": 1,
                    "remote_num_tokens": tokens,
                })))
            }
            Self::Host(number) => {
                let met = host(state, *number, tokens, split).await;
                state.desk.close(*number);
                if met {
                    return Ok(None);
                }
                let message =
                    "Prefill bootstrap failed for the request: the decode side did not come in time";
                Err(ApiError::new(500, "InternalServerError", message))
            }
        }
    }
}

/// Opens the room with the prompt in it and waits for the other to come.
async fn host(state: &State, number: u64, tokens: u32, split: &MockSplit) -> bool {
    let Some(room) = state.desk.room(number) else { return false };
    room.send_modify(|room| room.ready = Some(tokens));
    let mut seen = room.subscribe();
    let met = tokio::time::timeout(Duration::from_millis(split.patience_ms), seen.wait_for(|room| room.met));
    matches!(met.await, Ok(Ok(_)))
}

/// Answers another mock.
pub(crate) async fn answer(state: &State, call: &Call) -> Option<Response<Body>> {
    let split = state.config.split.as_ref()?;
    let found = if let Some(id) = call.path.strip_prefix("/mock/kv/") {
        state.desk.fetch(id)
    } else {
        visit(state, call.path.strip_prefix("/mock/room/")?.parse().ok()?, split).await
    };
    Some(found.map_or_else(|| plain(404, "gone"), |tokens| plain(200, &tokens.to_string())))
}

/// Comes to a room and waits for its prompt.
async fn visit(state: &State, number: u64, split: &MockSplit) -> Option<u32> {
    let room = state.desk.room(number)?;
    room.send_modify(|room| room.met = true);
    let mut seen = room.subscribe();
    let ready = tokio::time::timeout(
        Duration::from_millis(split.patience_ms),
        seen.wait_for(|room| room.ready.is_some()),
    );
    let tokens = ready.await.ok()?.ok()?.ready;
    if tokens.is_none() {
        state.desk.close(number);
    }
    tokens
}

/// Asks another mock for a number.
async fn get(split: &MockSplit, host: &str, port: u16, path: &str) -> Option<u32> {
    let asking = async {
        let mut io = TcpStream::connect((host, port)).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: mock\r\nconnection: close\r\n\r\n");
        io.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        io.take(ANSWER_MAX).read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.1 200").then_some(())?;
        body.trim().parse().ok()
    };
    tokio::time::timeout(Duration::from_millis(split.patience_ms), asking).await.ok().flatten()
}
