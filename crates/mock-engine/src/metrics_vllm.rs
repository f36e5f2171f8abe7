//! `/metrics` of vLLM 0.32: its own families in its order. Families of the Python process and the web server
//! are left out.

use std::time::UNIX_EPOCH;

use tandem_engine_model::Load;

use crate::exposition::{Exposition, float, label};
use crate::http::State;
use crate::observe::{Histogram, RankObserved};

/// A rank with its labels.
struct Rank<'a> {
    labels: String,
    /// `engine`, which comes before most labels in the alphabet.
    engine: String,
    /// `model_name`, which comes after most.
    model: String,
    load: &'a Load,
    observed: &'a RankObserved,
}

struct Page<'a> {
    out: Exposition,
    ranks: Vec<Rank<'a>>,
    created: f64,
}

pub(crate) fn text(state: &State, loads: &[Load], observed: &[RankObserved]) -> String {
    let model = label(state.config.models.first().map(|m| m.id.as_str()).unwrap_or_default());
    let ranks = loads
        .iter()
        .zip(observed)
        .enumerate()
        .map(|(rank, (load, observed))| {
            let (engine, model) = (format!("engine=\"{rank}\""), format!("model_name=\"{model}\""));
            Rank { labels: format!("{engine},{model}"), engine, model, load, observed }
        })
        .collect();
    let created = state.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut page = Page { out: Exposition::default(), ranks, created };
    page.flops();
    page.gauges();
    page.caches();
    page.tokens();
    page.outcomes(&model);
    page.histograms();
    page.cache_config(state);
    page.out.0
}

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: impl Fn(&Rank<'_>) -> f64) {
        self.out.family(name, "gauge", help);
        for rank in &self.ranks {
            self.out.sample(name, &rank.labels, value(rank));
        }
    }

    /// A counter and the gauge that tells when it was made. Each value has the labels that come before and
    /// after those of the rank.
    fn counter(&mut self, base: &str, help: &str, series: &[Series<'_>]) {
        let total = format!("{base}_total");
        self.out.family(&total, "counter", help);
        for rank in &self.ranks {
            for one in series {
                self.out.sample(&total, &one.labels(rank), (one.value)(rank));
            }
        }
        let created = format!("{base}_created");
        self.out.family(&created, "gauge", help);
        for rank in &self.ranks {
            for one in series {
                self.out.sample(&created, &one.labels(rank), self.created);
            }
        }
    }

    fn count(&mut self, base: &str, help: &str, value: fn(&Rank<'_>) -> f64) {
        self.counter(base, help, &[Series { between: "", after: "", value }]);
    }

    fn flops(&mut self) {
        for (base, help) in [
            ("vllm:estimated_flops_per_gpu", "Estimated floating-point operations per GPU."),
            ("vllm:estimated_read_bytes_per_gpu", "Estimated bytes read from memory per GPU."),
            ("vllm:estimated_write_bytes_per_gpu", "Estimated bytes written to memory per GPU."),
        ] {
            self.count(base, help, |_| 0.0);
        }
    }

    fn gauges(&mut self) {
        self.gauge("vllm:num_requests_running", "Requests in the batch.", |r| r.load.running.into());
        self.gauge("vllm:num_requests_waiting", "Requests in the queue.", |r| r.load.waiting.into());
        let name = "vllm:num_requests_waiting_by_reason";
        self.out.family(name, "gauge", "Requests in the queue by reason.");
        for rank in &self.ranks {
            for (reason, value) in [("capacity", rank.load.waiting.into()), ("deferred", 0.0)] {
                self.out.sample(name, &format!("{},reason=\"{reason}\"", rank.labels), value);
            }
        }
        let name = "vllm:engine_sleep_state";
        self.out.family(name, "gauge", "Whether the engine is awake.");
        for rank in &self.ranks {
            for (state, value) in [("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)] {
                self.out.sample(name, &format!("{},sleep_state=\"{state}\"", rank.labels), value);
            }
        }
        self.gauge("vllm:kv_cache_usage_perc", "Part of the KV cache in use, 0 to 1.", |r| {
            f64::from(r.load.used_blocks) / f64::from(r.load.total_blocks.max(1))
        });
    }

    fn caches(&mut self) {
        self.count("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", |r| {
            float(r.load.prefix_cache_queries)
        });
        self.count("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", |r| {
            float(r.load.prefix_cache_hits)
        });
        self.count("vllm:external_prefix_cache_queries", "Tokens looked up in external caches.", |r| {
            float(r.load.lower_queries)
        });
        self.count("vllm:external_prefix_cache_hits", "Tokens found in external caches.", |r| {
            float(lower(r.load))
        });
        for (base, help) in [
            ("vllm:mm_cache_queries", "Items looked up in the multimodal cache."),
            ("vllm:mm_cache_hits", "Items found in the multimodal cache."),
        ] {
            self.count(base, help, |_| 0.0);
        }
        self.count("vllm:num_preemptions", "Preemptions.", |r| float(r.load.preemptions));
    }

    fn tokens(&mut self) {
        self.count("vllm:prompt_tokens", "Prompt tokens.", |r| float(r.load.prompt_tokens));
        self.counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where they came from.",
            &[
                source("source=\"local_compute\"", |r| {
                    float(r.load.prompt_tokens.saturating_sub(r.load.cached_prompt_tokens))
                }),
                source("source=\"local_cache_hit\"", |r| float(on_device(r.load))),
                source("source=\"external_kv_transfer\"", |r| float(lower(r.load))),
            ],
        );
        self.count("vllm:prompt_tokens_cached", "Prompt tokens from any cache.", |r| {
            float(r.load.cached_prompt_tokens)
        });
        self.counter(
            "vllm:prompt_tokens_cached_by_source",
            "Prompt tokens from caches by tier.",
            &[
                source("source=\"device\"", |r| float(on_device(r.load))),
                source("source=\"host\"", |r| float(r.load.host_hits)),
                source("source=\"p2p\"", |_| 0.0),
                source("source=\"disk\"", |r| float(r.load.disk_hits)),
                source("source=\"external_unspecified\"", |r| float(r.load.shared_hits)),
            ],
        );
        self.count("vllm:generation_tokens", "Generated tokens.", |r| float(r.load.generation_tokens));
    }

    fn outcomes(&mut self, model: &str) {
        let reason = |between, value| Series { between, after: "", value };
        self.counter(
            "vllm:request_success",
            "Requests that ended, by reason.",
            &[
                reason("finished_reason=\"stop\"", |r| float(r.observed.stop)),
                reason("finished_reason=\"length\"", |r| float(r.observed.length)),
                reason("finished_reason=\"abort\"", |r| float(r.observed.abort)),
                reason("finished_reason=\"error\"", |_| 0.0),
                reason("finished_reason=\"repetition\"", |_| 0.0),
            ],
        );
        let help = "Requests turned away at admission.";
        for (name, kind, value) in [
            ("vllm:admission_rejections_total", "counter", 0.0),
            ("vllm:admission_rejections_created", "gauge", self.created),
        ] {
            self.out.family(name, kind, help);
            for reason in ["max_num_queued_reqs", "max_num_queued_tokens"] {
                self.out.sample(name, &format!("model_name=\"{model}\",reason=\"{reason}\""), value);
            }
        }
    }

    fn histograms(&mut self) {
        type Get = fn(&RankObserved) -> &Histogram;
        let all: [(&str, &str, Get); 15] = [
            ("request_prompt_tokens", "Prompt tokens of a request.", |o| &o.prompt),
            ("request_generation_tokens", "Generated tokens of a request.", |o| &o.generation),
            ("iteration_tokens_total", "Tokens of an engine step.", |o| &o.iteration),
            ("request_max_num_generation_tokens", "Most tokens asked for.", |o| &o.max_tokens),
            ("request_params_n", "Choices asked for.", |o| &o.choices),
            ("request_params_max_tokens", "Token limit asked for.", |o| &o.max_tokens),
            ("time_to_first_token_seconds", "Time to first token.", |o| &o.ttft),
            ("inter_token_latency_seconds", "Time between tokens.", |o| &o.itl),
            ("request_time_per_output_token_seconds", "Mean time per token.", |o| &o.per_token),
            ("e2e_request_latency_seconds", "Time of a request.", |o| &o.e2e),
            ("request_queue_time_seconds", "Time in the queue.", |o| &o.queue),
            ("request_inference_time_seconds", "Time in the batch.", |o| &o.inference),
            ("request_prefill_time_seconds", "Time of the prefill.", |o| &o.prefill),
            ("request_decode_time_seconds", "Time of the decode.", |o| &o.decode),
            ("request_num_preemptions", "Preemptions of a request.", |o| &o.preemptions),
        ];
        let computed: Get = |o| &o.computed;
        let last = ("request_prefill_kv_computed_tokens", "Prompt tokens computed.", computed);
        for (name, help, get) in all.into_iter().chain([last]) {
            let name = format!("vllm:{name}");
            self.out.family(&name, "histogram", help);
            for rank in &self.ranks {
                self.out.histogram(&name, &rank.engine, &rank.model, get(rank.observed));
            }
            let created = format!("{name}_created");
            self.out.family(&created, "gauge", help);
            for rank in &self.ranks {
                self.out.sample(&created, &rank.labels, self.created);
            }
        }
    }

    fn cache_config(&mut self, state: &State) {
        let name = "vllm:cache_config_info";
        self.out.family(name, "gauge", "Configuration of the KV cache.");
        for (rank, one) in self.ranks.iter().enumerate() {
            let labels = cache_config(state, rank, one.load);
            self.out.sample(name, &labels, 1.0);
        }
    }
}

/// Prompt tokens read from tiers below the device.
const fn lower(load: &Load) -> u64 {
    load.host_hits + load.disk_hits + load.shared_hits
}

/// Cached prompt tokens that were on the device. (The tiers' hits count at admission, all others later.)
const fn on_device(load: &Load) -> u64 {
    load.cached_prompt_tokens.saturating_sub(lower(load))
}

/// One series of a counter.
struct Series<'a> {
    /// Labels between `engine` and `model_name`.
    between: &'a str,
    /// Labels after `model_name`.
    after: &'a str,
    value: fn(&Rank<'_>) -> f64,
}

impl Series<'_> {
    fn labels(&self, rank: &Rank<'_>) -> String {
        let parts = [rank.engine.as_str(), self.between, rank.model.as_str(), self.after];
        parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(",")
    }
}

fn source(after: &'static str, value: fn(&Rank<'_>) -> f64) -> Series<'static> {
    Series { between: "", after, value }
}

fn cache_config(state: &State, rank: usize, load: &Load) -> String {
    let block = load.block_size;
    let tokens = u64::from(load.total_blocks) * u64::from(block);
    let concurrency = float(tokens) / f64::from(state.max_model_len.max(1));
    let bytes = tokens * 65_536;
    [
        ("_block_size_resolved", "True".to_owned()),
        ("block_size", block.to_string()),
        ("cache_dtype", "auto".to_owned()),
        ("cache_hit_alignment_tokens", "None".to_owned()),
        ("effective_attention_block_size", block.to_string()),
        ("enable_mamba_shared_prefix_checkpoint", "False".to_owned()),
        ("enable_prefix_caching", "True".to_owned()),
        ("engine", rank.to_string()),
        ("gpu_memory_utilization", "0.92".to_owned()),
        ("hash_block_size", "None".to_owned()),
        ("is_attention_free", "False".to_owned()),
        ("kv_cache_dtype_skip_layers", "[]".to_owned()),
        ("kv_cache_layout", "None".to_owned()),
        ("kv_cache_max_concurrency", format!("{concurrency:?}")),
        ("kv_cache_memory_bytes", bytes.to_string()),
        ("kv_cache_size_tokens", tokens.to_string()),
        ("kv_offloading_backend", "native".to_owned()),
        ("kv_offloading_size", "None".to_owned()),
        ("kv_sharing_fast_prefill", "False".to_owned()),
        ("mamba_block_size", "None".to_owned()),
        ("mamba_cache_dtype", "auto".to_owned()),
        ("mamba_cache_mode", "none".to_owned()),
        ("mamba_page_size_padded", "None".to_owned()),
        ("mamba_ssm_cache_dtype", "float32".to_owned()),
        ("num_cpu_blocks", "None".to_owned()),
        ("num_gpu_blocks", load.total_blocks.to_string()),
        ("num_gpu_blocks_override", "None".to_owned()),
        ("prefix_cache_retention_interval", "0".to_owned()),
        ("prefix_caching_hash_algo", "sha256".to_owned()),
        ("prefix_match_unit", "None".to_owned()),
        ("replayssm_buffer_len", "16".to_owned()),
        ("skip_page_size_padded", "None".to_owned()),
        ("sliding_window", "None".to_owned()),
        ("swa_bounded_replay", "True".to_owned()),
        ("use_kda_recoverssm", "False".to_owned()),
        ("use_replayssm", "False".to_owned()),
        ("user_specified_block_size", "True".to_owned()),
    ]
    .map(|(key, value)| format!("{key}=\"{value}\""))
    .join(",")
}
