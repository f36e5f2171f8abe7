//! Alibaba's Bailian usage traces: chats that name the chat they continue; times in seconds, blocks of 16 tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::mooncake::name;
use super::{Drafts, ImportError, ImportOptions, rows, seconds};
use crate::build::{Draft, Turn, Wait};
use crate::graph::Trigger;
use crate::ids::mix;
use crate::repair::{Repair, Repairs};

#[derive(Deserialize)]
struct Row {
    chat_id: Value,
    parent_chat_id: Value,
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

const BLOCK_SIZE: u32 = 16;

pub(super) fn read(
    text: &[u8],
    options: &ImportOptions,
    repairs: &mut Repairs,
) -> Result<(Vec<Draft>, u32), ImportError> {
    let mut drafts = Drafts::default();
    // Of each chat its session, and whether another chat has gone on from it.
    let mut chats: BTreeMap<Arc<str>, (String, bool)> = BTreeMap::new();
    for (number, row) in rows::<Row>(text, repairs)? {
        let id = name(&row.chat_id);
        if row.input_length == 0 {
            repairs.note(Repair::EmptyPrompt, format_args!("line {number}"))?;
            continue;
        }
        if chats.contains_key(&id) {
            repairs.note(Repair::DuplicateRequest, format_args!("line {number}"))?;
            continue;
        }
        let parent = name(&row.parent_chat_id);
        let root = matches!(&*parent, "-1" | "null" | "");
        let mut branches_from = None;
        let session = match chats.get_mut(&parent) {
            Some((session, gone_on)) if !*gone_on => {
                *gone_on = true;
                session.clone()
            }
            // A second answer to the same chat goes its own way.
            Some(_) => {
                branches_from = Some(parent);
                id.to_string()
            }
            None => {
                if !root {
                    repairs.note(Repair::UnknownDependency, format_args!("line {number}: {parent}"))?;
                }
                id.to_string()
            }
        };
        chats.insert(Arc::clone(&id), (session.clone(), false));
        let start = seconds(row.timestamp);
        let Some(draft) = drafts.of(&session) else { continue };
        let wait = |on| vec![Wait { on, trigger: Trigger::Completion, delay: None }];
        draft.turns.push(Turn {
            id: Some(id),
            // How long the call took is not told: pauses count from one beginning to the next.
            start: Some(start),
            end: Some(start),
            input: row.input_length,
            output: row.output_length,
            ids: row.hash_ids.iter().map(|id| mix(0, *id)).collect(),
            waits: branches_from.map(wait),
            ..Turn::default()
        });
    }
    Ok((drafts.list, options.block_size.unwrap_or(BLOCK_SIZE).max(1)))
}
