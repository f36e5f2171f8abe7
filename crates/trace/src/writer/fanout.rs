//! From one stream of rows to all sinks.

use tandem_types::Time;

use super::{EncodedRow, Pushed, Sink, SinkError, SinkReport};
use crate::record::{
    EventType, Loss, LossEvent, NotLoadable, OwnEvent, OwnKind, PayloadRecord, Record, Rows, TraceEnd,
    TraceRow, TraceStart,
};

/// Which rows a sink gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// What readers of v1 may see.
    Main,
    /// Our own event types, and request rows that do not go to the main stream.
    Companion,
    /// Everything.
    Both,
}

/// Sends each row to the sinks that want it, and keeps count.
pub struct Fanout {
    rows: Rows,
    slots: Vec<Slot>,
    totals: TraceEnd,
}

struct Slot {
    stream: Stream,
    sink: Box<dyn Sink + Send>,
    /// Lost since the last row that the sink took.
    untold: Loss,
}

impl Slot {
    fn wants(&self, main: bool) -> bool {
        match self.stream {
            Stream::Main => main,
            Stream::Companion => !main,
            Stream::Both => true,
        }
    }
}

/// What became of a sink at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloseReport {
    /// Its last report.
    pub report: SinkReport,
    /// Which rows it got.
    pub stream: Stream,
    /// Why not all got out.
    pub error: Option<SinkError>,
}

impl Fanout {
    /// No sinks yet.
    #[must_use]
    pub fn new(rows: Rows) -> Self {
        Self { rows, slots: Vec::new(), totals: TraceEnd::default() }
    }

    /// Adds a sink.
    pub fn add(&mut self, stream: Stream, sink: Box<dyn Sink + Send>) {
        self.slots.push(Slot { stream, sink, untold: Loss::default() });
    }

    /// Writes the companion's first row.
    pub fn start(&mut self, now: Time, unix_ms: u64, start: TraceStart) {
        let start = TraceStart { rows: self.rows, ..start };
        self.record(now, OwnEvent::new(unix_ms, OwnKind::TraceStart(start)).into());
    }

    /// Writes a row to every sink that wants it.
    pub fn record(&mut self, now: Time, row: TraceRow) {
        let (row, main) = self.place(row);
        match &row {
            TraceRow::V1(record) if record.event_type == EventType::RequestEnd => {
                self.totals.request_end += 1;
            }
            TraceRow::V1(record) if record.event_type.is_tool() => self.totals.tool += 1,
            TraceRow::V1(_) => {}
            TraceRow::Own(_) => self.totals.own += 1,
        }
        self.send(now, &row, main);
    }

    /// Decides where the row goes; a request row that does not go to the main stream is told why.
    fn place(&self, row: TraceRow) -> (TraceRow, bool) {
        let TraceRow::V1(mut record) = row else { return (row, false) };
        let main = self.rows.in_main(&record);
        if !main {
            let why = record.why_not_loadable().unwrap_or(NotLoadable::NoIdentity);
            record.tandem.get_or_insert_default().not_loadable = Some(why);
        }
        (TraceRow::V1(record), main)
    }

    fn send(&mut self, now: Time, row: &TraceRow, main: bool) {
        let encoded = EncodedRow::new(row);
        for slot in self.slots.iter_mut().filter(|slot| slot.wants(main)) {
            match &encoded {
                Ok(encoded) => match slot.sink.push(now, encoded, slot.untold) {
                    Pushed::Taken => slot.untold = Loss::default(),
                    Pushed::Refused => slot.untold.io += 1,
                },
                Err(_) => slot.untold.unfit += 1,
            }
        }
        if encoded.is_err() {
            self.totals.lost.unfit += 1;
        }
    }

    /// Counts rows that the caller had to drop because its queue to here was full. Which stream they were for
    /// is not known, so every sink tells of them.
    pub fn lost(&mut self, rows: u64) {
        let loss = Loss { queue_full: rows, ..Loss::default() };
        self.totals.lost.add(loss);
        for slot in &mut self.slots {
            slot.untold.add(loss);
        }
    }

    /// Lets sinks write what is due.
    pub fn tick(&mut self, now: Time) {
        for slot in &mut self.slots {
            slot.sink.tick(now);
        }
    }

    /// When `tick` should be called next; `None` = not before the next row.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.slots.iter().filter_map(|slot| slot.sink.next_deadline()).min()
    }

    /// Rows lost so far by all reasons; a row lost to two sinks counts twice under `io`.
    #[must_use]
    pub fn lost_so_far(&self) -> Loss {
        let mut lost = self.totals.lost;
        for slot in &self.slots {
            lost.add(slot.sink.report().lost);
        }
        lost
    }

    /// What each sink did so far.
    #[must_use]
    pub fn reports(&self) -> Vec<(Stream, SinkReport)> {
        self.slots.iter().map(|slot| (slot.stream, slot.sink.report())).collect()
    }

    /// Writes last rows and all that is held, and closes every sink.
    pub fn close(mut self, now: Time, unix_ms: u64) -> Vec<CloseReport> {
        let end = TraceEnd { lost: self.lost_so_far(), ..self.totals.clone() };
        self.send(now, &OwnEvent::new(unix_ms, OwnKind::TraceEnd(end)).into(), false);
        self.slots.iter_mut().for_each(|slot| slot.tell_last_losses(now, unix_ms));
        self.slots
            .into_iter()
            .map(|mut slot| {
                let error = slot.sink.close(now).err();
                CloseReport { report: slot.sink.report(), stream: slot.stream, error }
            })
            .collect()
    }
}

impl Slot {
    /// Losses that no later row could carry.
    fn tell_last_losses(&mut self, now: Time, unix_ms: u64) {
        if self.untold.total() == 0 {
            return;
        }
        let row: TraceRow = match self.stream {
            Stream::Main => Record::loss_trailer(unix_ms, self.untold).into(),
            Stream::Companion | Stream::Both => {
                OwnEvent::new(unix_ms, OwnKind::TraceLoss(LossEvent { lost: self.untold })).into()
            }
        };
        if let Ok(encoded) = EncodedRow::new(&row)
            && self.sink.push(now, &encoded, self.untold) == Pushed::Taken
        {
            self.untold = Loss::default();
        }
    }
}

impl Record {
    /// The last row of a main file whose last losses no other row could carry: a payload row without content,
    /// a type that every reader of v1 steps over.
    fn loss_trailer(unix_ms: u64, lost: Loss) -> Self {
        Self::request_payload(
            unix_ms,
            PayloadRecord {
                request_id: "tandem-trace-loss".to_owned(),
                endpoint: "tandem.trace_loss".to_owned(),
                model: String::new(),
                request: None,
                response: None,
                http_request_headers: None,
                payload_complete: false,
                payload_drop_reason: Some(format!("{} trace rows lost", lost.total())),
            },
        )
    }
}
