//! The two example programs, at a real master's rules.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use mc_cluster_testkit::Cluster;
use mc_store::{ByteSize, C2cSettings, Master};
use mc_testkit::{Finished, Input, Program};

/// Longer than any run here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn example(name: &str, args: &[&str]) -> Finished {
    // Cargo builds examples beside the tests.
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.set_file_name("examples");
    path.push(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let command = &mut Command::new(path);
    Program::start(DEADLINE, command.args(args).current_dir(root), Input::None).finish()
}

#[test]
fn one_model_prefills_and_another_decodes() {
    let rules = C2cSettings::new(2, include_str!("../../rules.json"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(Cluster::of(Master::builder().c2c(rules), &[ByteSize::mib(8)]));
    let master = cluster.address();
    let missing = example("decode", &[&master, "8"]);
    assert_eq!(missing.code, Some(1), "{missing:?}");
    let prefill = example("prefill", &[&master, "8"]);
    assert_eq!(prefill.code, Some(0), "{prefill:?}");
    let said = String::from_utf8(prefill.out).unwrap();
    assert!(said.contains("converted 16 objects, skipped []"), "{said}");
    let decode = example("decode", &[&master, "8"]);
    assert_eq!(decode.code, Some(0), "{decode:?}");
    let said = String::from_utf8(decode.out).unwrap();
    assert!(said.contains("keys and values of 128 tokens"), "{said}");
}
