//! Comparisons of Tandem's gateway with other gateways.
//!
//! `gateway` starts two canned engines, then puts each gateway in front of them in turn, several rounds
//! over, drives the same load through each, and prints latency added over the direct call, requests per
//! CPU second of the gateway's own processes, and its memory. `engine` and `floor` are the parts that it
//! starts itself: a canned engine, and a bare hyper proxy as the least that a gateway can cost.

use std::net::SocketAddr;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod compare;
mod engine;
mod floor;
mod load;
mod process;
mod report;
mod target;

/// Comparisons of Tandem's gateway with other gateways.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Compare gateways.
    Gateway(compare::Options),
    /// A canned engine: answers at once, always the same.
    Engine {
        /// Where to listen.
        listen: SocketAddr,
    },
    /// A bare proxy.
    Floor {
        /// Where to listen.
        listen: SocketAddr,
        /// Where to pass calls to, in turn.
        upstreams: Vec<SocketAddr>,
    },
}

#[tokio::main]
async fn main() -> Result<()> {
    match Args::parse().what {
        What::Gateway(options) => compare::run(options).await,
        What::Engine { listen } => engine::serve(listen).await,
        What::Floor { listen, upstreams } => floor::serve(listen, upstreams).await,
    }
}
