//! Token ids against those of real engines.
//!
//! `vllm-0.32.0.tsv` was written by `e2e/render_vllm.py` from the `*/render` routes of vLLM 0.32.0 (CPU build)
//! serving this fixture's tokenizer and template: name, dialect, number of tokens, first 16 hex digits of the
//! SHA-256 of the ids as little-endian 32-bit numbers; `-` where vLLM refused the request. `sglang-0.5.23.tsv` was
//! written by `e2e/render_sglang.py` in the same way from what SGLang 0.5.23 logs of the requests that its handlers
//! hand to the engine (with a reasoning parser; completions go on as text). The requests are our own
//! with the corners of each dialect (`requests.jsonl`) and the longest of each captured harness session, its texts
//! replaced (`captures.jsonl`).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use tandem_prompt::RenderError;
use tandem_types::{Dialect, EngineKind};

use crate::{fixtures, model};

#[derive(Deserialize)]
struct Request<'a> {
    name: String,
    dialect: Dialect,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Name, dialect and body of every request.
fn requests() -> Vec<(String, Dialect, String)> {
    let mut out = Vec::new();
    for file in ["requests.jsonl", "captures.jsonl"] {
        for line in std::fs::read_to_string(fixtures().join(file)).unwrap().lines() {
            let request: Request<'_> = serde_json::from_str(line).unwrap();
            out.push((request.name, request.dialect, request.body.get().to_owned()));
        }
    }
    out
}

/// `left`: requests whose prompts are not reproduced for this engine, and no others.
fn check(file: &str, kind: EngineKind, least: usize, left: &[&str]) {
    let golden = std::fs::read_to_string(fixtures().join(file)).unwrap();
    let mut want: BTreeMap<(String, String), &str> = BTreeMap::new();
    for line in golden.lines() {
        let mut fields = line.splitn(3, '\t');
        let (name, dialect) = (fields.next().unwrap(), fields.next().unwrap());
        want.insert((name.to_owned(), dialect.to_owned()), fields.next().unwrap());
    }
    let model = model();
    let (mut compared, mut faults, mut unsupported) = (0, Vec::new(), Vec::new());
    let mut memo = None;
    for (name, dialect, body) in requests() {
        let word = format!("{dialect:?}").to_lowercase();
        let Some(want) = want.remove(&(name.clone(), word.clone())) else { continue };
        let got = model.render(dialect, kind, body.as_bytes()).and_then(|rendered| {
            let tokens = model.tokens(&rendered, memo.as_ref())?;
            memo = Some(tokens.memo);
            Ok(tokens.ids)
        });
        if want == "-" {
            continue;
        }
        let got = match got {
            Err(RenderError::Unsupported { .. }) => {
                unsupported.push(name);
                continue;
            }
            Err(e) => e.to_string(),
            Ok(ids) => {
                let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                let digest = Sha256::digest(&bytes).iter().fold(String::new(), |mut hex, byte| {
                    let _ = write!(hex, "{byte:02x}");
                    hex
                });
                format!("{}\t{}", ids.len(), &digest[..16])
            }
        };
        compared += 1;
        if got != want {
            faults.push(format!("{name} {word}: want {want}, got {got}"));
        }
    }
    println!("{file}: {compared} requests compared, {} differ", faults.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(want.is_empty(), "golden lines without a request: {want:?}");
    assert_eq!(unsupported, left);
    assert!(compared >= least, "only {compared}");
}

/// Corners of each dialect, and what harnesses really send.
#[test]
fn ids_are_those_of_vllm() {
    check("vllm-0.32.0.tsv", EngineKind::Vllm, 71, &[]);
}

#[test]
fn ids_are_those_of_sglang() {
    // A last message that is left open, and reasoning of earlier turns without a word on thinking.
    let left = ["continued", "continued with space", "continued parts", "tools"];
    check("sglang-0.5.23.tsv", EngineKind::Sglang, 56, &left);
}
