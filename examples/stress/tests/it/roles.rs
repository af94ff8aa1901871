//! Prefill and decode as the processes that they are, with a real master between them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;
use std::time::Duration;

use mc_cluster_testkit::BlockingCluster;
use mc_store::{Master, StorageSettings};
use mc_testkit::{
    Finished, Input, Program, SeaweedFs, Signal, eventually_async, eventually_blocking,
};
use tokio::runtime::Runtime;

/// Longer than any run here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Starts a process with a role from its environment, as Mooncake's sample program has it.
fn start_role(cluster: &BlockingCluster, role: &str, args: &[&str]) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mc-stress"));
    command
        .args(["--value_length=100000", "--max_requests=40", "--threads=3"])
        .arg("--global_segment_size=32MB")
        .args(args)
        .env("ROLE", role)
        .env("MASTER_SERVER", cluster.address())
        .env("LOCAL_HOSTNAME", "127.0.0.1")
        .env("PROTOCOL", "tcp")
        .env("DEVICE_NAME", "lo")
        .env("METADATA_ADDR", "127.0.0.1:2379");
    Program::start(DEADLINE, &mut command, Input::None)
}

/// Values are in the bucket that the master names before they are taken, by credentials of each process.
#[test]
fn values_are_written_to_the_bucket_of_the_cluster() {
    let Some(server) = SeaweedFs::start(env!("CARGO_TARGET_TMPDIR")) else { return };
    server.make_bucket("kv-cache");
    let url = format!("s3://kv-cache/prod?endpoint=http://{}", server.s3());
    let runtime = Runtime::new().unwrap();
    let storage = StorageSettings::in_object_store(url);
    let master = runtime.block_on(Master::builder().storage(storage).start()).unwrap();
    let start = |role: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mc-stress"));
        command
            .args(["--value_length=100000", "--max_requests=40", "--global_segment_size=32MB"])
            .env("ROLE", role)
            .env("MASTER_SERVER", master.local_addr().to_string())
            .env("LOCAL_HOSTNAME", "127.0.0.1")
            .env("PROTOCOL", "tcp")
            .env("HOME", env!("CARGO_TARGET_TMPDIR"))
            .env("AWS_ACCESS_KEY_ID", SeaweedFs::USER)
            .env("AWS_SECRET_ACCESS_KEY", SeaweedFs::SECRET)
            .env("AWS_ALLOW_HTTP", "true");
        Program::start(DEADLINE, &mut command, Input::None)
    };
    let prefill = start("prefill");
    let are_written = || master.report().totals.files_written == 40;
    eventually_blocking(DEADLINE, "the values in the bucket", are_written);
    let decode = line(&start("decode").finish());
    assert!(decode.contains(": 0 wrong, 0 missing; "), "{decode}");
    line(&prefill.finish());
    runtime.block_on(master.shutdown());
}

/// The line that a run ends in, after it ended well.
fn line(ended: &Finished) -> String {
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(ended.text().lines().count(), 1, "{}", ended.text());
    ended.text().trim_end().to_owned()
}

#[test]
fn decode_may_come_first_and_finds_everything_right() {
    let cluster = BlockingCluster::start(&[]);
    let decode = start_role(&cluster, "decode", &[]);
    // It waits, so there is nothing there yet.
    let first = decode.wait_err(|line| Some(line.to_owned()));
    assert_eq!(first, "waiting for 40 values");
    // Mooncake's sample names an RDMA device, which means nothing to TCP.
    let prefill = start_role(&cluster, "prefill", &["--device_name=ibp6s0"]).finish();
    assert!(prefill.err.contains("no usable network device ibp6s0; the system chooses"));
    let decode = decode.finish();
    let put = line(&prefill);
    assert!(put.starts_with("prefill: put 40 values of 97.65 KB in "), "{put}");
    let checked = line(&decode);
    assert!(checked.starts_with("decode: checked 40 values of 97.65 KB in "), "{checked}");
    assert!(checked.contains(": 0 wrong, 0 missing; ") && checked.contains(" GB/s, get p50 "));
    assert!(decode.err.contains("checked 40 of 40 after "), "{}", decode.err);
    assert!(prefill.err.ends_with("all values are taken\n"));
    // Decode removed what it found right, and both took their memory with them.
    assert_eq!(cluster.master.report().totals.objects, 0);
    assert!(cluster.master.report().segments.is_empty());
}

#[test]
fn a_wrong_value_is_found() {
    let cluster = BlockingCluster::start(&[]);
    let prefill = start_role(&cluster, "prefill", &["--seed=5", "--wait=30s"]);
    // A value of the right key and length that was not derived from the seed.
    let replaced = async {
        let client = cluster.app().await;
        let key = "stress/5/100000/17";
        eventually_async(DEADLINE, "the values are there", async || {
            client.longest_prefix(&["stress/5/100000/39", key]).await.unwrap() == 2
        })
        .await;
        client.remove(key, true).await.unwrap();
        client.put(key, vec![0; 100_000]).await.unwrap();
        client.shutdown().await;
    };
    let in_time = async { tokio::time::timeout(DEADLINE, replaced).await };
    cluster.block_on(in_time).unwrap();
    let decode = start_role(&cluster, "decode", &["--seed=5"]).finish();
    assert_eq!(decode.code, Some(1));
    assert!(decode.text().contains(": 1 wrong, 0 missing; "), "{}", decode.text());
    let err = decode.err;
    assert!(err.contains("'stress/5/100000/17' is wrong\n"), "{err}");
    assert!(err.lines().last().unwrap().starts_with("error: 1 values were wrong"), "{err}");
    // The wrong one stays to be looked at, so prefill would stay, too.
    let prefill = prefill.end_by(Signal::TERM);
    assert_eq!(prefill.code, Some(1));
    assert!(prefill.err.contains("ended by SIGTERM"), "{}", prefill.err);
}

#[test]
fn what_nobody_puts_is_missing() {
    let cluster = BlockingCluster::start(&[]);
    let decode = start_role(&cluster, "decode", &["--wait=200ms"]).finish();
    assert_eq!(decode.code, Some(1));
    let out = decode.text();
    assert!(out.contains("checked 0 values") && out.contains(": 0 wrong, 40 missing; "), "{out}");
    assert!(decode.err.contains("must agree"));
}

#[test]
fn what_is_kept_is_checked_again() {
    let cluster = BlockingCluster::start(&[]);
    let prefill = start_role(&cluster, "prefill", &[]);
    let keep = ["--keep", "--global_segment_size=0"];
    for args in [&keep[..], &keep[..], &[]] {
        let checked = line(&start_role(&cluster, "decode", args).finish());
        assert!(checked.contains("checked 40 values") && checked.contains(": 0 wrong, 0 missing"));
    }
    line(&prefill.finish());
}

#[test]
fn bad_input_is_one_line() {
    let cluster = BlockingCluster::start(&[]);
    for (role, args, advice) in [
        ("teacher", &[][..], "prefill"),
        ("decode", &["--protocol=roce"], "tcp, quic or rdma"),
        ("decode", &["--local_hostname=no such host"], "no name or address"),
        ("decode", &["--value_length=9GB"], "write less"),
    ] {
        let output = start_role(&cluster, role, args).finish();
        let err = output.err;
        assert!(output.code != Some(0) && output.out.is_empty());
        assert!(err.lines().count() == 1 && err.contains(advice), "{err}");
    }
}
