//! Metadata that outlives the master, and masters that take turns.

use std::fs;
use std::path::Path;

use mc_store::{ErrorCode, ReplicateConfig};
use mc_testkit::{Signal, content, eventually_blocking};
use tokio::runtime::Runtime;

use crate::end_to_end::{library_client, segment_names};
use crate::support::{DEADLINE, Master, Node, ctl, free_port, run};

fn metadata(directory: &Path) -> String {
    format!("--metadata_dir={}", directory.join("metadata").display())
}

#[test]
fn a_master_that_is_killed_comes_back_with_its_objects() {
    let directory = tempfile::tempdir().unwrap();
    let metadata = metadata(directory.path());
    let flags = [&*metadata, "--durability=sync", "--snapshot_interval=1s"];
    let mut master = Master::start(free_port(), &flags);
    let (at, port) = (master.address.clone(), master.port());
    let a = Node::start(&at, "a", 0, "64MB");
    let mut b = Node::start(&at, "b", 0, "64MB");
    let runtime = Runtime::new().unwrap();
    let client = library_client(&runtime, &at);
    let value = |key: &str| content(key, 100_000);
    let put = |key: &str, near: &str| {
        let near = ReplicateConfig::default().prefer(near);
        runtime.block_on(client.put_with(key, value(key), &near)).unwrap();
    };
    for round in 0..3 {
        put(&format!("a/{round}"), "a");
        put(&format!("b/{round}"), "b");
        put("removed", "a");
        runtime.block_on(client.remove("removed", true)).unwrap();
        master.program.kill();
        master = Master::start(port, &flags);
        for key in (0..=round).flat_map(|n| [format!("a/{n}"), format!("b/{n}")]) {
            let found = eventually_blocking(DEADLINE, "the object is back", || {
                runtime.block_on(client.get(&key)).ok()
            });
            assert!(found == value(&key), "{key}");
        }
        let gone = runtime.block_on(client.get("removed")).unwrap_err();
        assert_eq!(gone.code(), ErrorCode::ObjectNotFound, "{gone:?}");
    }
    // Memory that is mounted anew is another segment, also under the old name and address.
    let data_port = b.port();
    b.program.kill();
    master.program.kill();
    let master = Master::start(port, &flags);
    let b = Node::start(&at, "b", data_port, "64MB");
    eventually_blocking(DEADLINE, "what the old memory held is given up", || {
        let lost = runtime.block_on(client.get("b/0")).expect_err("that memory is gone");
        (lost.code() == ErrorCode::ObjectNotFound).then_some(())
    });
    let found = eventually_blocking(DEADLINE, "the other node is back", || {
        runtime.block_on(client.get("a/0")).ok()
    });
    assert!(found == value("a/0"));
    assert_eq!(segment_names(&at), ["a", "b"]);
    runtime.block_on(client.shutdown());
    for program in [a.program, b.program, master.program] {
        assert_eq!(program.end_by(Signal::TERM).code, Some(0));
    }
}

#[test]
fn what_cannot_be_used_is_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let refused = |flags: &[&str], reason: &str| {
        let common = ["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1", "--metrics_port=0"];
        let port = if flags.contains(&"--enable_ha") { "--rpc_port=7" } else { "--rpc_port=0" };
        run("mc-master", &[&common[..], &[port], flags].concat()).assert_refused(1, reason);
    };
    let of = |name: &str| format!("--metadata_dir={}", path(name).display());

    fs::create_dir(path("foreign")).unwrap();
    fs::write(path("foreign").join("photo"), "").unwrap();
    refused(&[&of("foreign")], "no file FORMAT");
    fs::create_dir(path("newer")).unwrap();
    fs::write(path("newer").join("FORMAT"), "mc-ha metadata 9\n").unwrap();
    refused(&[&of("newer")], "has format 9");
    fs::write(path("file"), "").unwrap();
    refused(&[&of("file")], "cannot make the directory");
    let master = Master::start(0, &[&of("used")]);
    refused(&[&of("used")], "in use by another process");
    drop(master);
    for (name, bytes) in [("foreign", "photo"), ("newer", "FORMAT")] {
        let left: Vec<_> = fs::read_dir(path(name)).unwrap().collect();
        assert!(left.len() == 1 && path(name).join(bytes).exists(), "{name} is as it was");
    }

    refused(&["--durability=sync"], "needs a directory");
    refused(&["--enable_ha"], "needs --etcd_endpoints");
    refused(&["--etcd_endpoints=127.0.0.1:1"], "without --enable_ha");
    refused(&["--enable_ha", "--etcd_endpoints=127.0.0.1"], "it has no port");
    let at = ["--enable_ha", "--etcd_endpoints=127.0.0.1:1"];
    refused(&[at[0], at[1], "--etcd_user=u"], "--etcd_user needs --etcd_password_file");
    refused(&[at[0], at[1], "--etcd_tls_key=k"], "--etcd_tls_key needs --etcd_tls_cert");
    refused(&["--enable_ha", "--etcd_endpoints=gopher://127.0.0.1:1"], "its scheme is neither");
}

#[test]
fn a_master_that_is_alone_says_so() {
    let master = Master::start(0, &[]);
    let shown = ctl(&master.address, &["ha", "status"]).assert_ok();
    assert!(shown.text().contains("alone"), "{}", shown.text());
    let refused = ctl(&master.address, &["ha", "hand-over"]);
    refused.assert_refused(1, "alone");
}
