//! What is printed, to whom, and how a command ends.

use std::io::pipe;
use std::process::{Command, Output, Stdio};

/// The binary, without settings from the environment of the tests.
pub(crate) fn tandem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(args).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["TANDEM_", "DYN_", "NO_COLOR", "RUST_"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
}

pub(crate) fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

/// The writing end of a pipe that nobody reads.
fn nobody() -> Stdio {
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

const ENGINE: [&str; 2] = ["--worker-urls", "http://127.0.0.1:9"];

/// I-PRN-1.
#[test]
fn a_reader_that_went_away_is_no_error() {
    let check = ["config", "check", ENGINE[0], ENGINE[1]];
    for args in [&["config", "schema"][..], &["mock-engine", "--list-profiles"], &check] {
        let mut command = tandem(args);
        let result = command.stdout(nobody()).stderr(Stdio::piped()).output().expect("runs");
        let told = String::from_utf8_lossy(&result.stderr).into_owned();
        assert_eq!((result.status.code(), told.as_str()), (Some(0), ""), "{args:?}");
    }
}

/// I-PRN-2.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("opened");
    let mut command = tandem(&["config", "schema"]);
    let result = command.stdout(full).stderr(Stdio::piped()).output().expect("runs");
    let told = String::from_utf8_lossy(&result.stderr);
    assert!(!result.status.success() && told.contains("writing to stdout"), "{told}");
}

#[test]
fn a_log_that_nobody_takes_does_not_change_the_outcome() {
    let wrong = tandem(&["serve"]).stdout(Stdio::null()).stderr(nobody()).status().expect("runs");
    assert_eq!(wrong.code(), Some(2));
    let mut warned = tandem(&["config", "check", ENGINE[0], ENGINE[1], "--log-level", "no=such=level"]);
    let warned = warned.stdout(Stdio::null()).stderr(nobody()).status().expect("runs");
    assert_eq!(warned.code(), Some(0));
}

#[test]
fn log_lines_that_go_to_a_file_have_no_colours() {
    let mut command = tandem(&["config", "check", ENGINE[0], ENGINE[1], "--log-level", "no=such=level"]);
    let (code, out, log) = output(&mut command);
    assert_eq!((code, out.as_str()), (Some(0), "ok\n"));
    assert!(log.contains("log filter not understood"), "{log}");
    assert!(!log.contains('\u{1b}'), "{log:?}");
}

#[test]
fn wrong_configurations_end_with_2_and_say_each_thing_once() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "policy = \"random\"\n[timeouts]\nconect = \"2s\"\n").expect("written");
    let path = file.path().to_str().expect("a name");
    let missing = format!("{path}.missing");
    for (args, said) in [
        (&["--worker-urls", "ftp://x"][..], "use http://"),
        (&["--worker-urls", "http://x:99999"], "the port is not a number"),
        (&["--worker-urls", "http://x", "--set", "nonsense"], "expected KEY=VALUE"),
        (&["--worker-urls", "http://x", "--set", "timeouts.connect=soon"], "250ms"),
        (&["--worker-urls", "http://x", "--policy", "clever"], "session_affinity"),
        (&["--config", path], "line 3"),
        (&["--config", &missing], "No such file"),
        (&["--worker-urls", "http://x", "--tls-cert", &missing, "--tls-key", &missing], "cannot read"),
        (&[], "--worker-urls"),
    ] {
        let (code, out, told) = output(&mut tandem(&[&["serve"], args].concat()));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}: {told}");
        assert!(told.starts_with("error: "), "{told}");
        assert_eq!(told.matches(said).count(), 1, "{args:?}: {told}");
    }
}
