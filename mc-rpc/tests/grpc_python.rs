//! The calls over gRPC with the packages of another language, generated from the `.proto` or
//! from reflection alone.
//!
//! The first run installs them, from the network, into an environment of its own below
//! cargo's target directory; later runs find them there.

#![cfg(feature = "grpc")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{master, serve};
use mc_rpc::ServerConfig;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/grpc_client.py");
const PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/requirements.txt");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");

fn run(what: &str, command: &mut Command) {
    let ended = command.output().unwrap_or_else(|error| {
        panic!("{what}: cannot run {command:?}: {error}; this test needs python3 with venv and pip")
    });
    assert!(
        ended.status.success(),
        "{what}: {command:?} ended with {}\n{}{}",
        ended.status,
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr)
    );
}

/// The interpreter of an environment that has the packages.
fn python(dir: &Path) -> PathBuf {
    let environment = dir.join("grpc-python");
    let python = environment.join("bin/python");
    // Written last: what a run left half done is begun anew, as is what other packages need.
    let installed = environment.join("installed");
    let packages = fs::read_to_string(PACKAGES).unwrap();
    if fs::read_to_string(&installed).is_ok_and(|there| there == packages) {
        return python;
    }
    let mut make = Command::new("python3");
    run("making an environment", make.args(["-m", "venv", "--clear"]).arg(&environment));
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--requirement", PACKAGES]);
    run("installing the packages, which needs a package index", &mut install);
    fs::write(installed, packages).unwrap();
    python
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn python_finds_everything() {
    let server = serve(&master(), ServerConfig::default()).await;
    let addr = server.local_addr().to_string();
    let client = tokio::task::spawn_blocking(move || {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let python = python(dir);
        let generated = dir.join("grpc-python-client");
        fs::create_dir_all(&generated).unwrap();
        let mut client = Command::new(python);
        run("the client", client.args([SCRIPT, &addr, PROTO]).arg(generated));
    });
    client.await.unwrap();
    server.shutdown().await;
}
