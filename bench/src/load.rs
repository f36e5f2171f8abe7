//! The load: so many connections, each sending one streamed chat call after the other for a while.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// One kind of load.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Size of the prompt's text.
    pub prompt_bytes: usize,
    /// Connections, each with one call at a time.
    pub connections: usize,
    /// For how long.
    pub time: Duration,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Time to the first byte of the answer's body, seconds, sorted.
    pub first: Vec<f64>,
    /// Time to its last byte, seconds, sorted.
    pub whole: Vec<f64>,
    /// Calls that failed.
    pub failed: usize,
    /// Calls a second.
    pub per_second: f64,
}

/// A chat body with a prompt of so many bytes, as an agent would resend it: many messages.
pub fn body(prompt_bytes: usize) -> Bytes {
    let turn =
        "The quick brown fox reads the log, finds the failing test, and writes down what it saw there. ";
    let mut messages = vec![serde_json::json!({"role": "system", "content": "You are a coding agent."})];
    let per_message = 2048.min(prompt_bytes.max(1));
    let mut left = prompt_bytes;
    while left > 0 {
        let size = per_message.min(left);
        let text: String = turn.chars().cycle().take(size).collect();
        let role = if messages.len() % 2 == 1 { "user" } else { "assistant" };
        messages.push(serde_json::json!({"role": role, "content": text}));
        left -= size;
    }
    if messages.len() % 2 == 1 {
        messages.push(serde_json::json!({"role": "user", "content": "Go on."}));
    }
    let body = serde_json::json!({"model": "tiny", "messages": messages, "max_tokens": 16, "stream": true});
    Bytes::from(body.to_string())
}

/// Drives the load. The connections are made before the clock starts.
pub async fn drive(target: SocketAddr, shape: Shape) -> Result<Outcome> {
    let body = body(shape.prompt_bytes);
    let mut connecting = JoinSet::new();
    for number in 0..shape.connections {
        connecting.spawn(async move { connect(target).await.map(|sender| (number, sender)) });
    }
    let mut senders = Vec::new();
    while let Some(sender) = connecting.join_next().await {
        senders.push(sender??);
    }
    let start = Instant::now();
    let deadline = start + shape.time;
    let mut clients = JoinSet::new();
    for (number, sender) in senders {
        clients.spawn(client(target, sender, body.clone(), number, deadline));
    }
    let mut outcome = Outcome::default();
    while let Some(one) = clients.join_next().await {
        let one = one?;
        outcome.first.extend(one.first);
        outcome.whole.extend(one.whole);
        outcome.failed += one.failed;
    }
    outcome.per_second = outcome.whole.len() as f64 / start.elapsed().as_secs_f64();
    outcome.first.sort_by(f64::total_cmp);
    outcome.whole.sort_by(f64::total_cmp);
    Ok(outcome)
}

async fn connect(target: SocketAddr) -> Result<http1::SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(target).await.context("connecting")?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn client(
    target: SocketAddr,
    mut sender: http1::SendRequest<Full<Bytes>>,
    body: Bytes,
    number: usize,
    deadline: Instant,
) -> Outcome {
    let mut outcome = Outcome::default();
    while Instant::now() < deadline {
        if sender.is_closed() || sender.ready().await.is_err() {
            match connect(target).await {
                Ok(fresh) => sender = fresh,
                Err(_) => {
                    outcome.failed += 1;
                    break;
                }
            }
        }
        match call(&mut sender, target, body.clone(), number).await {
            Ok((first, whole)) => {
                outcome.first.push(first.as_secs_f64());
                outcome.whole.push(whole.as_secs_f64());
            }
            Err(_) => outcome.failed += 1,
        }
    }
    outcome
}

async fn call(
    sender: &mut http1::SendRequest<Full<Bytes>>,
    target: SocketAddr,
    body: Bytes,
    number: usize,
) -> Result<(Duration, Duration)> {
    let request = Request::post("/v1/chat/completions")
        .header("host", target.to_string())
        .header("content-type", "application/json")
        .header("x-session-id", format!("session-{number}"))
        .body(Full::new(body))?;
    let start = Instant::now();
    let response = sender.send_request(request).await?;
    if !response.status().is_success() {
        bail!("status {}", response.status());
    }
    let mut incoming = response.into_body();
    let mut first = None;
    let mut tail = [0_u8; 14];
    while let Some(frame) = incoming.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        first.get_or_insert_with(|| start.elapsed());
        let keep = data.len().min(tail.len());
        tail.rotate_left(keep);
        let at = tail.len() - keep;
        tail[at..].copy_from_slice(&data[data.len() - keep..]);
    }
    if tail != *b"data: [DONE]\n\n" {
        bail!("the answer was cut");
    }
    Ok((first.unwrap_or_default(), start.elapsed()))
}

/// The value below which `part` (0 to 1) of the sorted values lie.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n => sorted[((n - 1) as f64 * part).round() as usize],
    }
}
