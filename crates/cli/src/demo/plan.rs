//! The bundled sessions: which harness they imitate, what each of their agents sends, and whom it spawns.
//!
//! Headers and body fields are those that current harness versions were seen to send, so that what the demo
//! recognises is what a user's own harness will get recognised by. Texts are made up.

use serde_json::{Value, json};
use tandem_types::Dialect;

/// One agent: its own chain of turns.
#[derive(Debug, Clone)]
pub(super) struct AgentPlan {
    /// Name shown to people.
    pub(super) name: String,
    /// What it imitates.
    pub(super) harness: &'static str,
    /// The API that it speaks.
    pub(super) dialect: Dialect,
    /// Whether its answers are streamed.
    pub(super) stream: bool,
    /// Headers of each of its requests.
    pub(super) headers: Vec<(&'static str, String)>,
    /// Extra top-level body fields.
    pub(super) extra: Value,
    /// The id under which the trace must know it.
    pub(super) expect_id: String,
    /// The id of its parent in the trace.
    pub(super) expect_parent: Option<String>,
    /// Turns that end with a tool call before the one that ends with text.
    pub(super) tool_turns: u32,
    /// Spawned after the first turn.
    pub(super) children: Vec<AgentPlan>,
    /// Sends a title call beside its first turn, as OpenCode and Claude Code do.
    pub(super) title_call: bool,
    /// Says with its last request that the session ends.
    pub(super) says_final: bool,
    /// The text of its first user message.
    pub(super) task: &'static str,
}

impl AgentPlan {
    /// Calls that it and its children make: (turns, side calls).
    pub(super) fn calls(&self) -> (u32, u32) {
        let own = (self.tool_turns + 1, u32::from(self.title_call));
        self.children.iter().map(Self::calls).fold(own, |a, b| (a.0 + b.0, a.1 + b.1))
    }
}

/// An id that looks like the real ones and depends on nothing but its arguments.
fn uuid_like(kind: u64, number: usize) -> String {
    let n = number as u64;
    format!(
        "{:08x}-{:04x}-7{:03x}-8{:03x}-{:012x}",
        0x0de0_0000 + kind,
        n,
        kind,
        n,
        0x7a4d_0000_0000 + kind * 256 + n
    )
}

/// The `number`th set of sessions; sets differ in nothing but their ids.
pub(super) fn sessions(number: usize) -> Vec<AgentPlan> {
    let mut all = vec![claude_code(number), codex(number), opencode(number), own_loop(number)];
    all.extend((0..2).map(|rollout| rollout_plan(number, rollout)));
    all
}

fn blank(name: String, harness: &'static str, dialect: Dialect) -> AgentPlan {
    AgentPlan {
        name,
        harness,
        dialect,
        stream: true,
        headers: Vec::new(),
        extra: json!({}),
        expect_id: String::new(),
        expect_parent: None,
        tool_turns: 3,
        children: Vec::new(),
        title_call: false,
        says_final: false,
        task: "Find out why the nightly build is slow and make it faster.",
    }
}

fn sender(name: &str) -> (&'static str, String) {
    ("user-agent", name.to_owned())
}

fn claude_code(number: usize) -> AgentPlan {
    let session = uuid_like(1, number);
    let agent = format!("a{:016x}", 0xc0de_0000 + number as u64);
    let metadata =
        json!({"device_id": "0".repeat(64), "account_uuid": "", "session_id": session}).to_string();
    let extra =
        json!({"max_tokens": 32_000, "metadata": {"user_id": metadata}, "thinking": {"type": "adaptive"}});
    let agent_header = sender("claude-cli/2.1.332 (external, sdk-cli)");
    let session_header = ("X-Claude-Code-Session-Id", session.clone());
    let child = AgentPlan {
        headers: vec![
            agent_header.clone(),
            session_header.clone(),
            ("x-claude-code-agent-id", agent.clone()),
        ],
        extra: extra.clone(),
        expect_id: agent,
        expect_parent: Some(session.clone()),
        tool_turns: 2,
        task: "Search the repository for build scripts and list them.",
        ..blank(format!("claude-code-{number}/subagent"), "Claude Code", Dialect::Messages)
    };
    AgentPlan {
        headers: vec![agent_header, session_header],
        extra,
        expect_id: session,
        children: vec![child],
        ..blank(format!("claude-code-{number}"), "Claude Code", Dialect::Messages)
    }
}

fn codex(number: usize) -> AgentPlan {
    let (root, thread) = (uuid_like(2, number), uuid_like(3, number));
    let extra = json!({"store": false, "parallel_tool_calls": false, "prompt_cache_key": root});
    let child = AgentPlan {
        headers: vec![
            ("session-id", root.clone()),
            ("thread-id", thread.clone()),
            ("x-codex-parent-thread-id", root.clone()),
            ("x-openai-subagent", "collab_spawn".to_owned()),
            ("originator", "codex_exec".to_owned()),
            sender("codex_exec/0.171.0"),
        ],
        extra: extra.clone(),
        expect_id: thread,
        expect_parent: Some(root.clone()),
        tool_turns: 2,
        task: "Profile the slowest test and report where its time goes.",
        ..blank(format!("codex-{number}/thread"), "Codex", Dialect::Responses)
    };
    AgentPlan {
        headers: vec![
            ("session-id", root.clone()),
            ("thread-id", root.clone()),
            ("originator", "codex_exec".to_owned()),
            sender("codex_exec/0.171.0"),
        ],
        extra,
        expect_id: root,
        children: vec![child],
        ..blank(format!("codex-{number}"), "Codex", Dialect::Responses)
    }
}

fn opencode(number: usize) -> AgentPlan {
    let session = format!("ses_{:026x}", 0x0c0d_e000 + number);
    let child_session = format!("ses_{:026x}", 0x0c0d_f000 + number);
    let child = AgentPlan {
        headers: vec![
            sender("opencode/1.18.33 ai-sdk/provider-utils/4.0.23"),
            ("x-session-id", child_session.clone()),
            ("x-session-affinity", child_session.clone()),
            ("x-parent-session-id", session.clone()),
        ],
        expect_id: child_session,
        expect_parent: Some(session.clone()),
        tool_turns: 1,
        task: "Read the change log and tell what changed last week.",
        ..blank(format!("opencode-{number}/subagent"), "OpenCode", Dialect::Chat)
    };
    AgentPlan {
        headers: vec![
            sender("opencode/1.18.33 ai-sdk/provider-utils/4.0.23"),
            ("x-session-id", session.clone()),
            ("x-session-affinity", session.clone()),
        ],
        extra: json!({"max_tokens": 32_000}),
        expect_id: session,
        children: vec![child],
        title_call: true,
        ..blank(format!("opencode-{number}"), "OpenCode", Dialect::Chat)
    }
}

fn own_loop(number: usize) -> AgentPlan {
    let session = format!("loop-{number}");
    AgentPlan {
        stream: false,
        headers: vec![("x-dynamo-session-id", session.clone())],
        expect_id: session,
        tool_turns: 4,
        says_final: true,
        task: "Upgrade the date library and repair what breaks.",
        ..blank(format!("own-loop-{number}"), "your own loop", Dialect::Chat)
    }
}

fn rollout_plan(number: usize, rollout: usize) -> AgentPlan {
    let session = format!("rollout-{number}-{rollout}");
    AgentPlan {
        stream: false,
        headers: vec![
            ("x-dynamo-session-id", session.clone()),
            ("x-tandem-group-id", format!("prompt-{number}")),
        ],
        extra: json!({"max_tokens": 48, "temperature": 1.0}),
        expect_id: session,
        tool_turns: 2,
        says_final: true,
        task: "Solve the puzzle; think step by step.",
        ..blank(format!("rollout-{number}-{rollout}"), "RL rollout", Dialect::Completions)
    }
}
