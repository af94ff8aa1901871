//! The client and the master take nothing from the operating system that their environment did not
//! hand in. What would make one run differ from the next stands in one file, `mc-environment/src/system.rs`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// Names that they must not use: clocks that no simulation can turn, threads, randomness, sockets.
const FORBIDDEN: &[&str] = &[
    "std::time::Instant",
    "time::{Duration, Instant}",
    "SystemTime",
    "BootTime::now",
    "std::thread",
    "spawn_blocking",
    "getrandom",
    "fastrand",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "to_socket_addrs",
    "lookup_host",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The lines of their files without their tests and comments, each with where it is.
fn lines() -> Vec<(String, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let master = ["master.rs", "ticker.rs"].map(|file| crates.join("mc-server/src").join(file));
    let mut files = master.to_vec();
    files.push(crates.join("mc-environment/src/environment.rs"));
    sources(&crates.join("mc-store/src/client"), &mut files);
    assert!(files.len() > 30, "the client is not where it was: {files:?}");
    let mut lines = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            if line == "#[cfg(test)]" {
                break;
            }
            let code = line.trim_start();
            if !code.starts_with("//") {
                lines.push((format!("{}:{}", file.display(), number + 1), code.to_owned()));
            }
        }
    }
    lines
}

#[test]
fn client_and_master_take_everything_from_their_environment() {
    let mut found = Vec::new();
    for (place, line) in lines() {
        if let Some(word) = FORBIDDEN.iter().find(|word| line.contains(**word)) {
            found.push(format!("{place} names {word}"));
        }
    }
    assert!(found.is_empty(), "take it from the Environment, or tokio::time: {found:#?}");
}

/// Without that word Tokio draws the order in which branches are looked at.
#[test]
fn every_select_is_biased() {
    let lines = lines();
    let mut count = 0;
    for (at, (place, line)) in lines.iter().enumerate() {
        if line.contains("select! {") {
            count += 1;
            assert_eq!(lines[at + 1].1, "biased;", "{place}");
        }
    }
    assert!(count > 3, "they are found");
}
