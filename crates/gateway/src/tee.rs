//! The recording of the scheduler's inputs: JSON lines from which a replay gets the same effects.
//!
//! First line: `{"config": ..., "seed": ...}`; then one [`tandem_scheduler::replay::Step`] a line.
//! A recording with a hole would replay to something else, so it ends at the first line that cannot be
//! written, with the loss counted.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use serde::Serialize;
use tandem_scheduler::Input;
use tandem_types::Time;

use crate::metrics::{Family, Metrics};

/// Lines that may wait for the disk.
const WAITING: usize = 65_536;

/// A [`tandem_scheduler::replay::Step`] without taking the input.
#[derive(Serialize)]
struct Line<'a> {
    at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<&'a Input>,
}

/// A recording under way.
pub(crate) struct Tee {
    lines: Option<SyncSender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
    metrics: Metrics,
}

impl Tee {
    /// Starts a recording in a new file with `header` as its first line.
    pub(crate) fn start(path: &Path, header: &impl Serialize, metrics: Metrics) -> std::io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        serde_json::to_writer(&mut file, header)?;
        file.write_all(b"\n")?;
        let (lines, waiting) = sync_channel::<Vec<u8>>(WAITING);
        let writer = std::thread::Builder::new()
            .name("tandem-inputs".to_owned())
            .spawn(move || write_lines(file, &waiting))?;
        Ok(Self { lines: Some(lines), writer: Some(writer), metrics })
    }

    /// Records an input.
    pub(crate) fn input(&mut self, at: Time, input: &Input) {
        self.line(&Line { at, input: Some(input) });
    }

    /// Records that time passed a deadline.
    pub(crate) fn timeout(&mut self, at: Time) {
        self.line(&Line { at, input: None });
    }

    fn line(&mut self, line: &Line<'_>) {
        let Some(lines) = &self.lines else {
            self.metrics.inc(Family::InputsTeeLost, &[]);
            return;
        };
        let Ok(mut text) = serde_json::to_vec(line) else { return };
        text.push(b'\n');
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = lines.try_send(text) {
            tracing::error!("the recording of scheduler inputs ends here: the disk is too slow or failed");
            self.metrics.inc(Family::InputsTeeLost, &[]);
            self.lines = None;
        }
    }

    /// Ends the recording and waits until it is on disk.
    pub(crate) fn finish(mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn write_lines(mut file: BufWriter<File>, lines: &Receiver<Vec<u8>>) {
    while let Ok(line) = lines.recv() {
        let mut result = file.write_all(&line);
        // Everything that waits goes out together; then the file is brought up to date.
        while let (Ok(()), Ok(line)) = (&result, lines.try_recv()) {
            result = file.write_all(&line);
        }
        if let Err(error) = result.and_then(|()| file.flush()) {
            tracing::error!(%error, "scheduler inputs cannot be recorded");
            return;
        }
    }
}
