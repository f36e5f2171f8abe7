//! What the documentation's files hold: fenced blocks, headings, links; and whether the links lead anywhere.
//!
//! Deliberately absent: links to other hosts (a check must not need a network), reference-style links (there
//! are none here).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A fenced block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fence<'a> {
    /// What stands behind the opening marks.
    pub(crate) info: &'a str,
    /// Line of the opening marks, from 1.
    pub(crate) line: usize,
    /// The lines inside.
    pub(crate) lines: Vec<&'a str>,
}

/// Splits `text` into its fenced blocks and its other lines, those with their numbers.
pub(crate) fn split(text: &str) -> (Vec<Fence<'_>>, Vec<(usize, &str)>) {
    let (mut fences, mut prose) = (Vec::new(), Vec::new());
    let mut open: Option<Fence<'_>> = None;
    for (index, line) in text.lines().enumerate() {
        let marks = line.trim_start().strip_prefix("```");
        match (open.take(), marks) {
            (None, Some(info)) => {
                open = Some(Fence { info: info.trim(), line: index + 1, lines: Vec::new() })
            }
            (None, None) => prose.push((index + 1, line)),
            (Some(fence), Some(_)) => fences.push(fence),
            (Some(mut fence), None) => {
                fence.lines.push(line);
                open = Some(fence);
            }
        }
    }
    fences.extend(open);
    (fences, prose)
}

/// The anchor of a heading, as forges make it: lower case, spaces to hyphens, other marks left out.
fn anchor(heading: &str) -> String {
    heading
        .trim()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ => c.is_alphanumeric().then(|| c.to_ascii_lowercase()),
        })
        .collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let (_, prose) = split(text);
    prose
        .iter()
        .filter_map(|(_, line)| {
            let rest = line.trim_start_matches('#');
            (rest.len() < line.len()).then(|| rest.strip_prefix(' ').map(anchor)).flatten()
        })
        .collect()
}

/// Targets of the links in a line, outside of code.
fn targets(line: &str) -> Vec<&str> {
    let prose = line.split('`').step_by(2);
    prose
        .flat_map(|part| part.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .collect()
}

/// Checks that every link of `file` to another file of the repository, or to a heading, leads there.
pub(crate) fn check_links(file: &Path, text: &str, faults: &mut Vec<String>) -> Result<()> {
    let (_, prose) = split(text);
    for (number, line) in prose {
        for target in targets(line) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = if path.is_empty() { file.to_path_buf() } else { beside(file, path) };
            if !to.exists() {
                faults.push(format!("{}:{number}: {target} leads nowhere", file.display()));
            } else if !heading.is_empty() {
                let other = fs::read_to_string(&to).with_context(|| format!("reading {}", to.display()))?;
                if !anchors(&other).contains(heading) {
                    faults.push(format!("{}:{number}: {target}: no such heading", file.display()));
                }
            }
        }
    }
    Ok(())
}

fn beside(file: &Path, path: &str) -> PathBuf {
    file.parent().map_or_else(|| PathBuf::from(path), |folder| folder.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_and_prose_are_told_apart() {
        let (fences, prose) = split("a\n```sh\n# not a heading\n```\nb\n");
        assert_eq!(fences, [Fence { info: "sh", line: 2, lines: vec!["# not a heading"] }]);
        assert_eq!(prose, [(1, "a"), (5, "b")]);
    }

    #[test]
    fn anchors_are_those_of_forges() {
        assert_eq!(anchor("Claude Code (2.1.332)"), "claude-code-21332");
        assert_eq!(anchor("`hold.max`"), "holdmax");
        assert!(anchors("# A b\n```\n# no\n```\n").iter().eq(["a-b"]));
    }

    #[test]
    fn links_that_lead_nowhere_are_faults() {
        let mut faults = Vec::new();
        let text = "# Here\n[a](#here) [b](#gone) [c](nowhere.md) [d](https://example.com) `[e](code.md)`\n";
        let file = std::env::temp_dir().join(format!("tandem-links-{}.md", std::process::id()));
        fs::write(&file, text).expect("written");
        check_links(&file, text, &mut faults).expect("readable");
        fs::remove_file(&file).expect("removed");
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("#gone") && faults[1].contains("nowhere.md"));
    }
}
