//! The program as its users run it, with a real master.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

use mc_store::{ByteSize, Client, Master};
use tokio::runtime::Runtime;

fn check(master: &str, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mc-check"))
        .args(if args.is_empty() { &["--global_segment_size=64MB"] } else { args })
        .env("MASTER_SERVER", master)
        .env("LOCAL_HOSTNAME", "127.0.0.1")
        .env_remove("PROTOCOL")
        .env_remove("MC_LOG")
        .env_remove("MC_LOG_FORMAT")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn an_installation_that_works_is_a_success_and_left_as_it_was() {
    let runtime = Runtime::new().unwrap();
    let master = runtime.block_on(Master::builder().start()).unwrap();
    let address = master.local_addr().to_string();
    // Another node, which must not be in the way.
    let node = Client::builder().master(&address).listen("127.0.0.1:0".parse().unwrap());
    let node = runtime.block_on(node.segment_size(ByteSize::mib(64)).connect()).unwrap();
    for _ in 0..2 {
        let output = check(&address, &[]);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{err}");
        assert!(out.starts_with("success: 7 of 7 checks passed in "), "{out}");
        assert!(err.lines().count() == 7 && err.lines().all(|line| line.starts_with("ok  ")));
        assert!(err.contains("answers: 1 other segments"), "{err}");
        assert!(err.contains("got over shared memory") && err.contains("got over TCP"), "{err}");
        assert_eq!(master.report().totals.objects, 0);
        assert_eq!(master.report().segments.len(), 1);
    }
    runtime.block_on(node.shutdown());
}

#[test]
fn a_client_without_memory_checks_that_of_the_nodes() {
    let runtime = Runtime::new().unwrap();
    let master = runtime.block_on(Master::builder().start()).unwrap();
    let address = master.local_addr().to_string();
    let without = ["--global_segment_size=0"];
    let output = check(&address, &without);
    let err = text(&output.stderr);
    assert!(!output.status.success() && err.contains("start a node with mc-node"), "{err}");
    let node = Client::builder().master(&address).listen("127.0.0.1:0".parse().unwrap());
    let node = runtime.block_on(node.segment_size(ByteSize::mib(64)).connect()).unwrap();
    let output = check(&address, &without);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert!(out.starts_with("success: 7 of 7 checks passed in "), "{out}");
    assert!(err.contains("no segment of its own") && err.contains("64.00 MB"), "{err}");
    assert_eq!((master.report().totals.objects, master.report().segments.len()), (0, 1));
    runtime.block_on(node.shutdown());
}

/// A master that asks for a token, and the file of one that it knows.
fn guarded(dir: &std::path::Path, runtime: &Runtime) -> (Master, std::path::PathBuf) {
    let (list, token) = (dir.join("access.list"), dir.join("token"));
    std::fs::write(&list, "token:the-token-of-an-admin admin\n").unwrap();
    std::fs::write(&token, "the-token-of-an-admin\n").unwrap();
    let mut server = mc_rpc::ServerConfig::default();
    server.authenticator = Some(std::sync::Arc::new(mc_rpc::AccessFile::load(list).unwrap()));
    let master = runtime.block_on(Master::builder().server(server).start()).unwrap();
    (master, token)
}

#[test]
fn variables_give_the_credentials_and_the_master() {
    let (runtime, dir) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let (master, token) = guarded(dir.path(), &runtime);
    let run = |token: &std::path::Path| {
        Command::new(env!("CARGO_BIN_EXE_mc-check"))
            .env("MOONCAKE_MASTER", master.local_addr().to_string())
            .env("MOONCAKE_GLOBAL_SEGMENT_SIZE", "64MB")
            .env("MOONCAKE_LOCAL_HOSTNAME", "127.0.0.1")
            .env("MC_STORE_TOKEN_FILE", token)
            .env_remove("MASTER_SERVER")
            .env_remove("MC_LOG")
            .output()
            .unwrap()
    };
    let output = run(&token);
    assert!(output.status.success(), "{}", text(&output.stderr));
    std::fs::write(&token, "the-token-of-nobody\n").unwrap();
    let output = run(&token);
    assert!(!output.status.success() && text(&output.stderr).contains("token"));
}

#[test]
fn what_does_not_work_is_one_line() {
    // The listener of this port is gone.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = check(&gone.to_string(), &[]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(err.lines().count() == 1 && err.contains("cannot join the cluster"), "{err}");
    let output = check("127.0.0.1:1", &["--global_segment_size=1MB"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(err.lines().count() == 1 && err.contains("the checks need 64.00 MB"), "{err}");
}
