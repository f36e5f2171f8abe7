//! `/metrics` of SGLang 0.5.23: the families that tell of load, cache and tokens, with their labels. Those of
//! features that the mock does not have (speculation, disaggregation, graphs) are left out.

use tandem_engine_model::Load;

use crate::exposition::{Exposition, float, label};
use crate::http::State;
use crate::observe::{Histogram, RankObserved};

struct Rank<'a> {
    /// All labels of the scheduler's metrics, in their order.
    labels: String,
    load: &'a Load,
    observed: &'a RankObserved,
}

pub(crate) fn text(state: &State, loads: &[Load], observed: &[RankObserved]) -> String {
    let model = label(state.config.models.first().map(|m| m.id.as_str()).unwrap_or_default());
    let ranks: Vec<Rank<'_>> = loads
        .iter()
        .zip(observed)
        .enumerate()
        .map(|(rank, (load, observed))| {
            // Only with data parallelism is there a rank label.
            let dp = if loads.len() > 1 { format!("dp_rank=\"{rank}\",") } else { String::new() };
            let labels = format!(
                "{dp}engine_type=\"unified\",model_name=\"{model}\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\""
            );
            Rank { labels, load, observed }
        })
        .collect();
    let mut out = Exposition::default();
    prefill(&mut out, &ranks, &model);
    gauges(&mut out, state, &ranks);
    totals(&mut out, &ranks, &model);
    out.0
}

fn prefill(out: &mut Exposition, ranks: &[Rank<'_>], model: &str) {
    let name = "sglang:prefill_effective_tokens_total";
    out.family(name, "counter", "Prompt tokens by how they were obtained.");
    for rank in ranks {
        let computed = rank.load.prompt_tokens.saturating_sub(rank.load.cached_prompt_tokens);
        let lower = rank.load.host_hits + rank.load.disk_hits + rank.load.shared_hits;
        let modes = [
            ("input", computed),
            ("device_hit", rank.load.cached_prompt_tokens.saturating_sub(lower)),
            ("host_hit", rank.load.host_hits),
            ("storage_hit", lower.saturating_sub(rank.load.host_hits)),
        ];
        for (mode, value) in modes {
            // `mode` stands before `model_name`.
            let at = format!("model_name=\"{model}\"");
            let labels = rank.labels.replacen(&at, &format!("mode=\"{mode}\",{at}"), 1);
            out.sample(name, &labels, float(value));
        }
    }
}

fn gauges(out: &mut Exposition, state: &State, ranks: &[Rank<'_>]) {
    let limit = f64::from(state.config.max_num_seqs);
    let context = f64::from(state.max_model_len);
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&Rank<'_>) -> f64| {
        let name = format!("sglang:{name}");
        out.family(&name, "gauge", help);
        for rank in ranks {
            out.sample(&name, &rank.labels, value(rank));
        }
    };
    let tokens = |blocks: u32, rank: &Rank<'_>| f64::from(blocks) * f64::from(rank.load.block_size);
    let usage = |r: &Rank<'_>| f64::from(r.load.used_blocks) / f64::from(r.load.total_blocks.max(1));
    gauge("max_total_num_tokens", "KV pool in tokens.", &|r| tokens(r.load.total_blocks, r));
    gauge("page_size", "Tokens in a page.", &|r| r.load.block_size.into());
    gauge("num_pages", "Pages in the pool.", &|r| r.load.total_blocks.into());
    gauge("context_len", "Longest prompt plus answer.", &|_| context);
    gauge("num_running_reqs", "Requests in the batch.", &|r| r.load.running.into());
    gauge("num_queue_reqs", "Requests in the queue.", &|r| r.load.waiting.into());
    gauge("gen_throughput", "Generated tokens a second.", &|r| {
        if r.load.running > 0 { r.observed.throughput } else { 0.0 }
    });
    gauge("cache_hit_rate", "Part of the looked-up tokens that was cached.", &|r| {
        float(r.load.prefix_cache_hits) / float(r.load.prefix_cache_queries.max(1))
    });
    gauge("token_usage", "Part of the pool in use.", &usage);
    gauge("full_token_usage", "Part of the full-attention pool in use.", &usage);
    gauge("num_used_tokens", "Tokens of the pool in use.", &|r| tokens(r.load.used_blocks, r));
    gauge("kv_available_tokens", "Tokens of the pool that hold nothing.", &|r| {
        let held = r.load.used_blocks.saturating_add(r.load.cached_blocks);
        tokens(r.load.total_blocks.saturating_sub(held), r)
    });
    gauge("kv_evictable_tokens", "Cached tokens that nobody uses.", &|r| tokens(r.load.cached_blocks, r));
    gauge("kv_used_tokens", "Tokens of the pool in use.", &|r| tokens(r.load.used_blocks, r));
    if state.config.tiers.model.host.is_some() {
        let block = |r: &Rank<'_>| f64::from(r.load.block_size);
        gauge("hicache_host_used_tokens", "Tokens in host memory.", &|r| {
            f64::from(r.load.host_blocks) * block(r)
        });
        gauge("hicache_host_total_tokens", "Room in host memory, in tokens.", &|r| {
            f64::from(r.load.host_total_blocks) * block(r)
        });
    }
    gauge("utilization", "Part of the batch in use.", &|r| f64::from(r.load.running) / limit.max(1.0));
    type Get = fn(&Rank<'_>) -> f64;
    let retracted: Get = |r| float(r.load.preemptions);
    let paused: Get = |_| 0.0;
    let counts =
        [("num_retracted_reqs", "Retractions.", retracted), ("num_paused_reqs", "Requests on hold.", paused)];
    for (name, help, value) in counts {
        let name = format!("sglang:{name}");
        out.family(&name, "gauge", help);
        for rank in ranks {
            // These two tell the process too.
            let labels = rank.labels.replacen(",pp_rank", ",pid=\"1\",pp_rank", 1);
            out.sample(&name, &labels, value(rank));
        }
    }
    let name = "sglang:queue_time_seconds";
    out.family(name, "histogram", "Time in the queue.");
    for rank in ranks {
        if let Some((before, after)) = rank.labels.split_once(",model_name") {
            out.histogram(name, before, &format!("model_name{after}"), &rank.observed.queue);
        }
    }
}

fn totals(out: &mut Exposition, ranks: &[Rank<'_>], model: &str) {
    let base = format!("engine_type=\"unified\",is_streaming=\"false\",model_name=\"{model}\"");
    type Get = fn(&RankObserved) -> &Histogram;
    let streaming = "engine_type=\"unified\",is_streaming=\"false\"";
    let unified = "engine_type=\"unified\"";
    let histograms: [(&str, &str, &str, Get); 6] = [
        ("time_to_first_token_seconds", "Time to first token.", streaming, |o| &o.ttft),
        ("e2e_request_latency_seconds", "Time of a request.", streaming, |o| &o.e2e),
        ("request_time_per_output_token_seconds", "Mean time per token.", streaming, |o| &o.per_token),
        ("prompt_tokens_histogram", "Prompt tokens of a request.", unified, |o| &o.prompt),
        ("uncached_prompt_tokens_histogram", "Prompt tokens computed.", unified, |o| &o.computed),
        ("generation_tokens_histogram", "Generated tokens of a request.", unified, |o| &o.generation),
    ];
    for (name, help, before, get) in histograms {
        let name = format!("sglang:{name}");
        out.family(&name, "histogram", help);
        if let Some(sum) = merged(ranks.iter().map(|rank| get(rank.observed))) {
            out.histogram(&name, before, &format!("model_name=\"{model}\""), &sum);
        }
    }
    let sum = |value: fn(&Rank<'_>) -> u64| float(ranks.iter().map(value).sum());
    let mut total = |name: &str, help: &str, labels: &str, value: f64| {
        let name = format!("sglang:{name}_total");
        out.family(&name, "counter", help);
        out.sample(&name, labels, value);
    };
    total("prompt_tokens", "Prompt tokens.", &base, sum(|r| r.load.prompt_tokens));
    total("generation_tokens", "Generated tokens.", &base, sum(|r| r.load.generation_tokens));
    total("num_requests", "Requests that ended.", &base, sum(|r| r.observed.stop + r.observed.length));
    let name = "sglang:cached_tokens_total";
    out.family(name, "counter", "Prompt tokens from caches.");
    let host = sum(|r| r.load.host_hits);
    let device = sum(|r| r.load.cached_prompt_tokens.saturating_sub(r.load.host_hits));
    for (source, value) in [("device", device), ("host", host)] {
        // A source that gave nothing yet has no series.
        if source == "device" || value > 0.0 {
            let labels = format!("cache_source=\"{source}\",engine_type=\"unified\",model_name=\"{model}\"");
            out.sample(name, &labels, value);
        }
    }
}

fn merged<'a>(mut all: impl Iterator<Item = &'a Histogram>) -> Option<Histogram> {
    let mut sum = all.next()?.clone();
    for one in all {
        for (count, more) in sum.counts.iter_mut().zip(&one.counts) {
            *count += more;
        }
        sum.sum += one.sum;
        sum.count += one.count;
    }
    Some(sum)
}
