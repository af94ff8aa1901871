//! The verbs that list, follow and measure, on real programs, and how all verbs end when the master does not answer.

use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use mc_meta::{PutEnd, ReplicateConfig, SegmentSpec};
use mc_rpc::{ClientConfig, PutStartItem, blocking};
use mc_testkit::{Finished, Input, Program, Signal, binary, eventually_blocking};
use mc_types::{ClientId, Endpoint, KeyRef, MediaType, RemoteKey, SegmentId};
use serde_json::Value;

use crate::support::{DEADLINE, Master, Node, ctl, start};

/// The lines that a verb printed with `--json`.
fn lines(finished: &Finished) -> Vec<Value> {
    finished.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// A number of `stat --json`.
fn total(master: &Master, name: &str) -> u64 {
    let report = lines(&ctl(&master.address, &["stat", "--json"]).assert_ok());
    report[0][name].as_u64().expect(name)
}

#[test]
fn tasks_are_listed() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    assert_eq!(ctl(at, &["tasks"]).assert_ok().text().lines().count(), 1, "a heading");
    let _a = Node::start(at, "a", 0, "16MB");
    let _b = Node::start(at, "b", 0, "16MB");
    for key in ["k0", "k1"] {
        ctl(at, &["put", key, "value", "--preferred_segment=a"]).assert_ok();
    }
    ctl(at, &["copy", "k0", "b", "--wait", "--timeout=30s"]).assert_ok();
    ctl(at, &["move", "k1", "a", "b", "--wait", "--timeout=30s"]).assert_ok();
    let mut told = lines(&ctl(at, &["tasks", "--json"]).assert_ok());
    told.sort_by_key(|task| task["key"].to_string());
    assert_eq!(told.len(), 2);
    for (task, key, work) in
        [(&told[0], "k0", "copy from a to b"), (&told[1], "k1", "move from a to b")]
    {
        assert_eq!((&task["key"], &task["work"]), (&key.into(), &work.into()), "{task}");
        assert_eq!((&task["status"], &task["from"]), (&"success".into(), &"a".into()), "{task}");
        assert_eq!(task["to"], serde_json::json!(["b"]));
    }
    let table = ctl(at, &["tasks"]).assert_ok();
    assert_eq!(table.text().lines().count(), 3, "{}", table.text());
}

#[test]
fn tiers_and_tenants_have_the_names_of_the_pages() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let shared = format!("--root_fs_dir={}", dir.path().display());
    let master = Master::start(0, &[&shared, "--enable_offload", "--enable_multi_tenants"]);
    let at = &*master.address;
    let path = format!("--ssd_offload_path={}", disk.path().display());
    let flags = ["--enable_offload", &path, "--ssd_offload_size=64MB"];
    let _node = Node::start_with(at, "a", 0, "16MB", &flags);
    ctl(at, &["put", "k", "value"]).assert_ok();
    let told = eventually_blocking(DEADLINE, "the disk tells its size", || {
        let told = lines(&ctl(at, &["tiers", "--json", "--interval=0"]).assert_ok()).remove(0);
        (told["disks"][0]["size"].as_u64() > Some(0)).then_some(told)
    });
    let page: Value =
        serde_json::from_str(&crate::support::page(&master.metrics, "/api/v1/tiers")).unwrap();
    let names = |value: &Value| -> Vec<String> {
        let names = value.as_object().expect("an object").keys();
        names.filter(|name| *name != "full_in_seconds").cloned().collect()
    };
    for part in ["/shared_tier", "/disks/0"] {
        assert_eq!(told.pointer(part).map(names), page.pointer(part).map(names), "{part}");
    }
    assert_eq!(told["disks"][0]["full_in_seconds"], Value::Null);
    let text = ctl(at, &["tiers", "--interval=100ms"]).assert_ok().text().to_owned();
    assert!(
        text.lines().any(|line| line.starts_with("shared tier ") && line.contains(" ok ")),
        "{text}"
    );
    assert!(text.contains("FULL IN is what the growth of the last 0."), "{text}");

    let tenants = lines(&ctl(at, &["tenants", "--json"]).assert_ok());
    let page: Value =
        serde_json::from_str(&crate::support::page(&master.metrics, "/api/v1/tenants")).unwrap();
    assert_eq!((names(&tenants[0]), &tenants[0]["tenant"]), (names(&page[0]), &"default".into()));
    let plain = Master::start(0, &[]);
    let none = ctl(&plain.address, &["tiers"]).assert_ok();
    assert_eq!(none.text(), "no tiers below memory\n");
}

#[test]
fn objects_are_pinned_and_unpinned() {
    let master = Master::start(0, &["--max_kv_soft_pin_ttl=2h"]);
    let at = &*master.address;
    let _node = Node::start(at, "a", 0, "16MB");
    for key in ["p/1", "p/2", "other"] {
        ctl(at, &["put", key, "value"]).assert_ok();
    }
    ctl(at, &["put", "ever", "value", "--with_hard_pin"]).assert_ok();
    let why = |key: &str| {
        let told = ctl(at, &["explain", key]).assert_ok().text().to_owned();
        (told.contains("soft-pinned for "), told.contains("pinned until it is removed"))
    };
    assert_eq!(why("other"), (false, false));
    let told = ctl(at, &["pin", "--prefix=p/", "--ttl=1h"]).assert_ok();
    assert_eq!(told.text(), "pinned 2 objects\n");
    assert_eq!(
        [why("p/1"), why("p/2"), why("other")],
        [(true, false), (true, false), (false, false)]
    );
    let told = ctl(at, &["unpin", "p/1", "ever"]).assert_ok();
    assert_eq!(told.text(), "unpinned 2 objects\n");
    assert_eq!([why("p/1"), why("ever")], [(false, false); 2]);
    // What cannot be done is told of each, and the others are pinned.
    let told = ctl(at, &["pin", "never", "other"]);
    assert_eq!(told.text(), "pinned 1 objects\n");
    assert_eq!(told.code, Some(1));
    assert!(told.err.contains("1 of 2 not pinned: never: no such object"), "{}", told.err);
    for (flags, code, says) in [
        (&["pin", "other", "--ttl=3h"][..], 1, "longer than 7200s, the longest"),
        (&["pin", "other", "--ttl=0"], 1, "a pin of no time pins nothing"),
        (&["pin"], 2, "<KEY|--prefix <PREFIX>>"),
        (&["pin", "other", "--prefix=p"], 2, "cannot be used with"),
    ] {
        let told = ctl(at, flags);
        assert_eq!(told.code, Some(code), "{flags:?}");
        assert!(told.err.contains(says), "{flags:?}: {}", told.err);
    }
}

#[test]
fn nodes_say_what_they_serve_and_how_fast() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    let _nodes = ["a", "b"].map(|name| Node::start(at, name, 0, "16MB"));
    let said = eventually_blocking(DEADLINE, "both say how fast they answer", || {
        let said = lines(&ctl(at, &["nodes", "--json"]).assert_ok());
        said.iter().all(|node| node["load"]["answer_us"].is_u64()).then_some(said)
    });
    let page: Value =
        serde_json::from_str(&crate::support::page(&master.metrics, "/api/v1/nodes")).unwrap();
    assert_eq!((said.len(), page.as_array().unwrap().len()), (2, 2));
    for node in &said {
        let paged = page.as_array().unwrap().iter().find(|other| other["client"] == node["client"]);
        let names =
            |value: &Value| value["load"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(node), names(paged.unwrap()));
        assert_eq!(node["load"]["slow"], Value::Null);
    }
    let told = ctl(at, &["nodes"]).assert_ok();
    assert!(told.text().contains(" ms "), "{}", told.text());
}

/// A master that publishes events, and where it does and keeps them.
fn publishing() -> (Master, String, String) {
    let master = Master::start(
        0,
        &[
            "--enable_kv_event_publish",
            "--kv_event_publisher_endpoint=tcp://127.0.0.1:0",
            "--kv_event_publisher_replay_endpoint=tcp://127.0.0.1:0",
            "--kv_event_publisher_removal_reasons",
        ],
    );
    let (endpoint, replay) = master.program.wait_out(|line| {
        let published = line.strip_prefix("KV events (s4) published at ")?;
        let (endpoint, replay) = published.split_once(", replay at ")?;
        Some((format!("--endpoint={endpoint}"), format!("--replay_endpoint={replay}")))
    });
    (master, endpoint, replay)
}

#[test]
fn events_are_followed() {
    let (master, endpoint, replay) = publishing();
    let at = &*master.address;
    let node = Node::start(at, "a", 0, "16MB");
    ctl(at, &["put", "k1", "value"]).assert_ok();
    ctl(at, &["remove", "k1"]).assert_ok();
    let kept = ["events", &endpoint, &replay, "--from=0", "--count=3", "--json"];
    let kept = lines(&ctl(at, &kept).assert_ok());
    assert_eq!(kept.len(), 3, "{kept:?}");
    // A master that begins tells it to those who knew another one.
    assert_eq!(kept[0]["event"], "cleared");
    let memory =
        serde_json::json!([{ "medium": "memory", "endpoint": format!("tcp://{}", node.address) }]);
    assert_eq!((&kept[1]["event"], &kept[1]["replicas"]), (&"stored".into(), &memory), "{kept:?}");
    assert_eq!((&kept[2]["event"], &kept[2]["reason"]), (&"removed".into(), &"removed".into()));

    let follower = start("mc-ctl", &["--master", at, "events", &endpoint]);
    eventually_blocking(DEADLINE, "it has subscribed", || {
        let page = crate::support::page(&master.metrics, "/metrics");
        page.contains("\nmaster_kv_events_subscribers 1\n")
    });
    ctl(at, &["put", "k2", "value"]).assert_ok();
    let line = follower.wait_out(|line| line.contains("stored").then(|| line.to_owned()));
    assert!(line.contains("stored    k2  memory=tcp://127.0.0.1:"), "{line}");
    follower.end_by(Signal::INT).assert_ok();

    // It needs no token, and no master that answers calls; but one that publishes.
    let following = start("mc-ctl", &["--master", at, "events", &endpoint, &replay, "--from=0"]);
    following.wait_out(|line| line.contains("stored    k2").then_some(()));
    let at = at.to_owned();
    drop(master);
    let ended = following.finish();
    assert_eq!((ended.code, ended.err.lines().count()), (Some(1), 1), "{}", ended.err);
    assert!(ended.err.contains("lost tcp://127.0.0.1:"), "{}", ended.err);
    ctl(&at, &["events", &endpoint]).assert_refused(1, "--enable_kv_event_publish");
    ctl("h:1;h:2", &["events"]).assert_refused(1, "--endpoint=tcp://");
}

#[test]
fn a_measurement_leaves_nothing_behind() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    ctl(at, &["bench", "--count=100", "--size=4KB"]).assert_refused(1, "is not stored: no segment");
    let _node = Node::start(at, "a", 0, "16MB");
    let told = lines(&ctl(at, &["bench", "--count=50", "--size=4KB", "--json"]).assert_ok());
    let calls: Vec<_> = told.iter().filter_map(|line| line["call"].as_str()).collect();
    assert_eq!(calls, ["put", "exist", "get", "remove"]);
    for line in &told {
        assert_eq!((&line["count"], &line["errors"]), (&50.into(), &0.into()), "{line}");
        assert!(
            line["p50_us"].as_u64() > Some(0) && line["p99_us"].as_u64() >= line["p50_us"].as_u64()
        );
        assert!(line["per_s"].as_f64() > Some(0.0), "{line}");
    }
    assert_eq!(told[0]["bytes_per_s"].is_null(), told[1]["bytes_per_s"].is_number(), "{told:?}");

    let before = total(&master, "put_ends");
    let running = start("mc-ctl", &["--master", at, "bench", "--time=60s", "--size=64KB"]);
    eventually_blocking(DEADLINE, "it measures", || total(&master, "put_ends") > before);
    let text = running.end_by(Signal::INT).assert_ok().text().to_owned();
    assert!(text.contains("4 at a time, values of 64.00 KB"), "{text}");
    assert_eq!(total(&master, "objects"), 0);
    let time = ctl(at, &["bench", "--time=100ms"]).assert_ok();
    assert_eq!(time.text().lines().count(), 6, "{}", time.text());
    for wrong in ["--size=0", "--concurrency=0", "--count=x"] {
        assert_eq!(ctl(at, &["bench", wrong]).code, Some(2), "{wrong}");
    }
}

/// Every verb that asks a master, with what it needs.
const VERBS: &[&[&str]] = &[
    &["put", "k", "v"],
    &["upsert", "k", "v"],
    &["get", "k"],
    &["exist", "k"],
    &["remove", "k"],
    &["remove-all"],
    &["ls"],
    &["find", "k"],
    &["explain", "k"],
    &["stat"],
    &["stat", "k"],
    &["top"],
    &["nodes"],
    &["quota", "show"],
    &["tenants"],
    &["tiers"],
    &["tasks"],
    &["drain", "list"],
    &["reopen", "a"],
    &["copy", "k", "a"],
    &["move", "k", "a", "b"],
    &["task", "00000000-0000-0000-0000-000000000001"],
    &["bench"],
    &["ha", "hand-over"],
];

/// Runs every verb at the same time.
fn all_verbs(master: &str, flags: &[&str]) -> Vec<(String, Finished)> {
    let master = format!("--master_server_address={master}");
    let begin =
        |verb: &&[&str]| (verb.join(" "), start("mc-ctl", &[&[&*master], flags, verb].concat()));
    let running: Vec<(String, Program)> = VERBS.iter().map(begin).collect();
    running.into_iter().map(|(verb, program)| (verb, program.finish())).collect()
}

#[test]
fn every_verb_ends_when_no_master_answers() {
    let hangs = Master::start(0, &[]);
    hangs.program.freeze();
    let begun = Instant::now();
    for (verb, ended) in all_verbs(&hangs.address, &[]) {
        assert_eq!((ended.code, ended.err.lines().count()), (Some(1), 1), "{verb}: {}", ended.err);
        assert!(ended.err.contains(&hangs.address), "{verb}: {}", ended.err);
    }
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    hangs.program.resume();
    let address = hangs.address.clone();
    drop(hangs);
    for (verb, ended) in all_verbs(&address, &[]) {
        assert_eq!((ended.code, ended.err.lines().count()), (Some(1), 1), "{verb}: {}", ended.err);
    }
}

#[test]
fn a_reader_is_told_which_verbs_are_not_its_own() {
    let mut list = tempfile::NamedTempFile::new().unwrap();
    writeln!(list, "token:the-token-of-a-reader reader").unwrap();
    let mut token = tempfile::NamedTempFile::new().unwrap();
    write!(token, "the-token-of-a-reader").unwrap();
    let master = Master::start(0, &[&format!("--access_file={}", list.path().display())]);
    let flag = format!("--token_file={}", token.path().display());
    for (verb, ended) in all_verbs(&master.address, &[&flag]) {
        match verb.as_str() {
            "exist k" | "find k" => assert_eq!(ended.code, Some(1), "{verb}"),
            "ls" => assert_eq!(ended.code, Some(0), "{}", ended.err),
            "get k" | "stat k" | "explain k" => {
                assert_eq!(
                    (ended.code, ended.err.contains("role")),
                    (Some(1), false),
                    "{verb}: {}",
                    ended.err
                );
            }
            _ => {
                assert_eq!(
                    (ended.code, ended.err.lines().count()),
                    (Some(1), 1),
                    "{verb}: {}",
                    ended.err
                );
                assert!(ended.err.contains("is for the role"), "{verb}: {}", ended.err);
            }
        }
    }
}

/// Mounts a thousand segments of one client and one of each of another thousand, and puts 100,000 objects that have no bytes.
fn fill(master: &Master) {
    const ONE: ClientId = ClientId::from_u128(1);
    let client = blocking::MasterClient::connect(&master.address, ClientConfig::default())
        .expect("a connection");
    let mount = |number: u128, of: ClientId| {
        let segment = SegmentSpec {
            id: SegmentId::from_u128(number),
            name: format!("segment-{number}").into(),
            base: 4096,
            size: 1 << 20,
            endpoint: Endpoint::new("tcp", &format!("10.0.0.1:{}", 1000 + number))
                .expect("an endpoint"),
            remote_key: RemoteKey::from_bytes([1; 16]),
            ticket_key: None,
            medium: MediaType::Dram,
        };
        client.mount_segment(of, &segment).expect("room for a segment");
    };
    (1..=1000).for_each(|number| mount(number, ONE));
    (1001..=2000).for_each(|number| mount(number, ClientId::from_u128(number)));
    let keys: Vec<String> = (0..100_000).map(|number| format!("object-{number:06}")).collect();
    let config = ReplicateConfig::default();
    for keys in keys.chunks(10_000) {
        let keys: Vec<KeyRef<'_>> =
            keys.iter().map(|key| KeyRef::new(key).expect("a key")).collect();
        let starts: Vec<_> = keys
            .iter()
            .map(|key| PutStartItem {
                key: *key,
                slice_lengths: &[64],
                again: false,
                may_be_begun: false,
                parent: None,
            })
            .collect();
        let grants = client.batch_put_start(ONE, &config, &starts).expect("an answer").into_iter();
        let begun = keys.iter().zip(grants.map(|grant| grant.expect("room for an object")));
        let ends: Vec<_> = begun.map(|(key, grant)| PutEnd::new(*key, grant.handle)).collect();
        for ended in client.batch_put_end(ONE, &ends).expect("an answer") {
            ended.expect("the put ends");
        }
    }
}

#[test]
fn many_segments_and_objects_stay_readable() {
    let master = Master::start(0, &["--client_ttl=600s"]);
    let at = &*master.address;
    fill(&master);
    let shown = |args: &[&str]| ctl(at, args).assert_ok().text().to_owned();
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max();
    let nodes = shown(&["nodes"]);
    assert_eq!(nodes.lines().count(), 1002);
    assert!(widest(&nodes) < Some(200), "{widest:?}", widest = widest(&nodes));
    assert!(nodes.contains(" more "), "those of the first client");
    assert_eq!(shown(&["ls"]).lines().count(), 100_002);
    assert_eq!(shown(&["ls", "--limit=3"]).lines().count(), 5);
    assert_eq!(shown(&["stat"]).lines().filter(|line| line.starts_with("segment-")).count(), 2000);
    assert!(shown(&["top", "--count=1", "--interval=100ms"]).lines().count() < 40);
    // A reader that has enough ends each of them in silence.
    for verb in ["ls", "nodes", "stat", "tasks"] {
        let head = format!("'{}' --master={at} {verb} | head -n 1", binary("mc-ctl").display());
        let piped = Program::start(
            DEADLINE,
            Command::new("bash").args(["-o", "pipefail", "-c", &head]),
            Input::None,
        );
        let piped = piped.finish();
        assert_eq!(
            (piped.code, piped.text().lines().count(), &*piped.err),
            (Some(0), 1, ""),
            "{verb}"
        );
    }
}
