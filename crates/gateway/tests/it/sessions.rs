//! Sessions as harnesses keep them, against modelled engines behind a gateway that knows their caches.

use std::time::Duration;

use serde_json::{Value, json};
use tandem_gateway::config::{Config, PromptSource};
use tandem_mock_engine::{MockConfig, MockEngine, MockKind, MockModel};

use crate::client;
use crate::setup::{Setup, start_at};

pub(crate) const BLOCK: u64 = 16;

pub(crate) fn config(kind: MockKind) -> MockConfig {
    let mut config = MockConfig { kind, models: vec![MockModel::base("tiny")], ..MockConfig::default() };
    config.flags.prompt_tokens_details = true;
    config.flags.scale_out = true;
    config
}

pub(crate) async fn engine(kind: MockKind) -> MockEngine {
    MockEngine::start(config(kind)).await.expect("starts")
}

pub(crate) async fn gateway(
    engines: &[&MockEngine],
    sources: &[PromptSource],
    more: impl FnOnce(&mut Config),
) -> Setup {
    let sources = sources.to_vec();
    let setup = start_at(engines.iter().map(|engine| engine.url()).collect(), |config| {
        "kv".clone_into(&mut config.policy);
        config.kv.sources = sources;
        more(config);
    })
    .await;
    setup.ready().await;
    setup
}

impl Setup {
    /// Waits until the caches of all workers are known from events.
    pub(crate) async fn exact(&self) {
        self.admin_until("/kv", |kv| {
            let workers = kv["workers"].as_array().expect("a list");
            !workers.is_empty() && workers.iter().all(|worker| worker["knowledge"] == "exact")
        })
        .await;
    }

    pub(crate) async fn post_admin(&self, path: &str, body: &Value) -> client::Answer {
        let request = client::post(path, "", body.to_string().as_bytes());
        client::call(self.gateway.admin_addr(), &request).await
    }
}

/// What a turn's answer said.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) source: String,
    pub(crate) worker: String,
    pub(crate) ours: Option<u64>,
    pub(crate) predicted: Option<u64>,
    /// How sure that is.
    pub(crate) claim: Option<String>,
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    pub(crate) output: u64,
}

impl Turn {
    /// Blocks of prompt and answer that are computed in the end: the last token is not.
    pub(crate) const fn blocks(&self) -> u64 {
        (self.prompt + self.output - 1) / BLOCK
    }
}

/// A session as a harness keeps it.
pub(crate) struct Session {
    pub(crate) id: &'static str,
    pub(crate) tenant: &'static str,
    pub(crate) history: Vec<Value>,
    pub(crate) headers: String,
}

impl Session {
    pub(crate) fn new(id: &'static str) -> Self {
        let system = json!({"role": "system", "content": format!("instructions for {id} ").repeat(40)});
        Self { id, tenant: "default", history: vec![system], headers: String::new() }
    }

    pub(crate) fn body(&self) -> Value {
        json!({"model": "tiny", "max_tokens": 24, "messages": self.history})
    }

    /// One turn: a question, and the answer kept as it came.
    pub(crate) async fn turn(&mut self, setup: &Setup, question: &str) -> Turn {
        self.history.push(json!({"role": "user", "content": question}));
        let headers = format!("x-session-id: {}\r\nx-tandem-explain: 1\r\n{}", self.id, self.headers);
        let answer = setup.post("/v1/chat/completions", &headers, &self.body()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let said = answer.json();
        self.history.push(said["choices"][0]["message"].clone());
        let number = |name: &str| answer.header(name).map(|text| text.parse().expect("a number"));
        let usage = &said["usage"];
        Turn {
            source: answer.header("x-tandem-prompt-source").expect("a source").to_owned(),
            worker: answer.header("x-tandem-worker").expect("a worker").to_owned(),
            ours: number("x-tandem-prompt-tokens"),
            predicted: number("x-tandem-predicted-cached-tokens"),
            claim: answer.header("x-tandem-prediction").map(str::to_owned),
            prompt: usage["prompt_tokens"].as_u64().expect("a count"),
            cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0),
            output: usage["completion_tokens"].as_u64().expect("a count"),
        }
    }
}

impl Session {
    /// One turn whose blocks are known when it returns.
    pub(crate) async fn known_turn(&mut self, setup: &Setup, question: &str) -> Turn {
        let turn = self.turn(setup, question).await;
        self.known(setup, &turn).await;
        turn
    }

    /// Waits until the engine's events of a turn were taken in, to its last block.
    pub(crate) async fn known(&self, setup: &Setup, said: &Turn) {
        setup.admin_until("/kv", |kv| kv["predicted_blocks"] == 0).await;
        // As the next turn would ask: a body that ends with an answer is one to be continued.
        let mut next = self.body();
        next["messages"].as_array_mut().expect("a list").push(json!({"role": "user", "content": "user"}));
        let mut last = Value::Null;
        let known = async {
            loop {
                let found =
                    setup.post_admin(&format!("/kv/match?tenant={}", self.tenant), &next).await.json();
                let workers = found["match"]["workers"].as_array().cloned().unwrap_or_default();
                if workers.iter().any(|held| held["device"].as_u64() >= Some(said.blocks())) {
                    return;
                }
                last = found;
                tokio::task::yield_now().await;
            }
        };
        let known = tokio::time::timeout(Duration::from_secs(60), known).await;
        assert!(known.is_ok(), "{} blocks of {said:?} are not known: {last}", said.blocks());
    }
}

/// Empties an engine's cache.
pub(crate) async fn empty(engine: &MockEngine, path: &str) {
    let address = engine.url().trim_start_matches("http://").parse().expect("an address");
    let reset = client::call(address, &client::post(path, "", b"")).await;
    assert_eq!(reset.status, 200, "{}", reset.text());
}
