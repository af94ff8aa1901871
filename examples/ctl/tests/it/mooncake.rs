//! The programs take the flags and the files that are written for Mooncake's.

use std::path::Path;
use std::process::Command;

use mc_testkit::{Input, Program, Signal, binary, eventually_blocking};

use crate::support::{DEADLINE, Master, ctl, ctl_with_input, free_port, page, run, start};

/// Flags of `mooncake_master` that change nothing here.
const HARMLESS: &[&str] = &[
    "--enable_ha=false",
    "--etcd_endpoints=http://localhost:2379",
    "--ha_backend_type=etcd",
    "--ha_backend_connstring=",
    "--enable_offload=false",
    "--logtostderr",
    "--alsologtostderr=true",
    "-stderrthreshold=0",
    "--minloglevel",
    "0",
    "--enable_snapshot=false",
    "--noenable_snapshot_restore",
    "--snapshot_interval_seconds=600",
    "--enable_oplog=false",
    "--enable_cxl=false",
    "--cxl_path=/dev/dax0.0",
    "--promotion_on_hit=false",
    "--dynamic_replication_mode=off",
    "--dynamic_replication_heat_window_seconds=10",
    "--rpc-enable-tcp-no-delay",
    "--rpc_conn_timeout_seconds=0",
    "--rpc_interface=",
    "--use_mmap_arena_allocator=false",
    "--nof_eviction_ratio=0.05",
    "--nof_heartbeat_interval_sec=10",
    "--enable_kv_events=false",
    "--kv_events_queue_capacity=65536",
    "--tenant_quota_connector_type=file",
    "--pod_name=a",
    "--offload_cap_ratio=0.5",
    "--client_live_ttl_sec=30",
];

/// A file of settings in a directory of its own.
fn file(name: &str, text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("a file");
    let flag = format!("--config_path={}", path.display());
    (dir, flag)
}

#[test]
fn flags_that_change_nothing_are_taken() {
    let master = Master::start(0, HARMLESS);
    ctl(&master.address, &["stat"]).assert_ok();
    let ended = master.program.end_by(Signal::TERM);
    assert!(ended.code == Some(0) && !ended.err.contains("warning: "), "{}", ended.err);
    for hidden in ["--nof_", "--enable_snapshot", "--stderrthreshold"] {
        assert!(!run("mc-master", &["--help"]).assert_ok().text().contains(hidden), "{hidden}");
    }
}

#[test]
fn flags_without_the_effect_that_they_name_are_warned_of() {
    let master = Master::start(0, &["--v=1", "--log_dir=/var/log/mooncake"]);
    let ended = master.program.end_by(Signal::TERM);
    assert_eq!(ended.code, Some(0));
    for warning in ["warning: --v=1: it has no effect", "warning: --log_dir=/var/log/mooncake: "] {
        assert!(ended.err.contains(warning), "{}", ended.err);
    }
}

#[test]
fn functions_that_are_lacking_are_refused_with_what_to_use_instead() {
    for (flag, name, advice) in [
        ("--enable_snapshot", "--enable_snapshot", "--metadata_dir=DIR"),
        ("--enable_snapshot_restore=true", "--enable_snapshot_restore", "--metadata_dir=DIR"),
        ("--enable_cxl", "--enable_cxl", "--segment_file=/dev/dax0.0"),
        ("--enable_kv_events", "--enable_kv_events", "--enable_kv_event_publish"),
        ("--dynamic_replication_mode=enforce", "--dynamic_replication_mode", "copy task"),
        ("--ha_backend_type=redis", "--ha_backend_type", "--ha_backend_type=etcd"),
        ("--use_mmap_arena_allocator", "--use_mmap_arena_allocator", "MC_STORE_USE_HUGEPAGE=1"),
        ("--rpc_interface=no-such0", "--rpc_interface", "this host has"),
        (
            "--enable_metadata_cleanup_on_timeout",
            "--enable_metadata_cleanup_on_timeout",
            "leave the flag out",
        ),
        (
            "--tenant_quota_connector_uri=/etc/quotas",
            "--tenant_quota_connector_uri",
            "mc-ctl quota set",
        ),
        ("--enable_cxl=maybe", "--enable_cxl", "expected true or false"),
        ("--enable_snapshots=false", "--enable_snapshots", "unknown flag --enable_snapshots"),
        (
            "--ha_backend_connstring=a:2379",
            "--etcd_endpoints",
            "--etcd_endpoints has no effect without --enable_ha",
        ),
    ] {
        let local = ["--rpc_port=0", "--metrics_port=0", "--metrics_host=127.0.0.1"];
        let ended = run("mc-master", &[&local[..], &[flag]].concat());
        assert!(ended.err.contains(name), "{}", ended.err);
        let code = if flag.starts_with("--ha_backend_conn") { 1 } else { 2 };
        ended.assert_refused(code, advice);
    }
}

#[test]
fn a_file_of_flags_in_yaml_or_json() {
    let yaml = "# Written for Mooncake.\nenable_metric_reporting: true\nmetrics_port: 0\n\
                rpc_port: 0\nrpc_thread_num: 16\nrpc_address: \"127.0.0.1\"\nrpc_interface: \"\"\n\
                rpc_conn_timeout_seconds: 0\nrpc_enable_tcp_no_delay: true\n\
                default_kv_lease_ttl: 10000\neviction_ratio: 0.1 # of all memory\n\
                eviction_high_watermark_ratio: 1.0\ntenant_eviction_high_watermark_ratio: 0.9\n\
                dynamic_replication_mode: \"off\"\nenable_multi_tenants: false\n\
                tenant_quota_connector_uri: ''\nenable_ha: false\n\
                etcd_endpoints: \"http://localhost:2379\"\nroot_fs_dir: \"\"\n\
                cluster_id: \"mooncake_cluster\"\nmemory_allocator: \"offset\"\n\
                client_active_ttl_sec: 60\nclient_suspicion_ttl_sec: 60\nenable_oplog: false\n\
                metrics_host: 127.0.0.1\nenable_http_metadata_server: true\n\
                http_metadata_server_host: \"127.0.0.1\"\nhttp_metadata_server_port: 0\n";
    let json = r#"{
        "rpc_port": 0, "metrics_port": 0, "rpc_address": "127.0.0.1", "metrics_host": "127.0.0.1",
        "rpc_thread_num": 16, "eviction_ratio": 0.1, "client_live_ttl_sec": 60,
        "enable_ha": false, "etcd_endpoints": "http://localhost:2379", "enable_kv_events": false
    }"#;
    for (name, text) in [("master.yaml", yaml), ("master.json", json)] {
        let (_dir, flag) = file(name, text);
        for (more, threads) in [(&[][..], "16"), (&["--rpc_thread_num=3"], "3")] {
            let program = start("mc-master", &[&[&*flag], more].concat());
            program.wait_out(|line| (line == format!("Max threads: {threads}")).then_some(()));
            let listening = "Master service listening on ";
            let at = program.wait_out(|line| line.strip_prefix(listening).map(str::to_owned));
            assert!(at.starts_with("127.0.0.1:"), "{at}");
            ctl(&at, &["stat"]).assert_ok();
            assert_eq!(program.end_by(Signal::TERM).code, Some(0));
        }
    }
    // Before the other flags and after them.
    let (_dir, flag) = file("master.yml", "rpc_prot: 1\n");
    for args in [[&*flag, "--rpc_port=0"], ["--rpc_port=0", &*flag]] {
        run("mc-master", &args)
            .assert_refused(2, "master.yml:1: mc-master has no setting rpc_prot");
    }
    let (_dir, flag) = file("master.yaml", "rpc_port: 1\nenable_snapshot: true\n");
    run("mc-master", &[&flag]).assert_refused(2, "master.yaml:2: --enable_snapshot=true");
    run("mc-master", &["--config_path=/nowhere.yaml"]).assert_refused(2, "/nowhere.yaml");
    run("mc-master", &["--config_path=/dev/zero"]).assert_refused(2, ".yaml, .yml or .json");
    run("mc-master", &["--config_path"]).assert_refused(2, "--config_path needs a value");
}

#[test]
fn the_metadata_server_says_that_it_is_well() {
    let flags = ["--enable_http_metadata_server", "--http_metadata_server_port=0"];
    let master =
        Master::start(0, &[&flags[..], &["--http_metadata_server_host=127.0.0.1"]].concat());
    let url = master.program.wait_err(|line| {
        let url = line.split_once("metadata server at ")?.1;
        url.strip_suffix("/metadata").map(str::to_owned)
    });
    assert_eq!(page(&url, "/health"), "OK");
}

/// The line by which a node with these flags and variables says that it is ready.
fn ready(master: &str, flags: &[&str], variables: &[(&str, &Path)]) -> (Program, String) {
    let master = format!("--master_server_address={master}");
    let common = [&*master, "--port=0", "--global_segment_size=16 MB"];
    let mut command = Command::new(binary("mc-node"));
    command.args(common).args(flags).envs(variables.iter().copied());
    let program = Program::start(DEADLINE, &mut command, Input::None);
    let line = program
        .wait_out(|line| line.starts_with("Mooncake client ready: ").then(|| line.to_owned()));
    (program, line)
}

#[test]
fn a_node_with_the_flags_of_mooncake_s_client() {
    let master = Master::start(0, &["--enable_offload"]);
    let (disk, port) = (tempfile::tempdir().unwrap(), free_port());
    let host = format!("--host=localhost:{port}");
    let flags = [
        &*host,
        "--device_names=lo,no0",
        "--tenant_id=default",
        "--enable_offload=true",
        "--start_offload_rpc_server=true",
        "--local_buffer_size=0",
        "--threads=2",
        "--metadata_server=http://127.0.0.1:8080/metadata",
        "--logtostderr",
    ];
    let variables = [("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", disk.path())];
    let (node, line) = ready(&master.address, &flags, &variables);
    // The host as it is written; peers are told its address.
    assert!(line.contains(&format!("segment localhost:{port}, 16.00 MB at tcp://")), "{line}");
    ctl_with_input(&master.address, &["put", "a"], &[7; 4096]).assert_ok();
    eventually_blocking(DEADLINE, "the object is on the disk of the node", || {
        (!page(&master.metrics, "/metrics/summary").contains("SSD Storage: 0 B /")).then_some(())
    });
    let ended = node.end_by(Signal::TERM);
    assert!(ended.code == Some(0) && !ended.err.contains("warning: "), "{}", ended.err);
}

#[test]
fn flags_of_a_node_that_cannot_be_meant() {
    let master = Master::start(0, &[]);
    let at = format!("--master_server_address={}", master.address);
    let (port, common) = (free_port(), ["--port=0", "--global_segment_size=1MB", &*at]);
    let host = format!("--host=127.0.0.1:{port}");
    for (flags, advice) in [
        (&["--host=127.0.0.1:0", "--enable_offload"][..], "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"),
        (&[&host, "--data_port=1"], "name different ports"),
        (&["--host=127.0.0.1:many"], "a port is a number from 0 to 65535"),
    ] {
        run("mc-node", &[&common[..], flags].concat()).assert_refused(1, advice);
    }
    let flags = ["--host=127.0.0.1", "--start_offload_rpc_server=false", "-v=1"];
    let (node, _) = ready(&master.address, &flags, &[]);
    let ended = node.end_by(Signal::TERM);
    for warning in
        ["warning: --start_offload_rpc_server=false: it has no effect", "warning: --v=1: "]
    {
        assert!(ended.err.contains(warning), "{}", ended.err);
    }
    run("mc-node", &["--enable_cxl=false"]).assert_refused(2, "unknown flag --enable_cxl");
}
