//! How busy and how fast nodes are, and which is slow beside the others.

use std::time::Duration;

use mc_rpc::NodeReport;
use serde_json::{Value, json};

/// A node is slow when it takes so many times as long as the one in the middle.
const SLOW: u32 = 4;

/// So many nodes tell what is usual.
const FEWEST: usize = 3;

/// How a node's time is called, what it is, and the time that is good whatever the others have.
type Measure = (&'static str, fn(&NodeReport) -> Option<Duration>, Duration);

const MEASURES: [Measure; 3] = [
    ("its own data port answers in", |node| node.answer, Duration::from_millis(2)),
    ("others find that a short transfer takes", |node| node.small, Duration::from_millis(2)),
    ("others find that a mebibyte takes", |node| node.mebibyte, Duration::from_millis(20)),
];

/// How busy and how fast a node is, and what of it is slow.
#[must_use]
pub fn node_load_json(load: &NodeReport, slow: Option<&str>) -> Value {
    let micros = |time: Duration| time.as_micros() as u64;
    json!({
        "age_ms": load.age.as_millis() as u64,
        "read_rate": load.read_rate,
        "write_rate": load.write_rate,
        "operation_rate": load.operation_rate,
        "answer_us": load.answer.map(micros),
        "worst_answer_us": micros(load.worst_answer),
        "judges": load.judges,
        "small_us": load.small.map(micros),
        "mebibyte_us": load.mebibyte.map(micros),
        "slow": slow,
    })
}

/// The reason why each of these nodes is slow beside the others, in their order.
#[must_use]
pub fn slow_nodes(nodes: &[NodeReport]) -> Vec<Option<String>> {
    let mut slow = vec![None; nodes.len()];
    for (name, of, good) in MEASURES {
        let mut times: Vec<Duration> = nodes.iter().filter_map(of).collect();
        if times.len() < FEWEST {
            continue;
        }
        times.sort_unstable();
        // Of an even number the quicker one: half of the nodes may be slow.
        let usual = times[(times.len() - 1) / 2];
        for (node, slow) in nodes.iter().zip(&mut slow) {
            let time = of(node).filter(|time| *time > good && *time > usual * SLOW);
            if let (Some(time), None) = (time, &slow) {
                *slow = Some(format!("{name} {}, elsewhere in {}", millis(time), millis(usual)));
            }
        }
    }
    slow
}

/// A short time in words.
#[must_use]
pub fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use mc_types::ClientId;

    use super::*;

    fn node(answer: u64, small: u64) -> NodeReport {
        let mut node = NodeReport::new(ClientId::from_u128(1));
        node.answer = Some(Duration::from_micros(answer));
        node.small = Some(Duration::from_micros(small));
        node
    }

    #[test]
    fn a_node_is_slow_beside_others() {
        let nodes = [node(100, 100), node(120, 90), node(9000, 100), node(80, 7000)];
        let slow = slow_nodes(&nodes);
        assert_eq!(slow[..2], [None, None]);
        let told = "its own data port answers in 9.00 ms, elsewhere in 0.10 ms";
        assert_eq!(slow[2].as_deref(), Some(told));
        let told = "others find that a short transfer takes 7.00 ms, elsewhere in 0.10 ms";
        assert_eq!(slow[3].as_deref(), Some(told));
        // A slow network is no slow node, and of two none is usual.
        assert_eq!(slow_nodes(&vec![node(9000, 9000); 4]), vec![None; 4]);
        assert_eq!(slow_nodes(&nodes[1..3]), [None, None]);
        // What is short is good, whatever the others have.
        assert_eq!(slow_nodes(&[node(1, 1), node(1, 1), node(1900, 1900)]), [None, None, None]);
    }
}
