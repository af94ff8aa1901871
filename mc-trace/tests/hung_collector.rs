//! A collector that takes connections and never answers.
#![cfg(feature = "otlp")]

use std::env;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use mc_trace::otlp::export_from_env;
use mc_trace::{Kind, Span};

/// Set for the process that is traced.
const TRACED: &str = "MC_TEST_TRACED";

#[test]
fn a_collector_that_hangs_holds_up_neither_spans_nor_for_long_the_end() {
    if env::var_os(TRACED).is_some() {
        let exporting = export_from_env("test").unwrap().expect("the variables say where");
        let begun = Instant::now();
        // More than the queue has room for.
        for _ in 0..10_000 {
            assert!(Span::root("span", Kind::Internal).is_recording());
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "a span waited for the collector");
        let begun = Instant::now();
        drop(exporting);
        assert!(begun.elapsed() < Duration::from_secs(5), "the end waited for the collector");
        return;
    }
    // The system takes the connection, and no process does.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = "a_collector_that_hangs_holds_up_neither_spans_nor_for_long_the_end";
    let mut traced = Command::new(env::current_exe().unwrap());
    traced.args(["--exact", name, "--nocapture"]).env(TRACED, "1");
    let address = listener.local_addr().unwrap();
    traced.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}"));
    traced.env("OTEL_TRACES_SAMPLER", "always_on").env("NO_PROXY", "127.0.0.1");
    let ended = traced.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}
