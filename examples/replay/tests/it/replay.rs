//! The real binary, its results compared with an independent simulation.

use std::collections::HashSet;
use std::io::{Read, Write};

use flate2::read::GzDecoder;
use mc_cluster_testkit::BlockingCluster;
use mc_store::ByteSize;
use mc_testkit::Signal;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};

use crate::common::{replay, start};

/// The first requests of the shipped trace, read by other means than the binary's.
fn shipped(limit: usize) -> Vec<Vec<u64>> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/data/conversation_trace.jsonl.gz");
    let file = std::fs::File::open(file).expect("the trace is shipped");
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).expect("the trace is text");
    let ids = |line: &str| -> Vec<u64> {
        let line: Value = serde_json::from_str(line).expect("a line is JSON");
        line["hash_ids"].as_array().expect("a list").iter().filter_map(Value::as_u64).collect()
    };
    text.lines().take(limit).map(ids).collect()
}

/// The hits of a cache that never forgets, with one worker.
struct Ideal {
    blocks: u64,
    hits: u64,
    distinct: u64,
}

fn ideal(requests: &[Vec<u64>]) -> Ideal {
    let mut known = HashSet::new();
    let mut result = Ideal { blocks: 0, hits: 0, distinct: 0 };
    for request in requests {
        result.blocks += request.len() as u64;
        result.hits += request.iter().take_while(|id| known.contains(*id)).count() as u64;
        known.extend(request.iter().copied());
    }
    result.distinct = known.len() as u64;
    result
}

/// Runs with `--json` and returns the object, which is all that is printed.
fn report(args: &[&str]) -> Value {
    let ended = replay(&[args, &["--json"]].concat());
    assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.err);
    let text = ended.text();
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(text).expect("the report is JSON")
}

fn number(report: &Value, field: &str) -> u64 {
    report[field].as_u64().unwrap_or_else(|| panic!("{field} in {report}"))
}

#[test]
fn ample_room_gives_the_ideal_hit_rate() {
    let ideal = ideal(&shipped(200));
    let report = report(&["--workers=1", "--limit=200", "--capacity=2.0", "--block-bytes=8KB"]);
    for (field, expected) in [
        ("requests", 200),
        ("blocks", ideal.blocks),
        ("hit_blocks", ideal.hits),
        ("stored_blocks", ideal.distinct),
        ("bytes_got", ideal.hits * 8192),
        ("bytes_put", ideal.distinct * 8192),
        ("evictions", 0),
        ("vanished_blocks", 0),
        ("refused_blocks", 0),
        ("wrong_bytes", 0),
        ("nodes", 3),
    ] {
        assert_eq!(number(&report, field), expected, "{field}");
    }
    let rate = report["prefix_hit_rate"].as_f64().expect("a number");
    assert_eq!(rate, ideal.hits as f64 / ideal.blocks as f64);
    assert_eq!((&report["infinite_hit_rate"], &report["hit_ratio"]), (&rate.into(), &1.0.into()));
    for field in ["gbps", "seconds", "lookup_p50_us", "get_p99_us", "put_p50_us"] {
        assert!(report[field].as_f64().is_some_and(|value| value > 0.0), "{field} in {report}");
    }
}

#[test]
fn a_small_pool_evicts_and_never_lies() {
    let ideal = ideal(&shipped(200));
    let report = report(&[
        "--workers=3",
        "--limit=200",
        "--capacity=0.1",
        "--block-bytes=16KB",
        "--default_kv_lease_ttl=5ms",
    ]);
    assert_eq!(number(&report, "wrong_bytes"), 0);
    assert_eq!(number(&report, "blocks"), ideal.blocks);
    assert!(number(&report, "evictions") > 0, "{report}");
    assert!(number(&report, "hit_blocks") <= ideal.hits, "{report}");
    // Every block was a hit, or a put that had one of three outcomes.
    let outcomes = ["hit_blocks", "stored_blocks", "existing_blocks", "refused_blocks"];
    let sum: u64 = outcomes.iter().map(|field| number(&report, field)).sum();
    assert_eq!(sum, ideal.blocks, "{report}");
    assert_eq!(number(&report, "bytes_put"), number(&report, "stored_blocks") * 16384);
}

/// A directory for tiers, and the flag that names it.
fn tier_directory(kind: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let flag = format!("--tier={kind}:{}", directory.path().display());
    (directory, flag)
}

fn is_empty(directory: &TempDir) -> bool {
    std::fs::read_dir(directory.path()).expect("it is still there").next().is_none()
}

#[test]
fn a_tier_serves_the_hits_that_memory_has_no_room_for() {
    let ideal = ideal(&shipped(500));
    for kind in ["ssd", "dfs"] {
        let (directory, tier) = tier_directory(kind);
        let report = report(&[
            "--workers=1",
            "--limit=500",
            "--capacity=0.05",
            "--block-bytes=16KB",
            "--default_kv_lease_ttl=1s",
            &tier,
        ]);
        assert_eq!(report["tier"], kind);
        for (field, expected) in [
            ("wrong_bytes", 0),
            ("refused_blocks", 0),
            ("tier_failures", 0),
            ("infinite_hit_blocks", ideal.hits),
        ] {
            assert_eq!(number(&report, field), expected, "{field} in {report}");
        }
        assert!(number(&report, "capacity_bytes") < ideal.distinct * 16384 / 19, "{report}");
        assert!(number(&report, "evictions") > ideal.distinct * 9 / 10, "{report}");
        assert!(number(&report, "tier_bytes_got") > 0, "{report}");
        let ratio = report["hit_ratio"].as_f64().expect("a number");
        // A busy machine may be late with writing to a disk, which puts do not wait for.
        assert!((0.95..=1.0).contains(&ratio), "{report}");
        let hits = number(&report, "hit_blocks") as f64 / ideal.hits as f64;
        // A number that is printed and read again may be the next one.
        assert!((ratio - hits).abs() < 1e-9, "{hits}: {report}");
        assert!(is_empty(&directory), "{kind}");
    }
}

#[test]
fn a_tier_is_removed_when_the_user_interrupts_the_replay() {
    for kind in ["ssd", "dfs"] {
        let (directory, tier) = tier_directory(kind);
        let mut file = NamedTempFile::new().expect("a temporary file");
        for at in 0..1000 {
            let line = format!("{{\"timestamp\": {}, \"hash_ids\": [{at}]}}\n", at * 100);
            file.write_all(line.as_bytes()).expect("room for a trace");
        }
        let path = file.path().to_str().expect("a textual path");
        let replay = start(&["--trace", path, "--speedup=10", &tier]);
        replay.wait_err(|line| line.contains("100 of 1000").then_some(()));
        assert!(!is_empty(&directory), "{kind}");
        let ended = replay.end_by(Signal::INT);
        assert_eq!(ended.code, Some(1), "{}", ended.err);
        assert!(ended.out.is_empty());
        let last = ended.err.lines().last().expect("a line");
        assert!(last.starts_with("error: interrupted"), "{last}");
        assert!(is_empty(&directory), "{kind}");
    }
}

#[test]
fn replicas_have_room_and_are_right() {
    let ideal = ideal(&shipped(50));
    let report =
        report(&["-workers=1", "-limit=50", "-capacity=2.0", "-block-bytes=10000", "-replicas=2"]);
    assert_eq!(number(&report, "hit_blocks"), ideal.hits);
    assert_eq!(number(&report, "wrong_bytes"), 0);
    assert!(number(&report, "capacity_bytes") >= 2 * 2 * ideal.distinct * 10000);
}

#[test]
fn arrivals_are_kept() {
    let mut file = NamedTempFile::new().expect("a temporary file");
    for (at, id) in [(0, 1), (10_000, 1), (20_000, 2)] {
        let line = format!("{{\"timestamp\": {at}, \"hash_ids\": [{id}]}}\n");
        file.write_all(line.as_bytes()).expect("room for a trace");
    }
    let path = file.path().to_str().expect("a textual path");
    let report = report(&["--trace", path, "--speedup=10", "--capacity=1MB", "--workers=2"]);
    assert!(report["seconds"].as_f64().expect("a number") >= 2.0, "{report}");
    // A second is enough to store a block before it is looked up.
    assert_eq!((number(&report, "hit_blocks"), number(&report, "stored_blocks")), (1, 2));
}

#[test]
fn the_table_is_printed() {
    let ended = replay(&["--limit=20", "--capacity=2.0", "--block-bytes=4KB"]);
    let table = ended.text();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for row in ["requests", "prefix hit rate", "lookup", "get", "put", "evictions", "wrong bytes"] {
        assert!(table.lines().any(|line| line.starts_with(row)), "{row} in {table}");
    }
    assert_eq!(ended.err.lines().count(), 10, "a line for each tenth");
}

#[test]
fn runs_share_a_running_cluster() {
    let cluster = BlockingCluster::start(&[ByteSize::mib(64)]);
    let address = cluster.address();
    let ideal = ideal(&shipped(50));
    for block in ["4KB", "5000"] {
        let args = ["--master", &address, "--limit=50", "--workers=1", "--block-bytes", block];
        let first = report(&args);
        assert_eq!(number(&first, "hit_blocks"), ideal.hits, "{block}");
        let again = report(&args);
        assert_eq!(number(&again, "hit_blocks"), ideal.blocks, "{block}");
        assert_eq!(number(&again, "stored_blocks"), 0, "{block}");
        assert_eq!(number(&first, "wrong_bytes") + number(&again, "wrong_bytes"), 0, "{block}");
    }
}

#[test]
fn foreign_bytes_under_a_block_key_are_wrong_bytes() {
    let cluster = BlockingCluster::start(&[ByteSize::mib(1)]);
    let stored = cluster.block_on(cluster.nodes[0].put("replay/4096/0", vec![0u8; 4096]));
    stored.expect("room for a block");
    let address = cluster.address();
    let args = ["--master", &address, "--limit=1", "--block-bytes=4096", "--json"];
    let ended = replay(&args);
    assert_eq!(ended.code, Some(1));
    let report: Value = serde_json::from_slice(&ended.out).expect("the report is JSON");
    assert!(number(&report, "wrong_bytes") > 4000, "{report}");
    assert!(ended.err.contains("were not the bytes put"), "{}", ended.err);
}

#[test]
fn a_cluster_that_goes_away_ends_the_replay() {
    let cluster = BlockingCluster::start(&[ByteSize::mib(64)]);
    let mut file = NamedTempFile::new().expect("a temporary file");
    for at in 0..1000 {
        let line = format!("{{\"timestamp\": {}, \"hash_ids\": [{at}]}}\n", at * 10);
        file.write_all(line.as_bytes()).expect("room for a trace");
    }
    let path = file.path().to_str().expect("a textual path");
    let address = cluster.address();
    let replay = start(&["--master", &address, "--trace", path, "--speedup=1", "--workers=3"]);
    let first = replay.wait_err(|line| Some(line.to_owned()));
    assert!(first.contains("100 of 1000"), "{first}");
    drop(cluster);
    let ended = replay.finish();
    assert_eq!(ended.code, Some(1));
    assert!(ended.out.is_empty());
    let last = ended.err.lines().last().expect("a line");
    assert!(last.starts_with("error: cannot "), "{last}");
}

#[test]
fn every_byte_over_quic_under_certificates() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |file: &str| dir.path().join(file).display().to_string();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let ca = params.self_signed(&key).expect("a certificate").pem();
    std::fs::write(at("ca.pem"), ca).expect("a file");
    let authority = Issuer::new(params, key);
    let node = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
    let key = KeyPair::generate().expect("a key");
    let cert = node.signed_by(&key, &authority).expect("a certificate").pem();
    std::fs::write(at("node.pem"), cert).expect("a file");
    std::fs::write(at("node.key"), key.serialize_pem()).expect("a file");
    let files = [
        format!("--transfer_tls_ca={}", at("ca.pem")),
        format!("--transfer_tls_cert={}", at("node.pem")),
        format!("--transfer_tls_key={}", at("node.key")),
    ];
    for protocol in ["--protocol=quic", "--protocol=tcp"] {
        let mut args = vec!["--limit=60", "--workers=1", "--capacity=2.0", protocol];
        args.extend(files.iter().map(String::as_str));
        let report = report(&args);
        let ideal = ideal(&shipped(60));
        assert_eq!(number(&report, "wrong_bytes"), 0);
        assert_eq!(number(&report, "hit_blocks"), ideal.hits, "{report}");
    }
}
