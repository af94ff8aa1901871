//! Prefill and decode as the processes that they are, with a real master between them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use mc_store::{Client, Master};
use tokio::runtime::Runtime;

/// Longer than any run here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A master, and what it runs on.
struct Cluster {
    runtime: Runtime,
    master: Master,
}

impl Cluster {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let master = runtime.block_on(Master::builder().start()).unwrap();
        Self { runtime, master }
    }

    fn address(&self) -> String {
        self.master.local_addr().to_string()
    }

    /// One role as a process, told what it is by its environment as the reference
    /// system's sample program is.
    fn start_role(&self, role: &str, args: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_mc-stress"))
            .args(["--value_length=100000", "--max_requests=40", "--threads=3"])
            .arg("--global_segment_size=32MB")
            .args(args)
            .env("ROLE", role)
            .env("MASTER_SERVER", self.address())
            .env("LOCAL_HOSTNAME", "127.0.0.1")
            .env("PROTOCOL", "tcp")
            .env("DEVICE_NAME", "lo")
            .env("METADATA_ADDR", "127.0.0.1:2379")
            .env_remove("MC_LOG")
            .env_remove("MC_LOG_FORMAT")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

/// Waits for the end; panics, and ends the process, when it does not come in time.
fn wait(child: Child) -> Output {
    let pid = child.id().to_string();
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || ended.send(child.wait_with_output()));
    match end.recv_timeout(DEADLINE) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            let _ = Command::new("kill").args(["-s", "KILL", &pid]).status();
            panic!("mc-stress ran for more than {DEADLINE:?}");
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The line that a run ends in, after it ended well.
fn line(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    assert_eq!(out.lines().count(), 1, "{out}");
    out.trim_end().to_owned()
}

#[test]
fn decode_may_come_first_and_finds_everything_right() {
    let cluster = Cluster::start();
    let mut decode = cluster.start_role("decode", &[]);
    // It waits, so there is nothing there yet.
    let mut err = BufReader::new(decode.stderr.take().unwrap());
    let mut first = String::new();
    err.read_line(&mut first).unwrap();
    assert_eq!(first, "waiting for 40 values\n");
    let rest = std::thread::spawn(move || {
        let mut rest = String::new();
        err.read_to_string(&mut rest).map(|_| rest)
    });
    // Mooncake's sample names an RDMA device, which means nothing to TCP.
    let prefill = wait(cluster.start_role("prefill", &["--device_name=ibp6s0"]));
    assert!(text(&prefill.stderr).contains("no usable network device ibp6s0; the system chooses"));
    let decode = wait(decode);
    let put = line(&prefill);
    assert!(put.starts_with("prefill: put 40 values of 97.65 KB in "), "{put}");
    let checked = line(&decode);
    assert!(checked.starts_with("decode: checked 40 values of 97.65 KB in "), "{checked}");
    assert!(checked.contains(": 0 wrong, 0 missing; ") && checked.contains(" GB/s, get p50 "));
    let progress = rest.join().unwrap().unwrap();
    assert!(progress.contains("checked 40 of 40 after "), "{progress}");
    assert!(text(&prefill.stderr).ends_with("all values are taken\n"));
    // Decode removed what it found right, and both took their memory with them.
    assert_eq!(cluster.master.report().objects, 0);
    assert!(cluster.master.report().segments.is_empty());
}

#[test]
fn a_wrong_value_is_found() {
    let cluster = Cluster::start();
    let prefill = cluster.start_role("prefill", &["--seed=5", "--wait=30s"]);
    // A value of the right key and length that nobody derived from the seed.
    let replaced = async {
        let client = Client::builder().master(cluster.address()).connect().await.unwrap();
        let key = "stress/5/100000/17";
        let begun = Instant::now();
        while client.longest_prefix(&["stress/5/100000/39", key]).await.unwrap() < 2 {
            assert!(begun.elapsed() < DEADLINE, "the values are not there yet");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        client.remove(key, true).await.unwrap();
        client.put(key, vec![0; 100_000]).await.unwrap();
        client.shutdown().await;
    };
    let in_time = async { tokio::time::timeout(DEADLINE, replaced).await };
    cluster.runtime.block_on(in_time).unwrap();
    let decode = wait(cluster.start_role("decode", &["--seed=5"]));
    assert_eq!(decode.status.code(), Some(1));
    assert!(text(&decode.stdout).contains(": 1 wrong, 0 missing; "), "{}", text(&decode.stdout));
    let err = text(&decode.stderr);
    assert!(err.contains("'stress/5/100000/17' is wrong\n"), "{err}");
    assert!(err.lines().last().unwrap().starts_with("error: 1 values were wrong"), "{err}");
    // The wrong one stays to be looked at, so prefill would stay, too.
    let pid = prefill.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
    let prefill = wait(prefill);
    assert_eq!(prefill.status.code(), Some(1));
    assert!(text(&prefill.stderr).contains("ended by SIGTERM"), "{}", text(&prefill.stderr));
}

#[test]
fn what_nobody_puts_is_missing() {
    let cluster = Cluster::start();
    let decode = wait(cluster.start_role("decode", &["--wait=200ms"]));
    assert_eq!(decode.status.code(), Some(1));
    let out = text(&decode.stdout);
    assert!(out.contains("checked 0 values") && out.contains(": 0 wrong, 40 missing; "), "{out}");
    assert!(text(&decode.stderr).contains("must agree"));
}

#[test]
fn what_is_kept_is_checked_again() {
    let cluster = Cluster::start();
    let prefill = cluster.start_role("prefill", &[]);
    let keep = ["--keep", "--global_segment_size=0"];
    for args in [&keep[..], &keep[..], &[]] {
        let checked = line(&wait(cluster.start_role("decode", args)));
        assert!(checked.contains("checked 40 values") && checked.contains(": 0 wrong, 0 missing"));
    }
    line(&wait(prefill));
}

#[test]
fn bad_input_is_one_line() {
    let cluster = Cluster::start();
    for (role, args, advice) in [
        ("teacher", &[][..], "prefill"),
        ("decode", &["--protocol=rdma"], "tcp or quic"),
        ("decode", &["--local_hostname=no such host"], "no name or address"),
        ("decode", &["--value_length=9GB"], "write less"),
    ] {
        let output = wait(cluster.start_role(role, args));
        let err = text(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty());
        assert!(err.lines().count() == 1 && err.contains(advice), "{err}");
    }
}
