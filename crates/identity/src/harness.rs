//! Which program sent a request.
//!
//! - Purpose: some rules hold for one harness only (how long it waits, what its side calls look like, which
//!   of its headers is an id).
//! - Evidence, best first: the user agent, headers that only one harness sends, the form of the call. The
//!   last is a guess: SDK defaults are shared by many programs, so nothing depends on it but the length of
//!   a hold (bounded by the client's own stated time-out), the trace id of OpenClaw, and reports.
//! - Sources: Claude Code 2.1.332, Codex 0.171.0, OpenCode 1.18.33, Pi 1.6.0, Kimi Code 2.1.0, Qwen Code
//!   0.24.4, Cline 3.0.65, Hermes 0.19.0, OpenClaw 2026.9.6, OpenHands 1.16.0, mini-swe-agent 2.4.6,
//!   Gemini CLI 0.61.0, Aider 0.86.2.

use http::Method;
use tandem_types::{Dialect, Harness, TurnFacts};

use crate::identify::RequestHead;

/// Beginnings of `user-agent`.
const USER_AGENTS: &[(&str, Harness)] = &[
    ("claude-cli/", Harness::ClaudeCode),
    ("codex_", Harness::Codex),
    ("opencode/", Harness::OpenCode),
    ("pi/", Harness::Pi),
    ("kimi-code-cli/", Harness::KimiCode),
    ("QwenCode/", Harness::QwenCode),
    ("GeminiCLI", Harness::GeminiCli),
];

/// Headers that only one harness sends.
const HEADERS: &[(&str, Harness)] = &[
    ("x-claude-code-session-id", Harness::ClaudeCode),
    ("x-codex-turn-metadata", Harness::Codex),
    ("x-codex-window-id", Harness::Codex),
    ("x-opencode-session-id", Harness::OpenCode),
    ("x-msh-platform", Harness::KimiCode),
];

pub(crate) fn detect(head: &RequestHead<'_>, facts: Option<&TurnFacts>) -> Harness {
    let agent = head.headers.get("user-agent").and_then(|v| v.to_str().ok()).unwrap_or_default();
    if let Some((_, harness)) = USER_AGENTS.iter().find(|(start, _)| starts_with(agent, start)) {
        return *harness;
    }
    if let Some((_, harness)) = HEADERS.iter().find(|(name, _)| head.headers.contains_key(*name)) {
        return *harness;
    }
    if head.headers.contains_key("thread-id") && head.headers.contains_key("session-id") {
        return Harness::Codex;
    }
    // Claude Code's first call comes from its runtime, before its own client is up.
    if head.method == Method::HEAD && head.path_only() == "/api/hello" && starts_with(agent, "Bun/") {
        return Harness::ClaudeCode;
    }
    facts.map_or(Harness::Unknown, |facts| by_shape(head, facts, agent))
}

fn starts_with(text: &str, start: &str) -> bool {
    text.get(..start.len()).is_some_and(|s| s.eq_ignore_ascii_case(start))
}

fn by_shape(head: &RequestHead<'_>, facts: &TurnFacts, agent: &str) -> Harness {
    if facts.dialect != Dialect::Chat {
        return Harness::Unknown;
    }
    let tools = facts.shape.tools.unwrap_or(0);
    let header = |name: &str| head.headers.get(name).and_then(|v| v.to_str().ok());
    if starts_with(agent, "OpenAI/Python") {
        // litellm asks its SDK for raw responses.
        let litellm = header("x-stainless-raw-response") == Some("true");
        return match (litellm, facts.stream) {
            (true, false) if facts.ids.prompt_cache_key.is_some() && tools > 0 => Harness::OpenHands,
            (true, false) if tools == 1 => Harness::MiniSweAgent,
            (true, true) if tools == 0 && !facts.include_usage => Harness::Aider,
            (false, true) if header("x-stainless-read-timeout") == Some("1800.0") => Harness::Hermes,
            _ => Harness::Unknown,
        };
    }
    if !facts.stream || tools == 0 {
        return Harness::Unknown;
    }
    if starts_with(agent, "OpenAI/JS") && header("traceparent").is_some() {
        Harness::OpenClaw
    } else if starts_with(agent, "ai-sdk/openai-compatible/") && agent.contains("runtime/bun/") {
        Harness::Cline
    } else {
        Harness::Unknown
    }
}
