//! Random faults.

use std::fmt;
use std::time::{Duration, Instant};

use mc_testkit::{Random, eventually_blocking};

use crate::cluster::{Cluster, MINORITY};
use crate::network::{Direction, Side};
use crate::watch::Watch;
use crate::{ETCD_MEMBERS, LIMIT, MASTERS};

/// The longest time that a fault lasts.
const LONGEST: Duration = Duration::from_secs(5);

/// Whom a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Leader,
    Standby,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill(Target),
    KillAll,
    Freeze(Target),
    Cut(Target, Side, Direction),
    KillEtcdMajority,
    FreezeEtcdMajority,
    FreezeEtcdLeader,
    FillDisk(Target),
    HandOver,
    /// The leader is ended by SIGTERM, as for an upgrade.
    Terminate,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Fault {
    /// The next fault. Each kind comes before one comes again.
    pub(crate) fn plan(random: &mut Random, count: usize, has_disks: bool) -> Vec<Self> {
        use Target::{Leader, Standby};
        let mut faults = Vec::new();
        while faults.len() < count {
            let mut round = vec![
                Self::Kill(Leader),
                Self::Kill(Standby),
                Self::KillAll,
                Self::Freeze(Leader),
                Self::Freeze(Standby),
                Self::KillEtcdMajority,
                Self::FreezeEtcdMajority,
                Self::FreezeEtcdLeader,
                Self::HandOver,
                Self::Terminate,
                Self::Kill(Leader),
            ];
            for side in [Side::Etcd, Side::Clients, Side::Masters] {
                for _ in 0..2 {
                    let directions = [Direction::Out, Direction::In, Direction::Both];
                    let target = if random.below(4) == 0 { Standby } else { Leader };
                    round.push(Self::Cut(target, side, directions[random.below(3)]));
                }
            }
            if has_disks {
                round.push(Self::FillDisk(if random.below(4) == 0 { Standby } else { Leader }));
            }
            while !round.is_empty() && faults.len() < count {
                faults.push(round.swap_remove(random.below(round.len())));
            }
        }
        faults
    }

    /// Planned changes of the leader.
    pub(crate) fn planned(count: usize) -> Vec<Self> {
        [Self::HandOver, Self::Terminate].into_iter().cycle().take(count).collect()
    }

    /// The kind, for the report.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Kill(Target::Leader) => "kill leader",
            Self::Kill(Target::Standby) => "kill standby",
            Self::KillAll => "kill all masters",
            Self::Freeze(Target::Leader) => "freeze leader",
            Self::Freeze(Target::Standby) => "freeze standby",
            Self::Cut(_, Side::Etcd, _) => "cut from etcd",
            Self::Cut(_, Side::Clients, _) => "cut from clients",
            Self::Cut(_, Side::Masters, _) => "cut from masters",
            Self::KillEtcdMajority => "kill etcd majority",
            Self::FreezeEtcdMajority => "freeze etcd majority",
            Self::FreezeEtcdLeader => "freeze etcd leader",
            Self::FillDisk(_) => "full disk",
            Self::HandOver => "hand over",
            Self::Terminate => "terminate",
        }
    }
}

/// The thread that inflicts faults.
pub(crate) struct Chaos<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) watch: &'a Watch,
    pub(crate) runtime: &'a tokio::runtime::Runtime,
    pub(crate) random: Random,
    pub(crate) began: Instant,
}

impl Chaos<'_> {
    /// Inflicts a fault, lets it last, and takes it back.
    pub(crate) fn inflict(&mut self, fault: Fault) {
        let leader = eventually_blocking(LIMIT, "a leader", || {
            self.watch.leader(self.began.elapsed()).map(|(_, leader)| leader)
        });
        println!("{:8.2?} {fault}, m{leader} leads", self.began.elapsed());
        let standby = (leader + 1 + self.random.below(MASTERS - 1)) % MASTERS;
        let of = |target| if target == Target::Leader { leader } else { standby };
        match fault {
            Fault::Kill(target) => {
                self.cluster.kill(of(target));
                self.last(0, 3000);
                self.cluster.launch(of(target));
            }
            Fault::KillAll => {
                (0..MASTERS).for_each(|master| self.cluster.kill(master));
                self.last(0, 1500);
                (0..MASTERS).for_each(|master| self.cluster.launch(master));
            }
            Fault::Freeze(target) => {
                let resume = |cluster: &Cluster| {
                    let master = cluster.master(of(target));
                    if let Some(program) = &master.program {
                        program.resume();
                    }
                };
                if let Some(program) = &self.cluster.master(of(target)).program {
                    program.freeze();
                }
                // A leader past its lease.
                self.last(if target == Target::Leader { 2500 } else { 500 }, 4500);
                resume(self.cluster);
            }
            Fault::Cut(target, side, direction) => {
                self.cluster.network.cut(of(target), side, direction);
                self.last(1500, 5000);
                self.cluster.network.mend();
            }
            Fault::KillEtcdMajority => {
                let first = self.random.below(ETCD_MEMBERS);
                let members = (0..=MINORITY).map(|at| (first + at) % ETCD_MEMBERS);
                members.clone().for_each(|member| self.cluster.etcd().kill(member));
                self.last(500, 4500);
                members.for_each(|member| self.cluster.etcd().restart(member));
            }
            Fault::FreezeEtcdMajority => {
                let first = self.random.below(ETCD_MEMBERS);
                let members = (0..=MINORITY).map(|at| (first + at) % ETCD_MEMBERS);
                members.clone().for_each(|member| self.cluster.etcd().freeze(member));
                self.last(500, 4500);
                members.for_each(|member| self.cluster.etcd().resume(member));
            }
            Fault::FreezeEtcdLeader => {
                let leader = self.cluster.etcd().leader();
                let member = leader.unwrap_or_else(|| self.random.below(ETCD_MEMBERS));
                self.cluster.etcd().freeze(member);
                self.last(500, 3500);
                self.cluster.etcd().resume(member);
            }
            Fault::FillDisk(target) => {
                self.cluster.fill_disk(of(target));
                self.last(1500, 4000);
                self.cluster.empty_disk(of(target));
            }
            Fault::HandOver => {
                self.wait_for_standby();
                self.hand_over(leader);
            }
            Fault::Terminate => {
                self.wait_for_standby();
                self.cluster.terminate(leader);
                self.cluster.launch(leader);
            }
        }
    }

    /// Standbys follow again after the fault before.
    fn wait_for_standby(&self) {
        eventually_blocking(LIMIT, "a standby in sync", || self.watch.in_sync() > 1);
    }

    /// Lets time pass with a fault: between these milliseconds.
    fn last(&mut self, from: usize, to: usize) {
        let time = Duration::from_millis((from + self.random.below(to - from)) as u64);
        std::thread::sleep(time.min(LONGEST));
    }

    fn hand_over(&self, leader: usize) {
        let address = self.cluster.network.for_clients(leader).to_string();
        let mut config = mc_rpc::ClientConfig::default();
        config.administration = true;
        let handed = self.runtime.block_on(async {
            let client = mc_rpc::MasterClient::connect(&address, config).await?;
            client.hand_over(None).await
        });
        // Refused while no standby is in sync.
        if let Err(error) = handed {
            println!("         not handed over: {error}");
        }
    }
}
