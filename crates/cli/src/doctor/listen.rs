//! `tandem doctor harness`: a place to call, and what each call shows.
//!
//! A modelled engine answers, so that the harness goes on as with a real one; what it recorded of each call
//! is put through the very code that the gateway uses.

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Serialize;
use tandem_dialect::{Route, parse_request};
use tandem_identity::{Explanation, HygieneConfig, IdentityConfig, RequestHead, explain, hygiene, identify};
use tandem_mock_engine::{MockConfig, MockEngine, MockModel, Record, RecordConfig, Script};
use tandem_types::TenantId;
use tokio::time::{MissedTickBehavior, interval};

use crate::Failure;
use crate::print::{self, Reader};

/// Arguments of `tandem doctor harness`.
#[derive(Debug, Args)]
pub(crate) struct ListenArgs {
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 30000)]
    port: u16,
    /// Model names that the harness may ask for.
    #[arg(long = "model", value_name = "NAME", num_args = 1.., default_value = "tiny")]
    models: Vec<String>,
    /// Tool turns that the modelled model asks for before it ends.
    #[arg(long, value_name = "N", default_value_t = 2)]
    tool_turns: u32,
    /// End after this many calls; without it, at Ctrl-C.
    #[arg(long, value_name = "N")]
    calls: Option<usize>,
    /// One JSON object a call.
    #[arg(long)]
    json: bool,
}

/// How often new calls are looked for. A person reads the output; faster would show nothing more.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// One call, explained.
#[derive(Debug, Serialize)]
struct Finding {
    /// Method and path.
    call: String,
    /// Why the body could not be read, if so.
    error: Option<String>,
    /// What was recognised.
    #[serde(flatten)]
    explanation: Option<Explanation>,
}

/// Listens until Ctrl-C or until the wanted number of calls came.
pub(super) async fn run(args: ListenArgs) -> Result<ExitCode, Failure> {
    let config = MockConfig {
        host: args.host,
        port: args.port,
        models: args.models.iter().map(|name| MockModel::base(name)).collect(),
        script: Script::agent(args.tool_turns),
        record: RecordConfig { file: None, bodies: true },
        kv_events: None,
        fault_header: false,
        ..MockConfig::default()
    };
    let engine = MockEngine::start(config).await.map_err(|e| Failure::Run(e.into()))?;
    let url = engine.url();
    print::note(&format!("listening on {url}; point a harness here (OpenAI base URL {url}/v1)"));
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut next, mut shown, mut reader) = (0, 0, Reader::There);
    loop {
        tokio::select! {
            result = tokio::signal::ctrl_c() => {
                result.context("waiting for Ctrl-C")?;
                break;
            }
            _ = look.tick() => {}
        }
        for record in engine.records().iter().filter(|r| r.index >= next) {
            reader = print::line(&show(&examine(record), args.json)?)?;
            shown += 1;
        }
        next = engine.records().last().map_or(next, |r| next.max(r.index + 1));
        if reader == Reader::Gone || args.calls.is_some_and(|wanted| shown >= wanted) {
            break;
        }
    }
    engine.stop().await;
    Ok(ExitCode::SUCCESS)
}

/// Puts a recorded call through the gateway's own recognition.
fn examine(record: &Record) -> Finding {
    let call = format!("{} {}", record.method, record.path);
    let method = record.method.parse::<Method>().unwrap_or(Method::POST);
    let Route::Turn(dialect) = Route::of(&record.method, &record.path) else {
        return Finding { call, error: None, explanation: None };
    };
    let body = record.body.as_deref().unwrap_or_default().as_bytes();
    let parsed = match parse_request(dialect, body) {
        Ok(parsed) => parsed,
        Err(error) => return Finding { call, error: Some(error.to_string()), explanation: None },
    };
    let headers: HeaderMap = record
        .headers
        .iter()
        .filter_map(|(name, value)| {
            Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?))
        })
        .collect();
    let head = RequestHead { method: &method, path: &record.path, headers: &headers };
    let identity = identify(&head, Some(&parsed.facts), &TenantId::default(), &IdentityConfig::default());
    let plan = hygiene::plan(dialect, identity.harness, body, &HygieneConfig::default());
    let explanation = explain(&head, Some(&parsed.facts), &identity, Some(&plan));
    Finding { call, error: None, explanation: Some(explanation) }
}

fn show(finding: &Finding, json: bool) -> anyhow::Result<String> {
    if json {
        return serde_json::to_string(finding).context("writing the finding");
    }
    let mut out = finding.call.clone();
    if let Some(error) = &finding.error {
        out.push_str(&format!("\n  cannot be read: {error}"));
    }
    if let Some(explanation) = &finding.explanation {
        for line in &explanation.findings {
            out.push_str(&format!("\n  {line}"));
        }
        for line in &explanation.advice {
            out.push_str(&format!("\n  hint: {line}"));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: &str, headers: &[(&str, &str)], body: &str) -> Record {
        Record {
            index: 0,
            at_us: 0,
            method: "POST".to_owned(),
            path: path.to_owned(),
            headers: headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            body_bytes: body.len(),
            body_xxh3: String::new(),
            body: Some(body.to_owned()),
            model: None,
            stream: None,
            tools: None,
            messages: None,
        }
    }

    #[test]
    fn a_recorded_call_is_explained_by_its_header() {
        let headers = [("x-claude-code-session-id", "11111111-2222-4333-8444-555555555555")];
        let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":8}"#;
        let finding = examine(&record("/v1/messages?beta=true", &headers, body));
        let explanation = finding.explanation.expect("a turn");
        assert_eq!(explanation.program.as_deref(), Some("default/11111111-2222-4333-8444-555555555555"));
        assert_eq!(explanation.found_in, Some("x-claude-code-session-id"));
    }

    #[test]
    fn a_body_that_cannot_be_read_is_told_and_other_calls_are_only_named() {
        assert!(examine(&record("/v1/messages", &[], "{")).error.is_some());
        let other = examine(&record("/v1/models", &[], ""));
        assert!(other.explanation.is_none() && other.error.is_none());
    }
}
