//! The program, with good and bad arguments.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::process::{Command, Output};

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mc-sim")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn refused(args: &[&str], code: i32, why: &str) {
    let output = sim(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
    assert!(error.contains(why), "{args:?}: {why:?} is not in {error:?}");
}

#[test]
fn a_run_says_what_came_of_it_and_a_soak_sums_it_up() {
    let directory = tempfile::tempdir().unwrap();
    let history = directory.path().join("history");
    let history = history.to_str().unwrap();
    let output = sim(&["run", "--seed=3", "--nodes=4", "--minutes=1", "--history", history]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("no violations") && said.contains("node-hours per CPU-hour"), "{said}");
    let lines = fs::read_to_string(history).unwrap().lines().count();
    assert!(said.contains(&format!("of {lines} lines")), "{said}");

    let output = sim(&["soak", "--seeds=3..6", "--nodes=4", "--minutes=1", "--json"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[3]["simulations"]), (4, &3.into()), "{said}");
    assert_eq!(lines[3]["failed_seeds"], serde_json::json!([]));
}

#[test]
fn bad_input_is_refused_with_the_reason() {
    refused(&["run", "--nodes=0"], 2, "1 to 20000 nodes");
    refused(&["run", "--nodes=4000000000"], 2, "1 to 20000 nodes");
    refused(&["run", "--minutes=0"], 2, "1 ms to 30 days");
    refused(&["run", "--minutes=18446744073709551615"], 2, "1 ms to 30 days");
    refused(&["run", "--pace_ms=0"], 2, "1 ms to 30 days");
    refused(&["soak", "--seeds=5..5"], 2, "FIRST..END");
    refused(&["soak", "--threads=0"], 2, "threads");
    refused(&["run", "--seed=x"], 2, "seed");
    refused(&["fly"], 2, "fly");
    refused(&["run", "--plan=/nowhere"], 1, "/nowhere");
    refused(&["run", "--minutes=1", "--history=/nowhere/history"], 1, "/nowhere/history");
}

#[test]
fn bad_plans_are_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("plan");
    let plan = |text: &str| {
        fs::write(&path, text).unwrap();
        format!("--plan={}", path.display())
    };
    let whole = |faults: &str| {
        format!(
            r#"{{"seed":1,"masters":"Alone","has_files":false,"nodes":2,"ms":1000,"pace_ms":100,
                "network":"Fair","faults":[{faults}]}}"#
        )
    };
    let good = sim(&["run", &plan(&whole(r#"{"at_ms":1,"lasts_ms":5,"what":{"Kill":1}}"#))]);
    assert_eq!(good.status.code(), Some(0), "{}", text(&good.stderr));
    for (text, code, why) in [
        ("", 1, "is no plan"),
        ("[1, 2", 1, "is no plan"),
        (r#"{"seed": 1}"#, 1, "missing field"),
        (&whole(r#"{"at_ms":1,"lasts_ms":5,"what":"Earthquake"}"#), 1, "Earthquake"),
        (&whole(r#"{"at_ms":1,"lasts_ms":5,"what":{"Kill":2}}"#), 2, "names node 2"),
        (&whole(r#"{"at_ms":18446744073709551615,"lasts_ms":5,"what":"Storm"}"#), 2, "30 days"),
        (&whole("").replace("faults", "mistakes"), 1, "mistakes"),
    ] {
        refused(&["run", &plan(text)], code, why);
    }
}
