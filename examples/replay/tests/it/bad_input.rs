//! Whatever is wrong with the input, the user gets one line that says what to do,
//! and the process ends.

use std::io::Write;
use std::net::TcpListener;

use tempfile::NamedTempFile;

use crate::common::replay;

/// Runs the binary, which must refuse with one line that contains all of `says`.
fn assert_refused(args: &[&str], code: i32, says: &[&str]) {
    let ended = replay(args);
    let text = &ended.err;
    assert_eq!(ended.code, Some(code), "{args:?}: {text}");
    assert!(ended.out.is_empty(), "{args:?}");
    assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
    assert!(text.starts_with("error: "), "{args:?}: {text}");
    for word in says {
        assert!(text.contains(word), "{args:?} should say {word:?}: {text}");
    }
}

fn trace(content: &[u8]) -> (NamedTempFile, String) {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(content).expect("room for a trace");
    let path = file.path().to_str().expect("a textual path").to_owned();
    (file, path)
}

#[test]
fn flags_that_do_not_exist() {
    assert_refused(&["--blok-bytes=1"], 2, &["--blok-bytes", "did you mean --block_bytes"]);
    assert_refused(&["replay"], 2, &["'replay'"]);
}

#[test]
fn values_out_of_range() {
    assert_refused(&["--block-bytes=0"], 2, &["--block_bytes", "at least one byte"]);
    assert_refused(&["--block-bytes=2GB"], 2, &["--block_bytes", "at most 1.00 GB"]);
    assert_refused(&["--capacity=0"], 2, &["--capacity", "need memory"]);
    assert_refused(&["--capacity", "0.0"], 2, &["--capacity", "need memory"]);
    assert_refused(
        &["--capacity=64KB", "--block-bytes=64KB"],
        2,
        &["--capacity", "at least 192.00 KB"],
    );
    assert_refused(&["--capacity=lots"], 2, &["--capacity", "such as 0.2"]);
    assert_refused(&["--workers=0"], 2, &["--workers"]);
    assert_refused(&["--speedup=fast"], 2, &["--speedup", "factor"]);
    assert_refused(&["--default-kv-lease-ttl=0"], 2, &["--default_kv_lease_ttl"]);
    assert_refused(&["--master=127.0.0.1:1", "--nodes=2"], 2, &["--master", "--nodes"]);
}

#[test]
fn tiers_without_a_directory() {
    assert_refused(&["--tier=/mnt/ssd"], 2, &["--tier", "ssd:DIR or dfs:DIR"]);
    assert_refused(&["--tier=nvme:/mnt/ssd"], 2, &["--tier", "ssd:DIR or dfs:DIR"]);
    assert_refused(&["--tier=ssd:"], 2, &["--tier", "no directory"]);
    assert_refused(&["--tier=ssd:/no/such"], 2, &["--tier", "/no/such", "No such file"]);
    assert_refused(&["--tier=dfs:/dev/null"], 2, &["--tier", "/dev/null", "Not a directory"]);
    assert_refused(&["--master=127.0.0.1:1", "--tier=ssd:/tmp"], 2, &["--master", "--tier"]);
    let huge = ["--tier=ssd:/tmp", "--block-bytes=1GB", "--capacity=4GB", "--limit=1"];
    assert_refused(&huge, 2, &["--block_bytes", "at most 128.00 MB"]);
}

#[test]
fn protocols_without_certificates() {
    assert_refused(&["--protocol=roce"], 2, &["--protocol", "tcp, quic or rdma"]);
    assert_refused(&["--protocol=quic"], 2, &["protocol", "transfer_tls_ca", "certificates"]);
    assert_refused(&["--transfer_tls_ca=/a"], 2, &["transfer_tls_ca", "transfer_tls_cert"]);
    let files = ["--transfer_tls_ca=/no", "--transfer_tls_cert=/no", "--transfer_tls_key=/no"];
    assert_refused(&files, 2, &["certificates", "/no", "No such file"]);
}

#[test]
fn pools_larger_than_any_machine() {
    assert_refused(&["--limit=1", "--capacity=9000000TB"], 1, &["storage node 1", "memory"]);
}

#[test]
fn traces_that_cannot_be_read() {
    assert_refused(&["--trace=/no/such/file"], 1, &["/no/such/file", "No such file"]);
    assert_refused(&["--trace=/"], 1, &["trace /, line 1: ", "directory"]);
    let (_empty, path) = trace(b"");
    assert_refused(&["--trace", &path], 1, &[&path, "no request"]);
    let (_cut, path) = trace(&[0x1f, 0x8b, 8, 0, 0]);
    assert_refused(&["--trace", &path], 1, &[&path, "line 1"]);
}

#[test]
fn malformed_lines_are_named_by_number() {
    let good = "{\"timestamp\": 1, \"hash_ids\": [1, 2]}\n";
    let (_file, path) = trace(format!("{good}{good}{{\"timestamp\": 1}}\n{good}").as_bytes());
    assert_refused(&["--trace", &path], 1, &[&path, "line 3", "missing field `hash_ids`"]);
    let (_file, path) = trace(format!("{good}{{\"timestamp\": 0, \"hash_ids\": []}}").as_bytes());
    assert_refused(&["--trace", &path], 1, &[&path, "line 2", "sort the trace"]);
    let (_file, path) = trace(format!("{good}\x1b[2J\n").as_bytes());
    assert_refused(&["--trace", &path], 1, &[&path, "line 2"]);
}

#[test]
fn masters_that_are_not_there() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound address").to_string();
    drop(listener);
    assert_refused(&["--master", &address], 1, &[&address, "check that it runs there"]);
    assert_refused(&["--master=nonsense"], 1, &["nonsense"]);
}

#[test]
fn log_settings_that_mean_nothing() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_mc-replay"))
        .args(["--limit=1"])
        .env("MC_LOG", "loud")
        .output()
        .expect("the binary starts");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("MC_LOG='loud'") && text.lines().count() == 1, "{text}");
}
