//! `tandem mock-engine`: one modelled engine as a server, for trying things without a GPU.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use tandem_engine_model::{LinkConfig, TierConfig, WritePolicy};
use tandem_mock_engine::{
    AgentScript, Fallback, KvEventsConfig, MockConfig, MockEngine, MockKind, MockModel, MockTiers, Script,
    Speed, StoreUse,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::{Failure, print};

/// Arguments of `tandem mock-engine`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(crate) struct MockEngineArgs {
    /// A file with any of the mock's settings, TOML; flags beat it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Whose wire to speak.
    #[arg(long)]
    kind: Option<Kind>,
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS")]
    host: Option<IpAddr>,
    /// Port to listen on; 0 takes a free one and prints it.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Model names to serve, the base model first.
    #[arg(long = "model", value_name = "NAME", num_args = 1..)]
    models: Vec<String>,
    /// Timing profile; `--list-profiles` shows them.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Print the timing profiles and end.
    #[arg(long)]
    list_profiles: bool,
    /// Modelled time over real time, or `instant`.
    #[arg(long, value_name = "FACTOR", value_parser = parse_speed)]
    speedup: Option<Speed>,
    /// Tokens in a KV block.
    #[arg(long, value_name = "TOKENS")]
    block_size: Option<u32>,
    /// KV pool of each rank, in tokens.
    #[arg(long, value_name = "TOKENS")]
    pool: Option<u64>,
    /// Host memory for blocks that the device has no room for, per rank, in tokens.
    #[arg(long, value_name = "TOKENS")]
    host_pool: Option<u64>,
    /// Disk for blocks that host memory has no room for, per rank, in tokens.
    #[arg(long, value_name = "TOKENS")]
    disk_pool: Option<u64>,
    /// To and from host memory, GB/s each way.
    #[arg(long, value_name = "GB/S")]
    host_bandwidth: Option<f64>,
    /// To and from disk, GB/s each way.
    #[arg(long, value_name = "GB/S")]
    disk_bandwidth: Option<f64>,
    /// To and from the shared store, GB/s each way.
    #[arg(long, value_name = "GB/S", requires = "store")]
    store_bandwidth: Option<f64>,
    /// Copy blocks down when the device evicts them, not when they are full.
    #[arg(long)]
    write_back: bool,
    /// A `tandem mock-store` to put blocks into and to read them back from (kind vllm).
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Name blocks by the real engine's hash.
    #[arg(long)]
    engine_hashes: bool,
    /// Most sequences in a batch.
    #[arg(long, value_name = "N")]
    max_num_seqs: Option<u32>,
    /// Longest prompt plus answer, in tokens.
    #[arg(long, value_name = "TOKENS")]
    max_model_len: Option<u32>,
    /// Data-parallel ranks behind the one URL.
    #[arg(long, value_name = "N")]
    dp_ranks: Option<u32>,
    /// Port of the KV event publisher; the replay socket takes the next one.
    #[arg(long, value_name = "PORT", conflicts_with = "no_kv_events")]
    kv_events_port: Option<u16>,
    /// No KV events.
    #[arg(long)]
    no_kv_events: bool,
    /// Key that clients must present.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Answers by rule, TOML or JSON.
    #[arg(long, value_name = "FILE", conflicts_with = "agent")]
    script: Option<PathBuf>,
    /// Answer like an agent: this many shell calls, then a text. Drives real coding harnesses.
    #[arg(long, value_name = "TURNS", num_args = 0..=1, default_missing_value = "2")]
    agent: Option<u32>,
    /// Write the head of each request here, JSON lines.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Write bodies to the record too.
    #[arg(long, requires = "record")]
    record_bodies: bool,
    /// Obey the request header `x-mock-fault`.
    #[arg(long)]
    fault_header: bool,
    /// Seed of answers and ids.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// vLLM 0.32.
    Vllm,
    /// SGLang 0.5.23.
    Sglang,
}

fn parse_speed(text: &str) -> Result<Speed, String> {
    if text == "instant" {
        return Ok(Speed::Instant);
    }
    match text.parse::<f64>() {
        Ok(factor) if factor > 0.0 && factor.is_finite() => Ok(Speed::Times(factor)),
        _ => Err("expected a positive number or `instant`".to_owned()),
    }
}

/// The mock's settings: defaults, then the file, then flags.
fn settings(args: MockEngineArgs) -> anyhow::Result<MockConfig> {
    let mut config = match &args.config {
        Some(path) => read_file(path)?,
        None => MockConfig { port: 8000, fault_header: false, ..MockConfig::default() },
    };
    match args.kind {
        Some(Kind::Vllm) => config.kind = MockKind::Vllm,
        Some(Kind::Sglang) => config.kind = MockKind::Sglang,
        None => {}
    }
    tiers(&args, &mut config.tiers);
    if !args.models.is_empty() {
        config.models = args.models.iter().map(|name| MockModel::base(name)).collect();
    }
    config.host = args.host.unwrap_or(config.host);
    config.port = args.port.unwrap_or(config.port);
    config.profile = args.profile.clone().unwrap_or(config.profile);
    config.speed = args.speedup.unwrap_or(config.speed);
    config.block_size = args.block_size.unwrap_or(config.block_size);
    config.pool_tokens = args.pool.or(config.pool_tokens);
    config.engine_hashes |= args.engine_hashes;
    config.max_num_seqs = args.max_num_seqs.unwrap_or(config.max_num_seqs);
    config.max_model_len = args.max_model_len.unwrap_or(config.max_model_len);
    config.dp_ranks = args.dp_ranks.unwrap_or(config.dp_ranks);
    config.api_key = args.api_key.or(config.api_key);
    config.fault_header |= args.fault_header;
    config.seed = args.seed.unwrap_or(config.seed);
    config.record.file = args.record.or(config.record.file);
    config.record.bodies |= args.record_bodies;
    if let Some(port) = args.kv_events_port {
        config.kv_events = Some(KvEventsConfig {
            port,
            replay_port: port.saturating_add(1),
            ..config.kv_events.unwrap_or_default()
        });
    }
    if args.no_kv_events {
        config.kv_events = None;
    }
    if let Some(path) = &args.script {
        config.script = read_file(path)?;
    }
    if let Some(tool_turns) = args.agent {
        config.script = Script {
            fallback: Fallback::Agent(AgentScript { tool_turns, ..AgentScript::default() }),
            ..config.script
        };
    }
    Ok(config)
}

/// Cache tiers below the device: pools, bandwidths, the store.
fn tiers(args: &MockEngineArgs, tiers: &mut MockTiers) {
    let model = &mut tiers.model;
    let link = |speed: f64| LinkConfig { read_gb_s: speed, write_gb_s: speed };
    let own = [
        (&mut model.host, args.host_pool, args.host_bandwidth, 32.0),
        (&mut model.disk, args.disk_pool, args.disk_bandwidth, 10.0),
    ];
    for (tier, tokens, speed, default) in own {
        if let Some(tokens) = tokens {
            let link = tier.map_or_else(|| link(default), |tier| tier.link);
            *tier = Some(TierConfig { tokens, link });
        }
        if let (Some(tier), Some(speed)) = (tier, speed) {
            tier.link = link(speed);
        }
    }
    if let Some(speed) = args.store_bandwidth {
        model.shared = Some(link(speed));
    }
    if args.write_back {
        model.policy = WritePolicy::Back;
    }
    if let Some(url) = &args.store {
        let head = tiers.store.take().and_then(|store| store.head);
        tiers.store = Some(StoreUse { url: url.clone(), head });
    }
}

/// Reads a TOML file, or a JSON one when it is named so.
fn read_file<T: serde::de::DeserializeOwned>(path: &PathBuf) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    if path.extension().is_some_and(|e| e == "json") {
        return serde_json::from_str(&text).map_err(|e| anyhow!("{}: {e}", path.display()));
    }
    toml::from_str(&text).map_err(|e| anyhow!("{}: {e}", path.display()))
}

/// Runs the mock engine until a signal ends it.
pub(crate) async fn run(args: MockEngineArgs) -> Result<ExitCode, Failure> {
    if args.list_profiles {
        for name in tandem_engine_model::Profile::names() {
            print::line(name)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let config = settings(args).map_err(Failure::Usage)?;
    let engine = MockEngine::start(config).await.map_err(|e| Failure::Run(e.into()))?;
    print::line(&engine.url())?;
    for endpoints in engine.kv_endpoints() {
        let replay = endpoints.replay.as_deref().unwrap_or("none");
        print::line(&format!("rank {}: kv events {} replay {replay}", endpoints.rank, endpoints.events))?;
    }
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    engine.stop().await;
    Ok(ExitCode::SUCCESS)
}
