//! Where publishers are: `tcp://HOST:PORT` and `ipc://PATH`, as engines are configured with them.
//!
//! Invariants: I-KEP-1 an endpoint that is connected to has a concrete host: wildcards, which publishers bind
//! to, become the engine's host; I-KEP-2 a loopback endpoint told by an engine on another host is refused, or we
//! might listen to some other engine on ours.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Why a text is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an event endpoint: write something like tcp://*:5557 or ipc:///run/kv.sock")]
pub struct EndpointError(pub String);

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZmqEndpoint {
    /// TCP.
    Tcp {
        /// A name or address, without brackets; `None` = any, as publishers bind to.
        host: Option<String>,
        /// Rank 0's port.
        port: u16,
    },
    /// A Unix socket.
    Ipc(String),
}

impl FromStr for ZmqEndpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let wrong = || EndpointError(text.to_owned());
        if let Some(path) = text.strip_prefix("ipc://") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Self::Ipc(path.to_owned())) };
        }
        let rest = text.strip_prefix("tcp://").ok_or_else(wrong)?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Self::tcp(bare, port).ok_or_else(wrong)
    }
}

impl ZmqEndpoint {
    /// `host` without brackets; `None` when it cannot be a host.
    pub(super) fn tcp(host: &str, port: u16) -> Option<Self> {
        if host.is_empty() || host == "*" {
            return Some(Self::Tcp { host: None, port });
        }
        if let Ok(address) = host.parse::<IpAddr>() {
            let host = (!address.is_unspecified()).then(|| host.to_owned());
            return Some(Self::Tcp { host, port });
        }
        let name = host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        name.then(|| Self::Tcp { host: Some(host.to_owned()), port })
    }

    /// The endpoint of a data-parallel rank: engines count ports upwards from rank 0's. `None` beyond the last
    /// port, and for Unix sockets of other ranks, which no engine has.
    #[must_use]
    pub fn of_rank(&self, rank: u32) -> Option<Self> {
        match self {
            Self::Tcp { host, port } => {
                let port = u16::try_from(rank).ok().and_then(|rank| port.checked_add(rank))?;
                Some(Self::Tcp { host: host.clone(), port })
            }
            Self::Ipc(_) => (rank == 0).then(|| self.clone()),
        }
    }

    /// The same with the engine's host in place of a wildcard.
    #[must_use]
    pub fn on_host(self, engine: &str) -> Self {
        match self {
            Self::Tcp { host: None, port } => {
                let bare = engine.trim_start_matches('[').trim_end_matches(']');
                Self::Tcp { host: Some(bare.to_owned()), port }
            }
            other => other,
        }
    }

    /// True if it means the machine of whoever reads it.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Tcp { host, .. } => host.as_deref().is_some_and(is_loopback),
            Self::Ipc(_) => true,
        }
    }
}

pub(super) fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl fmt::Display for ZmqEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host: None, port } => write!(f, "tcp://*:{port}"),
            Self::Tcp { host: Some(host), port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host: Some(host), port } => write!(f, "tcp://{host}:{port}"),
            Self::Ipc(path) => write!(f, "ipc://{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str, rank: u32, host: &str) -> String {
        let endpoint: Result<ZmqEndpoint, _> = text.parse();
        match endpoint.map(|endpoint| endpoint.of_rank(rank)) {
            Ok(Some(endpoint)) => endpoint.on_host(host).to_string(),
            Ok(None) => "none".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    // I-KEP-1.
    #[test]
    fn wildcards_become_the_engines_host_and_ranks_count_ports() {
        for (text, rank, host, expected) in [
            ("tcp://*:5557", 0, "gpu-1", "tcp://gpu-1:5557"),
            ("tcp://*:5557", 3, "10.0.0.1", "tcp://10.0.0.1:5560"),
            ("tcp://0.0.0.0:5557", 0, "gpu-1", "tcp://gpu-1:5557"),
            ("tcp://[::]:5557", 1, "[fd00::1]", "tcp://[fd00::1]:5558"),
            ("tcp://:::5557", 0, "gpu-1", "tcp://gpu-1:5557"),
            ("tcp://gpu-7:5557", 0, "gpu-1", "tcp://gpu-7:5557"),
            ("tcp://*:65535", 1, "gpu-1", "none"),
            ("ipc:///run/kv.sock", 0, "gpu-1", "ipc:///run/kv.sock"),
            ("ipc:///run/kv.sock", 1, "gpu-1", "none"),
        ] {
            assert_eq!(resolved(text, rank, host), expected, "{text} {rank} {host}");
        }
        for text in
            ["", "tcp://", "tcp://*", "tcp://*:0", "tcp://a b:1", "http://a:1", "ipc://", "inproc://x"]
        {
            assert!(resolved(text, 0, "h").contains("write something like"), "{text:?}");
        }
    }

    #[test]
    fn local_endpoints_are_told_from_others() {
        for (text, local) in [
            ("tcp://127.0.0.1:1", true),
            ("tcp://localhost:1", true),
            ("tcp://[::1]:1", true),
            ("ipc:///x", true),
            ("tcp://10.0.0.1:1", false),
            ("tcp://*:1", false),
        ] {
            assert_eq!(text.parse::<ZmqEndpoint>().expect("valid").is_local(), local, "{text}");
        }
    }
}
