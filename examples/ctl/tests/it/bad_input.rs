//! Bad input is refused in one line that says what to do, and disturbs no other client.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use mc_rpc::Method;
use mc_rpc::frame::{ClientPreface, DEFAULT_MAX_PAYLOAD, FrameHeader, Hello, Kind};
use mc_testkit::{Signal, binary, content};

use crate::support::{DEADLINE, Master, Node, ctl, ctl_with_input, run};

/// An address without a listener: the port is for a service that is all but extinct.
const NOWHERE: &str = "127.0.0.1:1";

/// Longest key there is, and one byte.
const TOO_LONG: usize = mc_types::MAX_KEY_LEN + 1;

#[test]
fn command_lines_that_make_no_sense() {
    for (program, flag, advice) in [
        ("mc-master", "--rpc_prot=1", "did you mean --rpc_port?"),
        ("mc-master", "--rpc_port=65536", "--rpc_port"),
        ("mc-master", "--rpc_address=nowhere", "such as 0.0.0.0"),
        ("mc-master", "--rpc_thread_num=0", "between 1 and 1024"),
        ("mc-master", "--eviction_high_watermark_ratio=7", "between 0 and 1"),
        ("mc-master", "--eviction_ratio=7", "between 0 and 1"),
        ("mc-master", "--client_ttl=soon", "such as 10"),
        ("mc-master", "--default_kv_lease_ttl=1d", "such as 5000"),
        ("mc-node", "--local_buffer=1", "unknown flag --local_buffer"),
        ("mc-node", "--data_port=65536", "--data_port"),
        ("mc-node", "--global_segment_size=lots", "such as 4GB"),
        ("mc-node", "--global_segment_size=99999999TB", "does not fit"),
        ("mc-node", "--protocol=roce", "tcp, quic or rdma"),
        ("mc-node", "--threads=many", "between 1 and 1024"),
        ("mc-ctl", "--mastre=x", "unknown flag --mastre"),
        ("mc-ctl", "vanish", "vanish"),
        ("mc-ctl", "put", "<KEY>"),
    ] {
        run(program, &[flag]).assert_refused(2, advice);
    }
    let odd = ["ls", "--limit=few"];
    run("mc-ctl", &odd).assert_refused(2, "--limit: 'few'");
}

#[test]
fn settings_that_contradict_each_other() {
    let flags = [
        "--rpc_address=127.0.0.1",
        "--rpc_port=0",
        "--metrics_port=0",
        "--put_start_discard_timeout_sec=5",
        "--put_start_release_timeout_sec=4",
    ];
    run("mc-master", &flags).assert_refused(1, "put_start_release_timeout");
    run("mc-master", &["--rpc_port=0", "--metrics_port=0", "--client_ttl=0"])
        .assert_refused(1, "client_ttl is zero");
}

#[test]
fn ports_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let local = ["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1"];
    let rpc = [&format!("--rpc_port={port}"), "--metrics_port=0"];
    run("mc-master", &[local, rpc].concat()).assert_refused(1, "choose another port");
    let metrics = ["--rpc_port=0", &format!("--metrics_port={port}")];
    run("mc-master", &[local, metrics].concat()).assert_refused(1, "--metrics_port");

    let master = Master::start(0, &[]);
    let node = [
        "--host=127.0.0.1",
        "--global_segment_size=1MB",
        &format!("--master_server_address={}", master.address),
    ];
    for flags in [["--port=0", &*format!("--data_port={port}")], [&format!("--port={port}"), ""]] {
        let flags = flags.into_iter().filter(|flag| !flag.is_empty());
        let all: Vec<&str> = node.iter().copied().chain(flags).collect();
        run("mc-node", &all).assert_refused(1, "choose another port");
    }
    let report = ctl(&master.address, &["stat", "--json"]).assert_ok();
    assert!(report.text().contains(r#""segments":[]"#), "{}", report.text());
}

#[test]
fn nobody_answers_as_a_master() {
    let nowhere = format!("--master_server_address={NOWHERE}");
    let settings = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(&settings, "auto_discovery = true\ndevice_filters = ['no0']").unwrap();
    let config = format!("--config={}", settings.path().display());
    run("mc-node", &[&nowhere, "--port=0", &config]).assert_refused(1, "no0");
    for verb in [&["stat"][..], &["ls"], &["put", "k", "v"], &["get", "k"], &["exist", "k"]] {
        ctl(NOWHERE, verb).assert_refused(1, NOWHERE);
    }
    ctl("no port", &["stat"]).assert_refused(1, "no port");

    // Something answers there, but no master.
    let web = Master::start(0, &[]);
    let metrics = web.metrics.strip_prefix("http://").unwrap();
    ctl(metrics, &["stat"]).assert_refused(1, metrics);
}

#[test]
fn segments_that_cannot_be() {
    let master = Master::start(0, &[]);
    let node = |flags: &[&str]| {
        let at = format!("--master_server_address={}", master.address);
        run("mc-node", &[&[&*at, "--port=0"], flags].concat())
    };
    node(&["--global_segment_size=8000000TB"]).assert_refused(1, "contribute less");
    node(&["--global_segment_size=100TB"]).assert_refused(1, "contribute less");
    node(&["--host=no such host"]).assert_refused(1, "--host");
    let name = format!("--segment_name={}", "n".repeat(257));
    node(&["--global_segment_size=1MB", &name]).assert_refused(1, "the limit is 256");
    node(&["--global_segment_size=1MB", "--segment_name="]).assert_refused(1, "1 to 256 bytes");

    let _first = Node::start(&master.address, "a", 0, "1MB");
    node(&["--global_segment_size=1MB", "--segment_name=a"])
        .assert_refused(1, "choose another name");
    ctl(&master.address, &["put", "k", "v"]).assert_ok();
}

#[test]
fn keys_and_values_that_cannot_be() {
    let master = Master::start(0, &["--default_kv_lease_ttl=1ms"]);
    let at = &*master.address;
    ctl(at, &["put", "k", "v"]).assert_refused(1, "no segment is mounted");
    ctl_with_input(at, &["put", "k"], b"v").assert_refused(1, "start a node with mc-node");
    let _node = Node::start(at, "a", 0, "64KB");

    let (long, longest) = ("k".repeat(TOO_LONG), "k".repeat(TOO_LONG - 1));
    for (key, reason) in [("", "the key is empty"), (&*long, "has 1025 bytes; the limit is 1024")] {
        for verb in [&["put", key, "v"][..], &["get", key], &["exist", key], &["remove", key]] {
            ctl(at, verb).assert_refused(1, reason);
        }
        if !key.is_empty() {
            ctl(at, &["stat", key]).assert_refused(1, reason);
        }
    }
    ctl(at, &["put", &longest, "v"]).assert_ok();
    assert_eq!(ctl(at, &["get", &longest]).assert_ok().out, b"v");

    // Larger than the pool: as an argument, from a pipe, from a file.
    let large = "x".repeat(100 << 10);
    ctl(at, &["put", "large", &large]).assert_refused(1, "OBJECT_TOO_LARGE");
    ctl_with_input(at, &["put", "large"], large.as_bytes()).assert_refused(1, "larger segment");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge");
    let huge = std::fs::File::create(&path).unwrap();
    huge.set_len(1 << 40).unwrap(); // sparse: it costs no disk, but would cost memory
    let file = format!("--file={}", path.display());
    ctl(at, &["put", "huge", &file]).assert_refused(1, "larger segment");
    ctl(at, &["put", "empty", ""]).assert_refused(1, "at least one byte");

    ctl(at, &["put", "k", "v", "--replica_num=0"]).assert_refused(2, "--replica_num");
    ctl(at, &["put", "k", "v", "--replica_num=33"]).assert_refused(1, "replica_num is 33");
    let missing = folder.path().join("missing").display().to_string();
    ctl(at, &["put", "k", "--file", &missing]).assert_refused(1, "No such file");
    let nowhere = folder.path().join("no/such/folder").display().to_string();
    ctl(at, &["get", &longest, "--output", &nowhere]).assert_refused(1, "cannot write");
    ctl(at, &["get", "k"]).assert_refused(1, "no such object");
    ctl(at, &["stat", "k"]).assert_refused(1, "no such object");
    ctl(at, &["remove", "k", "j"]).assert_refused(1, "2 of 2 not removed");
    let listed = ctl(at, &["ls", "--json"]).assert_ok();
    assert_eq!(listed.text().lines().count(), 1, "{}", listed.text());
}

/// Sends `bytes` and reads until the other side has had enough, or for a moment.
fn send(address: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).expect("a listener");
    stream.set_write_timeout(Some(DEADLINE)).expect("a time");
    stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a time");
    // The other side may close at any byte: that is its right.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn nonsense_on_the_master_s_port() {
    let mut master = Master::start(0, &[]);
    let at = master.address.clone();
    let _node = Node::start(&at, "a", 0, "16MB");
    let preface = ClientPreface::with(DEFAULT_MAX_PAYLOAD, &Hello::default());
    let frame = |payload_len, method: u16| {
        let header = FrameHeader { payload_len, ..FrameHeader::new(1, method, Kind::Request) };
        [&preface[..], &header.encode()].concat()
    };
    let get = Method::GetReplicaList as u16;
    let mut held = Vec::new();
    for attack in [
        content("garbage", 1 << 20),
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        vec![0; 1 << 20],
        // A good beginning, then garbage.
        [&preface[..], &content("garbage", 1 << 20)].concat(),
        // Four gigabytes are announced; three bytes come.
        [&frame(u32::MAX, get)[..], b"abc"].concat(),
        // As much as is allowed is announced, and does not come.
        [&frame(DEFAULT_MAX_PAYLOAD, get)[..], b"abc"].concat(),
        // Less is announced than comes.
        [&frame(1, get)[..], &[0xff; 5000]].concat(),
        // No such method; a message whose inner length lies.
        frame(0, u16::MAX),
        [&frame(6, get)[..], b"\x0a\xff\xff\xff\xff\x0f"].concat(),
        preface[..7].to_vec(),
    ] {
        send(&at, &attack);
        // And once more by a peer that then stays.
        let mut stays = TcpStream::connect(&at).unwrap();
        stays.set_write_timeout(Some(DEADLINE)).unwrap();
        let _ = stays.write_all(&attack);
        held.push(stays);
        ctl(&at, &["put", "k", "value"]).assert_ok();
        assert_eq!(ctl(&at, &["get", "k"]).assert_ok().out, b"value");
    }
    assert!(master.program.is_running());
    assert_eq!(master.program.end_by(Signal::TERM).code, Some(0));
}

#[test]
fn nonsense_on_a_node_s_port() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    let mut node = Node::start(at, "a", 0, "16MB");
    let value = content("value", 100_000);
    ctl_with_input(at, &["put", "k"], &value).assert_ok();
    // `mc-transport/docs/tcp-wire.md`
    let preface = [&b"MCT1\x02\0\0\0"[..], &(1_u64 << 30).to_le_bytes()].concat();
    let request = |operation: u8, offset: u64, len: u64| {
        let head = [operation, 0, 0, 0, 7, 0, 0, 0];
        let key = [0x5a; 16];
        [&preface, &head[..], &key, &offset.to_le_bytes(), &len.to_le_bytes()].concat()
    };
    let mut held = Vec::new();
    for attack in [
        content("garbage", 1 << 20),
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        [&preface[..], &content("garbage", 1 << 20)].concat(),
        // Reads and writes with a guessed key, everywhere.
        request(1, 0, 16 << 20),
        request(1, u64::MAX, u64::MAX),
        [request(2, 0, 5), b"wrong".to_vec()].concat(),
        // More is announced than comes, and more than there can be.
        [request(2, 0, 1 << 20), b"wrong".to_vec()].concat(),
        [request(2, 0, u64::MAX), vec![0xee; 1 << 20]].concat(),
        request(9, 0, 0),
        preface[..7].to_vec(),
    ] {
        send(&node.address, &attack);
        let mut stays = TcpStream::connect(&node.address).unwrap();
        stays.set_write_timeout(Some(DEADLINE)).unwrap();
        let _ = stays.write_all(&attack);
        held.push(stays);
        assert!(ctl(at, &["get", "k"]).assert_ok().out == value, "the object was damaged");
    }
    assert!(node.program.is_running());
    ctl(at, &["put", "after", "value"]).assert_ok();
    assert_eq!(ctl(at, &["get", "after"]).assert_ok().out, b"value");
    assert_eq!(node.program.end_by(Signal::TERM).code, Some(0));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    let _node = Node::start(at, "a", 0, "16MB");
    ctl_with_input(at, &["put", "k"], &content("k", 4 << 20)).assert_ok();
    let ctl = binary("mc-ctl");
    let pipe = format!("{} get k --master_server_address={at} | head -c 10 | wc -c", ctl.display());
    let out = std::process::Command::new("sh").args(["-c", &pipe]).output().unwrap();
    assert_eq!((&*out.stderr, out.stdout.trim_ascii()), (&b""[..], &b"10"[..]));
}
