//! A subscription that is kept up: connects, reads, notices loss, and builds itself anew.
//!
//! The ZeroMQ library reconnects by itself, but silently, with a growing wait of up to 30 s and without any sign
//! of what was missed. So its reconnecting is cut short: at the first sign of loss the socket is dropped.
//!
//! Invariants: I-LNK-1 [`Link::next`] may be dropped at any time without losing a message; I-LNK-3 an attempt to
//! connect ends in bounded time.
//! Decided: the socket is asked before its monitor, so that messages that arrived before a loss come before it.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::{Instant, sleep_until};
use zeromq::{Socket, SocketEvent, SocketOptions, SocketRecv, SubSocket};

use super::KvEventsConfig;

/// What happened to a subscription.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// The connection stands; for the first time, or again, or a new one in place of a silent one.
    Connected,
    /// The frames of a message.
    Message(Vec<Bytes>),
    /// The connection that stood is lost.
    Lost(String),
    /// An attempt to connect failed.
    Failed(String),
}

type Monitor = Pin<Box<dyn futures_util::Stream<Item = SocketEvent> + Send + Sync>>;

struct Connected {
    socket: SubSocket,
    monitor: Monitor,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Connected, String>> + Send>>;

/// Waits of a [`Link`].
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkTimes {
    connect: Duration,
    backoff_initial: Duration,
    backoff_max: Duration,
    idle: Duration,
}

impl From<&KvEventsConfig> for LinkTimes {
    fn from(config: &KvEventsConfig) -> Self {
        Self {
            connect: config.connect_timeout,
            backoff_initial: config.backoff_initial,
            backoff_max: config.backoff_max,
            idle: config.idle_timeout,
        }
    }
}

/// A subscription to everything that one endpoint publishes.
pub(super) struct Link {
    endpoint: String,
    times: LinkTimes,
    connected: Option<Connected>,
    connecting: Option<Connecting>,
    /// Wait before the next attempt after a loss.
    backoff: Duration,
    retry_at: Instant,
    /// When the silence began.
    quiet_since: Instant,
}

impl Link {
    pub(super) fn new(endpoint: String, times: LinkTimes) -> Self {
        let now = Instant::now();
        Self {
            endpoint,
            times,
            connected: None,
            connecting: None,
            backoff: times.backoff_initial,
            retry_at: now,
            quiet_since: now,
        }
    }

    pub(super) const fn is_connected(&self) -> bool {
        self.connected.is_some()
    }

    /// The next thing that happens.
    pub(super) async fn next(&mut self) -> LinkEvent {
        loop {
            let due = match (&self.connecting, &self.connected) {
                (Some(_), _) => None,
                (None, Some(_)) => Some(self.quiet_since + self.times.idle),
                (None, None) => Some(self.retry_at),
            };
            tokio::select! {
                biased;
                message = receive(&mut self.connected) => return match message {
                    Ok(frames) => {
                        self.quiet_since = Instant::now();
                        self.backoff = self.times.backoff_initial;
                        LinkEvent::Message(frames)
                    }
                    Err(error) => self.lost(error),
                },
                result = finish(&mut self.connecting) => {
                    self.connecting = None;
                    return match result {
                        Ok(connected) => {
                            self.quiet_since = Instant::now();
                            self.connected = Some(connected);
                            LinkEvent::Connected
                        }
                        Err(error) if self.connected.is_some() => self.lost(error),
                        Err(error) => {
                            self.wait();
                            LinkEvent::Failed(error)
                        }
                    };
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.connecting = Some(Box::pin(connect(self.endpoint.clone(), self.times.connect)));
                }
            }
        }
    }

    fn lost(&mut self, error: String) -> LinkEvent {
        self.connected = None;
        self.connecting = None;
        self.wait();
        LinkEvent::Lost(error)
    }

    fn wait(&mut self) {
        self.retry_at = Instant::now() + self.backoff;
        self.backoff = self.backoff.saturating_mul(2).min(self.times.backoff_max);
    }
}

async fn finish(connecting: &mut Option<Connecting>) -> Result<Connected, String> {
    match connecting {
        Some(connecting) => connecting.await,
        None => std::future::pending().await,
    }
}

async fn receive(connected: &mut Option<Connected>) -> Result<Vec<Bytes>, String> {
    let Some(connected) = connected else { return std::future::pending().await };
    tokio::select! {
        biased;
        message = connected.socket.recv() => match message {
            Ok(message) => Ok(message.into_vec()),
            Err(error) => Err(error.to_string()),
        },
        () = disconnected(&mut connected.monitor) => Err("connection lost".to_owned()),
    }
}

/// Waits until the socket says that its peer is gone.
pub(super) async fn disconnected(monitor: &mut (impl futures_util::Stream<Item = SocketEvent> + Unpin)) {
    loop {
        match monitor.next().await {
            Some(SocketEvent::Disconnected(_)) | None => return,
            Some(_) => {}
        }
    }
}

async fn connect(endpoint: String, within: Duration) -> Result<Connected, String> {
    let mut options = SocketOptions::default();
    options.connect_timeout(within);
    let mut socket = SubSocket::with_options(options);
    let monitor = Box::pin(socket.monitor());
    let whole = async {
        socket.subscribe("").await?;
        socket.connect(&endpoint).await
    };
    match tokio::time::timeout(within, whole).await {
        Ok(Ok(())) => Ok(Connected { socket, monitor }),
        Ok(Err(error)) => Err(format!("{endpoint}: {error}")),
        Err(_) => Err(format!("{endpoint}: no connection within {within:?}")),
    }
}

#[cfg(test)]
mod tests {
    use zeromq::{PubSocket, SocketSend, ZmqMessage};

    use super::*;

    const TIMES: LinkTimes = LinkTimes {
        connect: Duration::from_millis(200),
        backoff_initial: Duration::from_millis(10),
        backoff_max: Duration::from_millis(10),
        idle: Duration::from_secs(60),
    };

    async fn number(link: &mut Link, within: Duration) -> Option<u64> {
        match tokio::time::timeout(within, link.next()).await {
            Ok(LinkEvent::Message(frames)) => String::from_utf8_lossy(&frames[0]).parse().ok(),
            _ => None,
        }
    }

    /// I-LNK-1.
    #[tokio::test]
    async fn waits_that_are_dropped_lose_nothing() {
        let mut publisher = PubSocket::new();
        let at = publisher.bind("tcp://127.0.0.1:0").await.expect("bound").to_string();
        let mut link = Link::new(at, TIMES);
        let mut heard = Vec::new();
        let mut sent = 0;
        // The subscription takes effect some time after connecting.
        while heard.len() < 300 {
            publisher.send(ZmqMessage::from(sent.to_string())).await.expect("sent");
            sent += 1;
            assert!(sent < 100_000, "{} heard", heard.len());
            heard.extend(number(&mut link, Duration::from_millis(sent % 3)).await);
        }
        while heard.last() != Some(&(sent - 1)) {
            heard.push(number(&mut link, Duration::from_secs(10)).await.expect("a message"));
        }
        assert!(heard.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{heard:?}");
    }

    /// I-LNK-3.
    #[tokio::test]
    async fn a_peer_that_says_nothing_ends_the_attempt() {
        let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let at = format!("tcp://{}", mute.local_addr().expect("an address"));
        let mut link = Link::new(at, TIMES);
        let event = tokio::time::timeout(Duration::from_secs(10), link.next()).await.expect("in time");
        assert!(matches!(event, LinkEvent::Failed(_)), "{event:?}");
    }
}
