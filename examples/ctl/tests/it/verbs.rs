//! The verbs that an operator finds, explains, moves and watches objects with, on real programs.

use std::process::Command;

use mc_testkit::{Input, Program, Signal, binary, eventually_blocking};
use serde_json::Value;

use crate::support::{DEADLINE, Master, Node, ctl, ctl_with_input, run, start};

fn json(master: &Master, args: &[&str]) -> Value {
    serde_json::from_slice(&ctl(&master.address, args).assert_ok().out).expect("JSON")
}

#[test]
fn objects_are_found_and_removed_by_pattern_and_prefix() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    let _node = Node::start(at, "a", 0, "16MB");
    for key in ["run.1/a", "run.1/b", "runx1/c", "other"] {
        ctl(at, &["put", key, "value"]).assert_ok();
    }
    let found = ctl(at, &["find", "^run"]).assert_ok();
    assert_eq!(found.text().lines().count(), 5, "a heading, three and their sum: {}", found.text());
    assert_eq!(ctl(at, &["find", "^run", "--limit=2", "--json"]).text().lines().count(), 2);
    let nothing = ctl(at, &["find", "^nothing"]);
    assert_eq!(nothing.code, Some(1));
    assert!(nothing.text().ends_with("0 keys, 0 B\n"), "{}", nothing.text());
    // What was found is under no lease.
    ctl(at, &["find", "^other$"]).assert_ok();
    ctl(at, &["remove", "other"]).assert_ok();
    ctl(at, &["put", "other", "value"]).assert_ok();
    ctl(at, &["find", "(a"]).assert_refused(1, "pattern");
    // The point is a point: runx1/c stays.
    let removed = ctl(at, &["remove", "--prefix=run.1", "--force"]).assert_ok();
    assert_eq!(removed.text(), "removed 2 objects\n");
    assert_eq!(ctl(at, &["exist", "runx1/c"]).code, Some(0));
    let removed = ctl(at, &["remove", "--regex=^runx", "--force"]).assert_ok();
    assert_eq!(removed.text(), "removed 1 objects\n");
    for wrong in [&["remove"][..], &["remove", "--prefix="], &["remove", "k", "--regex=x"]] {
        assert_eq!(ctl(at, wrong).code, Some(2), "{wrong:?}");
    }
    assert_eq!(ctl(at, &["exist", "other"]).code, Some(0));
}

#[test]
fn a_value_is_replaced_and_its_key_explained() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    let _node = Node::start(at, "a", 0, "16MB");
    let never = ctl(at, &["explain", "k"]);
    assert_eq!(never.code, Some(1));
    assert!(never.text().contains("remembers nothing of it"), "{}", never.text());
    ctl(at, &["put", "k", "one"]).assert_ok();
    assert!(ctl(at, &["put", "k", "two"]).assert_ok().text().contains("already exists"));
    ctl_with_input(at, &["upsert", "k"], b"three").assert_ok();
    assert_eq!(ctl(at, &["get", "k"]).assert_ok().out, b"three");
    let there = ctl(at, &["explain", "k"]).assert_ok();
    let text = there.text();
    assert!(text.starts_with("k is there: 5 B, in the memory of a, "), "{text}");
    // The get has granted it.
    assert!(text.contains("kept: under lease for "), "{text}");
    ctl(at, &["remove", "k", "--force"]).assert_ok();
    let gone = ctl(at, &["explain", "k"]);
    assert_eq!(gone.code, Some(1));
    assert!(
        gone.text().starts_with("k is not there: it was removed on request"),
        "{}",
        gone.text()
    );
    let gone = ctl(at, &["explain", "k", "--json"]);
    let gone: Value = serde_json::from_slice(&gone.out).expect("JSON");
    assert_eq!(gone["object"], Value::Null);
    assert!(gone["history"].as_array().is_some_and(|events| !events.is_empty()), "{gone}");
    ctl(at, &["explain", ""]).assert_refused(1, "is no key");
}

#[test]
fn objects_are_copied_moved_and_drained() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    let a = Node::start(at, "a", 0, "16MB");
    let _b = Node::start(at, "b", 0, "16MB");
    for number in 0..20 {
        let key = format!("k{number}");
        ctl(at, &["put", &key, "value", "--preferred_segment=a"]).assert_ok();
    }
    let segments = |key: &str| -> Vec<String> {
        let found = json(&master, &["stat", key, "--json"]);
        let replicas = found["replicas"].as_array().expect("a list");
        replicas.iter().map(|it| it["segment"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(segments("k0"), ["a"]);
    let copied = ctl(at, &["copy", "k0", "b", "--wait", "--timeout=30s"]);
    let text = copied.assert_ok().text().to_owned();
    assert!(text.contains("state    success\n"), "{text}");
    assert!(text.contains("work     copy from a to b\n"), "{text}");
    assert_eq!(segments("k0").len(), 2);
    ctl(at, &["move", "k1", "a", "b", "--wait", "--timeout=30s"]).assert_ok();
    assert_eq!(segments("k1"), ["b"]);
    let id = text.lines().next().and_then(|line| line.strip_prefix("task ")).expect("an id");
    assert_eq!(json(&master, &["task", id, "--json"])["status"], "success");
    let unknown = "00000000-0000-0000-0000-000000000001";
    ctl(at, &["task", unknown]).assert_refused(1, "task");
    assert_eq!(ctl(at, &["task", "no-id"]).code, Some(2));

    // Its copy could go nowhere: the other node has one.
    ctl(at, &["remove", "k0", "--force"]).assert_ok();
    // All that is left on the first node goes to the other, and the node can go.
    let report = json(&master, &["stat", "--json"]);
    let first = report["segments"].as_array().into_iter().flatten().find(|it| it["name"] == "a");
    let endpoint = first.and_then(|it| it["endpoint"].as_str()).expect("an endpoint").to_owned();
    let of = format!("--of={endpoint}");
    let drained = ctl(at, &["drain", "start", &of, "--wait", "--timeout=60s"]).assert_ok();
    let text = drained.text();
    assert!(text.contains(" objects moved ("), "{text}");
    let jobs = json(&master, &["drain", "list", "--json"]);
    assert_eq!(
        (&jobs["status"], &jobs["segments"][0]),
        (&"succeeded".into(), &"a".into()),
        "{jobs}"
    );
    let id = jobs["id"].as_str().expect("an id");
    assert!(
        ctl(at, &["drain", "wait", id]).assert_ok().text().starts_with(&format!("job {id} is "))
    );
    for number in 1..20 {
        assert_eq!(segments(&format!("k{number}")), ["b"]);
    }
    ctl(at, &["drain", "start", "--of=127.0.0.1:1"]).assert_refused(1, "no node serves bytes at");
    assert_eq!(ctl(at, &["drain", "start"]).code, Some(2));
    assert_eq!(ctl(at, &["reopen", "a"]).assert_ok().text(), "a takes new objects\n");
    ctl(at, &["put", "back", "value", "--preferred_segment=a"]).assert_ok();
    assert_eq!(segments("back"), ["a"]);
    ctl(at, &["reopen", "no-such"]).assert_refused(1, "no-such");
    drop(a);
}

#[test]
fn a_node_that_is_away_is_shown_first() {
    let master = Master::start(0, &["--client_ttl=1s"]);
    let at = &*master.address;
    let _stays = Node::start(at, "a", 0, "16MB");
    let goes = Node::start(at, "b", 0, "16MB");
    let all = ctl(at, &["nodes"]).assert_ok();
    assert_eq!(all.text().lines().count(), 3, "{}", all.text());
    drop(goes);
    let shown = eventually_blocking(DEADLINE, "the node is missed", || {
        let shown = ctl(at, &["nodes", "--json"]);
        (shown.code == Some(1)).then_some(shown)
    });
    let first: Value = serde_json::from_str(shown.text().lines().next().expect("a line")).unwrap();
    assert_eq!((&first["state"], &first["segments"][0]), (&"away".into(), &"b".into()), "{first}");
}

#[test]
fn shells_and_man_know_every_verb() {
    let directory = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let text = run("mc-ctl", &["pages", "completions", shell]).assert_ok();
        for verb in ["explain", "drain", "doctor", "hand-over", "tiers", "events", "bench"] {
            assert!(text.text().contains(verb), "no {verb} for {shell}");
        }
    }
    // The shell takes them.
    let bash = directory.path().join("mc-ctl.bash");
    std::fs::write(&bash, run("mc-ctl", &["pages", "completions", "bash"]).out).unwrap();
    let taken = Command::new("bash").arg("-n").arg(&bash).status().unwrap();
    assert!(taken.success());
    let pages = directory.path().join("man");
    run("mc-ctl", &["pages", "man", pages.to_str().unwrap()]).assert_ok();
    for page in ["mc-ctl.1", "mc-ctl-explain.1", "mc-ctl-drain-start.1"] {
        let text = std::fs::read_to_string(pages.join(page)).expect(page);
        assert!(text.contains(".SH NAME"), "{page}: {text}");
    }
    run("mc-ctl", &["pages", "man", "/dev/null/x"]).assert_refused(1, "cannot write");
}

#[test]
fn the_cluster_is_watched() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    let _node = Node::start(at, "a", 0, "16MB");
    ctl(at, &["put", "k", "value"]).assert_ok();
    let looks = ctl(at, &["top", "--count=2", "--interval=100ms", "--json"]).assert_ok();
    let looks: Vec<Value> =
        looks.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(looks.len(), 2);
    for look in looks {
        assert_eq!((&look["objects"], &look["used"]), (&1.into(), &5.into()), "{look}");
        assert_eq!(look["capacity"], 16 << 20);
    }
    let text = ctl(at, &["top", "--count=1", "--interval=100ms"]).assert_ok().text().to_owned();
    assert!(text.contains("memory   5 B of 16.00 MB used (0.0 %) ...."), "{text}");
    assert!(!text.contains('\u{1b}'), "nothing clears a file: {text:?}");
    // So does the end of its reader.
    let head =
        format!("'{}' --master={at} top --interval=100ms | head -n 1", binary("mc-ctl").display());
    let mut piped = Command::new("sh");
    let piped = Program::start(DEADLINE, piped.args(["-c", &head]), Input::None).finish();
    assert_eq!(piped.text().lines().count(), 1);
    // Ctrl-C ends it in order.
    let running = start("mc-ctl", &["--master", at, "top"]);
    running.wait_out(|out| out.contains("memory ").then_some(()));
    running.end_by(Signal::INT).assert_ok();
}
