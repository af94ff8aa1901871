//! Wrong flags, logs that cannot be read, and a master that is not there.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mc_testkit::{Finished, Input, Program};

/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

const HEADER: &str = "{\"type\":\"header\",\"format\":\"mc-history\",\"version\":1}\n";

fn run(args: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mc-history"));
    Program::start(LIMIT, command.args(args), Input::None).finish()
}

/// Checks a log with this text.
fn check(dir: &Path, text: impl AsRef<[u8]>) -> Finished {
    let log = dir.join("a.log");
    fs::write(&log, text).unwrap();
    run(&["check", log.to_str().unwrap()])
}

#[test]
fn logs_that_cannot_be_read_are_refused_with_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let missing = dir.join("none.log");
    let missing = run(&["check", missing.to_str().unwrap()]);
    missing.assert_refused(2, "none.log: No such file");
    run(&["check", dir.to_str().unwrap()]).assert_refused(2, "Is a directory");
    check(dir, "").assert_refused(2, "a.log:1: this is no log of mc-history");
    check(dir, "time,key\n1,2\n").assert_refused(2, "a.log:1: this is no log of mc-history");
    check(dir, [0xff; 100]).assert_refused(2, "a.log:1: this is no log of mc-history");
    let newer = HEADER.replace("\"version\":1", "\"version\":7");
    check(dir, newer).assert_refused(2, "a.log:1: the log has version 7, this program reads");
    let cut =
        format!("{HEADER}{{\"type\":\"loss\",\"fr\n{{\"type\":\"loss\",\"from\":1,\"to\":2}}\n");
    check(dir, cut).assert_refused(2, "a.log:2: the line is not of the log's format: ");
    let huge = [HEADER.as_bytes(), &vec![b' '; 64 << 20]].concat();
    check(dir, huge).assert_refused(2, "a.log:2: the line is longer than 65536 bytes");
    let unknown = format!("{HEADER}{{\"type\":\"pause\"}}\n");
    check(dir, unknown).assert_refused(2, "unknown variant `pause`");
}

#[test]
fn a_log_that_ends_in_the_middle_of_a_line_is_one_of_a_killed_recorder() {
    let dir = tempfile::tempdir().unwrap();
    let checked = check(dir.path(), format!("{HEADER}{{\"type\":\"begin\",\"id\":0,\"cli"));
    assert!(checked.assert_ok().text().contains("1 logs cut off"));
}

#[test]
fn wrong_flags_are_refused() {
    let help = run(&["--help"]).assert_ok();
    assert!(help.text().contains("record") && help.text().contains("check"));
    for (command, flag) in [("record", "--first_client"), ("check", "--may_lose")] {
        assert!(run(&[command, "--help"]).assert_ok().text().contains(flag));
    }
    run(&["check"]).assert_refused(2, "<FILE>");
    run(&["check", "--may-err", "x"]).assert_refused(2, "--may-err");
    run(&["record"]).assert_refused(2, "--output");
    run(&["record", "--output=x", "--keys=0"]).assert_refused(2, "--keys");
    run(&["record", "--output=x", "--clients=many"]).assert_refused(2, "--clients");
    let last = format!("--first_client={}", u32::MAX);
    run(&["record", "--output=x", &last]).assert_refused(2, "it is at most 4294967294");
}

#[test]
fn a_master_that_is_not_there_is_named() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let master = format!("--master=127.0.0.1:{port}");
    let dir = tempfile::tempdir().unwrap();
    let log = format!("--output={}", dir.path().join("a.log").display());
    let refused = run(&["record", &master, &log]);
    refused.assert_refused(1, &format!("cannot join the cluster of 127.0.0.1:{port}"));
}
