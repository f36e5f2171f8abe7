//! `tandem serve --state-dir`, killed in the middle of its work and started again.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandem_mock_engine::{MockConfig, MockEngine, MockModel};

/// Turns of each session before the kill.
const TURNS: usize = 4;

const SESSIONS: [&str; 8] =
    ["alpha", "beta-1", "gamma-22", "delta-333", "epsilon", "zeta-4444", "eta-55555", "theta"];

/// Longest wait for a state of another process.
const PATIENCE: Duration = Duration::from_secs(120);

struct Gateway {
    process: Child,
    inference: String,
    admin: String,
    metrics: String,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Gateway {
    fn start(engines: &[&str], state: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
        for (name, _) in std::env::vars_os() {
            if ["TANDEM_", "DYN_", "RUST_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command.args(["serve", "--policy", "kv", "--kv-sources", "lineage", "--host", "127.0.0.1"]);
        command.args(["--port", "0", "--admin-port", "0", "--prometheus-port", "0"]);
        command.args(["--set", "prometheus_host=127.0.0.1"]);
        command.arg("--state-dir").arg(state).arg("--worker-urls").args(engines);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("starts");
        let mut log = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        let serving = log.by_ref().map_while(Result::ok).find(|line| line.contains("serving"));
        let serving = plain(&serving.expect("it serves"));
        let address = |name: &str| {
            let value = serving.split_whitespace().find_map(|word| word.strip_prefix(name));
            value.expect("an address in the log").to_owned()
        };
        let gateway = Self {
            inference: address("addr="),
            admin: address("admin="),
            metrics: address("metrics="),
            process,
        };
        // Nobody may be held up by a full pipe.
        std::thread::spawn(move || log.for_each(drop));
        gateway.until("readiness", || {
            get(&gateway.inference, "/readiness").is_ok_and(|(status, _)| status == 200)
        });
        gateway.until("events", || {
            let workers = gateway.admin("/kv")["workers"].as_array().cloned().unwrap_or_default();
            workers.len() == engines.len() && workers.iter().all(|worker| worker["knowledge"] == "exact")
        });
        gateway
    }

    /// Waits for a state of the process.
    fn until(&self, what: &str, reached: impl Fn() -> bool) {
        let began = Instant::now();
        while !reached() {
            assert!(began.elapsed() < PATIENCE, "{what} ({})", self.inference);
            std::thread::yield_now();
        }
    }

    /// SIGKILL.
    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn admin(&self, path: &str) -> Value {
        let (status, body) = get(&self.admin, path).expect("an answer");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("json")
    }

    /// Nothing waits to be written.
    fn is_written(&self) -> bool {
        let (_, text) = get(&self.metrics, "/metrics").expect("an answer");
        text.contains("\ntandem_state_queue 0\n")
    }

    /// Home and context of each session, with its engine's address.
    fn sessions(&self) -> BTreeMap<String, (String, u64)> {
        let workers = self.admin("/workers");
        let engines = workers["engines"].as_array().expect("a list");
        let url = |id: &Value| {
            let engine = engines.iter().find(|engine| engine["id"] == *id).expect("an engine");
            engine["url"].as_str().expect("a text").to_owned()
        };
        let sessions = self.admin("/sessions");
        let programs = sessions["programs"].as_array().expect("a list");
        let of = |program: &Value| {
            let name = program["program"]["session"].as_str().expect("a name").to_owned();
            let tokens = program["known_tokens"].as_u64().expect("a number");
            (name, (url(&program["last_worker"]["engine"]), tokens))
        };
        programs.iter().map(of).collect()
    }
}

/// A line of the log without colours.
fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        out.push_str(before);
        rest = after.split_once('m').map_or("", |(_, rest)| rest);
    }
    out.push_str(rest);
    out
}

fn get(address: &str, path: &str) -> std::io::Result<(u16, String)> {
    call(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
        .map(|(status, _, body)| (status, body))
}

fn call(address: &str, request: &str) -> std::io::Result<(u16, String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or(std::io::ErrorKind::InvalidData)?, head.to_lowercase(), body.to_owned()))
}

struct Session {
    name: String,
    history: Vec<Value>,
}

#[derive(Debug)]
struct Said {
    worker: String,
    predicted: Option<u64>,
    claim: Option<String>,
    cached: u64,
    blocks: u64,
}

impl Session {
    fn new(name: &str) -> Self {
        let system = format!("classified instructions of {name} ").repeat(30);
        Self { name: name.to_owned(), history: vec![json!({"role": "system", "content": system})] }
    }

    fn turn(&mut self, address: &str, question: &str) -> std::io::Result<Said> {
        self.history.push(json!({"role": "user", "content": question}));
        let body = json!({"model": "tiny", "max_tokens": 4, "messages": self.history}).to_string();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-session-id: {}\r\n\
             x-tandem-explain: 1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.name,
            body.len()
        );
        let (status, head, body) = call(address, &(head + &body))?;
        assert_eq!(status, 200, "{body}");
        let answer: Value = serde_json::from_str(&body).expect("json");
        self.history.push(answer["choices"][0]["message"].clone());
        let header = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.map(str::to_owned)
        };
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        let usage = &answer["usage"];
        Ok(Said {
            worker: header("x-tandem-worker").expect("a worker"),
            predicted: header("x-tandem-predicted-cached-tokens").and_then(|text| text.parse().ok()),
            claim: header("x-tandem-prediction"),
            cached: count(&usage["prompt_tokens_details"]["cached_tokens"]),
            blocks: (count(&usage["prompt_tokens"]) + count(&usage["completion_tokens"]) - 1) / 16,
        })
    }
}

fn question(turn: usize) -> String {
    format!("confidential question {turn} {}", "and more ".repeat(20))
}

/// Whether a text is anywhere in the files of a folder.
fn found_in(folder: &Path, text: &str) -> bool {
    let files = std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    files
        .map(|path| std::fs::read(path).expect("readable"))
        .any(|bytes| bytes.windows(text.len()).any(|window| window.eq_ignore_ascii_case(text.as_bytes())))
}

/// Others send turns until the gateway is killed under them.
fn load(address: &str, number: u64, stop: &AtomicBool, sent: &AtomicU64) -> Session {
    let mut session = Session::new(&format!("load-{number}"));
    for turn in 0.. {
        if turn % 8 == 7 {
            session.history.truncate(1);
        }
        if stop.load(Ordering::Relaxed) || session.turn(address, &question(turn)).is_err() {
            break;
        }
        sent.fetch_add(1, Ordering::Relaxed);
    }
    session
}

/// Where blocks of all workers together are known.
fn blocks(gateway: &Gateway) -> u64 {
    let kv = gateway.admin("/kv");
    let workers = kv["workers"].as_array().expect("a list").clone();
    workers.iter().filter_map(|worker| worker["blocks"].as_u64()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_of_its_work_it_goes_on_where_it_was() {
    let config = || {
        let mut config = MockConfig { models: vec![MockModel::base("tiny")], ..MockConfig::default() };
        config.flags.prompt_tokens_details = true;
        config
    };
    let engines = [MockEngine::start(config()).await, MockEngine::start(config()).await];
    let engines = engines.map(|engine| engine.expect("starts"));
    let urls = engines.each_ref().map(MockEngine::url);
    tokio::task::spawn_blocking(move || kill_and_go_on(&urls)).await.expect("passes");
    for engine in engines {
        engine.stop().await;
    }
}

fn kill_and_go_on([a, b]: &[String; 2]) {
    let state = tempfile::tempdir().expect("a folder");
    let mut gateway = Gateway::start(&[a, b], state.path());
    let mut sessions = SESSIONS.map(Session::new);
    for turn in 0..TURNS {
        for session in &mut sessions {
            let before = blocks(&gateway);
            let said = session.turn(&gateway.inference, &question(turn)).expect("answered");
            gateway.until("events of a turn", || {
                let known = blocks(&gateway);
                known > before && known >= said.blocks && gateway.admin("/kv")["predicted_blocks"] == 0
            });
        }
    }
    gateway.until("quiet", || gateway.admin("/turns")["total"] == 0 && gateway.is_written());
    let before = gateway.sessions();
    assert_eq!(before.len(), SESSIONS.len());

    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let address = gateway.inference.clone();
    let mut cut: Vec<Session> = std::thread::scope(|scope| {
        let (address, stop, sent) = (&address, &stop, &sent);
        let load = (0..3).map(|number| scope.spawn(move || load(address, number, stop, sent)));
        let load: Vec<_> = load.collect();
        gateway.until("load", || sent.load(Ordering::Relaxed) >= 20);
        gateway.kill();
        stop.store(true, Ordering::Relaxed);
        load.into_iter().map(|thread| thread.join().expect("ends")).collect()
    });
    for text in ["classified", "confidential", "instructions", "and more", "\"role\""] {
        assert!(!found_in(state.path(), text), "{text:?} is in the state directory");
    }
    assert!(SESSIONS.iter().all(|name| found_in(state.path(), name)), "the ids are");

    // The engines in another order: a home is an address, not a number.
    let gateway = Gateway::start(&[b, a], state.path());
    let after = gateway.sessions();
    for name in SESSIONS {
        assert_eq!(after.get(name), before.get(name), "{name}");
    }
    let number = |url: &str| usize::from(url != b);
    let mut exact = 0;
    for session in &mut sessions {
        let said = session.turn(&gateway.inference, &question(TURNS)).expect("answered");
        let (home, _) = &before[&session.name];
        assert_eq!(said.worker, format!("e{}r0", number(home)), "{}: {said:?}", session.name);
        assert_eq!(said.predicted, Some(said.cached), "{}: {said:?}", session.name);
        assert!(said.cached > 0, "{}: {said:?}", session.name);
        exact += usize::from(said.claim.as_deref() == Some("exact"));
    }
    // What was noted of these is older than what their engines have: nothing wrong is called exact.
    for session in &mut cut {
        session.history.pop_if(|last| last["role"] == "user");
        let said = session.turn(&gateway.inference, &question(0)).expect("answered");
        let wrong = said.claim.as_deref() == Some("exact") && said.predicted != Some(said.cached);
        assert!(!wrong, "{}: {said:?}", session.name);
    }
    assert!(
        exact > SESSIONS.len() / 2,
        "what an answer's way back leaves open seldom ends in another block: {exact}"
    );
}
