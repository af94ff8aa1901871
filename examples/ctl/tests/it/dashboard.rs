//! The pages that tell how the cluster is: what they say, their description, and the dashboard in a browser.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::mpsc;
use std::time::Instant;

use mc_testkit::{Input, Program, Signal, eventually_blocking};
use serde_json::{Map, Value, json};

use crate::support::{DEADLINE, Master, Node, ask, ctl, ctl_with_input, get};

/// A master with two nodes, an object, and the memory of another one.
fn cluster() -> (Master, [Node; 2]) {
    let master = Master::start(0, &["--enable_multi_tenants"]);
    let nodes = ["node/a", "node-b"].map(|name| Node::start(&master.address, name, 0, "16MB"));
    for key in ["kept", "gone"] {
        ctl_with_input(&master.address, &["put", key], &[7; 5000]).assert_ok();
    }
    ctl(&master.address, &["remove", "gone"]).assert_ok();
    (master, nodes)
}

/// The first part of `value` that is not as `schema` says; references lead into `document`.
fn mismatch(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    let wrong = || Some(format!("{value} is not {schema}"));
    if let Some(name) = schema["$ref"].as_str() {
        let target =
            document.pointer(name.trim_start_matches('#')).expect("the reference leads somewhere");
        return mismatch(document, target, value);
    }
    if value.is_null() {
        return if schema["nullable"] == true { None } else { wrong() };
    }
    if let Some(all) = schema["allOf"].as_array() {
        return all.iter().find_map(|schema| mismatch(document, schema, value));
    }
    if let Some(any) = schema["oneOf"].as_array() {
        let is_one = any.iter().any(|schema| mismatch(document, schema, value).is_none());
        return if is_one { None } else { wrong() };
    }
    if let Some(allowed) = schema["enum"].as_array() {
        return if allowed.contains(value) { None } else { wrong() };
    }
    match (schema["type"].as_str().expect("a type"), value) {
        ("integer", Value::Number(number)) if number.is_u64() => None,
        ("number", Value::Number(_))
        | ("string", Value::String(_))
        | ("boolean", Value::Bool(_)) => None,
        ("array", Value::Array(items)) => {
            items.iter().find_map(|item| mismatch(document, &schema["items"], item))
        }
        ("object", Value::Object(fields)) => {
            let required = schema["required"].as_array().into_iter().flatten();
            let missing =
                required.filter_map(Value::as_str).find(|name| !fields.contains_key(*name));
            let none = Map::new();
            let known = schema["properties"].as_object().unwrap_or(&none);
            let others = &schema["additionalProperties"];
            let of = |name: &str| known.get(name).or(others.is_object().then_some(others));
            missing.map(|name| format!("{name} is missing")).or_else(|| {
                fields.iter().find_map(|(name, value)| match of(name) {
                    Some(schema) => mismatch(document, schema, value),
                    // Objects without a list of fields are described elsewhere.
                    None if known.is_empty() => None,
                    None => Some(format!("{name} is not described")),
                })
            })
        }
        _ => wrong(),
    }
}

#[test]
fn every_page_is_as_its_description_says() {
    let (master, _nodes) = cluster();
    let document = get(&master, "/openapi.json").json();
    assert_eq!(document["openapi"], "3.0.3");
    let values = json!({
        "key": "kept", "keys": "kept,gone", "segment": "node/a", "limit": 7, "after": 0, "tenant_id": "",
    });
    let mut with_schema = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        // One does not end, one is about a drain, and some change something.
        let elsewhere = ["/api/v1/live", "/api/v1/drain_jobs/query"];
        if elsewhere.contains(&&**path) || methods["get"].is_null() {
            continue;
        }
        let parameters = methods["get"]["parameters"].as_array().into_iter().flatten();
        let query: Vec<String> = parameters
            .map(|parameter| {
                let name = parameter["name"].as_str().expect("a name");
                let value = &values[name];
                assert!(
                    !value.is_null(),
                    "{path} has a parameter {name} that this test does not know"
                );
                format!("{name}={}", value.to_string().trim_matches('"'))
            })
            .collect();
        let answer = get(&master, &format!("{path}?{}", query.join("&")));
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let described = methods["get"]["responses"]["200"]["content"].as_object().expect("types");
        let kind = answer.head.lines().find_map(|line| line.strip_prefix("content-type: "));
        let kind = kind.and_then(|kind| kind.split(';').next()).expect("a type");
        let content = described.get(kind).unwrap_or_else(|| panic!("{path} is {kind}"));
        if let Some(schema) = content.get("schema") {
            with_schema += 1;
            assert_eq!(
                mismatch(&document, schema, &answer.json()),
                None,
                "{path}: {}",
                answer.body
            );
        }
    }
    assert!(with_schema >= 8, "{with_schema} pages have a schema");
    for (target, status, schema) in
        [("/api/v1/object", 400, "Failure"), ("/query_key?key=x", 404, "Failure")]
    {
        let answer = get(&master, target);
        assert_eq!(answer.status, status, "{}", answer.body);
        let schema = json!({ "$ref": format!("#/components/schemas/{schema}") });
        let body = answer.json();
        // The codes of errors are negative.
        let code = body["error_code"].as_i64().expect("a code");
        assert!(code < 0, "{body}");
        let body = json!({ "success": body["success"], "error_code": -code, "error_message": body["error_message"] });
        assert_eq!(mismatch(&document, &schema, &body), None);
    }
}

#[test]
fn pages_tell_what_is_there_and_what_was() {
    let (master, nodes) = cluster();
    let overview = get(&master, "/api/v1/cluster").json();
    assert_eq!(overview["role"], "leader");
    assert_eq!(overview["alerts"], json!([]));
    assert_eq!((&overview["segments"], &overview["totals"]["objects"]), (&json!(2), &json!(1)));
    assert_eq!(overview["totals"]["removed_objects"], 1);
    let hour = get(&master, "/api/v1/history").json();
    let removed = |minutes: &Value| -> u64 {
        let minutes = minutes.as_array().into_iter().flatten();
        minutes.filter_map(|minute| minute["totals"]["removed_objects"].as_u64()).sum()
    };
    assert_eq!(removed(&hour), 1, "{hour}");
    let told = ctl(&master.address, &["history", "--json"]).assert_ok();
    let told: Vec<Value> =
        told.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(removed(&told.into()), 1);
    let segments = get(&master, "/api/v1/segments").json();
    let names: Vec<&Value> = segments.as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["node-b", "node/a"]);
    let used: u64 =
        segments.as_array().unwrap().iter().filter_map(|one| one["used"].as_u64()).sum();
    assert!((5000..6000).contains(&used), "{segments}");
    assert_eq!(overview["used"], used);
    let told = get(&master, "/api/v1/nodes").json();
    assert_eq!(told.as_array().unwrap().len(), 2);
    assert!(told.as_array().unwrap().iter().all(|node| node["state"] == "ok"), "{told}");

    let kept = get(&master, "/api/v1/object?key=kept").json();
    assert_eq!(kept["object"]["bytes"], 5000);
    assert_eq!(kept["object"]["replicas"][0]["status"], "complete");
    let gone = get(&master, "/api/v1/object?key=gone").json();
    assert_eq!(gone["object"], Value::Null);
    assert_eq!(gone["history"][0]["event"], "it was removed on request");
    let never = get(&master, "/api/v1/object?key=n%C3%A9ver").json();
    assert_eq!((&never["key"], &never["history"]), (&json!("néver"), &json!([])));
    get(&master, "/api/v1/object?key=").assert_failed(400, -600, "/api/v1/object?key=NAME");
    get(&master, &format!("/api/v1/object?key={}", "x".repeat(1025)))
        .assert_failed(400, -400, "1025");
    // Looking grants no lease.
    ctl(&master.address, &["remove", "kept"]).assert_ok();

    // A node that stands still is away a while later, and the overview says what to do.
    let [first, second] = nodes;
    first.program.signal(Signal::STOP);
    let alert = eventually_blocking(DEADLINE, "an alert", || {
        let alerts = get(&master, "/api/v1/cluster").json()["alerts"].clone();
        alerts.as_array().unwrap().iter().find(|one| one["name"] == "McSegmentAway").cloned()
    });
    assert_eq!(
        (&alert["severity"], &alert["says"]),
        (&json!("warning"), &json!("The nodes of node/a are silent"))
    );
    assert_eq!(alert["runbook"], "docs/operations.md#mcsegmentaway");
    first.program.signal(Signal::CONT);
    drop((first, second));
}

#[test]
fn what_goes_on_comes_as_events() {
    let (master, _nodes) = cluster();
    let stream = TcpStream::connect(master.metrics.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    (&stream).write_all(b"GET /api/v1/live HTTP/1.0\r\n\r\n").unwrap();
    let mut lines = BufReader::new(&stream).lines();
    let mut next = || loop {
        let line = lines.next().expect("it goes on").expect("a line in time");
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str::<Value>(data).expect("JSON");
        }
    };
    assert_eq!(next()["totals"]["objects"], 1);
    ctl(&master.address, &["remove", "kept"]).assert_ok();
    eventually_blocking(DEADLINE, "the removal", || {
        (next()["totals"]["objects"] == 0).then_some(())
    });
    // So many may follow, and the next one may when one has gone.
    let follow = || {
        let stream = TcpStream::connect(master.metrics.trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        (&stream).write_all(b"GET /api/v1/live HTTP/1.0\r\n\r\n").unwrap();
        let mut first = String::new();
        BufReader::new(&stream).read_line(&mut first).expect("a line in time");
        (stream, first)
    };
    let others: Vec<_> = (1..32).map(|_| follow()).collect();
    assert!(others.iter().all(|(_, first)| first.contains(" 200 ")), "{others:?}");
    get(&master, "/api/v1/live").assert_failed(503, -1010, "32 pages follow");
    get(&master, "/health").ok();
    drop(others);
    eventually_blocking(DEADLINE, "a place", || follow().1.contains(" 200 ").then_some(()));
    let post = ask(&master, "POST", "/api/v1/live", "");
    assert_eq!(post.status, 405, "{}", post.body);
}

/// A browser without a window, and a page in it.
struct Browser {
    program: Program,
    to: File,
    /// What the browser says, answers and events.
    from: mpsc::Receiver<Value>,
    session: String,
    asked: u64,
    /// What the page's console was told, and errors of the page.
    console: Vec<Value>,
    _directory: tempfile::TempDir,
}

impl Browser {
    /// Opens a page. The browser is spoken to over two named pipes, in the protocol of its developers' tools.
    fn open(url: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let pipes = [path("to"), path("from")];
        assert!(Command::new("mkfifo").args(&pipes).status().expect("coreutils").success());
        let flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run";
        let script = format!(
            "exec chromium {flags} --remote-debugging-pipe --user-data-dir={} 3<{} 4>{}",
            path("profile").display(),
            pipes[0].display(),
            pipes[1].display(),
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]);
        let program = Program::start(4 * DEADLINE, &mut shell, Input::None);
        let to = File::options().write(true).open(&pipes[0]).expect("a pipe");
        let said = BufReader::new(File::open(&pipes[1]).expect("a pipe")).split(0);
        let (told, from) = mpsc::channel();
        // Ends with the browser.
        std::thread::spawn(move || {
            for message in said.map_while(Result::ok) {
                if told.send(serde_json::from_slice(&message).expect("JSON")).is_err() {
                    return;
                }
            }
        });
        let (session, console) = (String::new(), Vec::new());
        let mut browser =
            Self { program, to, from, session, asked: 0, console, _directory: directory };
        let page = browser.ask("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = browser.ask("Target.attachToTarget", &attach);
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
            browser.ask(domain, &json!({}));
        }
        browser.ask("Page.navigate", &json!({ "url": url }));
        browser
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.asked += 1;
        let mut question = json!({ "id": self.asked, "method": method, "params": params });
        if !self.session.is_empty() {
            question["sessionId"] = self.session.as_str().into();
        }
        self.to.write_all(question.to_string().as_bytes()).expect("a reader");
        self.to.write_all(&[0]).expect("a reader");
        loop {
            let told = self.from.recv_timeout(DEADLINE).expect("an answer of the browser in time");
            if told["id"] == self.asked {
                assert!(told["error"].is_null(), "{method}: {told}");
                return told["result"].clone();
            }
            let method = told["method"].as_str().unwrap_or_default();
            if ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"]
                .contains(&method)
            {
                self.console.push(told);
            }
        }
    }

    /// The value of an expression in the page.
    fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        let value = self.ask("Runtime.evaluate", &asked);
        assert!(value["exceptionDetails"].is_null(), "{value}");
        value["result"]["value"].clone()
    }

    /// Waits until the page shows all of these texts.
    #[track_caller]
    fn wait_for(&mut self, texts: &[&str]) {
        let start = Instant::now();
        loop {
            let shown = self.value("document.body?.innerText ?? ''");
            let shown = shown.as_str().expect("a text");
            let missing = texts.iter().find(|text| !shown.contains(**text));
            let Some(missing) = missing else { return };
            assert!(start.elapsed() < DEADLINE, "{missing} is not in {shown}\n{:?}", self.console);
        }
    }
}

/// Needs the package `chromium`.
#[test]
fn the_dashboard_shows_the_same_in_a_browser() {
    if Command::new("chromium").arg("--version").output().is_err() {
        eprintln!("left out: the dashboard in a browser; chromium is not installed");
        return;
    }
    let (master, nodes) = cluster();
    let page = get(&master, "/");
    assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);
    assert!(page.body.len() < 150 << 10, "{} bytes", page.body.len());
    for external in ["src=\"http", "href=\"http", "@import", "url(http"] {
        assert!(!page.body.contains(external), "{external}");
    }
    let mut browser = Browser::open(&format!("{}/", master.metrics));
    let told = get(&master, "/api/v1/nodes").json();
    let endpoints: Vec<&str> =
        told.as_array().unwrap().iter().filter_map(|node| node["endpoint"].as_str()).collect();
    browser.wait_for(&["all is well", "node/a", "node-b", "of 32.0 MB", "2 segments", "PutStart"]);
    browser.wait_for(&endpoints);
    let bars = browser.value("document.querySelectorAll('#map .bar[aria-label]').length");
    assert_eq!(bars, 2);
    // The questions of the form are answered in words, and what they show is text.
    for (key, says) in [
        ("kept", "It is there: 4.9 KB, in the memory of"),
        ("gone", "it was removed on request"),
        ("<b>x</b>", "the master remembers nothing of it"),
    ] {
        browser.value(&format!(
            "document.getElementById('find-key').value = {}; document.querySelector('#find button').click()",
            json!(key)
        ));
        browser.wait_for(&[key, says]);
    }
    // All can be reached by the keyboard, on a narrow screen nothing is cut off, and each control has a name.
    let narrow = json!({ "width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": true });
    browser.ask("Emulation.setDeviceMetricsOverride", &narrow);
    assert!(browser.value("document.documentElement.scrollWidth").as_u64() <= Some(360));
    let unnamed =
        "[...document.querySelectorAll('input')].filter(one => !one.labels.length).length";
    assert_eq!(browser.value(unnamed), 0);

    // It goes on by itself.
    let [first, _second] = nodes;
    first.program.signal(Signal::STOP);
    browser.wait_for(&["McSegmentAway", "The nodes of node/a are silent"]);
    first.program.signal(Signal::CONT);
    browser.wait_for(&["all is well"]);
    assert_eq!(browser.console, Vec::<Value>::new(), "the console is empty");
    browser.session.clear();
    browser.ask("Browser.close", &json!({}));
    browser.program.finish();
}
