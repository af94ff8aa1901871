//! The pages that change something: quotas, drains, the removal of all objects.

use std::fs;

use mc_testkit::eventually_blocking;
use serde_json::{Value, json};

use crate::support::{Answer, DEADLINE, Master, Node, change, ctl, get};

const QUOTAS: &str = "/api/v1/tenant_quotas";
const DRAINS: &str = "/api/v1/drain_jobs";
const REMOVE_ALL: &str = "/api/v1/remove_all";

/// As a caller without a token, of a master without a list.
fn ask(master: &Master, method: &str, target: &str, body: &str) -> Answer {
    change(master, (method, target), ("", ""), body)
}

#[test]
fn quotas_are_set_and_removed() {
    // Nothing stays under lease that was read.
    let flags = ["--default_tenant_quota=none", "--default_kv_lease_ttl=1ms"];
    let master = Master::start(0, &[&["--enable_multi_tenants"][..], &flags].concat());
    let _node = Node::start(&master.address, "n", 0, "16MB");
    let of_a = format!("{QUOTAS}?tenant_id=team-a");
    get(&master, &of_a).assert_failed(404, -1701, "there is no tenant team-a");
    let set = ask(&master, "PUT", &of_a, r#"{"requested_quota_bytes": 4194304}"#).ok();
    let expected = json!({
        "tenant_id": "team-a", "requested_quota_bytes": 4 << 20, "effective_quota_bytes": 4 << 20,
        "charged_bytes": 0, "admission_closed": false, "over_quota": false, "has_explicit_policy": true,
    });
    let said: Value = serde_json::from_str(&set).expect("JSON");
    assert_eq!(said, json!({ "success": true, "data": expected }));
    assert_eq!(get(&master, &of_a).json()["data"], expected);
    let all = get(&master, QUOTAS).json();
    assert!(all["data"].as_array().is_some_and(|all| all.contains(&expected)), "{all}");
    // The verbs see the same.
    let shown = ctl(&master.address, &["quota", "show", "team-a", "--json"]).assert_ok();
    assert!(shown.text().contains("4194304"), "{}", shown.text());
    ctl(&master.address, &["put", "k", "v", "--tenant=team-a"]).assert_ok();
    ctl(&master.address, &["get", "k", "--tenant=team-a"]).assert_ok();
    assert_eq!(ctl(&master.address, &["exist", "none", "--tenant=team-a"]).code, Some(1));
    let tenants = get(&master, "/api/v1/tenants").json();
    let of = |name: &str| {
        let all = tenants.as_array().into_iter().flatten();
        all.filter(|one| one["tenant"] == "team-a").find_map(|one| one[name].as_u64())
    };
    assert_eq!(of("missed"), Some(1), "{tenants}");
    assert!(of("found").is_some_and(|found| found > 0), "{tenants}");
    ask(&master, "DELETE", &of_a, "").assert_failed(409, -1702, "TENANT_NOT_EMPTY");
    ctl(&master.address, &["remove", "k", "--tenant=team-a"]).assert_ok();
    let removed = ask(&master, "DELETE", &of_a, "");
    assert_eq!(removed.json()["data"], expected, "{}", removed.body);
    for (method, target, body, says) in [
        ("PUT", &*of_a, "", "the body is no JSON"),
        ("PUT", &of_a, r#"{"requested_quota_bytes": 0}"#, "between 1 and 2^63 - 1"),
        ("PUT", QUOTAS, r#"{"requested_quota_bytes": 1}"#, "tenant_id is missing"),
        (
            "PUT",
            "/api/v1/tenant_quotas?tenant_id=a/b",
            r#"{"requested_quota_bytes": 1}"#,
            "tenant_id",
        ),
        ("DELETE", QUOTAS, "", "tenant_id is missing"),
    ] {
        ask(&master, method, target, body).assert_failed(400, -600, says);
    }
    let long = "x".repeat(300 << 10);
    assert_eq!(ask(&master, "PUT", &of_a, &long).status, 413);
    for (method, path, allowed) in
        [("POST", QUOTAS, "allow: put, delete, get, head"), ("GET", REMOVE_ALL, "allow: post")]
    {
        let refused = ask(&master, method, path, "");
        assert_eq!(refused.status, 405, "{}", refused.body);
        assert!(refused.head.contains(allowed), "{}", refused.head);
    }
    assert_eq!(ask(&master, "PATCH", "/nowhere", "").status, 404);
    let alone = Master::start(0, &[]);
    get(&alone, QUOTAS).assert_failed(409, -1011, "--enable_multi_tenants");
    ask(&alone, "PUT", &of_a, r#"{"requested_quota_bytes": 1}"#).assert_failed(409, -1011, "");
}

#[test]
fn segments_are_drained() {
    let master = Master::start(0, &[]);
    let _nodes = ["a", "b"].map(|name| Node::start(&master.address, name, 0, "16MB"));
    for n in 0..8 {
        ctl(&master.address, &["put", &format!("k{n}"), "v", "--preferred_segment=a"]).assert_ok();
    }
    let begun = ask(&master, "POST", DRAINS, r#"{"segments": ["a"], "max_concurrency": 2}"#);
    let begun: Value = serde_json::from_str(&begun.ok()).expect("JSON");
    assert_eq!(begun["status"], "CREATED");
    let id = begun["job_id"].as_str().expect("an id");
    let job = eventually_blocking(DEADLINE, "the segment is empty", || {
        let job = get(&master, &format!("{DRAINS}/query?job_id={id}")).json();
        (job["status_name"] == "SUCCEEDED").then_some(job)
    });
    assert_eq!((&job["succeeded_units"], &job["segments"]), (&json!(8), &json!(["a"])), "{job}");
    let since_1970 = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_millis() as u64;
    let created = job["created_at_ms_epoch"].as_u64().expect("a time");
    assert!((since_1970 - 60_000..=since_1970).contains(&created), "{created} of {since_1970}");
    let cancel = format!("{DRAINS}/cancel?job_id={id}");
    ask(&master, "POST", &cancel, "").assert_failed(409, -1010, "the job is over");
    let unknown = "00000000-0000-0000-0000-000000000007";
    get(&master, &format!("{DRAINS}/query?job_id={unknown}")).assert_failed(404, -1402, "");
    ask(&master, "POST", &format!("{DRAINS}/cancel?job_id={unknown}"), "")
        .assert_failed(404, -1402, "");
    get(&master, &format!("{DRAINS}/query?job_id=x")).assert_failed(400, -600, "no id");
    for (body, status, says) in [
        (r#"{"segments": ["none"]}"#, 404, "none"),
        (r#"{"segments": []}"#, 400, "between 1"),
        (r#"{"segments": 1}"#, 400, "must be a list"),
    ] {
        let refused = ask(&master, "POST", DRAINS, body);
        assert!(refused.status == status && refused.body.contains(says), "{}", refused.body);
    }
}

#[test]
fn all_objects_are_removed_by_those_who_may() {
    let dir = tempfile::tempdir().expect("a directory");
    let (list, file) = (dir.path().join("list"), dir.path().join("token"));
    let (a, b, admin) = ("the-token-of-team-a", "the-token-of-team-b", "the-administrators");
    let text = format!("token:{a} writer team-a\ntoken:{b} reader team-b\ntoken:{admin} admin\n");
    fs::write(&list, text).expect("a file");
    fs::write(&file, admin).expect("a file");
    let access = format!("--access_file={}", list.display());
    let master = Master::start(0, &[&access, "--enable_multi_tenants"]);
    let token = format!("--token_file={}", file.display());
    let _node = Node::start_with(&master.address, "n", 0, "16MB", &[&token]);
    let put = || {
        for (n, tenant) in ["team-a", "team-a", "team-b"].iter().enumerate() {
            let (key, tenant) = (format!("k{n}"), format!("--tenant={tenant}"));
            ctl(&master.address, &["put", &key, "v", &token, &tenant]).assert_ok();
        }
    };
    put();
    let remove = |token: &str, lines: &str, query: &str| {
        change(&master, ("POST", &format!("{REMOVE_ALL}{query}")), (token, lines), "")
    };
    remove("", "", "").assert_failed(401, -900, "UNAUTHENTICATED");
    remove("no-token-of-anybody", "", "").assert_failed(401, -900, "know the token");
    remove(b, "", "").assert_failed(403, -900, "needs writer");
    remove(a, "", "?tenant_id=team-b").assert_failed(403, -900, "not for team-b");
    remove(admin, "origin: http://example.org\r\n", "").assert_failed(403, -900, "another site");
    let removed = |answer: Answer| {
        serde_json::from_str::<Value>(&answer.ok()).expect("JSON")["removed_count"].clone()
    };
    assert_eq!(removed(remove(a, "", "?force=true")), 2);
    assert_eq!(removed(remove(admin, "origin: http://x\r\n", "?force=1&tenant_id=team-b")), 1);
    put();
    assert_eq!(removed(remove(admin, "", "?force=true")), 3);
    // Each is written down with the caller and its address.
    master.program.wait_err(|line| {
        let is_it =
            line.contains("audit") && line.contains("RemoveAll") && line.contains("127.0.0.1");
        is_it.then_some(())
    });
    for (method, target) in [("PUT", QUOTAS), ("DELETE", QUOTAS), ("POST", DRAINS)] {
        change(&master, (method, target), (a, ""), "{}").assert_failed(403, -900, "needs admin");
    }
}
