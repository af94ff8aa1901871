//! One request, traced through a client, a master and a node.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use mc_testkit::{Finished, Input, Program, binary, eventually_blocking};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

use crate::support::{DEADLINE, Master, Node};

/// A collector of OpenTelemetry: takes spans over HTTP.
struct Collector {
    address: String,
    /// Each with the name of its service.
    spans: Arc<Mutex<Vec<(String, Span)>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let spans = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&spans);
        // Ends with the process of the test.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                thread::spawn(move || serve(&stream, &kept));
            }
        });
        Self { address, spans }
    }

    /// The environment of a traced program.
    fn environment(&self, sampler: &str) -> Vec<(&'static str, OsString)> {
        vec![
            ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", self.address).into()),
            ("OTEL_TRACES_SAMPLER", sampler.into()),
            ("OTEL_BSP_SCHEDULE_DELAY", "50".into()),
            // Processes of one host would read each other's memory themselves.
            ("MC_STORE_SHARED_MEMORY", "false".into()),
        ]
    }

    fn find(&self, wanted: impl Fn(&str, &Span) -> bool) -> Option<(String, Span)> {
        let spans = self.spans.lock().expect("no panic");
        spans.iter().find(|(service, span)| wanted(service, span)).cloned()
    }

    /// The span of `service` with this name and parent, once it is there.
    fn span(&self, service: &str, name: &str, parent: &[u8]) -> Span {
        let of = |of: &str, span: &Span| {
            of == service && span.name == name && span.parent_span_id == parent
        };
        let what = format!("{service} tells of {name}");
        eventually_blocking(DEADLINE, &what, || self.find(of).is_some());
        self.find(of).expect("it was there").1
    }
}

fn serve(mut stream: &TcpStream, spans: &Mutex<Vec<(String, Span)>>) {
    let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
    loop {
        let (mut len, mut first) = (0, true);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if first {
                assert_eq!(line.trim_end(), "POST /v1/traces HTTP/1.1");
            }
            first = false;
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(number) = line.strip_prefix("content-length:") {
                len = number.trim().parse().expect("a length");
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body).expect("a body");
        let told = ExportTraceServiceRequest::decode(&*body).expect("spans");
        for of in told.resource_spans {
            let attributes = of.resource.expect("a resource").attributes;
            let service = text(&attributes, "service.name").expect("a service");
            let new = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.lock().expect("no panic").extend(new.map(|span| (service.clone(), span)));
        }
        let answer =
            "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer.as_bytes()).expect("a reader");
    }
}

fn value(attributes: &[KeyValue], key: &str) -> Option<Value> {
    attributes.iter().find(|it| it.key == key)?.value.clone()?.value
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    match value(attributes, key)? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn number(span: &Span, key: &str) -> Option<i64> {
    match value(&span.attributes, key)? {
        Value::IntValue(number) => Some(number),
        _ => None,
    }
}

fn ctl(environment: &[(&str, OsString)], master: &str, args: &[&str], input: &[u8]) -> Finished {
    let mut command = Command::new(binary("mc-ctl"));
    command.arg(format!("--master_server_address={master}")).args(args);
    command.envs(environment.iter().cloned());
    Program::start(DEADLINE, &mut command, Input::Bytes(input)).finish()
}

#[test]
fn a_request_is_one_trace_of_client_master_and_node() {
    const LEN: i64 = 300_000;
    let collector = Collector::start();
    let environment = collector.environment("parentbased_always_on");
    let master = Master::start_in(0, &[], &environment);
    let node = Node::start_in(&master.address, "a", 0, "16MB", &[], &environment);
    ctl(&environment, &master.address, &["put", "k"], &vec![7; LEN as usize]).assert_ok();
    ctl(&environment, &master.address, &["get", "k"], b"").assert_ok();

    for (operation, call, moved) in [
        ("put", "BatchPutStart", "mc.written.bytes"),
        ("get", "BatchGetReplicaList", "mc.read.bytes"),
    ] {
        let root = collector.span("mc-ctl", operation, &[]);
        assert_eq!(number(&root, "mc.bytes"), Some(LEN), "{root:?}");
        let asks = collector.span("mc-ctl", call, &root.span_id);
        let answers = collector.span("mc-master", call, &asks.span_id);
        assert!(number(&answers, "mc.request.bytes") > Some(0), "{answers:?}");
        let transfer = collector.span("mc-ctl", "transfer", &root.span_id);
        assert_eq!(text(&transfer.attributes, "network.transport").as_deref(), Some("tcp"));
        let to = text(&transfer.attributes, "server.address").expect("a peer");
        assert!(to.contains(&node.address), "{to}");
        let serves = collector.span("mc-node", "serve", &transfer.span_id);
        for span in [&transfer, &serves] {
            assert_eq!(number(span, moved), Some(LEN), "{span:?}");
        }
        for span in [&asks, &answers, &transfer, &serves] {
            assert_eq!(span.trace_id, root.trace_id, "{span:?}");
        }
    }

    // What is refused is told with its code.
    ctl(&environment, &master.address, &["get", "missing"], b"").assert_refused(1, "missing");
    let failed = |of: &str, span: &Span| {
        of == "mc-ctl" && span.name == "get" && text(&span.attributes, "error.type").is_some()
    };
    eventually_blocking(DEADLINE, "the failed get", || collector.find(failed).is_some());
    let (_, failed) = collector.find(failed).expect("it was there");
    assert_eq!(text(&failed.attributes, "error.type").as_deref(), Some("OBJECT_NOT_FOUND"));

    // Nothing that no request asked for is traced: no heartbeat, and no span without a parent elsewhere.
    let roots: HashMap<String, usize> = {
        let spans = collector.spans.lock().expect("no panic");
        let mut roots = HashMap::new();
        for (service, _) in spans.iter().filter(|(_, span)| span.parent_span_id.is_empty()) {
            *roots.entry(service.clone()).or_default() += 1;
        }
        roots
    };
    assert_eq!(roots.keys().collect::<Vec<_>>(), ["mc-ctl"], "{roots:?}");
}

#[test]
fn what_is_not_sampled_is_not_told_and_a_collector_that_is_away_stops_nothing() {
    let collector = Collector::start();
    let environment = collector.environment("always_off");
    let master = Master::start_in(0, &[], &collector.environment("parentbased_always_on"));
    let _node = Node::start_with(&master.address, "a", 0, "16MB", &[]);
    ctl(&environment, &master.address, &["put", "k", "v"], b"").assert_ok();

    let away = [("OTEL_EXPORTER_OTLP_ENDPOINT", OsString::from("http://127.0.0.1:1"))];
    let got = ctl(&away, &master.address, &["get", "k"], b"");
    assert_eq!(got.code, Some(0), "{}", got.err);
    assert!(got.err.contains("cannot send spans to the collector"), "{}", got.err);

    for (variable, value, told) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "=grpc is not supported; write http/protobuf"),
        ("OTEL_TRACES_SAMPLER", "some", "=some is not supported; write one of always_on, "),
        ("OTEL_TRACES_SAMPLER", "traceidratio", "=traceidratio needs OTEL_TRACES_SAMPLER_ARG"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector", "invalid endpoint 'collector'"),
    ] {
        let mut wrong = collector.environment("always_on");
        wrong.push((variable, value.into()));
        let got = ctl(&wrong, &master.address, &["get", "k"], b"");
        assert_eq!(got.code, Some(0), "{}", got.err);
        assert!(got.err.contains(told) && got.err.contains(variable), "{}", got.err);
    }

    let traced = collector.environment("parentbased_always_on");
    ctl(&traced, &master.address, &["get", "k"], b"").assert_ok();
    let root = collector.span("mc-ctl", "get", &[]);
    let spans = collector.spans.lock().expect("no panic");
    assert!(spans.iter().all(|(_, span)| !span.name.ends_with("PutStart")), "{spans:?}");
    let of_ctl = || spans.iter().filter(|(of, _)| of == "mc-ctl");
    assert!(of_ctl().all(|(_, span)| span.trace_id == root.trace_id), "{spans:?}");
}
