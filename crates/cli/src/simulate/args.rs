//! What `tandem simulate` is asked.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tandem_engine_model::{SchedulingPolicy, TimingModel};
use tandem_workload::Format;
use tandem_workload::synth::Kind;

/// Arguments of `tandem simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// Trace files, plain or gzip; several of one format are one workload.
    #[arg(value_name = "TRACE", required_unless_present = "synth")]
    pub(super) traces: Vec<PathBuf>,
    /// Format of the files; else it is told by their first rows.
    #[arg(long, value_name = "NAME")]
    pub(super) format: Option<Format>,
    /// Sessions made up instead of read: `rl-swe`, `mini-swe`, `openhands`, `claude-code`, `chat`, with how many.
    #[arg(long, value_name = "KIND:SESSIONS[:GROUP]", value_parser = parse_synth, conflicts_with = "traces")]
    pub(super) synth: Option<(Kind, u32, u32)>,
    /// The first thing in a file that needs mending is an error.
    #[arg(long)]
    pub(super) strict: bool,
    /// Tokens in a block of the trace, where its format does not tell.
    #[arg(long, value_name = "TOKENS")]
    pub(super) trace_block_size: Option<u32>,
    #[command(flatten)]
    pub(super) fleet: FleetArgs,
    /// Lanes, each of which runs one session after the other; else sessions begin as recorded.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(super) lanes: Vec<u32>,
    /// Lanes take sessions in the order of the trace, and not in one drawn by the seed.
    #[arg(long, requires = "lanes")]
    pub(super) in_order: bool,
    /// Recorded beginnings come so many times faster.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, conflicts_with = "lanes")]
    pub(super) speedup: f64,
    /// Policies to compare: `kv`, `sticky`, `least_load`, `power_of_two`, `round_robin`, `random` (no turn waits but for a
    /// worker); `thunderagent`, `thunderagent-package`, `idle_lease`, `tandem` (turns wait for room, over `kv`);
    /// `ROUTING+ADMISSION`; or `unlimited`, which is `kv` with workers whose memory has no end.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "kv,sticky")]
    pub(super) policy: Vec<String>,
    /// A setting of admission, such as `tandem.admit=0.95`; for each policy that it concerns.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// Seeds of ties and of the order of sessions; each is a run of its own.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1")]
    pub(super) seeds: Vec<u64>,
    /// Longest pause between turns, in seconds.
    #[arg(long, value_name = "SECONDS")]
    pub(super) gap_cap: Option<f64>,
    /// Longest pause of the whole fleet, in seconds: the rest is skipped, for all alike.
    #[arg(long, value_name = "SECONDS")]
    pub(super) idle_cap: Option<f64>,
    /// Time until the scheduler knows of what changed in an engine's cache, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub(super) event_delay: f64,
    /// Part of engines' messages about their caches that never arrives, from 0 to 1.
    #[arg(long, value_name = "PART", default_value_t = 0.0)]
    pub(super) event_loss: f64,
    /// How long a prompt counts as cached where it was sent, until it is computed, in seconds at most; 0 = it does not.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub(super) predict: f64,
    /// How often it is looked up anew what is cached of a turn that waits, in seconds; 0 = never.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25)]
    pub(super) relook: f64,
    /// Seconds before measuring begins.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub(super) warmup: f64,
    /// Seconds measured; else until every session has ended once.
    #[arg(long, value_name = "SECONDS")]
    pub(super) duration: Option<f64>,
    /// Clients never say that a session has ended.
    #[arg(long)]
    pub(super) silent_ends: bool,
    /// Sessions of kv-cache-tester have nothing in common; else tool and system prompts of one model and as many tokens
    /// are taken to be the same, for the files do not say.
    #[arg(long)]
    pub(super) own_heads: bool,
    /// What models write comes back as other tokens, so that its KV is of no use to the next turn: chat templates may
    /// leave out thoughts, or word calls of tools anew.
    #[arg(long)]
    pub(super) fresh_answers: bool,
    /// A session fares well if it never waits longer than this for a first token, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub(super) slo: f64,
    /// Also say what a cache of the fleet's size that knows the future would have found, as a bound.
    #[arg(long)]
    pub(super) belady: bool,
    /// Most points simulated at once; else as many as there are cores.
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Print one JSON object per point instead of a table.
    #[arg(long)]
    pub(super) json: bool,
    /// Also write a page with plots and all figures.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

/// The simulated engines.
#[derive(Debug, Args)]
pub(super) struct FleetArgs {
    /// Timing and pool of each worker; `tandem mock-engine --list-profiles` shows them.
    #[arg(long, value_name = "NAME", default_value = "minimax-m2.5-h100-tp4")]
    pub(super) profile: String,
    /// Other times than the profile's: `polynomial`, `fixed:PREFILL_MS:DECODE_MS` for each pass, or a JSON file with
    /// a timing model.
    #[arg(long, value_name = "MODEL", value_parser = parse_timing)]
    pub(super) timing: Option<TimingModel>,
    /// How many workers. Several figures are points of their own.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1")]
    pub(super) workers: Vec<u32>,
    /// So many of them only compute prompts, and the others only answer.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) prefill_workers: u32,
    /// From those that compute prompts to those that answer, GB/s; else KV is there at once.
    #[arg(long, value_name = "GB/S", requires = "prefill_workers")]
    pub(super) handover_bandwidth: Option<f64>,
    /// KV pool of each worker in tokens; else the profile's. Several are points of their own.
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',')]
    pub(super) pool: Vec<u64>,
    /// Host memory for KV of each worker, in tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub(super) host_pool: u64,
    /// To and from host memory, GB/s each way.
    #[arg(long, value_name = "GB/S", default_value_t = 32.0)]
    pub(super) host_bandwidth: f64,
    /// A KV store that all workers share, in tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub(super) shared_pool: u64,
    /// From the shared store to all workers together, GB/s; each worker's own link is as fast as that to its host.
    #[arg(long, value_name = "GB/S", default_value_t = 80.0)]
    pub(super) shared_bandwidth: f64,
    /// Bytes of KV of a token on one GPU; else the profile's.
    #[arg(long, value_name = "BYTES")]
    pub(super) token_bytes: Option<u64>,
    /// Engines evict first what admission calls not worth keeping. Released ones cannot do that.
    #[arg(long)]
    pub(super) demote: bool,
    /// Tokens in a KV block of the engines.
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) block_size: u32,
    /// Most requests in a batch; else the profile's.
    #[arg(long, value_name = "N")]
    pub(super) max_num_seqs: Option<u32>,
    /// Most tokens in a pass; else the profile's.
    #[arg(long, value_name = "TOKENS")]
    pub(super) max_num_batched_tokens: Option<u32>,
    /// Longest context; else the profile's, and 0 = only the pool bounds it.
    #[arg(long, value_name = "TOKENS")]
    pub(super) max_model_len: Option<u32>,
    /// What engines order their queues by, as vLLM's `--scheduling-policy`: arrival alone, or first the priority that the
    /// trace or else the admission policy gives a turn. Then the least urgent is also preempted first.
    #[arg(long, value_enum, default_value_t = Scheduling::Fcfs)]
    pub(super) scheduling_policy: Scheduling,
}

/// Order of an engine's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Scheduling {
    Fcfs,
    Priority,
}

impl From<Scheduling> for SchedulingPolicy {
    fn from(scheduling: Scheduling) -> Self {
        match scheduling {
            Scheduling::Fcfs => Self::Fcfs,
            Scheduling::Priority => Self::Priority,
        }
    }
}

fn parse_synth(text: &str) -> Result<(Kind, u32, u32), String> {
    let mut parts = text.split(':');
    let kind = parts.next().unwrap_or_default().parse()?;
    let number = |part: Option<&str>, fallback: u32| match part {
        None => Ok(fallback),
        Some(part) => part.parse::<u32>().map_err(|_| format!("{part} is not a number")),
    };
    let sessions = number(parts.next(), 100)?;
    let group = number(parts.next(), 1)?;
    if parts.next().is_some() { Err("KIND:SESSIONS[:GROUP]".to_owned()) } else { Ok((kind, sessions, group)) }
}

fn parse_timing(text: &str) -> Result<TimingModel, String> {
    let model = if text == "polynomial" {
        TimingModel::Polynomial
    } else if let Some(times) = text.strip_prefix("fixed:") {
        let number = |part: &str| part.parse::<f64>().map_err(|_| format!("{part} is not a number of ms"));
        let (prefill, decode) = times.split_once(':').ok_or("fixed:PREFILL_MS:DECODE_MS")?;
        TimingModel::Fixed { prefill_ms: number(prefill)?, decode_ms: number(decode)? }
    } else {
        let file = std::fs::read(text)
            .map_err(|error| format!("neither polynomial nor fixed:..., and as a file: {error}"))?;
        serde_json::from_slice(&file).map_err(|error| error.to_string())?
    };
    model.validate().map_err(|error| error.to_string())?;
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_sessions_are_named_with_their_number() {
        assert_eq!(parse_synth("rl-swe:256:8"), Ok((Kind::RlSwe, 256, 8)));
        assert_eq!(parse_synth("chat"), Ok((Kind::Chat, 100, 1)));
        assert!(
            parse_synth("rl-swe:many").is_err()
                && parse_synth("x").is_err()
                && parse_synth("chat:1:1:1").is_err()
        );
    }

    #[test]
    fn timing_is_named_or_lies_in_a_file() {
        assert_eq!(parse_timing("polynomial"), Ok(TimingModel::Polynomial));
        assert_eq!(parse_timing("fixed:7:2.5"), Ok(TimingModel::Fixed { prefill_ms: 7.0, decode_ms: 2.5 }));
        assert!(parse_timing("fixed:7").is_err() && parse_timing("fixed:a:b").is_err());
        assert!(parse_timing("fixed:-1:2").is_err(), "times are not negative");
        assert!(parse_timing("no-such-file.json").is_err());
    }
}
