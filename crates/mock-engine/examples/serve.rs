//! Serves one mock engine until interrupted: `cargo run -p tandem-mock-engine --example serve -- [config.json]`.
#![expect(clippy::print_stdout, reason = "it tells its address")]

use tandem_mock_engine::{MockConfig, MockEngine, Script};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = match std::env::args().nth(1) {
        Some(path) => serde_json::from_str(&std::fs::read_to_string(path)?)?,
        None => MockConfig { script: Script::agent(2), ..MockConfig::default() },
    };
    let engine = MockEngine::start(config).await?;
    println!("{} events {}", engine.url(), engine.events_endpoint().unwrap_or("off"));
    tokio::signal::ctrl_c().await?;
    engine.stop().await;
    Ok(())
}
