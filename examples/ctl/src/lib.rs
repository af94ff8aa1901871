#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod bench;
mod clients;
mod doctor;
mod error;
mod events;
mod explain;
mod ha;
mod history;
mod list;
mod nodes;
mod objects;
mod pages;
mod pins;
mod progress;
mod quota;
mod removal;
mod stat;
mod text;
mod tiers;
mod top;
mod transfers;

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use args::{Args, Verb};
use error::CtlError;
use mc_rpc::ClientConfig;
use mc_store::{Client, NodeConfig, StartError};
use tracing::Level;

/// Does what the command line `args`, program name first, asks for.
pub fn main(args: Vec<OsString>) -> ExitCode {
    mc_cli::run(args, |args: Args| -> Result<ExitCode, Box<dyn Error>> {
        if let Verb::Pages(wanted) = &args.verb {
            return Ok(pages::pages(wanted)?);
        }
        let mut rpc = args.credentials.client_config()?;
        rpc.software = concat!("mc-ctl/", env!("CARGO_PKG_VERSION")).into();
        let node = args.transfer.node_config(&args.path)?;
        let below = mc_store::ClientConfig::from_env()?;
        mc_cli::init_tracing(Level::WARN)?;
        // One command at a time needs one thread.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(CtlError::Runtime)?;
        Ok(runtime.block_on(run(args, rpc, node, below))?)
    })
}

async fn run(
    args: Args,
    rpc: ClientConfig,
    node: NodeConfig,
    below: mc_store::ClientConfig,
) -> Result<ExitCode, CtlError> {
    if let Verb::Ha(command) = &args.verb {
        return ha::ha(&args.master, rpc, node, command).await;
    }
    if let Verb::Doctor(command) = &args.verb {
        return doctor::doctor(&args, rpc, node, below, command).await;
    }
    // The port that publishes is another one, without credentials.
    if let Verb::Events(command) = &args.verb {
        return events::events(&args.master, command).await;
    }
    let client = Client::builder().master(args.master).rpc(rpc).node(node);
    let client = client.below_memory(&below).map_err(StartError::from)?.connect().await?;
    let outcome = match &args.verb {
        Verb::Put(put) => objects::put(&client, put).await,
        Verb::Upsert(put) => objects::upsert(&client, put).await,
        Verb::Get(get) => objects::get(&client, get).await,
        Verb::Exist(exist) => objects::exist(&client, exist).await,
        Verb::Remove(remove) => objects::remove(&client, remove).await,
        Verb::RemoveAll { force } => objects::remove_all(&client, *force).await,
        Verb::Pin(pin) => pins::pin(&client, pin).await,
        Verb::Unpin(unpin) => pins::unpin(&client, unpin).await,
        Verb::Ls(ls) => list::ls(&client, ls).await,
        Verb::Find(find) => list::find(&client, find).await,
        Verb::Explain(explain) => explain::explain(&client, explain).await,
        Verb::Drain(drain) => transfers::drain(&client, drain).await,
        Verb::Reopen { segments } => transfers::reopen(&client, segments).await,
        Verb::Copy { key, to, waiting } => transfers::copy(&client, key, to, waiting).await,
        Verb::Move { key, from, to, waiting } => {
            transfers::move_(&client, key, from, to, waiting).await
        }
        Verb::Task { id, waiting, json } => transfers::task(&client, *id, waiting, *json).await,
        Verb::History { json } => history::history(&client, *json).await,
        Verb::Clients { json } => clients::clients(&client, *json).await,
        Verb::Tasks { json } => transfers::tasks(&client, *json).await,
        Verb::Bench(bench) => bench::bench(&client, bench).await,
        Verb::Tiers(tiers) => tiers::tiers(&client, tiers).await,
        Verb::Tenants { json } => {
            quota::quota(&client, &args::Quota::Show { whose: None, json: *json }).await
        }
        Verb::Nodes { json } => nodes::nodes(&client, *json).await,
        Verb::Top(top) => top::top(&client, top).await,
        Verb::Stat(stat) => stat::stat(&client, stat).await,
        Verb::Quota(quota) => quota::quota(&client, quota).await,
        Verb::Ha(_) | Verb::Doctor(_) | Verb::Events(_) | Verb::Pages(_) => {
            unreachable!("answered above, without a leader")
        }
    };
    client.shutdown().await;
    outcome
}
