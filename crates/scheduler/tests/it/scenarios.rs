//! Plays the scenario files and compares their effects with those written in them.

use std::path::{Path, PathBuf};

use tandem_scheduler::script;

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("scenarios are there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "scn"))
        .collect();
    files.sort();
    files
}

/// Among them: a pair goes before a worker that does both, and nothing goes to a worker for prompts alone (I-PAIR-2).
#[test]
fn every_scenario_leads_to_the_effects_written_in_it() {
    let update = std::env::var_os("TANDEM_UPDATE_SCENARIOS").is_some();
    let files = files();
    assert!(files.len() >= 12, "only {} scenarios found", files.len());
    let mut wrong = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).expect("readable");
        let played = script::run(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if played == text {
            continue;
        }
        if update {
            std::fs::write(&path, &played).expect("writable");
            continue;
        }
        let differs = text.lines().zip(played.lines()).position(|(a, b)| a != b);
        let line = differs.unwrap_or_else(|| text.lines().count().min(played.lines().count()));
        wrong.push(format!(
            "{}:{}\n  written: {}\n  played:  {}",
            path.display(),
            line + 1,
            text.lines().nth(line).unwrap_or("(end)"),
            played.lines().nth(line).unwrap_or("(end)"),
        ));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_wrong_line_is_named() {
    for (text, message) in [
        ("@0 up e0\n@1 arrive 7", "line 2: \"7\" is not a turn such as t1"),
        ("@0 up e0 modles=x", "line 1: \"modles=x\" is not understood here"),
        ("@0 explode", "line 1: no input named \"explode\""),
        ("@1,5 wait", "line 1: \"1,5\" is not a number of seconds"),
        (
            "config policy=nice",
            "no routing policy named \"nice\"; there are: kv, least_load, power_of_two, random, round_robin, session_affinity",
        ),
    ] {
        assert_eq!(script::run(text).expect_err("wrong").to_string(), message);
    }
}
