//! Programs whose standard error has no reader, or is closed.

use std::fs::File;
use std::io::{Write as _, pipe};
use std::process::{Child, Command, ExitStatus, Stdio};

use mc_testkit::{binary, eventually_blocking};

use crate::support::{DEADLINE, Master, ctl, free_port, page};

/// The capacity of a pipe without a reader.
const PIPE: usize = 64 << 10;

/// Kills the program when it is dropped.
struct Unread(Child);

impl Unread {
    fn start(name: &str, flags: &[&str], err: impl Into<Stdio>) -> Self {
        let mut command = Command::new(binary(name));
        command.args(flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(err);
        Self(command.spawn().expect("it starts"))
    }

    fn terminate(mut self) -> ExitStatus {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").arg(pid).status().expect("kill runs").success());
        let ended = || self.0.try_wait().expect("our child");
        eventually_blocking(DEADLINE, "it ends", ended)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_log_that_nobody_reads_holds_no_master_up() {
    let (reader, mut writer) = pipe().expect("a pipe");
    writer.write_all(&[b'x'; PIPE]).expect("room for as much");
    let (rpc, http) = (free_port(), free_port());
    let flags = [
        "--rpc_address=localhost",
        "--metrics_host=localhost",
        &format!("--rpc_port={rpc}"),
        &format!("--metrics_port={http}"),
    ];
    let master = Unread::start("mc-master", &flags, writer);
    let address = format!("127.0.0.1:{rpc}");
    eventually_blocking(DEADLINE, "it answers", || {
        (ctl(&address, &["stat"]).code == Some(0)).then_some(())
    });
    for _ in 0..20 {
        // Each connection that comes and goes is logged by some.
        ctl(&address, &["stat"]).assert_ok();
        assert!(page(&format!("http://127.0.0.1:{http}"), "/health").contains("\"ok\""));
    }
    assert_eq!(master.terminate().code(), Some(0));
    drop(reader);
}

#[test]
fn a_node_whose_standard_error_is_closed_leaves_as_any_other() {
    let master = Master::start(0, &[]);
    let (reader, writer) = pipe().expect("a pipe");
    let flags = [
        "--host=127.0.0.1",
        "--port=0",
        "--data_port=0",
        &format!("--master_server_address={}", master.address),
        "--segment_name=a",
        "--global_segment_size=16MB",
    ];
    let node = Unread::start("mc-node", &flags, writer);
    let has = |segments: usize| {
        let listed = ctl(&master.address, &["stat"]).assert_ok();
        let named = listed.text().lines().filter(|line| line.starts_with("a ")).count();
        (named == segments).then_some(())
    };
    eventually_blocking(DEADLINE, "it is mounted", || has(1));
    drop(reader);
    assert_eq!(node.terminate().code(), Some(0));
    has(0).expect("it has taken its segment along");
}

#[test]
fn a_log_goes_to_a_file_as_it_is_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("log");
    let (rpc, http) = (free_port(), free_port());
    let flags = [
        "--rpc_address=127.0.0.1",
        &format!("--rpc_port={rpc}"),
        &format!("--metrics_port={http}"),
    ];
    let master = Unread::start("mc-master", &flags, File::create(&path).expect("a file"));
    let says = |what: &str| {
        let log = std::fs::read_to_string(&path).expect("a log");
        log.contains(what).then_some(())
    };
    eventually_blocking(DEADLINE, "it says where it listens", || says("/metrics"));
    assert_eq!(master.terminate().code(), Some(0));
    says("SIGTERM").expect("what was logged last is there when it has ended");
}
