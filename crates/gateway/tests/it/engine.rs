//! A scripted engine: control routes as vLLM has them, inference routes as the test says, byte by byte.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What a call looked like when it came in.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a json body")
    }
}

/// A call that is to be answered.
pub(crate) struct Call {
    pub(crate) seen: Seen,
    io: TcpStream,
    open: bool,
}

impl Call {
    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        if self.io.write_all(bytes).await.is_err() {
            self.open = false;
        }
    }

    pub(crate) async fn respond(&mut self, status: u16, headers: &str, body: &[u8]) {
        let head = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n", body.len());
        self.raw(&[head.as_bytes(), body].concat()).await;
    }

    /// Whether the gateway still takes what is sent.
    pub(crate) const fn is_open(&self) -> bool {
        self.open
    }

    pub(crate) async fn json(&mut self, status: u16, body: &Value) {
        self.respond(status, "content-type: application/json\r\n", body.to_string().as_bytes()).await;
    }

    pub(crate) async fn stream_head(&mut self) {
        self.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            .await;
    }

    pub(crate) async fn chunk(&mut self, bytes: &[u8]) {
        let framed = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        self.raw(&framed).await;
    }

    pub(crate) async fn end(&mut self) {
        self.raw(b"0\r\n\r\n").await;
    }

    /// A whole stream.
    pub(crate) async fn stream(&mut self, pieces: &[String]) {
        self.stream_head().await;
        for piece in pieces {
            self.chunk(piece.as_bytes()).await;
        }
        self.end().await;
    }

    /// Closes the connection.
    pub(crate) async fn hang_up(&mut self) {
        let _ = self.io.shutdown().await;
        self.open = false;
    }

    /// Waits until the gateway has closed the connection.
    pub(crate) async fn gone(&mut self) {
        let mut byte = [0];
        let _ = self.io.read(&mut byte).await;
        self.open = false;
    }
}

pub(crate) type Answering<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
type Script = Arc<dyn for<'a> Fn(&'a mut Call) -> Answering<'a> + Send + Sync>;

/// A running scripted engine. Stops when dropped.
pub(crate) struct Engine {
    pub(crate) url: String,
    seen: watch::Sender<Vec<Seen>>,
    gone: watch::Sender<usize>,
    script: Arc<Mutex<Script>>,
    pool: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Engine {
    /// An engine that answers every inference call well.
    pub(crate) async fn fine() -> Self {
        Self::start(|call| Box::pin(fine(call))).await
    }

    pub(crate) async fn start(
        script: impl for<'a> Fn(&'a mut Call) -> Answering<'a> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Arc::new(script)));
        let (seen, gone) = (watch::Sender::new(Vec::new()), watch::Sender::new(0));
        let (scripts, sightings, departures) = (Arc::clone(&script), seen.clone(), gone.clone());
        let pool = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&pool);
        let accepting = tokio::spawn(async move {
            while let Ok((io, _)) = listener.accept().await {
                let (script, seen, gone) = (Arc::clone(&scripts), sightings.clone(), departures.clone());
                tokio::spawn(serve(io, script, Arc::clone(&told), seen, gone));
            }
        });
        Self { url, seen, gone, script, pool, accepting }
    }

    /// Makes it tell that it holds so many tokens of KV; it tells nothing of that otherwise.
    pub(crate) fn holds(&self, tokens: u64) {
        self.pool.store(tokens, Ordering::Relaxed);
    }

    pub(crate) fn rescript(
        &self,
        script: impl for<'a> Fn(&'a mut Call) -> Answering<'a> + Send + Sync + 'static,
    ) {
        *self.script.lock().expect("unpoisoned") = Arc::new(script);
    }

    /// Inference calls so far.
    pub(crate) fn calls(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }

    /// Waits for the `count`-th inference call.
    pub(crate) async fn wait_calls(&self, count: usize) -> Vec<Seen> {
        let mut seen = self.seen.subscribe();
        let waiting = seen.wait_for(|calls| calls.len() >= count);
        tokio::time::timeout(Duration::from_secs(20), waiting)
            .await
            .unwrap_or_else(|_| panic!("the engine saw fewer than {count} calls"))
            .expect("the engine runs")
            .clone()
    }

    /// Waits until the gateway has closed `count` connections during scripts that ended in a closed connection.
    pub(crate) async fn wait_gone(&self, count: usize) {
        let mut gone = self.gone.subscribe();
        tokio::time::timeout(Duration::from_secs(20), gone.wait_for(|n| *n >= count))
            .await
            .expect("the gateway hung up")
            .expect("the engine runs");
    }
}

async fn read_call(io: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<(String, Seen)> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
            break at;
        }
        if io.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer[..end].to_vec()).expect("an ascii head");
    let mut lines = head.split("\r\n");
    let mut request_line = lines.next()?.split(' ');
    let (method, path) = (request_line.next()?.to_owned(), request_line.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length: usize =
        headers.iter().find(|(n, _)| n == "content-length").map_or(0, |(_, v)| v.parse().expect("a length"));
    buffer.drain(..end + 4);
    while buffer.len() < length {
        if io.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = buffer.drain(..length).collect();
    Some((method, Seen { path, headers, body }))
}

async fn serve(
    mut io: TcpStream,
    script: Arc<Mutex<Script>>,
    pool: Arc<AtomicU64>,
    calls: watch::Sender<Vec<Seen>>,
    gone: watch::Sender<usize>,
) {
    let _ = io.set_nodelay(true);
    let mut buffer = Vec::new();
    while let Some((method, seen)) = read_call(&mut io, &mut buffer).await {
        let mut call = Call { seen: seen.clone(), io, open: true };
        if method == "POST" && !seen.path.starts_with("/tokenize") {
            calls.send_modify(|calls| calls.push(seen));
            let script = Arc::clone(&script.lock().expect("unpoisoned"));
            script(&mut call).await;
        } else {
            control(&mut call, pool.load(Ordering::Relaxed)).await;
        }
        if !call.open {
            gone.send_modify(|count| *count += 1);
            return;
        }
        io = call.io;
    }
}

async fn control(call: &mut Call, pool: u64) {
    match call.seen.path.as_str() {
        "/health" => call.respond(200, "", b"").await,
        "/version" => call.json(200, &json!({"version": "0.33.0"})).await,
        "/v1/models" => {
            let model = json!({"id": "tiny", "object": "model", "owned_by": "vllm", "max_model_len": 4096});
            call.json(200, &json!({"object": "list", "data": [model]})).await;
        }
        "/metrics" => {
            let mut text =
                "vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"0\"} 0\n"
                    .to_owned();
            if pool > 0 {
                let blocks = pool / 16;
                text += &format!(
                    "vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"{blocks}\",engine=\"0\"}} 1\n\
                     sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:max_total_num_tokens {pool}\n"
                );
            }
            call.respond(200, "content-type: text/plain\r\n", text.as_bytes()).await;
        }
        _ => call.json(404, &json!({"detail": "Not Found"})).await,
    }
}

/// A chat chunk as an engine writes it.
pub(crate) fn chunk(delta: &Value, finish: Option<&str>) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
    let chunk = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny",
        "choices": [choice]});
    format!("data: {chunk}\n\n")
}

pub(crate) fn usage_chunk() -> String {
    let usage = json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 4}});
    let chunk = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny",
        "choices": [], "usage": usage});
    format!("data: {chunk}\n\n")
}

pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// The chat stream of [`fine`], with or without the usage chunk.
pub(crate) fn chat_stream(usage: bool) -> Vec<String> {
    let mut pieces = vec![
        chunk(&json!({"role": "assistant", "content": ""}), None),
        chunk(&json!({"content": "hällo"}), None),
        chunk(&json!({}), Some("stop")),
    ];
    if usage {
        pieces.push(usage_chunk());
    }
    pieces.push(DONE.to_owned());
    pieces
}

pub(crate) fn event(kind: &str, data: &Value) -> String {
    format!("event: {kind}\ndata: {data}\n\n")
}

pub(crate) fn messages_stream() -> Vec<String> {
    let message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "tiny", "content": [],
        "stop_reason": null, "usage": {"input_tokens": 7, "output_tokens": 0}});
    let block = json!({"type": "text", "text": ""});
    let delta = json!({"type": "text_delta", "text": "hello"});
    vec![
        event("message_start", &json!({"type": "message_start", "message": message})),
        event(
            "content_block_start",
            &json!({"type": "content_block_start", "index": 0, "content_block": block}),
        ),
        event("content_block_delta", &json!({"type": "content_block_delta", "index": 0, "delta": delta})),
        event("content_block_stop", &json!({"type": "content_block_stop", "index": 0})),
        event(
            "message_delta",
            &json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}),
        ),
        event("message_stop", &json!({"type": "message_stop"})),
    ]
}

/// Answers as a healthy engine does.
pub(crate) async fn fine(call: &mut Call) {
    let body = call.seen.json();
    let path = call.seen.path.split('?').next().unwrap_or_default().to_owned();
    let stream = body["stream"] == true;
    match (path.as_str(), stream) {
        ("/v1/chat/completions", true) => {
            let usage = body["stream_options"]["include_usage"] == true;
            call.stream(&chat_stream(usage)).await;
        }
        ("/v1/messages", true) => call.stream(&messages_stream()).await,
        ("/v1/messages", false) => {
            let text = json!({"type": "text", "text": "hello"});
            call.json(
                200,
                &json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "tiny",
                    "content": [text], "stop_reason": "end_turn",
                    "usage": {"input_tokens": 7, "output_tokens": 3}}),
            )
            .await;
        }
        ("/v1/messages/count_tokens", _) => call.json(200, &json!({"input_tokens": 4242})).await,
        ("/v1/chat/completions", false) => {
            let message = json!({"role": "assistant", "content": "hello"});
            call.json(
                200,
                &json!({"id": "chatcmpl-1", "object": "chat.completion", "model": "tiny",
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}),
            )
            .await;
        }
        ("/v1/embeddings", _) => call.json(200, &json!({"object": "list", "data": []})).await,
        _ => call.json(404, &json!({"error": {"message": "no such route"}})).await,
    }
}
