//! `ha`: the masters of a cluster, and which of them leads.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use mc_cli::{table, visible};
use mc_rpc::{ClientConfig, HaRole, HaStatus, MasterClient, RpcError};
use mc_store::{Client, NodeConfig};
use mc_types::{ByteSize, Epoch, Sequence};
use serde_json::json;

use crate::args::Ha;
use crate::error::CtlError;
use crate::text::print;
use crate::transfers::Pauses;

/// How long one master may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long the next leader may take, and how often it is asked for.
const TAKE_OVER: Duration = Duration::from_secs(15);
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The status that a master reported, or the reason why it reported none.
pub(crate) type Said = Result<Told, RpcError>;

/// The status that a master reported.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) status: HaStatus,
    /// This host's wall clock in the middle of the round trip.
    asked: SystemTime,
}

impl Told {
    async fn by(master: &MasterClient) -> Said {
        let (asked, begun) = (SystemTime::now(), Instant::now());
        let status = master.ha_status().await?;
        Ok(Self { status, asked: asked + begun.elapsed() / 2 })
    }

    /// How far the master's wall clock is from this host's, and whether it is ahead; `None` when the
    /// master does not tell the time.
    pub(crate) fn skew(&self) -> Option<(Duration, bool)> {
        let clock = self.status.clock?;
        Some(match clock.duration_since(self.asked) {
            Ok(ahead) => (ahead, true),
            Err(behind) => (behind.duration(), false),
        })
    }
}

pub(crate) async fn ha(
    master: &str,
    rpc: ClientConfig,
    node: NodeConfig,
    ha: &Ha,
) -> Result<ExitCode, CtlError> {
    match ha {
        Ha::Status { json } => {
            let said = statuses(master, rpc, node).await?;
            let text = if *json { lines(&said) } else { human(&said) };
            print(text.as_bytes())?;
            let leads = said.values().flatten().any(|told| told.status.role != HaRole::Standby);
            // As `exist` says with its exit code what is not there.
            Ok(if leads { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Ha::Wait { members, timeout } => {
            if members.is_empty() && master.contains("://") {
                return Err(CtlError::NoMembers { master: master.to_owned() });
            }
            let mut pauses = Pauses::within(*timeout);
            loop {
                let said = statuses(master, rpc.clone(), node.clone()).await?;
                let Some(lacking) = lacking(&said, members) else { break };
                if !pauses.pause().await {
                    return Err(CtlError::NotInSync { lacking });
                }
            }
            print(b"all are in sync\n")?;
            Ok(ExitCode::SUCCESS)
        }
        Ha::HandOver { to } => {
            let client = Client::builder().master(master).rpc(rpc).node(node).connect().await?;
            let leader = hand_over(client.master(), to.as_deref()).await;
            client.shutdown().await;
            let leader = leader?;
            let epoch = leader.epoch.map_or(0, Epoch::as_u64);
            print(format!("{} leads, epoch {epoch}\n", leader.address).as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Has the leader hand over, and waits for the next one.
async fn hand_over(master: &MasterClient, to: Option<&str>) -> Result<HaStatus, CtlError> {
    let before = master.ha_status().await?;
    master.hand_over(to).await?;
    let deadline = Instant::now() + TAKE_OVER;
    loop {
        let status = master.ha_status().await;
        match status {
            Ok(status) if status.role == HaRole::Leader && status.member != before.member => {
                return Ok(status);
            }
            Ok(HaStatus { member, address: leader, notice: Some(reason), .. })
                if member == before.member =>
            {
                return Err(CtlError::LeadsOn { leader, reason });
            }
            Ok(status) if status.epoch > before.epoch || Instant::now() >= deadline => {
                return Err(CtlError::NotHandedOver { leader: status.address });
            }
            Err(error) if Instant::now() >= deadline => return Err(error.into()),
            Ok(_) | Err(_) => tokio::time::sleep(ASK_AGAIN).await,
        }
    }
}

/// Returns what is missing until one of the masters leads and the members, or all masters if none is named,
/// are in sync with it; `None` when nothing is.
fn lacking(said: &BTreeMap<String, Said>, members: &[String]) -> Option<String> {
    let leads = |status: &&HaStatus| matches!(status.role, HaRole::Leader | HaRole::Alone);
    let mut known = said.values().flatten().map(|told| &told.status);
    let Some(leader) = known.find(leads) else {
        let silent = said.iter().find_map(|(address, said)| Some((address, said.as_ref().err()?)));
        let silent = silent.map(|(address, error)| format!(", {address} does not answer: {error}"));
        return Some(format!("none leads{}", silent.unwrap_or_default()));
    };
    // One that has just been restarted counts as in sync until the leader has noticed its absence.
    let follows = |member: &str| leader.followers.iter().any(|it| &*it.member == member);
    let is_in_sync = |status: &HaStatus| {
        std::ptr::eq(status, leader)
            || leader.in_sync.contains(&status.member) && follows(&status.member)
    };
    let lacks = |(address, said): (&String, &Said)| match said {
        Err(error) => Some(format!("{address} does not answer: {error}")),
        Ok(told) if is_in_sync(&told.status) => None,
        Ok(_) => Some(format!("{address} is not in sync")),
    };
    if members.is_empty() {
        return said.iter().find_map(lacks);
    }
    members.iter().find_map(|member| {
        let is_it = |(address, said): &(&String, &Said)| {
            let is_named = |Told { status, .. }: &Told| {
                [&*status.member, &*status.address].contains(&&**member)
            };
            *address == member || said.as_ref().is_ok_and(is_named)
        };
        match said.iter().find(is_it) {
            Some(known) => lacks(known),
            None => Some(format!("{member} is no member that answers")),
        }
    })
}

/// Asks every master that the address names, and those that they name.
pub(crate) async fn statuses(
    master: &str,
    mut rpc: ClientConfig,
    node: NodeConfig,
) -> Result<BTreeMap<String, Said>, CtlError> {
    rpc.retry = false;
    rpc.connect_timeout = PATIENCE;
    rpc.call_timeout = PATIENCE;
    let mut said = BTreeMap::new();
    let mut open: Vec<String> = if master.contains("://") {
        // The leader knows the others.
        let client = Client::builder().master(master).rpc(rpc.clone()).node(node).connect().await?;
        let told = Told::by(client.master()).await;
        client.shutdown().await;
        let told = told?;
        let followers = told.status.followers.iter();
        let others = followers.map(|follower| follower.address.to_string()).collect();
        said.insert(told.status.address.to_string(), Ok(told));
        others
    } else {
        master.split([',', ';']).map(|address| address.trim().to_owned()).collect()
    };
    rpc.administration = true;
    while let Some(address) = open.pop() {
        if address.is_empty() || said.contains_key(&address) {
            continue;
        }
        let told = ask(&address, rpc.clone()).await;
        if let Ok(Told { status, .. }) = &told {
            open.extend(status.leader.iter().map(ToString::to_string));
            open.extend(status.followers.iter().map(|follower| follower.address.to_string()));
            // The same master by another name.
            if *status.address != *address && said.contains_key(&*status.address) {
                continue;
            }
        }
        said.insert(address, told);
    }
    Ok(said)
}

async fn ask(address: &str, rpc: ClientConfig) -> Said {
    Told::by(&MasterClient::connect(address, rpc).await?).await
}

fn human(said: &BTreeMap<String, Said>) -> String {
    let number = |number: Option<u64>| number.map_or_else(|| "-".into(), |n| n.to_string());
    let lag = |status: &HaStatus| {
        let leader = said.values().flatten().find(|other| !other.status.followers.is_empty());
        let followers = leader.into_iter().flat_map(|leader| &leader.status.followers);
        let mut own = followers.filter(|follower| follower.member == status.member);
        number(own.next().map(|follower| follower.lag))
    };
    let in_sync = |status: &HaStatus| {
        if status.in_sync.contains(&status.member) { "yes" } else { "no" }.to_owned()
    };
    let rows: Vec<[String; 11]> = said
        .iter()
        .map(|(address, said)| match said {
            Ok(Told { status, .. }) => [
                address.clone(),
                status.member.to_string(),
                status.role.to_string(),
                number(status.epoch.map(Epoch::as_u64)),
                number(status.position.map(Sequence::as_u64)),
                lag(status),
                in_sync(status),
                status.snapshot.map_or_else(
                    || "-".into(),
                    |snapshot| format!("{} s ago", snapshot.age.as_secs()),
                ),
                ByteSize::bytes(status.journal_bytes).to_string(),
                ByteSize::bytes(status.snapshot_bytes).to_string(),
                status.version.as_ref().map_or_else(|| "-".into(), |version| visible(version)),
            ],
            Err(error) => {
                let mut row: [String; 11] = Default::default();
                row[0] = address.clone();
                row[2] = format!("unreachable: {error}");
                row
            }
        })
        .collect();
    let mut text = table(
        [
            "ADDRESS",
            "MEMBER",
            "ROLE",
            ">EPOCH",
            ">POSITION",
            ">LAG",
            "IN SYNC",
            ">SNAPSHOT",
            ">JOURNAL",
            ">SNAPSHOTS",
            "VERSION",
        ],
        &rows,
    );
    for (address, status) in
        said.iter().filter_map(|(address, said)| Some((address, &said.as_ref().ok()?.status)))
    {
        if status.failed_snapshots > 0 {
            let count = status.failed_snapshots;
            text += &format!("{address}: {count} snapshots could not be written\n");
        }
        if let Some(notice) = &status.notice {
            text += &format!("{address}: {notice}\n");
        }
        if let Some(outage) = &status.election_outage {
            let seconds = outage.lasts.as_secs();
            text +=
                &format!("{address}: etcd has not answered for {seconds} s: {}\n", outage.cause);
        }
        if let Some(why) = &status.waits_because {
            text += &format!("{address}: does not lead: {why}\n");
        }
    }
    text
}

fn lines(said: &BTreeMap<String, Said>) -> String {
    let line = |(address, said): (&String, &Said)| {
        let line = match said {
            Ok(Told { status, .. }) => json!({
                "address": address,
                "member": status.member,
                "role": status.role.as_str(),
                "epoch": status.epoch.map(Epoch::as_u64),
                "leader": status.leader,
                "position": status.position.map(Sequence::as_u64),
                "in_sync": status.in_sync,
                "followers": status.followers.iter().map(|follower| json!({
                    "member": follower.member,
                    "address": follower.address,
                    "lag": follower.lag,
                    "behind_for_ms": follower.behind_for.as_millis() as u64,
                })).collect::<Vec<_>>(),
                "snapshot_age_s": status.snapshot.map(|snapshot| snapshot.age.as_secs()),
                "journal_bytes": status.journal_bytes,
                "snapshot_bytes": status.snapshot_bytes,
                "failed_snapshots": status.failed_snapshots,
                "notice": status.notice,
                "durability": status.durability.as_str(),
                "election_outage": status.election_outage.as_ref().map(|outage| json!({
                    "lasts_ms": outage.lasts.as_millis() as u64,
                    "cause": outage.cause,
                })),
                "waits_because": status.waits_because,
                "version": status.version,
            }),
            Err(error) => json!({ "address": address, "error": error.to_string() }),
        };
        format!("{line}\n")
    };
    said.iter().map(line).collect()
}
