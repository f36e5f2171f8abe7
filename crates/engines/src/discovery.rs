//! Engines found by name: each address of the name is one engine, and the set follows the records.
//!
//! - Invariants:
//!   - I-DNS-1 a failed look-up changes nothing: a broken name server must not take engines away.
//!   - I-DNS-2 an address that is missing from two consecutive good answers drains; if it stays away for
//!     [`EnginesConfig::dns_grace`](crate::EnginesConfig) it is removed; if it comes back in time, its drain is
//!     undone. Name servers that answer with a changing part of a large set thus do no harm.
//!   - I-DNS-3 an engine that an operator removed does not come back while its address stays in the records.
//!   - I-DNS-4 certificates of engines found over `dns+https://` are checked against the name.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::registry::Engines;
use crate::spec::{BaseUrl, EngineAddress, EngineSpec};

/// A look-up under way.
pub type Resolving<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;

/// Resolves names of `dns://` engines.
pub trait Resolve: Send + Sync + 'static {
    /// All addresses of `name`, each with `port`.
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> Resolving<'a>;
}

/// The operating system's resolver.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> Resolving<'a> {
        Box::pin(async move { Ok(tokio::net::lookup_host((name, port)).await?.collect()) })
    }
}

/// An address that is or was in the records.
struct Known {
    engine: Arc<Engine>,
    /// Consecutive good answers without it.
    misses: u32,
    /// When it began to drain for being away.
    away_since: Option<Instant>,
}

const MISSES_BEFORE_DRAIN: u32 = 2;

/// Follows the records of `spec`'s name until stopped.
pub(crate) async fn follow(
    engines: Engines,
    spec: EngineSpec,
    resolver: Arc<dyn Resolve>,
    stop: CancellationToken,
) {
    let EngineAddress::Dns { https, name, port } = spec.address.clone() else { return };
    let config = engines.shared.config.clone();
    let label = spec.address.to_string();
    let mut known: BTreeMap<SocketAddr, Known> = BTreeMap::new();
    loop {
        let looking = tokio::time::timeout(config.probe_timeout, resolver.resolve(&name, port));
        let found = tokio::select! {
            () = stop.cancelled() => return,
            found = looking => found,
        };
        match found {
            Ok(Ok(found)) => {
                let found: BTreeSet<SocketAddr> = found.into_iter().collect();
                update(&engines, &spec, &label, (https, &name), &found, &mut known);
            }
            Ok(Err(error)) => {
                tracing::warn!(name, %error, "name of engines not resolved, keeping those known")
            }
            Err(_) => tracing::warn!(name, "name of engines not resolved in time, keeping those known"),
        }
        let wait = if known.values().all(|k| k.engine.is_removed()) {
            // Nothing to serve with: look again as soon as an engine that starts would be probed again.
            config.health_interval.min(config.dns_interval)
        } else {
            config.dns_interval
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

fn update(
    engines: &Engines,
    spec: &EngineSpec,
    label: &str,
    (https, name): (bool, &str),
    found: &BTreeSet<SocketAddr>,
    known: &mut BTreeMap<SocketAddr, Known>,
) {
    for (address, k) in &mut *known {
        if found.contains(address) {
            k.misses = 0;
            if k.away_since.take().is_some() {
                k.engine.set_drained(false);
            }
            continue;
        }
        k.misses = k.misses.saturating_add(1);
        match k.away_since {
            None if k.misses >= MISSES_BEFORE_DRAIN => {
                tracing::info!(name, %address, "engine left the records, draining");
                k.away_since = Some(Instant::now());
                k.engine.set_drained(true);
            }
            Some(since) if since.elapsed() >= engines.shared.config.dns_grace => {
                tracing::info!(name, %address, "engine stayed away from the records, removing");
                k.engine.remove();
            }
            _ => {}
        }
    }
    known.retain(|address, k| found.contains(address) || !k.engine.is_removed());
    for address in found {
        if known.contains_key(address) {
            continue;
        }
        let authority = address.to_string();
        let base = match BaseUrl::parse(&format!("{}://{authority}", if https { "https" } else { "http" })) {
            Ok(base) => base,
            Err(error) => {
                tracing::warn!(name, %address, %error, "address of an engine is not usable");
                continue;
            }
        };
        if https {
            engines.shared.client.set_server_name(&authority, name);
        }
        match engines.add_engine(spec.clone(), base, Some(label)) {
            Ok(engine) => {
                tracing::info!(name, %address, "engine found");
                known.insert(*address, Known { engine, misses: 0, away_since: None });
            }
            Err(error) => tracing::warn!(name, %address, %error, "engine found but not added"),
        }
    }
}
