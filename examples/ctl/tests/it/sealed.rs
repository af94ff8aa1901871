//! Objects in files that are encrypted with the key of their tenant.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use mc_testkit::{Finished, Input, Program, Signal, binary, eventually_blocking};

use crate::support::{DEADLINE, Master, Node};

const TEXT: &[u8] = b"the text of a prompt, ";

/// Runs mc-ctl, which finds these keys in its environment.
fn ctl(master: &Master, keys: &OsStr, args: &[&str], input: &[u8]) -> Finished {
    let mut command = Command::new(binary("mc-ctl"));
    command.arg(format!("--master_server_address={}", master.address)).args(args);
    command.env("MC_STORE_TIER_KEYS", keys);
    Program::start(DEADLINE, &mut command, Input::Bytes(input)).finish()
}

/// The files of objects below a directory.
fn files(directory: &Path, found: &mut Vec<Vec<u8>>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            // One that is being written may go.
            false => found.extend(std::fs::read(path).ok()),
        }
    }
}

#[test]
fn files_are_encrypted_by_those_who_have_a_key() {
    let directory = tempfile::tempdir().unwrap();
    let (root, keys) = (directory.path().join("files"), directory.path().join("keys"));
    std::fs::create_dir(&root).unwrap();
    std::fs::write(&keys, format!("# of all tenants\n* {}\n", "5f".repeat(32))).unwrap();
    let flags = [&*format!("--root_fs_dir={}", root.display()), "--client_ttl=2s"];
    let master = Master::start(0, &[&flags[..], &["--default_kv_lease_ttl=100"]].concat());
    let flag = format!("--tier_keys={}", keys.display());
    let node = Node::start_with(&master.address, "node", 0, "64MB", &[&flag]);
    let value = TEXT.repeat(10_000);
    let put = ctl(&master, keys.as_os_str(), &["put", "k"], &value);
    assert_eq!(put.code, Some(0), "{}", put.err);
    let is_written = || {
        let stat = ctl(&master, keys.as_os_str(), &["stat", "k"], b"");
        String::from_utf8_lossy(&stat.out).contains("file     complete")
    };
    eventually_blocking(DEADLINE, "the object has a file", is_written);
    let mut found = Vec::new();
    files(&root, &mut found);
    assert!(found.iter().any(|file| file.len() > value.len()));
    assert!(!found.iter().any(|file| file.windows(TEXT.len()).any(|part| part == TEXT)));
    node.program.end_by(Signal::TERM);
    let get = |keys: &OsStr| ctl(&master, keys, &["get", "k"], b"");
    assert!(get(keys.as_os_str()).out == value);
    let without = get(OsStr::new(""));
    assert!(without.code != Some(0) && without.out.is_empty());
    assert!(without.err.contains("is sealed with the key"), "{}", without.err);
    std::fs::write(&keys, "default 5f\n").unwrap();
    let wrong = get(keys.as_os_str());
    assert_ne!(wrong.code, Some(0));
    assert!(wrong.err.contains("line 1 of the keys in"), "{}", wrong.err);
}
