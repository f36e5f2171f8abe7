//! Tool events from harnesses: HTTP bodies from the admin API, ZeroMQ messages to a PULL socket.
//!
//! Bad events are counted and skipped. With tracing off events are taken and dropped, so that a harness that
//! reports its tools works the same either way.

use std::sync::Arc;

use serde::Serialize;
use tandem_trace::config::ToolZmq;
use tandem_trace::tool::{ToolError, decode_http, decode_zmq};
use zeromq::{PullSocket, Socket as _, SocketRecv as _};

use crate::app::App;
use crate::metrics::Family;
use crate::start::StartError;

/// What became of the events of one body.
pub(crate) struct Taken {
    pub(crate) accepted: usize,
    pub(crate) refused: Vec<Refused>,
}

/// An event that was not taken.
#[derive(Serialize)]
pub(crate) struct Refused {
    /// Its place in the body, from 0.
    index: usize,
    reason: String,
}

/// Takes the events of an HTTP body.
pub(crate) fn take_http(app: &App, body: &[u8]) -> Result<Taken, ToolError> {
    let events = match decode_http(body) {
        Ok(events) => events,
        Err(error) => {
            app.metrics.inc(Family::ToolEvents, &[("outcome", "invalid")]);
            return Err(error);
        }
    };
    let (accepted, invalid) = (events.accepted.len(), events.refused.len());
    app.metrics.count(Family::ToolEvents, &[("outcome", "invalid")], invalid as u64);
    let kept = app.trace.tools(events.accepted);
    count(app, kept, accepted);
    let refused = events
        .refused
        .into_iter()
        .map(|(index, error)| Refused { index, reason: error.to_string() })
        .collect();
    Ok(Taken { accepted, refused })
}

fn count(app: &App, kept: bool, events: usize) {
    let outcome = if kept { "accepted" } else { "dropped" };
    app.metrics.count(Family::ToolEvents, &[("outcome", outcome)], events as u64);
}

/// A bound socket.
pub(crate) struct Ingress {
    socket: PullSocket,
    topic: String,
}

/// Binds the PULL socket.
pub(crate) async fn bind(config: &ToolZmq) -> Result<Ingress, StartError> {
    let mut socket = PullSocket::new();
    socket.bind(&config.endpoint).await.map_err(|error| StartError::ToolEvents {
        endpoint: config.endpoint.clone(),
        reason: error.to_string(),
    })?;
    Ok(Ingress { socket, topic: config.topic.clone() })
}

impl Ingress {
    /// Takes events until dropped.
    pub(crate) async fn run(mut self, app: Arc<App>) {
        loop {
            let message = match self.socket.recv().await {
                Ok(message) => message,
                Err(error) => {
                    // A broken producer costs itself only; the socket goes on with the others.
                    tracing::debug!(%error, "tool event not received");
                    app.metrics.inc(Family::ToolEvents, &[("outcome", "invalid")]);
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                    continue;
                }
            };
            let frames = message.into_vec();
            match decode_zmq(&frames, Some(&self.topic)) {
                Ok(event) => {
                    let kept = app.trace.tools(vec![event.record]);
                    count(&app, kept, 1);
                }
                Err(error) => {
                    tracing::debug!(%error, "tool event not taken");
                    app.metrics.inc(Family::ToolEvents, &[("outcome", "invalid")]);
                }
            }
        }
    }
}
