//! The program with all others in it, as its users run it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mc_testkit::{Finished, Input, Program, Signal};

const ALL: &str = env!("CARGO_BIN_EXE_mc-store");
const LINK: &str = env!("CARGO_BIN_EXE_mc-link");

/// Time limit of each step.
const LIMIT: Duration = Duration::from_secs(20);

fn start(program: impl AsRef<Path>, args: &[&str]) -> Program {
    Program::start(LIMIT, Command::new(program.as_ref()).args(args), Input::None)
}

fn run(program: impl AsRef<Path>, args: &[&str]) -> Finished {
    start(program, args).finish()
}

/// A master by the name that `program` and `first` give it, and where it listens.
fn master(program: impl AsRef<Path>, first: &[&str]) -> (Program, String) {
    let here = ["--rpc_address=127.0.0.1", "--rpc_port=0", "--metrics_port=0"];
    let master = start(program, &[first, &here].concat());
    let address =
        master.wait_out(|line| line.split_once("listening on ").map(|it| it.1.to_owned()));
    (master, format!("--master_server_address={address}"))
}

#[test]
fn programs_work_together() {
    let (master, address) = master(ALL, &["master"]);
    let node = ["node", "--global_segment_size=64MB", "--host=127.0.0.1", "--port=0", &address];
    let node = start(ALL, &node);
    node.wait_out(|line| line.contains("client ready").then_some(()));
    let ctl = |args: &[&str]| run(ALL, &[&["ctl", &address], args].concat()).assert_ok();
    ctl(&["put", "key", "a value"]);
    assert_eq!(ctl(&["get", "key"]).out, b"a value");
    // It starts itself again, with roles of its own.
    #[cfg(feature = "bench")]
    {
        let figures = run(ALL, &["bench", "alloc", "--smoke", "--json"]).assert_ok();
        assert!(figures.text().contains("bytes_per_alloc"), "{}", figures.text());
    }
    assert_eq!(node.end_by(Signal::TERM).code, Some(0));
    assert_eq!(master.end_by(Signal::TERM).code, Some(0));
}

#[test]
fn links_and_copies_of_the_small_program_are_programs() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name| folder.path().join(name);
    symlink(ALL, at("mc-store")).unwrap();
    symlink("mc-store", at("mc-ctl")).unwrap();
    fs::copy(LINK, at("mc-master")).unwrap();
    fs::copy(LINK, at("mc-client")).unwrap();
    let (master, address) = master(at("mc-master"), &[]);
    // The process that was started is the master, as a supervisor needs it.
    let line = fs::read(format!("/proc/{}/cmdline", master.id())).unwrap();
    assert!(line.starts_with(at("mc-master").as_os_str().as_encoded_bytes()));
    let exists = run(at("mc-ctl"), &[&address, "exist", "none"]);
    assert_eq!((exists.code, exists.text()), (Some(1), "no   none\n"), "{exists:?}");
    let version = run(at("mc-ctl"), &["--version"]).assert_ok();
    assert_eq!(version.text(), format!("mc-ctl {}\n", env!("CARGO_PKG_VERSION")));
    let former = run(at("mc-client"), &["--version"]);
    assert!(former.text().starts_with("mc-node "), "{former:?}");
    assert_eq!(former.err, "mc-client is now called mc-node; please use the new name\n");
    assert_eq!(master.end_by(Signal::TERM).code, Some(0));
}

#[test]
fn a_copy_without_the_program_says_what_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("mc-ctl");
    fs::copy(LINK, &alone).unwrap();
    run(alone, &["ls"]).assert_refused(1, "cannot start mc-store: No such file");
}

#[test]
fn help_names_the_command_that_it_is_for() {
    let usage = |args: &[&str]| {
        let said = run(ALL, args).assert_ok();
        said.text().lines().find_map(|it| it.strip_prefix("Usage: ").map(str::to_owned)).unwrap()
    };
    assert_eq!(usage(&["--help"]), "mc-store PROGRAM [OPTIONS]");
    assert!(usage(&["master", "--help"]).starts_with("mc-store master [OPTIONS]"));
    assert!(usage(&["help", "ctl"]).starts_with("mc-store ctl [OPTIONS]"));
    assert!(usage(&["ctl", "put", "--help"]).starts_with("mc-store ctl put"));
    assert_eq!(
        run(ALL, &["--version"]).assert_ok().text(),
        format!("mc-store {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn refusals_are_one_line_and_code_two() {
    run(ALL, &["contrl"]).assert_refused(2, "unknown program 'contrl' (--help lists all)");
    run(ALL, &["mastr", "--help"]).assert_refused(2, "did you mean master?");
    run(ALL, &["--rpc_port=1"]).assert_refused(2, "unknown program '--rpc_port=1'");
    run(ALL, &["ctl", "--rpc_prot=1"]).assert_refused(2, "unknown flag --rpc_prot");
    let nothing = run(ALL, &[]);
    assert_eq!((nothing.code, &*nothing.out), (Some(2), &b""[..]));
    assert!(nothing.err.contains("Programs:\n  master "), "{}", nothing.err);
}
