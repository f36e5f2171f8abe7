//! Drives the bundled agents through the gateway, over real HTTP, each in its dialect.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tandem_dialect::SseParser;
use tandem_engines::{HttpClient, full, read_body};
use tandem_types::Dialect;
use tokio::sync::mpsc;

use super::answer::Reader;
use super::body::{Answer, Conversation};
use super::plan::AgentPlan;

/// Largest answer read.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Longest a call may take before the demo calls it lost.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// How long an agent is away running a tool, real time.
const TOOL_TIME: Duration = Duration::from_millis(400);

/// One call as its client saw it.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// The agent's name.
    pub(super) agent: String,
    /// Whether it was a turn, not a side call.
    pub(super) turn: bool,
    /// What went wrong, if anything.
    pub(super) error: Option<String>,
}

/// What all agents share.
pub(super) struct Driver {
    pub(super) client: HttpClient,
    pub(super) base: String,
    pub(super) calls: mpsc::Sender<Call>,
}

/// Runs an agent and its children to their end. An agent whose call fails stops there.
pub(super) fn run_agent(
    driver: Arc<Driver>,
    plan: AgentPlan,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'static>> {
    Box::pin(async move {
        let mut conversation = Conversation::new(&plan);
        let mut children = tokio::task::JoinSet::new();
        if plan.title_call {
            let (driver, plan) = (Arc::clone(&driver), plan.clone());
            let body = conversation.title_body(&plan);
            children.spawn(async move {
                driver.call(&plan, &body, false, false).await;
            });
        }
        for turn in 0..=plan.tool_turns {
            let last = turn == plan.tool_turns;
            let body = conversation.body(&plan, !last);
            let Some(answer) = driver.call(&plan, &body, true, last && plan.says_final).await else { break };
            conversation.extend(&answer, turn);
            if turn == 0 {
                for child in plan.children.clone() {
                    children.spawn(run_agent(Arc::clone(&driver), child));
                }
            }
            if !last {
                tokio::time::sleep(TOOL_TIME).await;
            }
        }
        while children.join_next().await.is_some() {}
    })
}

impl Driver {
    async fn call(&self, plan: &AgentPlan, body: &Value, turn: bool, is_final: bool) -> Option<Answer> {
        let result = match tokio::time::timeout(CALL_TIMEOUT, self.exchange(plan, body, is_final)).await {
            Ok(result) => result,
            Err(_) => Err(anyhow::anyhow!("no answer within {} s", CALL_TIMEOUT.as_secs())),
        };
        let error = result.as_ref().err().map(|e| format!("{e:#}"));
        // The receiver lives as long as any agent does.
        let _ = self.calls.send(Call { agent: plan.name.clone(), turn, error }).await;
        result.ok()
    }

    async fn exchange(&self, plan: &AgentPlan, body: &Value, is_final: bool) -> Result<Answer> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{}", self.base, path(plan.dialect)))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, "Bearer demo");
        for (name, value) in &plan.headers {
            request = request.header(*name, value);
        }
        if is_final {
            request = request.header("x-dynamo-session-final", "true");
        }
        let request = request.body(full(serde_json::to_vec(body)?))?;
        let response = self.client.send(request).await?;
        let status = response.status();
        let mut incoming = response.into_body();
        if !status.is_success() {
            let text = read_body(incoming, ANSWER_BYTES_MAX).await.unwrap_or_default();
            bail!("status {status}: {}", String::from_utf8_lossy(&text));
        }
        let mut reader = Reader::new(plan.dialect);
        if !plan.stream {
            reader.whole(&read_body(incoming, ANSWER_BYTES_MAX).await?)?;
            return reader.finish();
        }
        let mut parser = SseParser::new(ANSWER_BYTES_MAX);
        let mut fault = None;
        while let Some(frame) = incoming.frame().await {
            let Ok(data) = frame.context("the stream broke")?.into_data() else { continue };
            parser.push(&data, |event| take(&mut reader, event.data, &mut fault));
        }
        parser.finish(|event| take(&mut reader, event.data, &mut fault));
        match fault {
            Some(error) => Err(error),
            None => reader.finish(),
        }
    }
}

fn take(reader: &mut Reader, data: &[u8], fault: &mut Option<anyhow::Error>) {
    let result = std::str::from_utf8(data).map_err(anyhow::Error::from).and_then(|text| reader.event(text));
    if let Err(error) = result {
        fault.get_or_insert(error);
    }
}

const fn path(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Chat => "/v1/chat/completions",
        Dialect::Completions => "/v1/completions",
        Dialect::Responses => "/v1/responses",
        Dialect::Messages => "/v1/messages",
    }
}

/// Waits until the gateway has a ready engine.
pub(super) async fn wait_ready(client: &HttpClient, base: &str, within: Duration) -> Result<()> {
    let deadline = Instant::now() + within;
    loop {
        let request = Request::get(format!("{base}/readiness")).body(full(""))?;
        if let Ok(response) = client.send(request).await
            && response.status().is_success()
        {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("the gateway found no ready engine within {} s", within.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
