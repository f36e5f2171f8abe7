//! `tandem doctor engines`: one look at each engine.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use futures_util::future::join_all;
use tandem_engines::{
    ApiKey, EngineSpec, HttpClient, HttpConfig, Presence, ProbeOptions, ProbeReport, TlsConfig, probe,
};
use tandem_gateway::config::Span;

use crate::{Failure, print};

/// Arguments of `tandem doctor engines`.
#[derive(Debug, Args)]
pub(crate) struct EnginesArgs {
    /// Engines to look at, in the form that `serve --worker-urls` takes.
    #[arg(required = true, value_name = "URL", num_args = 1.., value_delimiter = ',', env = "TANDEM_WORKER_URLS")]
    urls: Vec<String>,
    /// Key to present.
    #[arg(long, env = "TANDEM_WORKER_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Also send each engine two tiny requests: the only proof that it reports cached tokens.
    #[arg(long)]
    active: bool,
    /// Longest wait for each question.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    timeout: Span,
    /// One JSON object an engine.
    #[arg(long)]
    json: bool,
}

/// Looks at all engines at once. Exit code 0 if each could be reached and lacks nothing.
pub(super) async fn run(args: EnginesArgs) -> Result<ExitCode, Failure> {
    let mut specs = Vec::new();
    for url in &args.urls {
        let mut spec: EngineSpec = url.parse().map_err(|e| Failure::Usage(anyhow!("{url}: {e}")))?;
        if let (None, Some(key)) = (&spec.api_key, &args.api_key) {
            let key = ApiKey::new(key)
                .ok_or_else(|| Failure::Usage(anyhow!("the api key is not visible ascii")))?;
            spec.api_key = Some(key);
        }
        specs.push(spec);
    }
    let config = HttpConfig {
        connect_timeout: args.timeout.into(),
        tls: TlsConfig::default(),
        ..HttpConfig::default()
    };
    let client = HttpClient::new(&config).context("building the client")?;
    let options = ProbeOptions { timeout: Duration::from(args.timeout), active: args.active };
    let reports = join_all(specs.iter().map(|spec| probe(&client, spec, options))).await;
    for report in &reports {
        if args.json {
            print::line(&serde_json::to_string(report).context("writing the report")?)?;
        } else {
            print::data(&text(report))?;
        }
    }
    Ok(if reports.iter().all(healthy) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn healthy(report: &ProbeReport) -> bool {
    report.error.is_none() && report.capabilities.iter().all(|c| c.presence != Presence::Missing)
}

fn text(report: &ProbeReport) -> String {
    let mut out = format!("{}\n", report.url);
    if let Some(error) = &report.error {
        return format!("{out}  error: {error}\n");
    }
    let kind = report.kind.map_or_else(|| "unknown make".to_owned(), |k| format!("{k:?}"));
    let version = report.version.as_deref().unwrap_or("unknown version");
    let models: Vec<&str> = report.models.iter().map(|m| m.id.as_str()).collect();
    out.push_str(&format!(
        "  {kind} {version}, {} rank(s), models: {}\n",
        report.ranks.len(),
        models.join(", ")
    ));
    if let Some(tokens) = report.kv_capacity_tokens {
        out.push_str(&format!("  kv pool: {tokens} tokens a rank\n"));
    }
    for capability in &report.capabilities {
        let mark = match capability.presence {
            Presence::Present => "ok     ",
            Presence::Missing => "missing",
            Presence::Unknown => "unknown",
        };
        let kind = serde_json::to_value(capability.kind).ok();
        let name = kind.as_ref().and_then(|k| k.as_str()).unwrap_or_default().replace('_', " ");
        out.push_str(&format!("  {mark}  {name:<14} {}\n", capability.detail));
        if let Some(fix) = &capability.fix {
            out.push_str(&format!("           hint: {fix}\n"));
        }
    }
    out
}
