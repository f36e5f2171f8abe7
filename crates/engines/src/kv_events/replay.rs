//! One replay: asks a publisher's ROUTER socket for its history and passes the answers on.

use bytes::Bytes;
use std::time::Duration;

use tandem_kvwire::{ReplayAnswer, parse_replay_answer, replay_request};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use zeromq::{DealerSocket, Socket, SocketOptions, SocketRecv, SocketSend, ZmqMessage};

use super::link::disconnected;

/// Answers that may wait for the subscriber before the replay stops reading.
const ANSWERS_MAX: usize = 64;

/// Something that a replay brought.
#[derive(Debug)]
pub(super) enum Answer {
    Batch { seq: u64, payload: Bytes },
    End,
    Failed(String),
}

/// A replay under way. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) attempt: u64,
    answers: mpsc::Receiver<Answer>,
    _task: AbortOnDropHandle<()>,
}

impl Replay {
    /// Asks `endpoint` for all batches from `from` on.
    pub(super) fn start(endpoint: String, attempt: u64, from: u64, connect_timeout: Duration) -> Self {
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        let task = tokio::spawn(async move {
            let last = match ask(&endpoint, from, connect_timeout, &sender).await {
                Ok(()) => Answer::End,
                Err(error) => Answer::Failed(format!("replay from {endpoint}: {error}")),
            };
            // Fails only when nobody wants to know any more.
            let _ = sender.send(last).await;
        });
        Self { attempt, answers, _task: AbortOnDropHandle::new(task) }
    }

    /// The next answer; after the last one, none comes.
    pub(super) async fn next(&mut self) -> Answer {
        match self.answers.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    /// Answers have come that were not looked at yet.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }
}

async fn ask(
    endpoint: &str,
    from: u64,
    connect_timeout: Duration,
    answers: &mpsc::Sender<Answer>,
) -> Result<(), String> {
    let mut options = SocketOptions::default();
    options.connect_timeout(connect_timeout);
    let mut socket = DealerSocket::with_options(options);
    let mut monitor = socket.monitor();
    match tokio::time::timeout(connect_timeout, socket.connect(endpoint)).await {
        Ok(result) => result.map_err(|error| error.to_string())?,
        Err(_) => return Err(format!("no connection within {connect_timeout:?}")),
    }
    let frames: Vec<Bytes> = replay_request(from).into_iter().map(Bytes::from).collect();
    let request = ZmqMessage::try_from(frames).map_err(|_| "empty request".to_owned())?;
    socket.send(request).await.map_err(|error| error.to_string())?;
    loop {
        let message = tokio::select! {
            biased;
            message = socket.recv() => message.map_err(|error| error.to_string())?,
            () = disconnected(&mut monitor) => return Err("connection lost".to_owned()),
        };
        let mut frames = message.into_vec();
        let parts: Vec<&[u8]> = frames.iter().map(AsRef::as_ref).collect();
        let seq = match parse_replay_answer(&parts).map_err(|error| error.to_string())? {
            ReplayAnswer::End => return Ok(()),
            ReplayAnswer::Batch { seq, .. } => seq,
        };
        let Some(payload) = frames.pop() else { return Err("answer without a payload".to_owned()) };
        if answers.send(Answer::Batch { seq, payload }).await.is_err() {
            return Ok(());
        }
    }
}
