//! The generated part of the documentation, and checks of the written part.
//!
//! - Purpose: what the binary says of itself is the reference; pages that repeat it must not drift.
//! - Generated from the built binary: `cli.md` (from `--help`), `config.schema.json` and `config.md` (from the
//!   schema), `metrics.md` (from the table of metrics).
//! - Checked in every page: flags of each `tandem` command line in a `sh` block, and each block marked
//!   `toml tandem` by `tandem config check`. In the page of headers: that every header of the identity table
//!   is there. Links are checked by `tidy`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::arch::report;
use crate::markdown::{Fence, split};
use crate::metadata::Metadata;

const FOLDER: &str = "docs/reference";

/// Commands of which the help is shown, in order of the page.
const COMMANDS: &[&[&str]] = &[
    &[],
    &["serve"],
    &["demo"],
    &["mock-engine"],
    &["mock-store"],
    &["simulate"],
    &["replay"],
    &["doctor", "harness"],
    &["doctor", "engines"],
    &["config", "check"],
    &["config", "show"],
    &["config", "schema"],
];

/// Writes the generated pages, or with `check` says where they have drifted and what else is wrong.
#[expect(clippy::print_stdout, reason = "a command line tool reports")]
pub(crate) fn run(check: bool) -> Result<()> {
    let tandem = Tandem::build()?;
    let helps = tandem.helps()?;
    let schema = tandem.say(&["config", "schema"])?;
    let parsed: Value = serde_json::from_str(&schema).context("reading the schema")?;
    let pages = [
        ("cli.md", cli_page(&helps)),
        ("config.schema.json", schema),
        ("config.md", config_page(&parsed)),
        ("metrics.md", generated(&tandem.say(&["config", "metrics"])?)),
    ];
    if !check {
        for (name, text) in pages {
            let path = Path::new(FOLDER).join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
            println!("docs: {}", path.display());
        }
        return Ok(());
    }
    let mut faults = Vec::new();
    for (name, text) in pages {
        let path = Path::new(FOLDER).join(name);
        if fs::read_to_string(&path).unwrap_or_default() != text {
            faults.push(format!("{} has drifted: run cargo xtask docs", path.display()));
        }
    }
    check_headers(&mut faults)?;
    for file in pages_of(Path::new("docs"))?.into_iter().chain([PathBuf::from("README.md")]) {
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        for fence in split(&text).0 {
            check_commands(&file, &fence, &helps, &mut faults);
            if fence.info == "toml tandem" {
                tandem.check_toml(&file, &fence, &mut faults)?;
            }
        }
    }
    report("docs", &faults)
}

/// Help by command.
type Helps = BTreeMap<&'static [&'static str], String>;

/// The built binary.
struct Tandem {
    path: PathBuf,
    target: PathBuf,
}

impl Tandem {
    fn build() -> Result<Self> {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--locked", "--package", "tandem-cli"])
            .status()
            .context("running cargo build")?;
        ensure!(built.success(), "cargo build failed");
        let target = Metadata::load()?.target_directory;
        Ok(Self { path: target.join("debug").join("tandem"), target })
    }

    /// What a command prints. Its environment is empty: help shows values of variables, and how wide a
    /// terminal is.
    fn say(&self, args: &[&str]) -> Result<String> {
        let out = Command::new(&self.path)
            .args(args)
            .env_clear()
            .output()
            .with_context(|| format!("running {}", self.path.display()))?;
        if !out.status.success() {
            bail!("tandem {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr));
        }
        String::from_utf8(out.stdout).context("output is not utf-8")
    }

    fn helps(&self) -> Result<Helps> {
        COMMANDS
            .iter()
            .map(|command| Ok((*command, self.say(&[command, &["--help"][..]].concat())?)))
            .collect()
    }

    /// Has the binary check a block of configuration.
    fn check_toml(&self, file: &Path, fence: &Fence<'_>, faults: &mut Vec<String>) -> Result<()> {
        let path = self.target.join("docs-check.toml");
        fs::write(&path, fence.lines.join("\n")).with_context(|| format!("writing {}", path.display()))?;
        let mut args = vec!["config", "check", "--config", path.to_str().unwrap_or_default()];
        if !fence.lines.iter().any(|line| line.starts_with("worker_urls") || *line == "[[workers]]") {
            args.extend(["--worker-urls", "http://127.0.0.1:8000"]);
        }
        if let Err(error) = self.say(&args) {
            faults.push(format!("{}:{}: {error}", file.display(), fence.line));
        }
        Ok(())
    }
}

fn generated(text: &str) -> String {
    let (title, rest) = text.split_once('\n').unwrap_or((text, ""));
    format!("{title}\n\n<!-- Made by `cargo xtask docs`; do not edit. -->\n{rest}")
}

/// The part of a help that every command repeats.
const COMMON: &str = "\nLogging:\n";

fn cli_page(helps: &Helps) -> String {
    let mut page = generated("# Command line\n");
    page.push_str(
        "\nExit codes: 0 done, 1 failed while running, 2 wrong arguments or configuration. Data goes to the standard \
         output, everything else to the standard error. The options under *Logging* go with every command.\n",
    );
    let serve = helps.get(&["serve"][..]).map(|text| options(text)).unwrap_or_default();
    for command in COMMANDS {
        let Some(help) = helps.get(command) else { continue };
        let name = [&["tandem"], *command].concat().join(" ");
        let own = if command.is_empty() { help.as_str() } else { without_common(help) };
        page.push_str(&format!("\n## {name}\n\n"));
        if *command != ["serve"] && !serve.is_empty() && options(help) == serve {
            let said = own.split("\n\n").next().unwrap_or_default();
            page.push_str(&format!("{said}. Takes the options of [tandem serve](#tandem-serve).\n"));
        } else {
            page.push_str(&format!("```text\n{}\n```\n", own.trim_end()));
        }
    }
    page
}

/// Everything behind the usage line.
fn options(help: &str) -> String {
    help.split_once("\nOptions:\n").map_or_else(String::new, |(_, rest)| rest.to_owned())
}

fn without_common(help: &str) -> &str {
    help.find(COMMON).and_then(|at| help.get(..at)).unwrap_or(help)
}

fn config_page(schema: &Value) -> String {
    let mut page = generated("# Configuration\n");
    page.push_str(
        "\nA TOML file for `tandem serve --config FILE`. Every key has a default, and an unknown key is an error. \
         Flags beat environment variables, these beat `--set KEY=VALUE`, that beats the file. `tandem config show` \
         prints the whole as `serve` would run on it; [config.schema.json](config.schema.json) is the same as a JSON \
         schema, for editors.\n\nDurations are written `250ms`, `5s`, `1m30s`, `2h`; sizes `4096`, `64KiB`, `9MB`, \
         `1GiB`.\n\n## Top level\n\n",
    );
    let (sections, keys): (Vec<_>, Vec<_>) =
        members(schema).into_iter().partition(|(_, value)| section(schema, value).is_some());
    page.push_str(&table(schema, &keys));
    for (name, value) in sections {
        let Some(definition) = section(schema, value) else { continue };
        let list = value.get("items").is_some();
        let heading = if list { format!("[[{name}]]") } else { format!("[{name}]") };
        page.push_str(&format!("\n## {heading}\n\n{}\n\n", text_of(definition)));
        let inner = members(definition);
        page.push_str(&table(schema, &inner));
        for (key, value) in inner {
            if let Some(entry) = section(schema, value) {
                let list = value.get("items").is_some();
                let heading = if list { format!("[[{name}.{key}]]") } else { format!("[{name}.{key}]") };
                page.push_str(&format!("\n### {heading}\n\n{}\n\n", text_of(entry)));
                page.push_str(&table(schema, &members(entry)));
            }
        }
    }
    page
}

fn members(object: &Value) -> Vec<(&str, &Value)> {
    let members = object.get("properties").and_then(Value::as_object);
    members.into_iter().flatten().map(|(name, value)| (name.as_str(), value)).collect()
}

/// What a value refers to: itself, the items of its list, or the one thing that is not null.
fn definition<'a>(schema: &'a Value, value: &'a Value) -> Option<&'a Value> {
    let either = value.get("anyOf").and_then(Value::as_array).and_then(|list| list.first());
    let inner = value.get("items").or(either).unwrap_or(value);
    let name = inner.get("$ref")?.as_str()?.strip_prefix("#/$defs/")?;
    schema.get("$defs")?.get(name)
}

/// The definition of a value that is a section of its own.
fn section<'a>(schema: &'a Value, value: &'a Value) -> Option<&'a Value> {
    definition(schema, value).filter(|found| found.get("properties").is_some())
}

fn text_of(value: &Value) -> String {
    let text = value.get("description").and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn table(schema: &Value, keys: &[(&str, &Value)]) -> String {
    let mut table = "| key | default | meaning |\n|---|---|---|\n".to_owned();
    for (key, value) in keys {
        let default = match value.get("default") {
            None => "required".to_owned(),
            Some(Value::Null) => "unset".to_owned(),
            Some(Value::Array(list)) if section(schema, value).is_some() && list.is_empty() => {
                "none".to_owned()
            }
            Some(default) => format!("`{default}`"),
        };
        let mut meaning = text_of(value);
        let choices: Vec<_> = definition(schema, value).map(choices).unwrap_or_default();
        if !choices.is_empty() {
            meaning.push_str(&format!(" {}", choices.join(" ")));
        }
        table.push_str(&format!("| `{key}` | {default} | {} |\n", meaning.replace('|', "\\|")));
    }
    table
}

/// `word`: what it means, for each word that a value may be.
fn choices(definition: &Value) -> Vec<String> {
    let list = definition.get("oneOf").and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(|choice| {
            let word = choice.get("const")?.as_str()?;
            Some(format!("`{word}`: {}", text_of(choice)))
        })
        .collect()
}

/// Every header that the identity table names must be in the page of headers.
fn check_headers(faults: &mut Vec<String>) -> Result<()> {
    let (table, page) = ("crates/identity/src/table.rs", "docs/reference/headers.md");
    let source = fs::read_to_string(table).with_context(|| format!("reading {table}"))?;
    let text = fs::read_to_string(page).with_context(|| format!("reading {page}"))?;
    let production = source.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = production
        .lines()
        .filter(|line| !line.contains("measured_with") && !line.trim_start().starts_with("//"));
    let quoted: BTreeSet<&str> = lines.flat_map(|line| line.split('"').skip(1).step_by(2)).collect();
    for name in quoted {
        if !text.contains(&format!("`{name}`")) {
            faults.push(format!("{page}: {name} of {table} is missing"));
        }
    }
    Ok(())
}

/// Every Markdown file under `folder`, sorted.
fn pages_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut pages, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// Every flag of a `tandem` command line in a shell block must be one of that command's.
fn check_commands(file: &Path, fence: &Fence<'_>, helps: &Helps, faults: &mut Vec<String>) {
    if fence.info != "sh" {
        return;
    }
    let joined = fence.lines.join("\n").replace("\\\n", " ");
    for line in joined.lines() {
        let Some(words) = tandem_words(line) else { continue };
        let Some((command, help)) = helps.iter().rfind(|(command, _)| words.starts_with(command)) else {
            continue;
        };
        if command.is_empty() && !words.first().is_some_and(|word| word.starts_with('-')) {
            faults.push(format!("{}:{}: no such command: {line}", file.display(), fence.line));
        }
        for word in words.iter().take_while(|word| !matches!(**word, "|" | ">" | "&&" | "&" | "#")) {
            let flag = word.split('=').next().unwrap_or_default();
            let known = help.split([' ', '\n', ',', '[']).any(|word| word == flag);
            if flag.starts_with("--") && !known {
                faults.push(format!("{}:{}: {flag} is no flag of: {line}", file.display(), fence.line));
            }
        }
    }
}

/// The words behind `tandem` in a command line, however it is called.
fn tandem_words(line: &str) -> Option<Vec<&str>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words
        .iter()
        .position(|word| !(word.contains('=') && word.starts_with(|c: char| c.is_ascii_uppercase())))?;
    let rest = words.get(at..)?;
    match rest {
        ["cargo", "run", ..] => {
            let behind = rest.iter().position(|word| *word == "--")?;
            // Another package's program, not ours.
            if rest.get(..behind)?.iter().any(|word| matches!(*word, "-p" | "--package")) {
                return None;
            }
            rest.get(behind + 1..).map(<[_]>::to_vec)
        }
        [first, rest @ ..] if *first == "tandem" || first.ends_with("/tandem") => Some(rest.to_vec()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(command: &str) -> Vec<String> {
        let helps: Helps = BTreeMap::from([
            (&[][..], "--version".to_owned()),
            (&["serve"][..], "      --port <PORT>\n      --model <NAME>...\n".to_owned()),
        ]);
        let fence = Fence { info: "sh", line: 1, lines: command.lines().collect() };
        let mut faults = Vec::new();
        check_commands(Path::new("page.md"), &fence, &helps, &mut faults);
        faults
    }

    #[test]
    fn flags_and_commands_that_do_not_exist_are_faults() {
        for good in [
            "tandem serve --port 1 --model a b",
            "TANDEM_X=1 tandem serve \\\n  --port=1",
            "cargo run --release -- serve --port 1",
            "./target/release/tandem serve --port 1 | jq --raw-output .",
            "vllm serve --anything",
            "cargo run --release -p other --bin speed -- --rounds 5",
            "tandem --version",
        ] {
            assert!(faults(good).is_empty(), "{good}: {:?}", faults(good));
        }
        for bad in ["tandem serve --prot 1", "tandem serv", "cargo run --release -- serve --por 1"] {
            assert_eq!(faults(bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn keys_defaults_and_choices_come_from_the_schema() {
        let schema = serde_json::json!({
            "properties": {
                "port": {"default": 1, "description": "The\nport."},
                "list": {"default": [], "items": {"$ref": "#/$defs/One"}},
                "one": {"anyOf": [{"$ref": "#/$defs/One"}, {"type": "null"}], "default": null},
            },
            "$defs": {
                "One": {"description": "One.", "properties": {"kind": {"$ref": "#/$defs/Kind", "default": "a"}, "url": {}}},
                "Kind": {"oneOf": [{"const": "a", "description": "First."}]},
            },
        });
        let page = config_page(&schema);
        for line in [
            "| `port` | `1` | The port. |",
            "## [[list]]",
            "## [one]",
            "| `kind` | `\"a\"` |  `a`: First. |",
            "| `url` | required |  |",
        ] {
            assert!(page.lines().any(|l| l == line), "{line}\n{page}");
        }
    }
}
