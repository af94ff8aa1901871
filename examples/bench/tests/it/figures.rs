//! The binary, as its users run it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output};

use mc_cluster_testkit::BlockingCluster;
use mc_testkit::{Input, Program, Signal, eventually_blocking};
use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mc-bench"));
    program.args(args).env_remove("REFERENCE_VENV").output().unwrap()
}

fn refusal(args: &[&str]) -> String {
    let output = bench(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty() && text.lines().count() == 1, "{args:?}: {text}");
    assert!(text.starts_with("error: "), "{text}");
    text
}

/// The figures of one suite by name, each with its parameters.
fn figures(suite: &str, more: &[&str]) -> BTreeMap<String, Vec<Value>> {
    let output = bench(&[&[suite, "--json", "--smoke"], more].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{suite}: {errors}");
    let mut figures: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let figure: Value = serde_json::from_str(line).unwrap();
        let members: BTreeSet<&str> =
            figure.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(members, BTreeSet::from(["suite", "name", "value", "unit", "params"]), "{line}");
        assert_eq!(figure["suite"], suite, "{line}");
        // The only difference among the figures.
        let least = if figure["name"] == "adaptive_minus_best_min" { -1.0 } else { 0.0 };
        assert!(figure["value"].as_f64().unwrap() >= least, "{line}");
        assert!(figure["unit"].is_string(), "{line}");
        let name = figure["name"].as_str().unwrap().to_owned();
        figures.entry(name).or_default().push(figure["params"].clone());
    }
    figures
}

fn require(figures: &BTreeMap<String, Vec<Value>>, names: &[&str]) {
    for name in names {
        assert!(figures.contains_key(*name), "{name} is missing: {:?}", figures.keys());
    }
}

fn values(figures: &BTreeMap<String, Vec<Value>>, name: &str, param: &str) -> BTreeSet<String> {
    figures[name].iter().map(|params| params[param].to_string().replace('"', "")).collect()
}

#[test]
fn alloc_has_its_figures_for_both_allocators() {
    let figures = figures("alloc", &[]);
    let per_allocator = [
        "uniform_util_min",
        "uniform_packing_min",
        "random_util_avg",
        "pair_util_avg",
        "uniform_ns",
        "random_ns",
        "pair_ns",
    ];
    for name in per_allocator {
        let both = BTreeSet::from(["ours".to_owned(), "offset-allocator".to_owned()]);
        assert_eq!(values(&figures, name, "impl"), both, "{name}");
    }
    require(&figures, &["scale_ratio", "bytes_per_alloc"]);
}

#[test]
fn meta_has_its_figures() {
    let figures = figures("meta", &[]);
    require(
        &figures,
        &["bytes_per_key", "put_pairs_per_s", "gets_per_s", "evict_scale_ratio", "max_pause_us"],
    );
    let commands = values(&figures, "policy_ratio", "command");
    assert_eq!(commands, ["put", "get", "batch_get"].map(String::from).into());
    assert_eq!(values(&figures, "gets_per_s", "threads"), ["1", "2"].map(String::from).into());
}

#[test]
fn evict_replays_the_trace_that_is_named() {
    let dir = env!("CARGO_TARGET_TMPDIR");
    let path = format!("{dir}/short_trace.jsonl");
    let requests = "{\"hash_ids\": [1, 2, 3]}\n{\"hash_ids\": [1, 2, 4]}\n";
    std::fs::write(&path, requests).unwrap();
    let plot = format!("{dir}/hit_rates.svg");
    let figures = figures("evict", &["--trace", &path, "--plot", &plot]);
    let picture = std::fs::read_to_string(&plot).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("short_trace"), "{picture}");
    assert_eq!(figures["made_up_hit"].len(), 19 * 6 * 9);
    assert_eq!(figures["prefix_hit"].len(), 6 * 9);
    let capacities = ["0.01", "0.02", "0.05", "0.1", "0.2", "0.4"].map(String::from);
    assert_eq!(values(&figures, "prefix_hit", "capacity"), capacities.into());
    let policies = values(&figures, "prefix_hit", "policy");
    let names = ["default", "lru", "fifo", "s3_fifo", "sieve", "adaptive", "optimal"];
    assert!(names.iter().all(|name| policies.contains(*name)));
    assert_eq!(values(&figures, "prefix_hit", "trace"), BTreeSet::from(["short_trace".into()]));
}

#[test]
fn rpc_has_its_figures() {
    let figures = figures("rpc", &[]);
    require(
        &figures,
        &[
            "get_per_s",
            "put_per_s",
            "batch_get_keys_per_s",
            "batch_put_keys_per_s",
            "exist_p50_us",
            "raw_p50_us",
            "exist_pipelined_per_s",
            "idle_conn_bytes",
        ],
    );
    assert!(values(&figures, "exist_p50_us", "placement").contains("same"));
}

#[test]
fn transport_has_its_figures() {
    let figures = figures("transport", &[]);
    require(
        &figures,
        &[
            "read_gbps",
            "write_gbps",
            "read_p50_us",
            "raw_p50_us",
            "memcpy_gbps",
            "concurrent_gbps",
            "cpu_s_per_gb",
            "crc_ratio",
            "tls_gbps",
        ],
    );
    let sizes = ["4096", "65536", "1048576", "16777216"].map(String::from);
    assert_eq!(values(&figures, "read_p50_us", "size"), sizes.into());
    let kinds = ["mem", "quic", "shm", "tcp", "tls"].map(String::from);
    assert_eq!(values(&figures, "read_gbps", "kind"), kinds.into());
}

#[test]
fn store_has_its_figures() {
    let figures = figures("store", &[]);
    require(
        &figures,
        &[
            "get_into_p50_us",
            "get_into_p99_us",
            "get_into_memcpy_ratio",
            "put_memcpy_ratio",
            "get_p50_us",
            "get_p99_us",
            "put_p50_us",
            "put_p99_us",
            "exist_p50_us",
            "put_batch_per_s",
            "get_batch_per_s",
            "pressure_failed_puts",
            "pressure_p99_ratio",
            "slow_reader_wrong",
            "slow_reader_expired",
            "slow_reader_checked_reads",
            "resume_after_master_s",
            "resume_longest_call_s",
        ],
    );
    let sizes = ["4096", "65536", "1048576", "16777216"].map(String::from);
    assert_eq!(values(&figures, "get_into_p50_us", "size"), sizes.into());
    for name in ["get_into_p50_us", "get_batch_per_s"] {
        let carriers = ["shm", "tcp"].map(String::from);
        assert_eq!(values(&figures, name, "transport"), carriers.into(), "{name}");
        let runtimes = ["multi", "single"].map(String::from);
        assert_eq!(values(&figures, name, "runtime"), runtimes.into(), "{name}");
    }
}

#[test]
fn events_has_its_figures() {
    let figures = figures("events", &[]);
    require(
        &figures,
        &["bytes_per_event", "crowd_waiting_bytes", "crowd_resident_growth_bytes", "put_ratio"],
    );
    let encodings = ["mooncake", "s4", "vllm"].map(String::from);
    assert_eq!(values(&figures, "events_per_s", "encoding"), encodings.into());
    assert_eq!(
        values(&figures, "publish_cpu_ns", "call"),
        ["post", "publish"].map(String::from).into()
    );
    assert_eq!(
        values(&figures, "crowd_events_per_s", "slow_or_stalled"),
        ["0", "2"].map(String::from).into()
    );
    assert_eq!(values(&figures, "put_ratio", "size"), ["4096", "65536"].map(String::from).into());
}

#[test]
fn c2c_has_its_figures() {
    let figures = figures("c2c", &[]);
    require(&figures, &["plain_gflops", "convert_gflops", "simplified_ratio", "full_ratio"]);
    let objects = ["converted", "others"].map(String::from);
    assert_eq!(values(&figures, "put_latency_ratio", "objects"), objects.into());
    assert_eq!(values(&figures, "put_p50_us", "c2c"), ["off", "on"].map(String::from).into());
}

#[test]
fn ha_has_its_figures() {
    let figures = figures("ha", &[]);
    let all = ["restart_first_get_s", "journal_bytes_per_key", "snapshot_bytes_per_key"];
    require(&figures, &all);
    let modes = ["async", "sync"].map(String::from);
    assert_eq!(values(&figures, "journal_put_ratio", "mode"), modes.into());
}

#[test]
fn tier_has_its_figures() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let flag = format!("--tier_dir={}", directory.path().display());
    let figures = figures("tier", &[&flag]);
    require(
        &figures,
        &["ssd_read_gbps", "ssd_read_cpu_s_per_gb", "rebuild_s", "index_bytes_per_object"],
    );
    let sizes = ["65536", "1048576"].map(String::from);
    assert_eq!(values(&figures, "ssd_read_gbps", "size"), sizes.into());
    let places = ["memory", "node_disk", "own_disk", "shared_tier"].map(String::from);
    for name in ["get_into_p50_us", "get_into_p99_us", "get_batch_gbps"] {
        assert_eq!(values(&figures, name, "from"), places.clone().into(), "{name}");
    }
    let loads = ["burst", "paced", "saturated"].map(String::from);
    assert_eq!(values(&figures, "put_latency_ratio", "load"), loads.into());
    let tiers = ["off", "on"].map(String::from);
    assert_eq!(values(&figures, "put_p50_us", "shared_tier"), tiers.into());
    assert_eq!(directory.path().read_dir().unwrap().count(), 0, "nothing is left");
}

#[test]
fn one_operation_can_be_measured_alone() {
    let flags =
        ["--operation=batchput", "--threads=2", "--batch_size=16", "--seconds=0.05", "--clients=1"];
    let figures = figures("rpc", &flags);
    require(&figures, &["batch_put_keys_per_s", "batch_put_p50_us", "loaded_p99_ratio"]);
    assert_eq!(figures.len(), 3);
    let params = &figures["batch_put_keys_per_s"][0];
    assert_eq!((&params["threads"], &params["batch"]), (&Value::from(2), &Value::from(16)));
}

/// A cluster as others run it, with an object of theirs.
fn running_cluster() -> BlockingCluster {
    let cluster = BlockingCluster::start(&[mc_store::ByteSize::mib(64)]);
    cluster.block_on(cluster.nodes[0].put("theirs", "value")).unwrap();
    cluster
}

/// Objects and segments.
fn count(cluster: &BlockingCluster) -> (u64, usize) {
    let report = cluster.master.report();
    (report.totals.objects, report.segments.len())
}

#[test]
fn a_running_cluster_is_measured_and_left_as_it_was() {
    let cluster = running_cluster();
    let master = format!("--master={}", cluster.address());
    for (operation, figure) in [
        ("--operation=Exist", "exist_per_s"),
        ("--operation=BatchGet", "batch_get_keys_per_s"),
        ("--operation=BatchPut", "batch_put_keys_per_s"),
    ] {
        // The examples of the README, for less time.
        let pipeline = if figure == "exist_per_s" { "--pipeline=64" } else { "--pipeline=1" };
        let flags =
            ["--threads=1", "--batch_size=128", "--seconds=0.2", pipeline, operation, &*master];
        require(&figures("rpc", &flags), &[figure]);
        assert_eq!(count(&cluster), (1, 1), "{operation}");
    }
    // One value is more than a tenth of what is free.
    let output = bench(&["rpc", "--operation=Put", "--value_size=32MB", &master]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("--value_size"), "{said}");
    assert_eq!(count(&cluster), (1, 1));
    let read = cluster.block_on(cluster.nodes[0].get("theirs")).unwrap();
    assert_eq!(&*read.to_vec(), b"value");
}

#[test]
fn who_interrupts_leaves_nothing_behind() {
    let cluster = running_cluster();
    let master = format!("--master={}", cluster.address());
    let flags = ["rpc", "--operation=Exist", "--threads=2", "--seconds=600", &master];
    let limit = std::time::Duration::from_secs(60);
    let command = &mut Command::new(env!("CARGO_BIN_EXE_mc-bench"));
    let running = Program::start(limit, command.args(flags), Input::None);
    eventually_blocking(limit, "objects are put", || count(&cluster).0 >= 1000);
    assert_eq!(running.end_by(Signal::INT).code, Some(1));
    assert_eq!(count(&cluster), (1, 1));
}

#[test]
fn tables_are_for_people() {
    let output = bench(&["evict", "--smoke"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("evict\n  prefix_hit"), "{text}");
}

#[test]
fn bad_input_is_one_line() {
    let unknown = refusal(&["aloc"]);
    assert!(unknown.contains("'aloc'") && unknown.contains("alloc"), "{unknown}");
    refusal(&[]);
    refusal(&["rpc", "--threads=0"]);
    refusal(&["rpc", "--operation=Delete"]);
    refusal(&["rpc", "--seconds=-1"]);
    refusal(&["--role={}"]);
    for (args, named) in [
        (["evict", "--trace=no-such-file"], "no-such-file"),
        (["store", "--reference=no-such-venv"], "no-such-venv/bin/mooncake_master"),
    ] {
        let output = bench(&args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.lines().count() == 1 && text.contains(named), "{text}");
    }
}
