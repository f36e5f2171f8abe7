//! What is kept of a program, and its bytes.
//!
//! Decided: `MessagePack` arrays, so that a member can be added at the end of a struct in a later version; eight bytes
//! with the time of the last sign of life stand before them, so that order and age need no decoding. Workers are named by
//! the engine's address: numbers of engines are those of one run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tandem_engines::EngineStatus;
use tandem_lineage::OUTLINES_VERSION;
use tandem_scheduler::view::ProgramView;
use tandem_types::{AgentId, EngineId, GroupId, ProgramKey, SessionId, TenantId, Time, WorkerId};

/// Between the parts of a key; no id has this byte.
const SEPARATOR: u8 = 0;

/// A worker, by what it is called in every run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// The engine's address, without keys.
    pub(super) engine: String,
    /// Its data-parallel rank.
    pub(super) rank: u32,
}

/// What is kept of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) parent: Option<ProgramKey>,
    pub(super) group: Option<GroupId>,
    pub(super) home: Option<Place>,
    pub(super) prefill: Option<Place>,
    pub(super) turns_dispatched: u64,
    pub(super) turns_finished: u64,
    /// Prompt and answer of its last finished turn, in tokens.
    pub(super) known_tokens: u64,
    pub(super) ended_with_tools: bool,
    pub(super) stopped: bool,
    /// The version of outlines that the lineage was made with.
    pub(super) outlines: u32,
    pub(super) lineage: Option<tandem_lineage::Remembered>,
}

/// Addresses of engines by number.
pub(super) struct Addresses(BTreeMap<EngineId, String>);

impl Addresses {
    pub(super) fn new(engines: Vec<EngineStatus>) -> Self {
        Self(engines.into_iter().map(|engine| (engine.id, engine.url)).collect())
    }

    pub(super) fn place(&self, worker: WorkerId) -> Option<Place> {
        Some(Place { engine: self.0.get(&worker.engine)?.clone(), rank: worker.rank })
    }

    /// The worker at a place, where this run knows its engine.
    pub(super) fn worker(&self, place: &Place) -> Option<WorkerId> {
        let (engine, _) = self.0.iter().find(|(_, url)| **url == place.engine)?;
        Some(WorkerId { engine: *engine, rank: place.rank })
    }
}

impl Record {
    pub(super) fn new(
        view: ProgramView,
        lineage: Option<tandem_lineage::Remembered>,
        addresses: &Addresses,
    ) -> Self {
        let place = |worker: Option<WorkerId>| worker.and_then(|worker| addresses.place(worker));
        Self {
            home: place(view.last_worker),
            prefill: place(view.last_prefill),
            parent: view.parent,
            group: view.group,
            turns_dispatched: view.turns_dispatched,
            turns_finished: view.turns_finished,
            known_tokens: view.known_tokens,
            ended_with_tools: view.ended_with_tools,
            stopped: view.paused_by_operator,
            outlines: OUTLINES_VERSION,
            lineage,
        }
    }

    /// The same as the scheduler takes it.
    pub(super) fn remembered(
        &self,
        program: ProgramKey,
        last_active: Time,
        addresses: &Addresses,
    ) -> tandem_scheduler::Remembered {
        let worker = |place: &Option<Place>| place.as_ref().and_then(|place| addresses.worker(place));
        tandem_scheduler::Remembered {
            program,
            parent: self.parent.clone(),
            group: self.group.clone(),
            last_worker: worker(&self.home),
            last_prefill: worker(&self.prefill),
            turns_dispatched: self.turns_dispatched,
            turns_finished: self.turns_finished,
            known_tokens: self.known_tokens,
            ended_with_tools: self.ended_with_tools,
            last_active,
            stopped: self.stopped,
        }
    }
}

/// The bytes of a value: when its program was active last (Unix, ms), and the record.
pub(super) fn encode(last_ms: u64, record: &Record) -> Option<Vec<u8>> {
    let mut bytes = last_ms.to_le_bytes().to_vec();
    rmp_serde::encode::write(&mut bytes, record).ok()?;
    Some(bytes)
}

/// When a value's program was active last.
pub(super) fn last_ms(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.first_chunk()?))
}

/// The record of a value. A lineage of outlines that are not made any more compares with nothing and is left out.
pub(super) fn decode(bytes: &[u8]) -> Option<Record> {
    let (_, record) = bytes.split_first_chunk::<8>()?;
    let record: Record = rmp_serde::from_slice(record).ok()?;
    let lineage = record.lineage.filter(|_| record.outlines == OUTLINES_VERSION);
    Some(Record { lineage, ..record })
}

/// The bytes of a program's key: tenant, session, agent.
pub(super) fn key(program: &ProgramKey) -> Vec<u8> {
    let mut bytes = program.tenant.as_str().as_bytes().to_vec();
    bytes.push(SEPARATOR);
    bytes.extend_from_slice(program.session.as_str().as_bytes());
    if let Some(agent) = &program.agent {
        bytes.push(SEPARATOR);
        bytes.extend_from_slice(agent.as_str().as_bytes());
    }
    bytes
}

/// The program of a key.
pub(super) fn program(bytes: &[u8]) -> Option<ProgramKey> {
    let mut parts = std::str::from_utf8(bytes).ok()?.split(char::from(SEPARATOR));
    let program = ProgramKey {
        tenant: TenantId::new(parts.next()?).ok()?,
        session: SessionId::new(parts.next()?).ok()?,
        agent: parts.next().map(AgentId::new).transpose().ok()?,
    };
    parts.next().is_none().then_some(program)
}

#[cfg(test)]
mod tests {
    use tandem_lineage::{Arriving, Ended, Lineage, LineageConfig, outline};
    use tandem_types::{Dialect, EngineKind, Harness};

    use super::*;

    #[test]
    fn keys_say_whose_they_are() {
        let of = |tenant: &str, session: &str, agent: Option<&str>| ProgramKey {
            tenant: TenantId::new(tenant).unwrap(),
            session: SessionId::new(session).unwrap(),
            agent: agent.map(|agent| AgentId::new(agent).unwrap()),
        };
        let keys = [
            of("a", "b", None),
            of("a", "b", Some("c")),
            of("a", "b/c", None),
            of("a/b", "c", None),
            of("ab", "c", None),
        ];
        for one in &keys {
            assert_eq!(program(&key(one)).as_ref(), Some(one));
            assert_eq!(keys.iter().filter(|other| key(other) == key(one)).count(), 1);
        }
        for wrong in [&b"a"[..], b"", b"a\0", b"a\0b\0c\0d", b"\xff\0b"] {
            assert_eq!(program(wrong), None);
        }
    }

    fn record() -> Record {
        let mut lineage = Lineage::new(LineageConfig::default());
        let body = br#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
        let outline = outline(Dialect::Chat, EngineKind::Vllm, body).unwrap();
        let (harness, key) = (Harness::Unknown, program(b"t\0s").unwrap());
        let arriving = Arriving { outline: &outline, tokens: None, harness, compacted: false, side: false };
        let ticket = lineage.arrived(&key, &arriving, Time::ZERO).ticket;
        let ended =
            Ended { usage: None, tool_calls: &[], answer: None, block_size: None, text: None, lost: false };
        lineage.ended(ticket, &ended, Time::ZERO);
        Record {
            parent: None,
            group: GroupId::new("g").ok(),
            home: Some(Place { engine: "http://one:8000".to_owned(), rank: 3 }),
            prefill: None,
            turns_dispatched: 7,
            turns_finished: 6,
            known_tokens: 123_456,
            ended_with_tools: true,
            stopped: false,
            outlines: OUTLINES_VERSION,
            lineage: lineage.remembered(&key),
        }
    }

    /// I-STA-3: and nothing of the prompt's text is in it.
    #[test]
    fn a_value_is_read_as_it_was_written() {
        let record = record();
        assert!(record.lineage.is_some());
        let bytes = encode(42, &record).unwrap();
        assert!(!bytes.windows(5).any(|window| window == b"hello"));
        assert_eq!((last_ms(&bytes), decode(&bytes)), (Some(42), Some(record)));
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), None, "{length}");
        }
    }

    /// The home stays known.
    #[test]
    fn a_lineage_of_other_outlines_is_left_out() {
        let other = Record { outlines: OUTLINES_VERSION + 1, ..record() };
        let read = decode(&encode(42, &other).unwrap()).unwrap();
        assert_eq!((read.lineage, read.home), (None, other.home));
    }
}
