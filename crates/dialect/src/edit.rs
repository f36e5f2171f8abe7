//! Applying byte edits to a request body.

use tandem_types::BodyEdit;

/// Applies `edits` to `body`; every byte outside of the edited ranges stays as it is.
///
/// The edits may come in any order and must not overlap. Insertions at one place are made in the order given,
/// before a replacement that starts there. An edit that overlaps an earlier one or lies outside of the body is
/// left out: a wrong edit must not damage a body that is right without it.
#[must_use]
pub fn apply_edits(body: &[u8], edits: &mut [BodyEdit]) -> Vec<u8> {
    edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
    let added: usize = edits.iter().map(|edit| edit.with.len()).sum();
    let mut out = Vec::with_capacity(body.len().saturating_add(added));
    let mut done = 0;
    for edit in edits.iter() {
        let Some(kept) = body.get(done..edit.range.start) else { continue };
        if edit.range.end > body.len() || edit.range.end < edit.range.start {
            continue;
        }
        out.extend_from_slice(kept);
        out.extend_from_slice(&edit.with);
        done = edit.range.end;
    }
    out.extend_from_slice(body.get(done..).unwrap_or_default());
    out
}
