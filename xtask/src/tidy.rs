//! House rules that no compiler checks: module docs, file lengths, placeholders, machine paths, links
//! between pages, and that every numbered invariant is named by a test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::arch::report;
use crate::markdown;

/// Longest source file, in lines without its test module. The aim is 500.
const FILE_LINES_MAX: usize = 800;

/// Runs the checks over all files that git knows.
pub(crate) fn run() -> Result<()> {
    let mut faults = Vec::new();
    let mut declared: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut test_text = String::new();
    for file in tracked_files()? {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        check_words(&file, &text, &mut faults);
        if file.extension().is_some_and(|e| e == "md") {
            markdown::check_links(&file, &text, &mut faults)?;
        }
        if file.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        let (production, tests) = split_tests(&file, &text);
        test_text.push_str(tests);
        check_source(&file, production, &mut faults);
        for line in production.lines().filter(|l| l.trim_start().starts_with("//!")) {
            for id in invariant_ids(line) {
                if let Some(other) = declared.insert(id.clone(), file.clone())
                    && other.parent() != file.parent()
                {
                    let other = other.display();
                    faults.push(format!("{}: invariant {id} is also one of {other}", file.display()));
                }
            }
        }
    }
    for (id, file) in declared {
        if !test_text.contains(&id) {
            faults.push(format!("{}: invariant {id} is named by no test", file.display()));
        }
    }
    report("tidy", &faults)
}

fn tracked_files() -> Result<Vec<PathBuf>> {
    let out = Command::new("git").args(["ls-files", "-z"]).output().context("running git ls-files")?;
    ensure!(out.status.success(), "git ls-files failed");
    let names = String::from_utf8(out.stdout).context("file names are not utf-8")?;
    Ok(names.split('\0').filter(|n| !n.is_empty()).map(PathBuf::from).filter(|p| p.exists()).collect())
}

/// A file's production part and its tests (the whole file is tests under a `tests` folder).
fn split_tests<'a>(file: &Path, text: &'a str) -> (&'a str, &'a str) {
    let is_test = file.components().any(|c| c.as_os_str() == "tests")
        || file.file_stem().is_some_and(|n| n == "tests" || n.to_string_lossy().ends_with("_tests"));
    if is_test {
        return ("", text);
    }
    text.find("#[cfg(test)]\nmod tests").map_or((text, ""), |at| text.split_at(at))
}

fn check_source(file: &Path, production: &str, faults: &mut Vec<String>) {
    if production.is_empty() {
        return;
    }
    if !production.trim_start().starts_with("//!") {
        faults.push(format!("{}: no module doc", file.display()));
    }
    let lines = production.lines().count();
    if lines > FILE_LINES_MAX {
        faults.push(format!("{}: {lines} lines, at most {FILE_LINES_MAX}", file.display()));
    }
}

/// All ids of the form `I-ABC-12` in a line of module docs.
fn invariant_ids(line: &str) -> Vec<String> {
    let in_id = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '-';
    line.split(|c| !in_id(c)).filter(|word| is_invariant_id(word)).map(str::to_owned).collect()
}

fn is_invariant_id(word: &str) -> bool {
    let Some((name, number)) = word.strip_prefix("I-").and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let named = name.len() >= 2 && name.starts_with(|c: char| c.is_ascii_uppercase());
    named && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

fn check_words(file: &Path, text: &str, faults: &mut Vec<String>) {
    let data = file
        .extension()
        .is_some_and(|e| e == "json" || e == "jsonl" || e == "lock" || e == "txt" || e == "sse");
    if data || file.starts_with("xtask") {
        return;
    }
    // Written in pieces so that this file does not fall over its own rule.
    let words = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["X", "XX"].concat(),
        ["/wo", "rk/"].concat(),
        ["/ro", "ot/"].concat(),
        ["pypi", ".org"].concat(),
        ["npmjs", ".org"].concat(),
        ["crates", ".io/api"].concat(),
    ];
    for (number, line) in text.lines().enumerate() {
        for word in words.iter().filter(|w| line.contains(w.as_str())) {
            faults.push(format!("{}:{}: {word}", file.display(), number + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_of_a_line_is_read() {
        let line =
            "//! I-LNK-1 one; I-GW-12 and I-KVP-3, see (I-P2P-4); no I-, I-A-, I-x-1, AI-AB-1 or I-A-1.";
        assert_eq!(invariant_ids(line), ["I-LNK-1", "I-GW-12", "I-KVP-3", "I-P2P-4"]);
    }
}
