//! The pages of metrics, read by Prometheus' own library.

use std::fs;
use std::process::Command;

use mc_testkit::{Input, Program, eventually_blocking};
use serde_json::Value;

use crate::support::{DEADLINE, Master, Node, ctl, page};

/// Reads each page in both formats. Both have the same samples; of a counter the family has no `_total`.
const READ: &str = r#"
import sys, urllib.request
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

def page(url, accept):
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.headers["Content-Type"], answer.read().decode()

def names(families):
    # Of the classic format the library gives every counter the end that one has in OpenMetrics.
    return sorted({(sample.name.removesuffix("_total"), len(sample.labels)) for family in families for sample in family.samples})

for url in sys.argv[1:]:
    kind, text = page(url, "text/plain")
    assert kind.startswith("text/plain; version=0.0.4"), kind
    # What a Prometheus asks for.
    both = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
    kind, other = page(url, both)
    assert kind.startswith("application/openmetrics-text; version=1.0.0"), kind
    names_of_both = names(classic(text)), names(openmetrics(other))
    assert names_of_both[0] == names_of_both[1], set(names_of_both[0]) ^ set(names_of_both[1])
    print(len(names(classic(text))))
"#;

/// A master and a node that count something, and the address of the node's pages.
fn cluster() -> (Master, Node, String) {
    let master = Master::start(0, &["--enable_multi_tenants"]);
    let pages = ["--enable_http_server", "--http_port=0"];
    let node = Node::start_with(&master.address, "a \"node\"", 0, "16MB", &pages);
    let announced = node.program.wait_err(|line| {
        let url = line[line.find("http://")?..].trim_end_matches("/metrics");
        Some(url.replace("0.0.0.0", "127.0.0.1"))
    });
    ctl(&master.address, &["put", "k", "v", "--tenant=t"]).assert_ok();
    ctl(&master.address, &["get", "k", "--tenant=t"]).assert_ok();
    (master, node, announced)
}

/// Needs the package `prometheus`.
#[test]
fn a_prometheus_takes_every_sample() {
    if Command::new("prometheus").arg("--version").output().is_err() {
        eprintln!("left out: a scrape by Prometheus; prometheus is not installed");
        return;
    }
    let (master, _node, pages_of_node) = cluster();
    let targets = [&*master.metrics, &*pages_of_node].map(|url| url.trim_start_matches("http://"));
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n\
         - {{job_name: mc, static_configs: [{{targets: {targets:?}}}]}}\n"
    );
    fs::write(&config, text).expect("a file");
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()));
    command.arg("--web.listen-address=127.0.0.1:0");
    let prometheus = Program::start(DEADLINE, &mut command, Input::None);
    let url = prometheus.wait_err(|line| {
        let address = line.split_once("msg=\"Listening on\" address=")?.1;
        Some(format!("http://{}", address.split_whitespace().next()?))
    });
    prometheus.wait_err(|line| line.contains("Server is ready").then_some(()));
    let ask = |query: &str| {
        let told: Value =
            serde_json::from_str(&page(&url, &format!("/api/v1/query?query={query}")))
                .expect("JSON");
        let all = told["data"]["result"].as_array().cloned().unwrap_or_default();
        let number = |one: &Value| one["value"][1].as_str()?.parse::<f64>().ok();
        all.iter().filter_map(number).collect::<Vec<_>>()
    };
    eventually_blocking(DEADLINE, "both are scraped", || ask("up") == [1.0, 1.0]);
    eventually_blocking(DEADLINE, "a counter is there", || {
        ask("mc_tenant_lookups_total{result=%22found%22}").iter().any(|found| *found > 0.0)
    });
    // The limits of buckets are numbers with fractions in OpenMetrics alone.
    eventually_blocking(DEADLINE, "it asked for OpenMetrics", || {
        !ask("count({le=~%22.*[.]0%22})").is_empty()
    });
}

/// Needs the package `python3-prometheus-client`.
#[test]
fn the_pages_are_read_in_both_formats() {
    let python = "/usr/bin/python3";
    let imported = Command::new(python).args(["-c", "import prometheus_client"]).output();
    if !imported.is_ok_and(|ended| ended.status.success()) {
        eprintln!("left out: the formats of metrics; python3-prometheus-client is not installed");
        return;
    }
    let (master, _node, pages_of_node) = cluster();
    let urls = [&master.metrics, &pages_of_node].map(|url| format!("{url}/metrics"));
    let mut command = Command::new(python);
    command.args(["-c", READ]).args(&urls);
    let read = Program::start(DEADLINE, &mut command, Input::None).finish().assert_ok();
    let counts: Vec<usize> =
        read.text().lines().map(|line| line.parse().expect("a number")).collect();
    assert!(counts.len() == 2 && counts[0] > 80 && counts[1] > 40, "{counts:?}");
}
