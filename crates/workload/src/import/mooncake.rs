//! Mooncake rows, and the two ways in which sessions were added to them.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{Drafts, ImportError, ImportOptions, millis, rows};
use crate::build::{Draft, Turn};
use crate::ids::mix;
use crate::repair::{Repair, Repairs};

/// Tokens in a block where nothing tells: that of the published Mooncake traces.
pub(super) const BLOCK_SIZE: u32 = 512;

#[derive(Deserialize)]
struct Row {
    #[serde(default, alias = "created_time")]
    timestamp: Option<f64>,
    #[serde(default, alias = "input_tokens")]
    input_length: Option<u64>,
    #[serde(alias = "output_tokens")]
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
    #[serde(default)]
    request_id: Option<String>,
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default, alias = "delay_ms")]
    delay: Option<f64>,
    #[serde(default)]
    priority: Option<i32>,
    #[serde(default)]
    group_id: Option<Value>,
}

/// The block size that all rows agree with: the largest usual one for which each has as many ids as blocks.
pub(super) fn block_size<'a>(rows: impl Iterator<Item = (u64, usize)> + Clone + 'a) -> Option<u32> {
    let fits = |size: u32| {
        rows.clone()
            .filter(|(input, _)| *input > 0)
            .all(|(input, ids)| input.div_ceil(u64::from(size)) == ids as u64)
    };
    rows.clone().next()?;
    [1024, 512, 256, 128, 64, 32, 16, 8, 4, 1].into_iter().find(|size| fits(*size))
}

/// Later rows of a session that are shorter than earlier ones and share no id with them hold only what is new.
pub(super) fn looks_like_deltas(rows: &[Value]) -> bool {
    let session = |row: &Value| row.get("session_id").and_then(Value::as_str).map(str::to_owned);
    let ids = |row: &Value| -> BTreeSet<u64> {
        row.get("hash_ids")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64)
            .collect()
    };
    let mut later = 0;
    for pair in rows.windows(2) {
        let [before, after] = pair else { continue };
        if session(before).is_none() || session(before) != session(after) {
            continue;
        }
        later += 1;
        if !ids(before).is_disjoint(&ids(after)) {
            return false;
        }
    }
    later > 0
}

pub(super) fn read(
    text: &[u8],
    deltas: bool,
    options: &ImportOptions,
    repairs: &mut Repairs,
) -> Result<(Vec<Draft>, u32), ImportError> {
    let rows: Vec<(usize, Row)> = rows(text, repairs)?;
    let sizes = rows.iter().filter_map(|(_, row)| Some((row.input_length?, row.hash_ids.len())));
    let size = options.block_size.or_else(|| block_size(sizes)).unwrap_or(BLOCK_SIZE).max(1);
    let with = rows.iter().filter(|(_, row)| row.session_id.is_some()).count();
    if with > 0 && with < rows.len() {
        repairs.note(Repair::MixedIdentity, format_args!("{} of {} rows", rows.len() - with, rows.len()))?;
    }
    let mut drafts = Drafts::default();
    for (number, row) in rows {
        let place = format!("line {number}");
        let input = row.input_length.unwrap_or(row.hash_ids.len() as u64 * u64::from(size));
        if input == 0 {
            repairs.note(Repair::EmptyPrompt, place)?;
            continue;
        }
        let alone = row.session_id.is_none();
        let name = row.session_id.unwrap_or_else(|| row.request_id.clone().unwrap_or_else(|| place.clone()));
        let Some(draft) = drafts.of(&name) else { continue };
        if draft.group.is_none() {
            draft.group = row.group_id.as_ref().map(|group| group.to_string().into());
        }
        let start = row.timestamp.map(millis);
        let mut turn = Turn {
            id: row.request_id.map(Into::into),
            input,
            output: row.output_length,
            ids: row.hash_ids.iter().map(|id| mix(0, *id)).collect(),
            tools: !alone,
            priority: row.priority.unwrap_or(0),
            ..Turn::default()
        };
        match draft.turns.last() {
            None => (turn.start, turn.end) = (start, start),
            Some(before) => {
                turn.pause = Some(row.delay.map_or_else(
                    || {
                        start
                            .zip(before.start)
                            .map_or_else(Default::default, |(now, then)| now.saturating_sub(then))
                    },
                    millis,
                ));
                // Kept only to order turns: pauses are told.
                (turn.start, turn.end) = (before.start.max(start), before.start.max(start));
                if deltas {
                    grow(before, &mut turn, size);
                }
            }
        }
        draft.turns.push(turn);
    }
    Ok((drafts.list, size))
}

/// A prompt that is the one before, its answer, and what is new.
fn grow(before: &Turn, turn: &mut Turn, size: u32) {
    let size = u64::from(size);
    let own = usize::try_from(before.input / size).unwrap_or(usize::MAX).min(before.ids.len());
    let mut ids: Vec<u64> = before.ids.get(..own).unwrap_or_default().to_vec();
    let added = turn.ids.iter().fold(turn.output ^ turn.input, |all, id| mix(all, *id));
    let seed = mix(ids.last().copied().unwrap_or(before.input), added);
    turn.input += before.input + before.output;
    for index in ids.len() as u64..turn.input.div_ceil(size) {
        ids.push(mix(seed, index));
    }
    turn.ids = ids;
}

/// A name as text, whatever JSON wrote it as.
pub(super) fn name(value: &Value) -> Arc<str> {
    value.as_str().map_or_else(|| value.to_string().into(), Into::into)
}
