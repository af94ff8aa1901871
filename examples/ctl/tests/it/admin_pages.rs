//! The pages of a master about objects and segments, which Mooncake's tools read.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use mc_testkit::{EtcdCluster, Signal, eventually_blocking};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::end_to_end::library_client;
use crate::support::{DEADLINE, Master, Node, ask, ctl, ctl_with_input, free_port, get};

#[test]
fn objects_and_segments_are_described_as_in_mooncake() {
    let master = Master::start(0, &[]);
    let node = Node::start(&master.address, "node/a b", 0, "16MB");
    for (key, len) in [("a/1", 1000), ("b,c", 2000)] {
        ctl_with_input(&master.address, &["put", key], &vec![7; len]).assert_ok();
    }
    let line = get(&master, "/query_key?key=a%2F1").ok();
    assert!(line.ends_with("}\n") && line.lines().count() == 1, "{line}");
    let buffer: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(buffer["size_"], 1000);
    assert_eq!(
        (&buffer["protocol_"], &buffer["transport_endpoint_"]),
        (&json!("tcp"), &json!(node.address))
    );
    assert!(buffer["buffer_address_"].is_u64(), "{buffer}");
    get(&master, "/query_key?key=x").assert_failed(404, -704, "OBJECT_NOT_FOUND");

    let found = get(&master, "/batch_query_keys?keys=a/1,x,,&key=b%2Cc").json();
    assert_eq!(found["success"], true);
    assert_eq!(found["data"]["a/1"], json!({ "ok": true, "values": [buffer] }));
    assert_eq!(found["data"]["x"], json!({ "ok": false, "error": "OBJECT_NOT_FOUND" }));
    assert_eq!(found["data"]["b,c"]["values"][0]["size_"], 2000);
    assert_eq!(found["data"].as_object().map(|data| data.len()), Some(3));

    assert_eq!(get(&master, "/get_all_segments").ok(), "node/a b\n");
    let segment = get(&master, "/query_segment?segment=node%2Fa+b").ok();
    let used: u64 = segment
        .lines()
        .nth(1)
        .and_then(|line| line.strip_prefix("Used(bytes): "))
        .unwrap()
        .parse()
        .unwrap();
    assert!((3000..16 << 20).contains(&used), "{segment}");
    assert_eq!(segment, format!("node/a b\nUsed(bytes): {used}\nCapacity(bytes) : {}\n", 16 << 20));
    let status = get(&master, "/api/v1/segments/status?segment=node/a%20b").json();
    let expected = json!({
        "success": true, "segment": "node/a b", "status": 1, "status_name": "OK",
        "error_code": 0, "error_message": "",
    });
    assert_eq!(status, expected);
    let detail = get(&master, "/get_segments_detail").json();
    assert_eq!(detail["total_segments"], 1);
    let row = &detail["segments"][0];
    assert_eq!((&row["segment_name"], &row["status"]), (&json!("node/a b"), &json!("OK")));
    assert_eq!(
        (&row["allocator_used_bytes"], &row["te_endpoint"]),
        (&json!(used), &json!(node.address))
    );
    assert_eq!(get(&master, "/role").ok(), "leader");
    assert_eq!(get(&master, "/leader").json(), json!({ "present": false }));
    let health = get(&master, "/health").json();
    for (field, value) in [
        ("status", json!("ok")),
        ("role", json!("leader")),
        ("ha_state", json!("serving")),
        ("service_ready", json!(true)),
    ] {
        assert_eq!(health[field], value, "{field} of {health}");
    }
    for field in ["leader_address", "view_version"] {
        assert!(health.get(field).is_none(), "{health}");
    }

    // Looking grants no lease, as reading does.
    for key in ["/query_key?key=a/1", "/batch_query_keys?keys=a/1"] {
        get(&master, key).ok();
    }
    ctl(&master.address, &["remove", "a/1"]).assert_ok();
    ctl(&master.address, &["get", "b,c"]).assert_ok();
    ctl(&master.address, &["remove", "b,c"]).assert_refused(1, "b,c");
}

#[test]
fn all_keys_come_in_pages() {
    const KEYS: usize = 250;
    let master = Master::start(0, &[]);
    let _node = Node::start(&master.address, "a", 0, "16MB");
    let runtime = Runtime::new().unwrap();
    let client = library_client(&runtime, &master.address);
    let mut put: BTreeSet<String> = (0..KEYS).map(|number| format!("key/{number}")).collect();
    put.insert("two\nlines".into());
    for key in &put {
        runtime.block_on(client.put(key, "x")).unwrap();
    }
    let all = get(&master, "/get_all_keys");
    assert_eq!(all.next(), None);
    put.remove("two\nlines");
    put.insert("two%0Alines".into());
    let listed: BTreeSet<String> = all.ok().lines().map(str::to_owned).collect();
    assert_eq!(listed, put);

    let (mut listed, mut after, mut pages) = (Vec::new(), String::from("0"), 0);
    loop {
        let page = get(&master, &format!("/get_all_keys?limit=100&after={after}"));
        pages += 1;
        after = page.next().unwrap_or_default().to_owned();
        let keys = page.ok();
        assert!(keys.lines().count() <= 100, "{keys}");
        listed.extend(keys.lines().map(str::to_owned));
        if after.is_empty() {
            break;
        }
    }
    assert!(pages >= 3 && listed.len() == KEYS + 1, "{pages} pages, {} keys", listed.len());
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), put);
    assert_eq!(get(&master, &format!("/get_all_keys?after={}", u64::MAX)).ok(), "");
    runtime.block_on(client.shutdown());
}

#[test]
fn invalid_requests_are_refused() {
    let master = Master::start(0, &[]);
    // A client waits until the master is in service, which its pages do not.
    ctl_with_input(&master.address, &["ls"], &[]).assert_ok();
    let many = vec!["k"; 4097].join(",");
    for (target, status, code, says) in [
        ("/query_key", 400, -600, "/query_key?key=NAME"),
        ("/query_key?key=", 400, -600, "key is missing"),
        ("/query_key?k=a", 400, -600, "key is missing"),
        ("/query_key?key=%ff%fe", 400, -600, "not text in UTF-8"),
        (&format!("/query_key?key={}", "x".repeat(1025)), 400, -400, "1025"),
        ("/query_key?key=%00%0A%25zz", 404, -704, "OBJECT_NOT_FOUND"),
        ("/query_key?key=a&tenant_id=a%2Fb", 400, -600, "tenant_id"),
        ("/batch_query_keys", 400, -600, "keys=a,b"),
        ("/batch_query_keys?keys=,,", 400, -600, "no keys provided"),
        (&format!("/batch_query_keys?keys={many}"), 400, -600, "at most 4096"),
        ("/query_segment", 400, -600, "segment is missing"),
        ("/query_segment?segment=x", 404, -101, "/get_all_segments"),
        ("/api/v1/segments/status?segment=x", 404, -101, "SEGMENT_NOT_FOUND"),
        ("/get_all_keys?limit=0", 400, -600, "1 to 10000"),
        ("/get_all_keys?limit=10001", 400, -600, "1 to 10000"),
        ("/get_all_keys?limit=-1", 400, -600, "whole number"),
        ("/get_all_keys?after=18446744073709551616", 400, -600, "whole number"),
    ] {
        get(&master, target).assert_failed(status, code, says);
    }
    // A prompt of many blocks fits into one query; beyond what a target may have nothing is read.
    let keys: Vec<String> = (0..900).map(|number| format!("{number:064x}")).collect();
    let found = get(&master, &format!("/batch_query_keys?keys={}", keys.join(","))).json();
    assert_eq!(found["data"].as_object().map(|data| data.len()), Some(keys.len()));
    assert_eq!(get(&master, &format!("/query_key?key={}", "x".repeat(66_000))).status, 414);

    assert_eq!(get(&master, "/query_keys").status, 404);
    let head = ask(&master, "HEAD", "/get_all_keys", "");
    assert!(head.status == 200 && head.body.is_empty(), "{}", head.body);
    let post = ask(&master, "POST", "/query_key?key=a", "");
    assert!(post.status == 405 && post.head.contains("allow: get, head"), "{}", post.head);
    // A client that sends its request in pieces blocks no other; one that never ends it is closed.
    let slow = TcpStream::connect(master.metrics.trim_start_matches("http://")).unwrap();
    slow.set_read_timeout(Some(DEADLINE)).unwrap();
    (&slow).write_all(b"GET /query_key?key=").unwrap();
    get(&master, "/get_all_keys").ok();
    let mut answer = String::new();
    (&slow).read_to_string(&mut answer).expect("an end in time");
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_master_with_an_access_list_asks_for_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let (list, token_a) = (dir.path().join("list"), dir.path().join("a"));
    let text = "token:the-token-of-team-a writer team-a\ntoken:the-token-of-team-b reader team-b\n\
                token:the-administrators admin\ntoken:the-token-of-a-node node\n";
    fs::write(&list, text).unwrap();
    fs::write(&token_a, "the-token-of-team-a").unwrap();
    let node_token = dir.path().join("node");
    fs::write(&node_token, "the-token-of-a-node").unwrap();
    let master = Master::start(0, &[&format!("--access_file={}", list.display())]);
    let token = |path: &std::path::Path| format!("--token_file={}", path.display());
    let _node = Node::start_with(&master.address, "n", 0, "16MB", &[&token(&node_token)]);
    ctl(&master.address, &["put", "k", "value", &token(&token_a)]).assert_ok();

    for target in
        ["/query_key?key=k", "/batch_query_keys?keys=k", "/get_all_keys", "/get_segments_detail"]
    {
        let refused = get(&master, target);
        refused.assert_failed(401, -900, "UNAUTHENTICATED");
        assert!(refused.head.contains("www-authenticate: bearer"), "{}", refused.head);
        ask(&master, "GET", target, "no-token-of-anybody").assert_failed(
            401,
            -900,
            "know the token",
        );
    }
    let (a, b, admin) = ("the-token-of-team-a", "the-token-of-team-b", "the-administrators");
    let with = |token: &str, target: &str| ask(&master, "GET", target, token);
    assert_eq!(with(a, "/get_all_keys").ok(), "k\n");
    assert_eq!(with(b, "/get_all_keys").ok(), "");
    with(b, "/query_key?key=k").assert_failed(404, -704, "no object of this tenant");
    with(b, "/query_key?key=k&tenant_id=team-a").assert_failed(403, -900, "not for team-a");
    assert_eq!(with(admin, "/get_all_keys").ok(), "");
    assert_eq!(with(admin, "/get_all_keys?tenant_id=team-a").ok(), "k\n");
    with(a, "/get_segments_detail").assert_failed(403, -900, "needs admin");
    for page in ["cluster", "segments", "nodes", "tiers", "tenants", "drain_jobs", "live"] {
        let page = format!("/api/v1/{page}");
        get(&master, &page).assert_failed(401, -900, "UNAUTHENTICATED");
        with(a, &page).assert_failed(403, -900, "needs admin");
    }
    assert_eq!(with(a, "/api/v1/object?key=k").json()["object"]["bytes"], 5);
    assert_eq!(with(b, "/api/v1/object?key=k").json()["object"], Value::Null);
    assert_eq!(with(admin, "/api/v1/cluster").json()["totals"]["objects"], 1);
    assert_eq!(
        serde_json::from_str::<Value>(&with(admin, "/get_segments_detail").ok()).unwrap()["total_segments"],
        1
    );
    assert!(with(b, "/query_segment?segment=n").ok().starts_with("n\nUsed(bytes): "));
    // What removes much is written down, whether it was allowed or not.
    let token_b = dir.path().join("b");
    fs::write(&token_b, b).unwrap();
    ctl(&master.address, &["remove", "--regex=^none", &token(&token_a)]).assert_ok();
    ctl(&master.address, &["remove", "--regex=^k$", &token(&token_b)]).assert_refused(1, "writer");
    // As before, for collectors, probes and SGLang.
    for target in [
        "/metrics",
        "/health",
        "/metrics/summary",
        "/role",
        "/get_all_segments",
        "/",
        "/openapi.json",
        "/live",
        "/ready",
    ] {
        get(&master, target).ok();
    }
    // The list that holds for calls holds for pages.
    fs::write(&list, text.replace("team-b\n", "team-a\n")).unwrap();
    eventually_blocking(DEADLINE, "the new list", || {
        let keys = with(b, "/get_all_keys");
        (keys.status == 200 && keys.body == "k\n").then_some(())
    });
    let ended = master.program.end_by(Signal::TERM);
    assert!(!ended.err.contains("the-token-of"), "{}", ended.err);
    let audited = ended.err.lines().filter(|line| line.contains("audit: "));
    let audited: Vec<&str> = audited.filter(|line| line.contains("RemoveByRegex")).collect();
    assert_eq!(audited.len(), 2, "{audited:#?}");
    for (line, words) in audited.into_iter().zip([
        ["done", "^none", "role=writer", "tenant=team-a"],
        ["refused", "^k$", "tenant=team-b", "code=PERMISSION_DENIED"],
    ]) {
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    }
}

#[test]
fn a_standby_names_the_leader() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let etcd = EtcdCluster::start(1);
    // Mooncake's flags.
    let etcd = format!("--ha_backend_connstring={}", etcd.endpoints()[0]);
    let flags = ["--enable-ha", "--ha_backend_type=etcd", "--ha_lease_ttl=2s", &etcd];
    // A moment after its role.
    let serves = |master: &Master| get(master, "/get_all_keys").status == 200;
    let first = Master::start(free_port(), &flags);
    eventually_blocking(DEADLINE, "a leader", || serves(&first).then_some(()));
    assert_eq!(get(&first, "/role").ok(), "leader");
    get(&first, "/query_key?key=k").assert_failed(404, -704, "OBJECT_NOT_FOUND");
    let second = Master::start(free_port(), &flags);
    eventually_blocking(DEADLINE, "a standby that knows its leader", || {
        (get(&second, "/leader").json()["leader_address"] == *first.address).then_some(())
    });
    let views = [&first, &second].map(|master| get(master, "/leader").json());
    assert_eq!(views[0], views[1]);
    assert!(
        views[0]["present"] == true && views[0]["view_version"].as_u64() > Some(0),
        "{views:?}"
    );
    for (master, state) in [(&first, "serving"), (&second, "standby")] {
        let health = get(master, "/health").json();
        assert_eq!(health["ha_state"], state, "{health}");
        for field in ["leader_address", "view_version"] {
            assert_eq!(health[field], views[0][field], "{health}");
        }
    }
    // A standby that could take over is as ready as the leader: an upgrade goes on with the next one.
    for master in [&first, &second] {
        eventually_blocking(DEADLINE, "a ready master", || {
            (get(master, "/ready").status == 200).then_some(())
        });
    }
    for target in [
        "/query_key?key=k",
        "/get_all_keys",
        "/get_all_segments",
        "/get_segments_detail",
        "/api/v1/cluster",
        "/api/v1/live",
    ] {
        let says = format!("service plane is not active; the leader is {}", first.address);
        get(&second, target).assert_failed(503, -1010, &says);
    }
    // One that is not in sync would wait, and one without anything for ever.
    eventually_blocking(DEADLINE, "the standby is in sync", || {
        let status = get(&first, "/ha_status").ok();
        let in_sync = &status[status.find("\"in_sync\"")?..];
        in_sync.contains(&second.address).then_some(())
    });
    drop(first);
    eventually_blocking(DEADLINE, "the standby leads", || serves(&second).then_some(()));
    assert_eq!(get(&second, "/role").ok(), "leader");
    assert_eq!(get(&second, "/get_all_keys").ok(), "");
}
