//! Applied Compute's agentic rows: one session per line, lengths and tool times only.

use serde::Deserialize;

use super::{ImportError, ImportOptions, rows, seconds, stream};
use crate::build::{Draft, Turn};
use crate::ids::{mix, of_text};
use crate::repair::{Repair, Repairs};

#[derive(Deserialize)]
struct Row {
    num_turns: usize,
    input_prompt_length: u64,
    assistant_response_length: Vec<u64>,
    tool_call_output_length: Vec<u64>,
    tool_call_latency: Vec<f64>,
    #[serde(default)]
    final_assistant_response_length: u64,
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default)]
    group_id: Option<String>,
}

/// Tokens in a block: fine enough for any engine.
const BLOCK_SIZE: u32 = 16;

pub(super) fn read(
    text: &[u8],
    options: &ImportOptions,
    repairs: &mut Repairs,
) -> Result<(Vec<Draft>, u32), ImportError> {
    let size = options.block_size.unwrap_or(BLOCK_SIZE).max(1);
    let mut drafts = Vec::new();
    for (number, row) in rows::<Row>(text, repairs)? {
        let lists = [
            row.assistant_response_length.len(),
            row.tool_call_output_length.len(),
            row.tool_call_latency.len(),
        ];
        if lists.iter().any(|len| *len < row.num_turns) {
            repairs.note(Repair::ShortList, format_args!("line {number}"))?;
        }
        let name = row.session_id.clone().unwrap_or_else(|| format!("session-{number}"));
        let seed = mix(of_text(&name), number as u64);
        let mut draft =
            Draft { id: name.into(), group: row.group_id.as_deref().map(Into::into), ..Draft::default() };
        let mut input = row.input_prompt_length;
        let mut pause = None;
        let steps = row
            .assistant_response_length
            .iter()
            .zip(&row.tool_call_output_length)
            .zip(&row.tool_call_latency);
        for ((output, observed), latency) in steps.take(row.num_turns) {
            draft.turns.push(turn(seed, input, *output, size, pause, true));
            input += output + observed;
            pause = Some(seconds(*latency));
        }
        if row.final_assistant_response_length > 0 || draft.turns.is_empty() {
            draft.turns.push(turn(seed, input, row.final_assistant_response_length, size, pause, false));
        } else if let Some(last) = draft.turns.last_mut() {
            last.tools = false;
        }
        if row.input_prompt_length == 0 {
            repairs.note(Repair::EmptyPrompt, format_args!("line {number}"))?;
            continue;
        }
        drafts.push(draft);
    }
    Ok((drafts, size))
}

fn turn(
    seed: u64,
    input: u64,
    output: u64,
    size: u32,
    pause: Option<std::time::Duration>,
    tools: bool,
) -> Turn {
    Turn { input, output, ids: stream(seed, input, size), pause, tools, ..Turn::default() }
}
