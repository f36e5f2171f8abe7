//! The gateways under comparison and how each is started.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::process::Server;

/// A gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// No gateway at all.
    Direct,
    /// The bare hyper proxy.
    Floor,
    /// Tandem, with its defaults.
    Tandem,
    /// Tandem, with its request trace written to a file.
    TandemTraced,
    /// sglang-router 0.3.2, round robin.
    SglangRouter,
    /// vllm-router 0.1.17, round robin.
    VllmRouter,
    /// Dynamo 1.6.1's frontend with its own mock workers.
    Dynamo,
}

/// Where things are.
#[derive(Debug, Clone)]
pub struct Paths {
    /// The release build of tandem.
    pub tandem: PathBuf,
    /// Folder with the virtual environments `routers` and `dynamo`.
    pub peers: PathBuf,
    /// Folder of a model with a tokenizer, for Dynamo.
    pub model: Option<PathBuf>,
}

/// A running gateway.
#[derive(Debug)]
pub struct Running {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Its processes; none for [`Target::Direct`].
    pub server: Option<Server>,
    /// Which of its processes are the gateway, by a word of their command line.
    pub only: &'static str,
}

impl Target {
    /// Starts the gateway in front of `engines`, listening on `listen`.
    pub fn start(self, paths: &Paths, engines: &[SocketAddr], listen: SocketAddr) -> Result<Running> {
        let urls: Vec<String> = engines.iter().map(|e| format!("http://{e}")).collect();
        let port = listen.port().to_string();
        let mut only = "";
        let command = match self {
            Self::Direct => return Ok(Running { addr: engines[0], server: None, only }),
            Self::Floor => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["floor", &listen.to_string()]).args(engines.iter().map(ToString::to_string));
                command
            }
            Self::Tandem | Self::TandemTraced => self.tandem(paths, &urls, &port),
            Self::SglangRouter => {
                let mut command = Command::new(paths.peers.join("routers/bin/sglang-router"));
                command.args(["launch", "--host", "127.0.0.1", "--port", &port, "--policy", "round_robin"]);
                command.args([
                    "--prometheus-port",
                    &crate::process::free_addr()?.port().to_string(),
                    "--log-level",
                    "warn",
                ]);
                command.arg("--worker-urls").args(&urls);
                command
            }
            Self::VllmRouter => {
                let mut command = Command::new(paths.peers.join("routers/bin/vllm-router"));
                command.args([
                    "--host",
                    "127.0.0.1",
                    "--port",
                    &port,
                    "--policy",
                    "round_robin",
                    "--log-level",
                    "warning",
                ]);
                command.args(["--prometheus-port", &crate::process::free_addr()?.port().to_string()]);
                command.arg("--worker-urls").args(&urls);
                command
            }
            Self::Dynamo => {
                only = "dynamo.frontend";
                dynamo(paths, &port)?
            }
        };
        Ok(Running { addr: listen, server: Some(Server::start(self.name(), command)?), only })
    }

    fn tandem(self, paths: &Paths, urls: &[String], port: &str) -> Command {
        let mut command = Command::new(&paths.tandem);
        command.args([
            "serve",
            "--host",
            "127.0.0.1",
            "--port",
            port,
            "--admin-port",
            "0",
            "--prometheus-port",
            "0",
        ]);
        command.args(["--log-level", "warn"]);
        if self == Self::TandemTraced {
            command.args([
                "--trace-path",
                &std::env::temp_dir().join("tandem-bench-trace").display().to_string(),
            ]);
        }
        command.arg("--worker-urls").args(urls);
        command
    }

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Floor => "bare hyper proxy",
            Self::Tandem => "tandem",
            Self::TandemTraced => "tandem, traced",
            Self::SglangRouter => "sglang-router 0.3.2",
            Self::VllmRouter => "vllm-router 0.1.17",
            Self::Dynamo => "dynamo 1.6.1 frontend",
        }
    }

    /// Whether its answers come from the canned engines.
    pub fn uses_engines(self) -> bool {
        self != Self::Dynamo
    }
}

fn dynamo(paths: &Paths, port: &str) -> Result<Command> {
    let Some(model) = &paths.model else { bail!("dynamo needs --model: a folder with a tokenizer") };
    let python = paths.peers.join("dynamo/bin/python");
    let state = std::env::temp_dir().join(format!("tandem-bench-dynamo-{port}"));
    std::fs::create_dir_all(&state)?;
    let mut command = Command::new("bash");
    command.args(["-c", DYNAMO, "dynamo"]).args([python.as_path(), model.as_path(), Path::new(port)]);
    command.envs([
        ("DYN_DISCOVERY_BACKEND", "file"),
        ("DYN_REQUEST_PLANE", "tcp"),
        ("DYN_EVENT_PLANE", "zmq"),
        ("DYN_TCP_RPC_HOST", "127.0.0.1"),
        ("DYN_EVENT_PLANE_HOST", "127.0.0.1"),
        ("DYN_TCP_RESPONSE_STREAM_HOST", "127.0.0.1"),
        ("HF_HUB_OFFLINE", "1"),
        ("DYN_LOG", "warn"),
    ]);
    command.env("DYN_FILE_KV", state);
    Ok(command)
}

/// Two mock workers as fast as they go, and the frontend with round robin, without etcd or NATS.
const DYNAMO: &str = r#"
"$1" -m dynamo.mocker --model-path "$2" --model-name tiny --num-workers 2 --speedup-ratio 10000 --block-size 16 --num-gpu-blocks-override 65536 &
"$1" -m dynamo.frontend --http-host 127.0.0.1 --http-port "$3" --router-mode round-robin
"#;
