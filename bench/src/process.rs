//! Children and what they cost: CPU time and memory of a process and all its descendants, from /proc.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Clock ticks a second in /proc; 100 on every Linux that people run.
const TICKS_PER_SECOND: f64 = 100.0;

/// A child that is killed with its whole process group when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    name: String,
}

impl Server {
    /// Starts `command` in a group of its own, its output going to a file in the temporary folder.
    pub fn start(name: &str, mut command: Command) -> Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let log = fs::File::create(std::env::temp_dir().join(format!("tandem-bench-{name}.log")))?;
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Self { child, name: name.to_owned() })
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails if the child has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => {
                bail!("{} ended with {status}; see its log in {}", self.name, std::env::temp_dir().display())
            }
            None => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        // Best effort: the child may have ended by itself.
        let _ = Command::new("kill").args(["-TERM", "--", &group]).status();
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

/// CPU seconds used so far and memory resident now.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// User and system time, seconds.
    pub cpu_s: f64,
    /// Resident memory, bytes.
    pub rss_bytes: u64,
}

/// Cost of `root` and its descendants whose command line contains `only` (all when empty).
pub fn cost(root: u32, only: &str) -> Result<Cost> {
    let mut parents: BTreeMap<u32, (u32, f64, u64)> = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        if let Some(stat) = read_stat(pid) {
            parents.insert(pid, stat);
        }
    }
    let mut total = Cost::default();
    for (pid, (_, cpu_s, rss_bytes)) in &parents {
        let mut at = *pid;
        while at != root {
            match parents.get(&at) {
                Some((parent, ..)) if *parent != 0 => at = *parent,
                _ => break,
            }
        }
        if at == root && command_line(*pid).contains(only) {
            total.cpu_s += cpu_s;
            total.rss_bytes += rss_bytes;
        }
    }
    Ok(total)
}

fn command_line(pid: u32) -> String {
    fs::read(format!("/proc/{pid}/cmdline"))
        .map(|b| String::from_utf8_lossy(&b).replace('\0', " "))
        .unwrap_or_default()
}

/// Parent, CPU seconds, resident bytes; `None` when the process is gone.
fn read_stat(pid: u32) -> Option<(u32, f64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; fields are counted from its end.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|f| f.parse::<u64>().ok());
    let ticks = number(11)? + number(12)?;
    Some((u32::try_from(number(1)?).ok()?, ticks as f64 / TICKS_PER_SECOND, number(21)? * 4096))
}

/// A port that was free a moment ago.
pub fn free_addr() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
