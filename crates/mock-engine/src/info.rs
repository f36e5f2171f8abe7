//! What the engines tell about themselves.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::asked::{Asked, PromptIn};
use crate::driver::lock;
use crate::http::State;
use crate::json::{Json, Null, Object, object};
use crate::out::SGLANG_VERSION;

/// Batches that the real publishers queue, which clients see in their configuration.
const HWM: u32 = 100_000;

fn wildcard(endpoint: &str) -> String {
    let port = endpoint.rsplit(':').next().unwrap_or_default();
    format!("tcp://*:{port}")
}

/// The model's name as a path, which is what engines are started with.
fn base(state: &State) -> &str {
    state.config.models.first().map(|m| m.id.as_str()).unwrap_or_default()
}

/// vLLM's `/kv_event_sources`: one entry per rank that publishes.
pub(crate) fn kv_event_sources(state: &State) -> Json {
    let mut sources = Object::default();
    let Some(config) = &state.config.kv_events else { return sources.end() };
    for kv in &state.kv {
        sources.put(
            &kv.rank.to_string(),
            &object! {
                "enable_kv_cache_events": true,
                "publisher": "zmq",
                "endpoint": wildcard(&kv.events),
                "replay_endpoint": kv.replay,
                "buffer_steps": config.buffer_steps,
                "hwm": HWM,
                "max_queue_size": HWM,
                "topic": config.topic,
            },
        );
    }
    sources.end()
}

/// vLLM's `/server_info?config_format=json`, as far as clients read it.
pub(crate) fn vllm_server_info(state: &State) -> Json {
    let config = &state.config;
    object! {
        "vllm_config": object! {
            "model_config": object! {
                "model": base(state),
                "served_model_name": base(state),
                "max_model_len": state.max_model_len,
            },
            "cache_config": object! {
                "block_size": config.block_size,
                "num_gpu_blocks": blocks(state),
                "enable_prefix_caching": true,
                "prefix_caching_hash_algo": "sha256",
            },
            "parallel_config": object! {
                "tensor_parallel_size": 1_u32,
                "pipeline_parallel_size": 1_u32,
                "data_parallel_size": config.dp_ranks,
            },
            "scheduler_config": object! {
                "max_num_seqs": config.max_num_seqs,
                "max_num_batched_tokens": config.max_num_batched_tokens,
                "policy": if config.flags.priority_scheduling { "priority" } else { "fcfs" },
            },
        },
        "vllm_env": object! {},
        "system_env": object! {},
    }
}

/// KV blocks of one rank.
pub(crate) fn blocks(state: &State) -> u32 {
    lock(&state.driver.shared.loads).first().map_or(0, |load| load.total_blocks)
}

/// vLLM's `*/render` for one prompt.
pub(crate) fn rendered(state: &State, asked: &Asked, prompt: &PromptIn, id: &str) -> Json {
    let length = u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX);
    let room = state.max_model_len.saturating_sub(length);
    let sampling = &asked.sampling;
    object! {
        "request_id": id,
        "token_ids": prompt.tokens,
        "token_offsets": Null,
        "features": Null,
        "content_parts": Null,
        "sampling_params": object! {
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_p": 1.0,
            "min_p": 0.0,
            "stop": sampling.stop,
            "stop_token_ids": Vec::<u32>::new(),
            "max_tokens": sampling.max_tokens.unwrap_or(room).min(room),
            "output_kind": 2_u32,
            "skip_clone": true,
            "bad_words": Vec::<u32>::new(),
            "skip_reading_prefix_cache": false,
        },
        "model": asked.model,
        "reasoning_ended": Null,
        "reasoning_parser_kwargs": Null,
        "return_token_ids": asked.return_token_ids.then_some(true),
        "output_mode": "tokens",
        "stream": asked.stream,
        "stream_options": Null,
        "cache_salt": asked.salt,
        "priority": asked.priority,
        "kv_transfer_params": Null,
        "ec_transfer_params": Null,
    }
}

/// SGLang's `/model_info`.
pub(crate) fn model_info(state: &State) -> Json {
    object! {
        "model_path": base(state),
        "tokenizer_path": base(state),
        "is_generation": true,
        "preferred_sampling_params": Null,
        "weight_version": "default",
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
    }
}

/// SGLang's `/server_info`: the arguments that clients read, and the state of each rank.
pub(crate) fn sglang_server_info(state: &State) -> Json {
    let config = &state.config;
    let flags = &config.flags;
    let pool = blocks(state).saturating_mul(config.block_size);
    let mut body = Object::default();
    body.put("model_path", base(state));
    body.put("tokenizer_path", base(state));
    body.put("context_length", &state.max_model_len);
    body.put("max_running_requests", &config.max_num_seqs);
    body.put("max_total_tokens", &pool);
    body.put("chunked_prefill_size", &config.max_num_batched_tokens);
    body.put("schedule_policy", "fcfs");
    body.put("enable_priority_scheduling", &flags.priority_scheduling);
    body.put("schedule_low_priority_values_first", &false);
    body.put("page_size", &config.block_size);
    body.put("radix_eviction_policy", "lru");
    body.put("disable_radix_cache", &false);
    body.put("tp_size", &1_u32);
    body.put("pp_size", &1_u32);
    body.put("dp_size", &config.dp_ranks);
    body.put("enable_dp_attention", &false);
    body.put("load_balance_method", "round_robin");
    body.put("device", "cpu");
    body.put("host", &config.host.to_string());
    body.put("api_key", &Null);
    body.put("served_model_name", base(state));
    body.put("enable_cache_report", &flags.prompt_tokens_details);
    body.put("tool_call_parser", &flags.auto_tool_choice.then_some("qwen25"));
    body.put("stream_response_default_include_usage", &flags.force_include_usage);
    body.put("enable_metrics", &flags.metrics);
    body.put("enable_hierarchical_cache", &false);
    body.put("disaggregation_mode", "null");
    if let Some(events) = kv_events_config(state) {
        body.put("kv_events_config", &events.0);
        body.put("kv_events", &kv_events(state));
    } else {
        body.put("kv_events_config", &Null);
    }
    body.put("max_total_num_tokens", &pool);
    body.put("max_req_input_len", &state.max_model_len.saturating_sub(1));
    let internal: Vec<Json> = (0..config.dp_ranks).map(|_| internal_state(state, pool)).collect();
    body.put("internal_states", &internal);
    body.put("version", SGLANG_VERSION);
    body.put("frontend", "python");
    body.end()
}

fn internal_state(state: &State, pool: u32) -> Json {
    object! {
        "page_size": state.config.block_size,
        "effective_max_running_requests_per_dp": state.config.max_num_seqs,
        "last_gen_throughput": 0.0,
        "memory_usage": object! { "weight": 0.0, "kvcache": 0.0, "token_capacity": pool },
        "max_total_num_tokens": pool,
    }
}

/// The flag's value as text, which is JSON in JSON.
fn kv_events_config(state: &State) -> Option<Json> {
    let config = state.config.kv_events.as_ref()?;
    let first = state.kv.first()?;
    Some(object! {
        "publisher": "zmq",
        "topic": config.topic,
        "endpoint": wildcard(&first.events),
        "replay_endpoint": first.replay,
    })
}

/// Where the events are: rank r publishes at base + r.
fn kv_events(state: &State) -> Option<Json> {
    let config = state.config.kv_events.as_ref()?;
    let first = state.kv.first()?;
    let port = |endpoint: &str| endpoint.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
    let mut body = Object::default();
    body.put("publisher", "zmq");
    body.put("endpoint_host", &state.config.host.to_string());
    body.put("endpoint_port_base", &port(&first.events));
    body.put("topic", &config.topic);
    body.put("block_size", &state.config.block_size);
    body.put("dp_size", &state.config.dp_ranks);
    if let Some(replay) = &first.replay {
        body.put("replay_endpoint_port_base", &port(replay));
    }
    Some(body.end())
}

/// SGLang's `/v1/loads`, of one rank or of all.
pub(crate) fn loads(state: &State, query: &str) -> Json {
    let rank = query.split('&').find_map(|pair| pair.strip_prefix("dp_rank=")).and_then(|r| r.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let loads = lock(&state.driver.shared.loads).clone();
    let observed = lock(&state.driver.shared.observed);
    let mut ranks = Vec::with_capacity(loads.len());
    for (index, (load, observed)) in loads.iter().zip(&observed.ranks).enumerate() {
        if rank.is_some_and(|rank: usize| rank != index) {
            continue;
        }
        let pool = load.total_blocks.saturating_mul(load.block_size);
        let used = load.used_blocks.saturating_mul(load.block_size);
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^53")]
        let hit_rate = ratio(load.prefix_cache_hits as f64, load.prefix_cache_queries as f64);
        let busy = u64::try_from(observed.prefill_busy.as_micros()).unwrap_or(u64::MAX);
        ranks.push(object! {
            "timestamp": now.as_secs_f64(),
            "dp_rank": index,
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_waiting_uncached_tokens": load.waiting_tokens,
            "num_used_tokens": used,
            "num_total_tokens": u64::from(used) + load.waiting_tokens,
            "num_active_tokens": load.context_tokens,
            "num_prealloc_ready_tokens": 0_u32,
            "max_total_num_tokens": pool,
            "max_running_requests": state.config.max_num_seqs,
            "token_usage": ratio(load.used_blocks.into(), load.total_blocks.into()),
            "gen_throughput": if load.running > 0 { observed.throughput } else { 0.0 },
            "cache_hit_rate": hit_rate,
            "utilization": ratio(load.running.into(), state.config.max_num_seqs.into()),
            "total_prefill_uncached_tokens": load.prefill_tokens,
            "total_prefill_busy_us": busy,
            "decode_moments": [0.0; 6],
            "memory": memory(pool),
            "disaggregation": disaggregation(),
            "queues": queues(load.waiting),
        });
    }
    object! {
        "timestamp": rfc3339(now.as_secs(), now.subsec_micros()),
        "version": SGLANG_VERSION,
        "accelerator": Null,
        "num_accelerators": 1_u32,
        "loads": ranks,
    }
}

fn memory(pool: u32) -> Json {
    object! { "weight_gb": 0.0, "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": pool }
}

fn disaggregation() -> Json {
    object! {
        "mode": "null",
        "prefill_bootstrap_queue_reqs": 0_u32,
        "prefill_inflight_queue_reqs": 0_u32,
        "decode_prealloc_queue_reqs": 0_u32,
        "decode_transfer_queue_reqs": 0_u32,
        "decode_retracted_queue_reqs": 0_u32,
        "kv_transfer_speed_gb_s": 0.0,
        "kv_transfer_latency_ms": 0.0,
    }
}

fn queues(waiting: u32) -> Json {
    object! { "waiting": waiting, "grammar": 0_u32, "paused": 0_u32, "retracted": 0_u32, "prealloc_ready": 0_u32 }
}

/// Civil time in UTC from seconds since the epoch (Howard Hinnant's algorithm).
fn rfc3339(seconds: u64, micros: u32) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}+00:00")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn civil_time() {
        assert_eq!(rfc3339(0, 0), "1970-01-01T00:00:00.000000+00:00");
        assert_eq!(rfc3339(951_782_400, 7), "2000-02-29T00:00:00.000007+00:00");
        // From a capture: 1795962011.197 was 2026-11-29 14:20:11.
        assert_eq!(rfc3339(1_795_962_011, 197_869), "2026-11-29T14:20:11.197869+00:00");
    }
}
