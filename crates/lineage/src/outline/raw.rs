//! Completions: a prompt without roles.

use super::SegmentKind;
use super::build::Builder;
use crate::json::Node;

/// Bytes of text in one segment.
pub const RAW_BYTES: usize = 256;

/// Token ids in one segment.
pub const RAW_IDS: usize = 64;

pub(super) fn body(body: &Node<'_>, builder: &mut Builder) {
    match body.get("prompt") {
        Some(Node::Text(text)) => pieces(text.as_bytes(), RAW_BYTES, builder),
        Some(Node::List(items)) if items.iter().all(|item| matches!(item, Node::Number(..))) => {
            ids(items, builder);
        }
        Some(Node::List(prompts)) => {
            for prompt in prompts {
                match prompt {
                    Node::Text(text) => pieces(text.as_bytes(), RAW_BYTES, builder),
                    Node::List(items) => ids(items, builder),
                    _ => {}
                }
            }
        }
        _ => {}
    }
    if let Some(suffix) = body.get("suffix") {
        builder.begin(&["suffix"], "");
        builder.value_part(SegmentKind::Other, suffix, &[]);
    }
}

fn ids(items: &[Node<'_>], builder: &mut Builder) {
    let hash = |item: &Node<'_>| if let Node::Number(hash, _) = item { *hash } else { 0 };
    let bytes: Vec<u8> = items.iter().flat_map(|item| hash(item).to_le_bytes()).collect();
    pieces(&bytes, RAW_IDS * 8, builder);
}

fn pieces(bytes: &[u8], size: usize, builder: &mut Builder) {
    builder.begin(&["prompt"], "");
    for piece in bytes.chunks(size) {
        let kind = if piece.len() == size { SegmentKind::Raw } else { SegmentKind::RawTail };
        builder.bytes_part(kind, piece);
    }
}
