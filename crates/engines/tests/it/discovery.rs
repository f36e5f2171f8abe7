//! Engines found by name.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tandem_engines::{AddError, Added, EngineEvent, EngineState, Engines, Resolve, Resolving};
use tandem_types::EngineId;
use tokio::sync::mpsc;

use crate::net::{Fleet, Net, Script, config, millis, secs, spec, worker};

/// A name server that answers as told; `None` = failure.
#[derive(Default)]
struct Records(Mutex<Option<Vec<SocketAddr>>>);

impl Records {
    fn set(&self, addresses: &[&str]) {
        let parsed = addresses.iter().map(|a| a.parse().expect("an address")).collect();
        *self.0.lock().expect("lock") = Some(parsed);
    }

    fn break_down(&self) {
        *self.0.lock().expect("lock") = None;
    }
}

impl Resolve for Records {
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> Resolving<'a> {
        assert_eq!((name, port), ("engines.svc", 8000));
        let found = self.0.lock().expect("lock").clone();
        Box::pin(async move { found.ok_or_else(|| io::Error::other("server failure")) })
    }
}

fn fleet(net: &Arc<Net>, records: &Arc<Records>) -> Fleet {
    let (tx, rx) = mpsc::channel(1024);
    let resolver = Arc::clone(records) as Arc<dyn Resolve>;
    let specs = vec![spec("dns://engines.svc:8000@max_running=8")];
    Fleet::with(Engines::start_with_resolver(config(), net.client(), specs, tx, resolver), rx)
}

async fn next_up(fleet: &mut Fleet) -> u32 {
    let event = fleet.next().await;
    let EngineEvent::Up { worker, info } = event else { panic!("{event:?}") };
    assert_eq!(info.max_running, Some(8), "options hold for each engine");
    worker.engine.0
}

// I-DNS-2.
#[tokio::test(start_paused = true)]
async fn the_set_follows_the_records() {
    let (net, records) = (Net::new(), Arc::new(Records::default()));
    let script = Script::vllm();
    for host in ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000"] {
        net.serve(host, &script);
    }
    records.set(&["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.1:8000"]);
    let mut fleet = fleet(&net, &records);
    assert_eq!((next_up(&mut fleet).await, next_up(&mut fleet).await), (0, 1));
    let seen = script.seen("/health");
    let host = seen.first().and_then(|s| s.headers.get("host")).map(|v| v.as_bytes().to_vec());
    assert_eq!(host.as_deref(), Some(&b"engines.svc:8000"[..]), "engines see the name");

    records.set(&["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000"]);
    assert_eq!(next_up(&mut fleet).await, 2);

    // Away from two answers: drains. Back in time: undrained. Away for good: removed.
    records.set(&["10.0.0.1:8000", "[fd00::3]:8000"]);
    assert_eq!(fleet.next().await, EngineEvent::Draining { worker: worker(1, 0) });
    records.set(&["10.0.0.2:8000", "10.0.0.1:8000", "[fd00::3]:8000"]);
    assert_eq!(next_up(&mut fleet).await, 1);
    records.set(&["[fd00::3]:8000", "10.0.0.2:8000"]);
    assert_eq!(fleet.next().await, EngineEvent::Draining { worker: worker(0, 0) });
    let drained = net.now();
    assert_eq!(fleet.next().await, EngineEvent::Removed { worker: worker(0, 0) });
    assert!(net.now() - drained >= secs(60), "{:?}", net.now() - drained);

    // An address that returns after its removal is a new engine.
    records.set(&["[fd00::3]:8000", "10.0.0.2:8000", "10.0.0.1:8000"]);
    assert_eq!(next_up(&mut fleet).await, 3);
    let urls: Vec<String> = fleet.engines.list().into_iter().map(|s| s.url).collect();
    assert_eq!(urls, ["http://10.0.0.2:8000", "http://[fd00::3]:8000", "http://10.0.0.1:8000"]);
}

// I-DNS-1, I-DNS-2.
#[tokio::test(start_paused = true)]
async fn one_short_answer_and_broken_name_servers_take_nothing_away() {
    let (net, records) = (Net::new(), Arc::new(Records::default()));
    net.serve("10.0.0.1:8000", &Script::vllm());
    records.set(&["10.0.0.1:8000"]);
    let mut fleet = fleet(&net, &records);
    assert_eq!(next_up(&mut fleet).await, 0);
    tokio::time::sleep(millis(100)).await;
    for _ in 0..5 {
        records.set(&[]);
        assert_eq!(fleet.during(secs(10)).await, [], "missing once");
        records.set(&["10.0.0.1:8000"]);
        assert_eq!(fleet.during(secs(10)).await, []);
    }
    records.break_down();
    assert_eq!(fleet.during(secs(600)).await, []);
    assert_eq!(fleet.engines.list().first().map(|s| s.state), Some(EngineState::Ready));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_appears_late_is_found_soon() {
    let (net, records) = (Net::new(), Arc::new(Records::default()));
    net.serve("10.0.0.1:8000", &Script::vllm());
    let mut fleet = fleet(&net, &records);
    assert_eq!(fleet.during(secs(61)).await, []);
    records.set(&["10.0.0.1:8000"]);
    let set = net.now();
    next_up(&mut fleet).await;
    assert!(net.now() - set <= secs(2), "{:?}", net.now() - set);
}

#[tokio::test(start_paused = true)]
async fn a_name_is_followed_once_and_can_be_let_go() {
    let (net, records) = (Net::new(), Arc::new(Records::default()));
    net.serve("10.0.0.1:8000", &Script::vllm());
    net.serve("other:1", &Script::vllm());
    records.set(&["10.0.0.1:8000"]);
    let mut fleet = fleet(&net, &records);
    assert_eq!(next_up(&mut fleet).await, 0);
    assert_eq!(fleet.engines.add(spec("other:1")), Ok(Added::Engine(EngineId(1))));
    fleet.next().await;
    let name = "dns://engines.svc:8000";
    assert_eq!(fleet.engines.add(spec(name)), Err(AddError::Duplicate(name.to_owned())));
    assert!(fleet.engines.remove_discovery(name));
    assert_eq!(fleet.next().await, EngineEvent::Removed { worker: worker(0, 0) });
    assert!(!fleet.engines.remove_discovery(name));
    assert_eq!(fleet.during(secs(60)).await, []);
    assert_eq!(fleet.engines.list().len(), 1);
}

// I-DNS-3.
#[tokio::test(start_paused = true)]
async fn an_operators_removal_of_a_found_engine_lasts_while_it_is_in_the_records() {
    let (net, records) = (Net::new(), Arc::new(Records::default()));
    net.serve("10.0.0.1:8000", &Script::vllm());
    records.set(&["10.0.0.1:8000"]);
    let mut fleet = fleet(&net, &records);
    assert_eq!(next_up(&mut fleet).await, 0);
    assert!(fleet.engines.remove(EngineId(0)));
    assert_eq!(fleet.next().await, EngineEvent::Removed { worker: worker(0, 0) });
    assert_eq!(fleet.during(secs(120)).await, []);
}
