//! NUMA nodes, from `/sys/devices/system/node`.

use std::ops::RangeInclusive;
use std::path::Path;

use super::sysfs;

/// Processors and memory that are close to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NumaNode {
    pub(super) number: u32,
    cpus: Vec<RangeInclusive<u32>>,
    /// To every node, in the order of their numbers.
    pub(super) distances: Vec<u32>,
}

impl NumaNode {
    pub(super) fn has_cpu(&self, cpu: u32) -> bool {
        self.cpus.iter().any(|cpus| cpus.contains(&cpu))
    }
}

/// The nodes in the folder `nodes`, by number.
pub(super) fn read(nodes: &Path) -> Vec<NumaNode> {
    let names = sysfs::names(nodes);
    let numbers = names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok());
    let mut read: Vec<NumaNode> = numbers
        .map(|number: u32| {
            let folder = nodes.join(format!("node{number}"));
            // A node of memory alone has no processors.
            let cpus = sysfs::text(&folder.join("cpulist")).unwrap_or_default();
            let distances = sysfs::text(&folder.join("distance")).unwrap_or_default();
            NumaNode { number, cpus: parse_list(&cpus), distances: parse_distances(&distances) }
        })
        .collect();
    read.sort_unstable_by_key(|node| node.number);
    read
}

/// The ranges of a text like `0-3,8,10-11`; what is no range is left out.
fn parse_list(text: &str) -> Vec<RangeInclusive<u32>> {
    let parse = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(parse).collect()
}

/// The numbers of a text like `10 21`; none when it has anything else, since their
/// places count.
fn parse_distances(text: &str) -> Vec<u32> {
    text.split_whitespace().map(str::parse).collect::<Result<_, _>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::Topology;
    use super::super::sysfs::Tree;
    use super::*;

    #[test]
    fn processors_have_nodes_and_nodes_have_distances() {
        let tree = Tree::new(&[
            ("devices/system/node/online", "0-1,10\n"),
            ("devices/system/node/node0/cpulist", "0-1,8-9\n"),
            ("devices/system/node/node0/distance", "10 21 31\n"),
            ("devices/system/node/node1/cpulist", "2-7\n"),
            ("devices/system/node/node1/distance", "21 10 32\n"),
            ("devices/system/node/node10/cpulist", "\n"),
            ("devices/system/node/node10/distance", "31 32\n"),
        ]);
        let topology = Topology::from_sysfs(tree.root(), &[]);
        let nodes: Vec<_> = (0..11).map(|cpu| topology.numa_node_of_cpu(cpu)).collect();
        let expected = [0, 0, 1, 1, 1, 1, 1, 1, 0, 0].map(Some);
        assert_eq!((&nodes[..10], nodes[10]), (&expected[..], None));
        assert_eq!(topology.numa_distance(0, 10), Some(31));
        assert_eq!(topology.numa_distance(1, 1), Some(10));
        assert_eq!(topology.numa_distance(10, 10), None, "the file is too short");
        assert_eq!(topology.numa_distance(0, 2), None);
    }

    #[test]
    fn what_is_no_list_is_empty() {
        assert!(parse_list("").is_empty());
        assert_eq!(parse_list("x,3,-1,4-,7-5"), [3..=3, RangeInclusive::new(7, 5)]);
        assert!(parse_distances("10 x").is_empty());
    }
}
