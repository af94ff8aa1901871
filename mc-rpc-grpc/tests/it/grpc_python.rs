//! The calls over gRPC with the packages of another language, generated from the `.proto` or
//! from reflection alone.
//!
//! The first run installs them, from the network, into an environment of its own below
//! cargo's target directory; later runs find them there.

use std::fs;
use std::path::Path;
use std::process::Command;

use mc_rpc::ServerConfig;
use mc_testkit::python;

use crate::common::{master, serve};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/grpc_client.py");
const PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/requirements.txt");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../mc-rpc/proto");

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn python_finds_everything() {
    let server = serve(&master(), ServerConfig::default()).await;
    let addr = server.local_addr().to_string();
    let client = tokio::task::spawn_blocking(move || {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let interpreter = python::environment(dir, "grpc-python", PACKAGES);
        let generated = dir.join("grpc-python-client");
        fs::create_dir_all(&generated).unwrap();
        let mut client = Command::new(interpreter);
        python::run("the client", client.args([SCRIPT, &addr, PROTO]).arg(generated));
    });
    client.await.unwrap();
    server.shutdown().await;
}
