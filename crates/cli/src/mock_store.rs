//! `tandem mock-store`: a Mooncake master by its outside, for trying a shared store without one.

use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use tandem_mock_engine::{MockStore, StoreConfig};
use tokio::signal::unix::{SignalKind, signal};

use crate::{Failure, print};

/// Arguments of `tandem mock-store`.
#[derive(Debug, Args)]
pub(crate) struct MockStoreArgs {
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port of the REST interface; 0 takes a free one and prints it.
    #[arg(long, value_name = "PORT", default_value_t = 9003)]
    port: u16,
    /// Port of the event socket; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 5657, conflicts_with = "no_events")]
    events_port: u16,
    /// No events, as from a master that was built without them.
    #[arg(long)]
    no_events: bool,
    /// Bytes that fit.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 30)]
    capacity: u64,
    /// Part of the capacity beyond which objects are evicted (nothing is published of that).
    #[arg(long, value_name = "PART", default_value_t = 0.95)]
    eviction_watermark: f64,
    /// Part of the objects that then goes.
    #[arg(long, value_name = "PART", default_value_t = 0.05)]
    eviction_ratio: f64,
    /// The backend's name in events.
    #[arg(long, value_name = "NAME", default_value = "mc-0")]
    backend: String,
}

/// Runs the mock store until a signal ends it.
pub(crate) async fn run(args: MockStoreArgs) -> Result<ExitCode, Failure> {
    let config = StoreConfig {
        host: args.host,
        port: args.port,
        events_port: (!args.no_events).then_some(args.events_port),
        capacity: args.capacity,
        eviction_watermark: args.eviction_watermark,
        eviction_ratio: args.eviction_ratio,
        backend: args.backend,
        ..StoreConfig::default()
    };
    let store = MockStore::start(config).await.map_err(|e| Failure::Run(e.into()))?;
    print::line(&store.url())?;
    print::line(&format!("events {}", store.events_endpoint().unwrap_or("none")))?;
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(ExitCode::SUCCESS)
}
