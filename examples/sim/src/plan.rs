//! The plan of a simulation: its size, its load and its faults, all from one seed.

use std::fmt;
use std::time::Duration;

use mc_cluster_testkit::simulation::{Random, Weather};
use serde::{Deserialize, Serialize};

/// Virtual time at the end without faults, for all nodes to come back and for space to be free.
pub const QUIET: Duration = Duration::from_secs(180);

/// A simulation. The same plan gives the same history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Where all random numbers come from.
    pub seed: u64,
    /// The masters.
    pub masters: MasterKind,
    /// When a master with a journal acknowledges a change.
    #[serde(default)]
    pub durability: Durability,
    /// When one of several masters does.
    #[serde(default)]
    pub replication: Replication,
    /// Whether objects have files on a tier that all nodes reach.
    pub has_files: bool,
    /// Whether each node has a disk of its own for objects that leave its memory.
    #[serde(default)]
    pub has_disks: bool,
    /// The load of the applications.
    #[serde(default)]
    pub load: Load,
    /// Nodes: each contributes memory and runs applications.
    pub nodes: u32,
    /// Virtual time with load and faults.
    #[serde(rename = "ms", with = "in_millis")]
    pub time: Duration,
    /// Mean time between the operations of a node.
    #[serde(rename = "pace_ms", with = "in_millis")]
    pub pace: Duration,
    /// How bad the network is most of the time.
    pub network: Roughness,
    /// The faults, in the order of their time.
    pub faults: Vec<Fault>,
    /// Whether the history has a line for each effect of the master.
    #[serde(default)]
    pub shows_effects: bool,
}

/// A fault at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// When it begins.
    #[serde(rename = "at_ms", with = "in_millis")]
    pub at: Duration,
    /// How long it lasts.
    #[serde(rename = "lasts_ms", with = "in_millis")]
    pub lasts: Duration,
    /// The kind of fault.
    pub what: What,
}

/// Kinds of faults. A node is named by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A node is cut off from all others and from the masters.
    CutOff(u32),
    /// Nothing leaves a node.
    Mute(u32),
    /// Nothing reaches a node.
    Deaf(u32),
    /// Two nodes do not reach each other.
    Apart(u32, u32),
    /// A node's process stands still.
    Pause(u32),
    /// A node's host is suspended: its process stands still, and its clock jumps.
    Suspend(u32),
    /// A node's process is killed, and started again.
    Kill(u32),
    /// A node's host loses power, and its process is started again.
    PowerLoss(u32),
    /// A node shuts down, and is started again.
    Leave(u32),
    /// A node mounts a second segment for a while.
    Extend(u32),
    /// A node is slow.
    Slow(u32),
    /// The disk of a node answers nothing.
    HangDisk(u32),
    /// The disk of a node is slow.
    SlowDisk(u32),
    /// The disk of a node has no more space.
    FillDisk(u32),
    /// Half of all accesses to the disk of a node fail.
    BreakDisk(u32),
    /// The disk of a node cannot be written.
    FreezeDisk(u32),
    /// The disk of a node flips bits, and loses writes without saying so.
    CorruptDisk(u32),
    /// The file system of objects' files is full now and then, fails, and flips bits.
    BreakFiles,
    /// The network is bad everywhere: delays, losses, lost connections and late bytes.
    Storm,
    /// The master that leads is killed, and started again.
    KillMaster,
    /// A standby is killed, and started again.
    KillStandby,
    /// All masters are killed, and started again.
    KillAllMasters,
    /// The master that leads stands still.
    PauseMaster,
    /// The master that leads is cut off from clients and standbys.
    CutMaster,
    /// The master that leads is cut off from the service in which it was elected.
    LoseElection,
    /// The disk of the journal of the master that leads is full.
    FillJournal,
    /// The standbys do not receive the last changes of the master that leads, or its disk is full where
    /// there are none; then it is killed, and started again.
    StrandMaster,
    /// The master that leads is told to hand over.
    HandOver,
    /// A standby is killed, and started again with an empty journal.
    EmptyStandby,
    /// A standby is killed, and started again with the journal that it had when it was last struck by
    /// this, or an empty one.
    OldStandby,
    /// A standby is killed, and started again with the journal of another cluster.
    StrangeStandby,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {:?} for {:?}", self.what, self.at, self.lasts)
    }
}

impl Plan {
    /// The usual plan of a seed. Some seeds have few faults and a fair network, some have many and a
    /// bad one.
    ///
    /// # Errors
    /// [`PlanError`] when there are too few or too many nodes, or too much time.
    pub fn new(seed: u64, nodes: u32, time: Duration, pace: Duration) -> Result<Self, PlanError> {
        check_size(nodes, [time, pace])?;
        let random = Random::of(seed, "faults");
        let network = [Roughness::Fair, Roughness::Usual, Roughness::Bad][random.below(3) as usize];
        let kinds =
            [MasterKind::Alone, MasterKind::Journaled, MasterKind::Three, MasterKind::Three];
        let masters = kinds[random.below(4) as usize];
        let promises = Random::of(seed, "promises");
        let durability = [Durability::Sync, Durability::Async][promises.below(2) as usize];
        let replication = [Replication::SemiSync, Replication::Async][promises.below(2) as usize];
        let has_files = random.below(3) == 0;
        let has_disks = Random::of(seed, "disks").below(3) == 0;
        let load = if random.below(4) == 0 { Load::Trace } else { Load::Random };
        let mut faults = Vec::new();
        // Of one node in a small cluster, and of as many more in a larger one.
        let mean = millis([4_000, 12_000, 40_000][random.below(3) as usize]);
        let mean = mean.mul_f64(8.0 / f64::from(nodes.max(8))).max(LEAST_MEAN);
        let node = |random: &Random| random.below(u64::from(nodes)) as u32;
        at_random(&random, mean, time, |random, at| {
            faults.push(Fault { at, lasts: lasts(random), what: What::of_node(random, node) });
        });
        let mean = millis([60_000, 180_000, 600_000][random.below(3) as usize]);
        at_random(&random, mean, time, |random, at| {
            let what = What::of_all(random);
            let longest = if what == What::Storm { 30_000 } else { 15_000 };
            let lasts = millis(random.between(50, longest));
            faults.push(Fault { at, lasts, what });
        });
        let beginnings = Random::of(seed, "beginnings");
        let mean = millis([60_000, 180_000, 600_000][beginnings.below(3) as usize]);
        at_random(&beginnings, mean, time, |random, at| {
            let lasts = millis(random.between(50, 15_000));
            faults.push(Fault { at, lasts, what: What::of_members(random) });
        });
        at_random(&promises, millis(90_000), time, |random, at| {
            let lasts = millis(random.between(50, 15_000));
            faults.push(Fault { at, lasts, what: What::StrandMaster });
        });
        let media = Random::of(seed, "media");
        let mean = millis([15_000, 60_000, 240_000][media.below(3) as usize]);
        let mean = mean.mul_f64(8.0 / f64::from(nodes.max(8))).max(LEAST_MEAN);
        at_random(&media, mean, time, |random, at| {
            faults.push(Fault { at, lasts: lasts(random), what: What::of_medium(random, node) });
        });
        faults.retain(|fault| match fault.what.medium() {
            Some(Medium::Disk) => has_disks,
            Some(Medium::Files) => has_files,
            None => true,
        });
        faults.sort_by_key(|fault| fault.at);
        Ok(Self {
            seed,
            masters,
            durability,
            replication,
            has_files,
            has_disks,
            load,
            nodes,
            time,
            pace,
            network,
            faults,
            shows_effects: false,
        })
    }
}

/// Calls `add` with moments before `end` that lie `mean` apart on average.
fn at_random(
    random: &Random,
    mean: Duration,
    end: Duration,
    mut add: impl FnMut(&Random, Duration),
) {
    let longest = (2 * mean.as_millis() as u64).max(2);
    let mut at = Duration::from_secs(5);
    loop {
        at += millis(random.between(1, longest));
        if at >= end {
            return;
        }
        add(random, at);
    }
}

/// How long a fault of a node lasts: less than each time-out of the master, about as long, or longer.
fn lasts(random: &Random) -> Duration {
    let longest = [2_000, 15_000, 90_000][random.below(3) as usize];
    millis(random.between(50, longest))
}

impl What {
    fn of_node(random: &Random, node: impl Fn(&Random) -> u32) -> Self {
        let (one, other) = (node(random), node(random));
        match random.below(100) {
            0..12 => Self::CutOff(one),
            12..20 => Self::Mute(one),
            20..28 => Self::Deaf(one),
            28..38 => Self::Apart(one, other),
            38..50 => Self::Pause(one),
            50..56 => Self::Suspend(one),
            56..68 => Self::Kill(one),
            68..74 => Self::PowerLoss(one),
            74..80 => Self::Leave(one),
            80..90 => Self::Extend(one),
            _ => Self::Slow(one),
        }
    }

    fn of_all(random: &Random) -> Self {
        match random.below(12) {
            0..3 => Self::Storm,
            3..5 => Self::KillMaster,
            5 => Self::KillStandby,
            6 => Self::KillAllMasters,
            7..9 => Self::PauseMaster,
            9 => Self::CutMaster,
            10 => Self::LoseElection,
            _ => Self::FillJournal,
        }
    }
}

/// Where objects are below memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    Disk,
    Files,
}

impl What {
    fn of_medium(random: &Random, node: impl Fn(&Random) -> u32) -> Self {
        let one = node(random);
        match random.below(8) {
            0 | 1 => Self::HangDisk(one),
            2 => Self::SlowDisk(one),
            3 => Self::FillDisk(one),
            4 => Self::BreakDisk(one),
            5 => Self::FreezeDisk(one),
            6 => Self::CorruptDisk(one),
            _ => Self::BreakFiles,
        }
    }

    /// The medium that it strikes alone.
    const fn medium(self) -> Option<Medium> {
        match self {
            Self::SlowDisk(_)
            | Self::FillDisk(_)
            | Self::BreakDisk(_)
            | Self::FreezeDisk(_)
            | Self::CorruptDisk(_) => Some(Medium::Disk),
            Self::BreakFiles => Some(Medium::Files),
            // Whatever a node has below memory is away.
            _ => None,
        }
    }
}

impl What {
    /// Draws a fault that needs several masters.
    fn of_members(random: &Random) -> Self {
        match random.below(4) {
            0 => Self::HandOver,
            1 => Self::EmptyStandby,
            2 => Self::OldStandby,
            _ => Self::StrangeStandby,
        }
    }
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The load of a cluster's applications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Load {
    /// Random operations on few keys, so that applications meet.
    #[default]
    Random,
    /// The requests of a real trace: blocks of a prompt that are there are read, the others are put.
    Trace,
}

/// The masters of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterKind {
    /// One master, which begins without metadata when it is started again.
    Alone,
    /// One with a journal.
    Journaled,
    /// Three with journals that elect a leader.
    Three,
}

/// The `--durability` of masters with a journal; one without has `none`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Durability {
    /// A change is acknowledged when it is on disk.
    #[default]
    Sync,
    /// A change is acknowledged at once, while everything older than the bound is on disk.
    Async,
}

/// The `--replication` of several masters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Replication {
    /// A change is acknowledged when all standbys in sync have it, too.
    #[default]
    #[value(name = "semi_sync", alias = "semi-sync")]
    SemiSync,
    /// A change is acknowledged as [`Durability`] says.
    Async,
}

/// The name of the flag's value.
impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sync => "sync",
            Self::Async => "async",
        })
    }
}

/// The name of the flag's value.
impl fmt::Display for Replication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SemiSync => "semi_sync",
            Self::Async => "async",
        })
    }
}

impl MasterKind {
    /// The masters, and what they promise: as the flags of mc-master.
    #[must_use]
    pub fn promise(self, durability: Durability, replication: Replication) -> String {
        match self {
            Self::Alone => "one master, durability none".to_owned(),
            Self::Journaled => format!("one master, durability {durability}"),
            Self::Three => {
                format!("three masters, durability {durability}, replication {replication}")
            }
        }
    }
}

/// How bad a network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Roughness {
    /// Hardly anything is lost.
    Fair,
    /// Delays of some milliseconds, and a lost message or connection now and then.
    Usual,
    /// Long delays, and many losses.
    Bad,
    /// As in a [`What::Storm`].
    Storm,
}

impl Roughness {
    /// The chances that it stands for.
    pub(crate) fn weather(self) -> Weather {
        let (delay, loss, breaks, late_by) = match self {
            Self::Fair => (1, 100, 10, 20_000),
            // Longer than a grant lasts: the owner of the memory has to know its end.
            Self::Usual => (5, 2_000, 300, 120_000),
            Self::Bad => (20, 20_000, 4_000, 120_000),
            Self::Storm => (200, 100_000, 50_000, 120_000),
        };
        Weather { delay: millis(delay), loss, breaks, late: 500_000, late_by: millis(late_by) }
    }
}

/// Durations as whole milliseconds.
mod in_millis {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(time.as_millis() as u64)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// Why a plan cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum PlanError {
    /// The plan has too few or too many nodes.
    #[error("a plan has 1 to {MAX_NODES} nodes, and this one {0}")]
    Nodes(u32),
    /// The plan takes too long.
    #[error("a plan takes 1 ms to 30 days, and this one {0:?}")]
    Time(Duration),
    /// A fault names a node that is not there.
    #[error("the fault {fault} names node {node}, and the last of the nodes is {last}")]
    NoSuchNode { fault: Box<Fault>, node: u32, last: u32 },
}

/// Least mean time between the faults of nodes, so that a plan of a month has some million faults.
const LEAST_MEAN: Duration = millis(500);

/// Most nodes of a plan: each takes about 1 MiB.
const MAX_NODES: u32 = 20_000;

/// Longest virtual time of a plan.
const MAX_TIME: Duration = Duration::from_secs(30 * 24 * 3600);

fn check_size(nodes: u32, times: [Duration; 2]) -> Result<(), PlanError> {
    if !(1..=MAX_NODES).contains(&nodes) {
        return Err(PlanError::Nodes(nodes));
    }
    match times.into_iter().find(|time| *time < millis(1) || *time > MAX_TIME) {
        Some(time) => Err(PlanError::Time(time)),
        None => Ok(()),
    }
}

impl Plan {
    /// Checks a plan that was read from a file.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn check(&self) -> Result<(), PlanError> {
        check_size(self.nodes, [self.time, self.pace])?;
        for fault in &self.faults {
            let end = fault.at.saturating_add(fault.lasts);
            if end > MAX_TIME {
                return Err(PlanError::Time(end));
            }
            if let Some(node) =
                fault.what.nodes().into_iter().flatten().find(|it| *it >= self.nodes)
            {
                let (fault, last) = (Box::new(*fault), self.nodes - 1);
                return Err(PlanError::NoSuchNode { fault, node, last });
            }
        }
        Ok(())
    }
}

impl What {
    /// The nodes that it strikes.
    pub(crate) const fn nodes(self) -> [Option<u32>; 2] {
        match self {
            Self::CutOff(node)
            | Self::Mute(node)
            | Self::Deaf(node)
            | Self::Pause(node)
            | Self::Suspend(node)
            | Self::Kill(node)
            | Self::PowerLoss(node)
            | Self::Leave(node)
            | Self::Extend(node)
            | Self::Slow(node)
            | Self::HangDisk(node)
            | Self::SlowDisk(node)
            | Self::FillDisk(node)
            | Self::BreakDisk(node)
            | Self::FreezeDisk(node)
            | Self::CorruptDisk(node) => [Some(node), None],
            Self::Apart(one, other) => [Some(one), Some(other)],
            Self::BreakFiles
            | Self::Storm
            | Self::KillMaster
            | Self::KillStandby
            | Self::KillAllMasters
            | Self::PauseMaster
            | Self::CutMaster
            | Self::LoseElection
            | Self::FillJournal
            | Self::StrandMaster
            | Self::HandOver
            | Self::EmptyStandby
            | Self::OldStandby
            | Self::StrangeStandby => [None, None],
        }
    }
}
