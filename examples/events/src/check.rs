//! Comparing the index with the master.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use mc_events::{Medium, Replica};
use mc_meta::{ListCursor, ReplicaStatus};
use mc_rpc::{MAX_PAGE, MasterClient, ObjectDescription, RpcError};
use mc_types::ErrorCode;
use tokio::time::{Instant, timeout_at};

use crate::{IndexError, Keeper, text};

/// How long the index may differ: events are on their way while the master is asked.
const LIMIT: Duration = Duration::from_secs(5);
/// The time between two comparisons.
const PAUSE: Duration = Duration::from_millis(200);
/// Differences that are printed.
const SHOWN: usize = 20;

/// Compares until there is no difference or the time is up.
pub(crate) async fn check(
    keeper: &mut Keeper,
    master: &MasterClient,
) -> Result<ExitCode, IndexError> {
    keeper.catch_up().await?;
    let begin = Instant::now();
    loop {
        let differences = differences(keeper, master).await?;
        if differences.is_empty() {
            text::print(&format!("equal: {}", keeper.summary()))?;
            return Ok(ExitCode::SUCCESS);
        }
        if begin.elapsed() > LIMIT {
            let count = differences.len();
            let shown: String = differences.into_iter().take(SHOWN).collect();
            text::print(&format!("{shown}{count} objects differ; {}", keeper.summary()))?;
            return Ok(ExitCode::FAILURE);
        }
        let next = Instant::now() + PAUSE;
        while let Ok(update) = timeout_at(next, keeper.events.next()).await {
            keeper.apply(update?)?;
        }
        keeper.catch_up().await?;
    }
}

/// A line for each object that the index and the master see differently.
async fn differences(keeper: &Keeper, master: &MasterClient) -> Result<Vec<String>, IndexError> {
    let mut held: BTreeMap<&str, [String; 2]> = BTreeMap::new();
    for (key, replicas) in keeper.index.iter() {
        held.entry(key).or_default()[0] = text::replicas(replicas);
    }
    let objects = objects(master).await?;
    for (key, replicas) in &objects {
        held.entry(key).or_default()[1] = text::replicas(replicas);
    }
    let differ = held.into_iter().filter(|(_, [ours, masters])| ours != masters);
    let line = |(key, [ours, masters]): (&str, [String; 2])| {
        format!("{}: index [{ours}], master [{masters}]\n", key.escape_debug())
    };
    Ok(differ.map(line).collect())
}

async fn objects(master: &MasterClient) -> Result<Vec<(String, Vec<Replica>)>, IndexError> {
    let (mut objects, mut cursor) = (Vec::new(), ListCursor::default());
    loop {
        let page = master.list_keys("", cursor, MAX_PAGE).await?;
        for listed in page.keys {
            match master.describe(listed.key.as_ref()).await {
                Ok(object) => objects.push((listed.key.to_string(), replicas(&object))),
                // Removed since it was listed.
                Err(RpcError::Refused(refusal)) if refusal.code == ErrorCode::ObjectNotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        match page.next {
            // A cursor that stands still would list for ever.
            Some(next) if next != cursor => cursor = next,
            _ => return Ok(objects),
        }
    }
}

/// The replicas that events report.
fn replicas(object: &ObjectDescription) -> Vec<Replica> {
    let complete = |status| status == ReplicaStatus::Complete;
    let memory = object.replicas.iter().filter(|replica| complete(replica.status));
    let memory = memory.map(|replica| (Medium::Memory, replica.endpoint.as_str()));
    let disk = object.file.filter(|status| complete(*status)).map(|_| (Medium::SharedFile, ""));
    let local = object.local_disks.iter().map(|disk| (Medium::LocalDisk, disk.endpoint.as_str()));
    memory
        .chain(disk)
        .chain(local)
        .map(|(medium, location)| Replica { medium, location: location.into() })
        .collect()
}
