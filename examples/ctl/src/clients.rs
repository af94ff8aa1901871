//! `clients`: who is connected to the master, and with which software.

use std::collections::BTreeMap;
use std::process::ExitCode;

use mc_cli::{connection_json, duration, table, visible};
use mc_rpc::{Connections, MAX_LISTED_CONNECTIONS};
use mc_store::Client;

use crate::error::CtlError;
use crate::text::print;

/// What is shown of software that does not say its name.
const UNNAMED: &str = "unknown";

pub(crate) async fn clients(client: &Client, json: bool) -> Result<ExitCode, CtlError> {
    let said = client.master().connections(MAX_LISTED_CONNECTIONS).await?;
    let text = match json {
        true => {
            said.connections.iter().map(|open| connection_json(open).to_string() + "\n").collect()
        }
        false => human(&said),
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
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
