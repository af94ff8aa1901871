//! `nodes`: what each node contributes, and how it is.

use std::collections::BTreeMap;
use std::process::ExitCode;

use mc_cli::{millis, node_load_json, slow_nodes, table};
use mc_meta::LocalDiskInfo;
use mc_rpc::{ClusterReport, NodeReport};
use mc_store::Client;
use mc_types::{ByteSize, ClientId};
use serde_json::json;

use crate::error::CtlError;
use crate::stat::{disks, segment_state};
use crate::text::{names, print};

pub(crate) async fn nodes(client: &Client, json: bool) -> Result<ExitCode, CtlError> {
    let report = client.cluster_report().await?;
    let nodes = Node::all(&report, &disks(client).await?);
    let text = match json {
        true => nodes.iter().map(Node::line).collect(),
        false => human(&nodes),
    };
    print(text.as_bytes())?;
    let is_well = nodes.iter().all(|node| node.state == "ok");
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A client that contributes memory, or a disk.
#[derive(Debug, Default)]
struct Node {
    client: String,
    endpoint: String,
    /// That of the segment which is worst off.
    state: &'static str,
    segments: Vec<String>,
    used: u64,
    size: u64,
    disk: Option<(u64, u64)>,
    load: Option<NodeReport>,
    /// The reason why it is slow beside the others.
    slow: Option<String>,
}

impl Node {
    /// Every node, those that are not well first.
    fn all(report: &ClusterReport, disks: &[LocalDiskInfo]) -> Vec<Self> {
        let mut nodes: BTreeMap<ClientId, Self> = BTreeMap::new();
        for segment in &report.segments {
            let node = nodes.entry(segment.client).or_default();
            let state = segment_state(segment);
            if node.segments.is_empty() || rank(state) < rank(node.state) {
                node.state = state;
            }
            node.endpoint = segment.endpoint.to_string();
            node.segments.push(segment.name.to_string());
            node.used = node.used.saturating_add(segment.used);
            node.size = node.size.saturating_add(segment.size);
        }
        for disk in disks {
            let node = nodes.entry(disk.client).or_default();
            if node.segments.is_empty() {
                node.endpoint = disk.endpoint.to_string();
                node.state = "ok";
            }
            node.disk = Some((disk.usage.used, disk.usage.capacity));
        }
        for (load, slow) in report.nodes.iter().zip(slow_nodes(&report.nodes)) {
            if let Some(node) = nodes.get_mut(&load.client) {
                (node.load, node.slow) = (Some(load.clone()), slow);
            }
        }
        let mut nodes: Vec<Self> = nodes
            .into_iter()
            .map(|(client, node)| {
                let mut segments = node.segments;
                segments.sort();
                Self { client: client.to_string(), segments, ..node }
            })
            .collect();
        nodes.sort_by(|one, other| {
            rank(one.state)
                .cmp(&rank(other.state))
                .then_with(|| other.slow.is_some().cmp(&one.slow.is_some()))
                .then_with(|| one.segments.cmp(&other.segments))
                .then_with(|| one.client.cmp(&other.client))
        });
        nodes
    }

    fn line(&self) -> String {
        let disk = self.disk.map(|(used, size)| json!({ "used": used, "size": size }));
        let line = json!({
            "client": self.client,
            "endpoint": self.endpoint,
            "state": self.state,
            "segments": self.segments,
            "used": self.used,
            "size": self.size,
            "disk": disk,
            "load": self.load.as_ref().map(|load| node_load_json(load, self.slow.as_deref())),
        });
        line.to_string() + "\n"
    }
}

/// The worse the lower.
fn rank(state: &str) -> u8 {
    match state {
        "away" => 0,
        "suspect" => 1,
        "ok" => 3,
        _ => 2,
    }
}

fn human(nodes: &[Node]) -> String {
    let size = |bytes| ByteSize::bytes(bytes).to_string();
    let of_load = |node: &Node, of: fn(&NodeReport) -> Option<String>| {
        node.load.as_ref().and_then(of).unwrap_or_default()
    };
    let per_second = |bytes| ByteSize::bytes(bytes).to_string() + "/s";
    let rows: Vec<[String; 11]> = nodes
        .iter()
        .map(|node| {
            [
                names(&node.segments),
                node.state.to_owned(),
                size(node.used),
                size(node.size),
                node.disk.map_or_else(String::new, |(used, of)| {
                    // 0 before the node has said how much.
                    let of = if of == 0 { "?".to_owned() } else { size(of) };
                    format!("{} of {of}", size(used))
                }),
                node.load.as_ref().map_or_else(String::new, |load| per_second(load.read_rate)),
                node.load.as_ref().map_or_else(String::new, |load| per_second(load.write_rate)),
                of_load(node, |load| load.answer.map(millis)),
                of_load(node, |load| load.small.map(millis)),
                node.endpoint.clone(),
                node.client.clone(),
            ]
        })
        .collect();
    let heads = [
        "SEGMENTS", "STATE", ">USED", ">SIZE", ">DISK", ">READ", ">WRITTEN", ">ANSWERS", ">OTHERS",
        "ENDPOINT", "CLIENT",
    ];
    let mut text = table(heads, &rows);
    for node in nodes {
        if let Some(slow) = &node.slow {
            text += &format!("{} is slow: {slow}\n", names(&node.segments));
        }
    }
    text
}
