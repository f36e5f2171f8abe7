//! A raw HTTP/1.1 client: one connection, bytes as the test says.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// No step of a test waits longer.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The body ended as its framing says.
    pub(crate) complete: bool,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("utf-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.text()))
    }

    pub(crate) fn retry_after(&self) -> u64 {
        self.header("retry-after").expect("a retry-after").parse().expect("whole seconds")
    }
}

pub(crate) struct Client {
    io: TcpStream,
    buffer: Vec<u8>,
}

/// A POST with these headers (each line ended) and this body.
pub(crate) fn post(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: t\r\n\r\n").into_bytes()
}

/// Sends one request on a connection of its own and reads the answer.
pub(crate) async fn call(addr: SocketAddr, request: &[u8]) -> Answer {
    let mut client = Client::connect(addr).await;
    client.send(request).await;
    client.answer().await
}

/// Turns of each session of [`sessions`].
pub(crate) const TURNS: usize = 4;

/// Sessions all at once, each with its turns one after the other; the last one says that it is. `headers` = those of a
/// session, `said` = what a turn adds to its prompt.
pub(crate) async fn sessions(
    addr: SocketAddr,
    count: usize,
    headers: fn(usize) -> String,
    said: fn(usize, usize) -> String,
) {
    let sessions = (0..count).map(|session| {
        tokio::spawn(async move {
            let mut prompt = String::new();
            for turn in 0..TURNS {
                prompt.push_str(&said(session, turn));
                let last = if turn + 1 == TURNS { "x-tandem-session-final: true\r\n" } else { "" };
                let headers = format!("{}{last}", headers(session));
                let body = json!({"model": "tiny", "stream": (session + turn) % 2 == 0, "max_tokens": 8,
                    "messages": [{"role": "user", "content": prompt}]});
                let answer =
                    call(addr, &post("/v1/chat/completions", &headers, body.to_string().as_bytes())).await;
                assert_eq!((answer.status, answer.complete), (200, true), "{}", answer.text());
            }
        })
    });
    for session in sessions.collect::<Vec<_>>() {
        session.await.expect("gets through");
    }
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        let io = TcpStream::connect(addr).await.expect("connects");
        io.set_nodelay(true).expect("nodelay");
        Self { io, buffer: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        tokio::time::timeout(PATIENCE, self.io.write_all(bytes)).await.expect("in time").expect("sent");
    }

    /// Sends what the other end still takes.
    pub(crate) async fn send_some(&mut self, bytes: &[u8]) {
        let _ = tokio::time::timeout(PATIENCE, self.io.write_all(bytes)).await;
    }

    /// More bytes; false at the end.
    async fn fill(&mut self) -> bool {
        let read = tokio::time::timeout(PATIENCE, self.io.read_buf(&mut self.buffer)).await;
        matches!(read.expect("an answer in time"), Ok(count) if count > 0)
    }

    /// Waits until the other end closes, and returns what it said before.
    pub(crate) async fn closed(mut self) -> Vec<u8> {
        while self.fill().await {}
        self.buffer
    }

    /// Reads until `text` came.
    pub(crate) async fn until(&mut self, text: &str) {
        while !self.buffer.windows(text.len()).any(|w| w == text.as_bytes()) {
            assert!(self.fill().await, "closed before {text:?} came");
        }
    }

    pub(crate) async fn answer(&mut self) -> Answer {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at;
            }
            assert!(self.fill().await, "closed without an answer");
        };
        let head = String::from_utf8(self.buffer.drain(..end + 4).collect()).expect("an ascii head");
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().expect("a status line");
        let status = status_line.split(' ').nth(1).expect("a status").parse().expect("a number");
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        if status == 100 {
            return Box::pin(self.answer()).await;
        }
        let mut answer = Answer { status, headers, body: Vec::new(), complete: true };
        let chunked = answer.header("transfer-encoding") == Some("chunked");
        let length = answer.header("content-length").map(|text| text.parse::<usize>().expect("a length"));
        if chunked {
            while let Some(size) = self.chunk_size().await {
                if !self.take(size, &mut answer.body).await {
                    answer.complete = false;
                    break;
                }
                let mut end = Vec::new();
                self.take(2, &mut end).await;
                if size == 0 {
                    return answer;
                }
            }
            answer.complete = false;
        } else {
            answer.complete = self.take(length.unwrap_or(0), &mut answer.body).await;
        }
        answer
    }

    async fn chunk_size(&mut self) -> Option<usize> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..at + 2).collect();
                let text = String::from_utf8(line).expect("ascii");
                return Some(usize::from_str_radix(text.trim(), 16).expect("a chunk size"));
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    async fn take(&mut self, count: usize, into: &mut Vec<u8>) -> bool {
        while self.buffer.len() < count {
            if !self.fill().await {
                into.append(&mut self.buffer);
                return false;
            }
        }
        into.extend(self.buffer.drain(..count));
        true
    }
}
