//! `clients`: who is connected to the master, and with which software.

use std::collections::BTreeMap;
use std::process::ExitCode;

use mc_cli::{duration, table, visible};
use mc_rpc::{ConnectionReport, Connections, MAX_LISTED_CONNECTIONS};
use mc_store::Client;
use serde_json::json;

use crate::error::CtlError;
use crate::text::print;

/// What is shown of software that does not say its name.
const UNNAMED: &str = "unknown";

pub(crate) async fn clients(client: &Client, json: bool) -> Result<ExitCode, CtlError> {
    let said = client.master().connections(MAX_LISTED_CONNECTIONS).await?;
    let text = match json {
        true => said.connections.iter().map(line).collect(),
        false => human(&said),
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn line(open: &ConnectionReport) -> String {
    let line = json!({
        "peer": open.peer,
        "software": open.software,
        "caller": open.caller,
        "role": open.role.map(|role| role.as_str()),
        "tenant": open.tenant,
        "kind": open.kind.as_str(),
        "age_ms": open.age.as_millis() as u64,
    });
    line.to_string() + "\n"
}

fn named(software: &str) -> String {
    if software.is_empty() { UNNAMED.into() } else { visible(software) }
}

fn human(said: &Connections) -> String {
    let rows: Vec<[String; 7]> = said
        .connections
        .iter()
        .map(|open| {
            [
                visible(&open.peer),
                named(&open.software),
                visible(&open.caller),
                open.role.map_or_else(String::new, |role| role.to_string()),
                visible(&open.tenant),
                open.kind.as_str().into(),
                duration(open.age),
            ]
        })
        .collect();
    let heads = ["PEER", "SOFTWARE", "CALLER", "ROLE", "TENANT", "KIND", ">CONNECTED FOR"];
    let mut text = table(heads, &rows);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for open in &said.connections {
        *counts.entry(named(&open.software)).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(name, n)| format!("{n} of {name}")).collect();
    text += &format!("{} connections: {}\n", said.connections.len(), counts.join(", "));
    if said.left_out > 0 {
        text += &format!("and {} that have no room in the answer\n", said.left_out);
    }
    text
}
