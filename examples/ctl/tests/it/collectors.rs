//! The pages of metrics, read by Prometheus' own library.

use std::process::Command;

use mc_testkit::{Input, Program};

use crate::support::{DEADLINE, Master, Node, ctl};

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

/// Needs the package `python3-prometheus-client`.
#[test]
fn the_pages_are_read_in_both_formats() {
    let python = "/usr/bin/python3";
    let imported = Command::new(python).args(["-c", "import prometheus_client"]).output();
    if !imported.is_ok_and(|ended| ended.status.success()) {
        eprintln!("left out: the formats of metrics; python3-prometheus-client is not installed");
        return;
    }
    let master = Master::start(0, &["--enable_multi_tenants"]);
    let pages = ["--enable_http_server", "--http_port=0"];
    let node = Node::start_with(&master.address, "a \"node\"", 0, "16MB", &pages);
    let announced = node.program.wait_err(|line| {
        Some(line[line.find("http://")?..].trim_end_matches("/metrics").to_owned())
    });
    ctl(&master.address, &["put", "k", "v", "--tenant=t"]).assert_ok();
    ctl(&master.address, &["get", "k", "--tenant=t"]).assert_ok();
    let urls = [&master.metrics, &announced].map(|url| format!("{url}/metrics"));
    let mut command = Command::new(python);
    command.args(["-c", READ]).args(&urls);
    let read = Program::start(DEADLINE, &mut command, Input::None).finish().assert_ok();
    let counts: Vec<usize> =
        read.text().lines().map(|line| line.parse().expect("a number")).collect();
    assert!(counts.len() == 2 && counts[0] > 80 && counts[1] > 40, "{counts:?}");
}
