//! Three masters, three members of etcd and two nodes, all of them programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

use mc_testkit::{EtcdCluster, Input, Program, Signal, role};

use crate::network::Network;
use crate::{ETCD_MEMBERS, LIMIT, MASTERS, Mode};

/// Size of the file system of a master's journal, which a test fills.
const DISK: &str = "64m";

/// How far ahead the clock of the last master is, in seconds.
const CLOCK_SKEW: &str = "100000";

pub(crate) struct Cluster {
    pub(crate) network: Network,
    pub(crate) etcd: Mutex<EtcdCluster>,
    pub(crate) masters: Vec<Mutex<Master>>,
    mode: Mode,
    /// Whether the masters' journals have file systems of their own.
    pub(crate) has_disks: bool,
    /// Whether the last master's clock differs from the others'.
    pub(crate) is_skewed: bool,
    nodes: Vec<Program>,
    dir: tempfile::TempDir,
}

/// A master, whose program comes and goes.
#[derive(Default)]
pub(crate) struct Master {
    pub(crate) program: Option<Program>,
    /// The logs of its programs before this one.
    logs: String,
    /// Whether it may end by itself, because its disk is or was full.
    may_end: bool,
}

impl Cluster {
    /// Starts the masters, and nodes that have joined them.
    pub(crate) fn start(mode: Mode, (network, etcd): (Network, EtcdCluster)) -> Self {
        let dir = tempfile::Builder::new().prefix("mc-chaos-").tempdir().expect("a directory");
        let mut has_disks = true;
        for master in 0..MASTERS {
            let disk = dir.path().join(master.to_string());
            fs::create_dir(&disk).expect("a directory");
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &format!("size={DISK}"), "mc-chaos"]).arg(&disk);
            has_disks &= mount.output().is_ok_and(|done| done.status.success());
        }
        if !has_disks {
            crate::skipped("full disks: only root can mount file systems");
        }
        let mut unshare = Command::new("unshare");
        unshare.args(["--time", "--boottime", CLOCK_SKEW, "true"]);
        let is_skewed = unshare.output().is_ok_and(|done| done.status.success());
        if !is_skewed {
            crate::skipped("clock skew: only root can have a time namespace");
        }
        let masters = (0..MASTERS).map(|_| Mutex::default()).collect();
        let etcd = Mutex::new(etcd);
        let mut cluster =
            Self { network, etcd, masters, mode, has_disks, is_skewed, nodes: Vec::new(), dir };
        (0..MASTERS).for_each(|master| cluster.launch(master));
        let addresses = cluster.addresses();
        for master in 0..MASTERS {
            let listening = |line: &str| line.contains("Master service listening").then_some(());
            cluster.master(master).program.as_ref().expect("it runs").wait_out(listening);
        }
        cluster.nodes = (0..2)
            .map(|_| {
                let command = &mut role::command("plays_its_role", "node");
                Program::start(LIMIT, command.env("MC_CHAOS_MASTERS", &addresses), Input::Open)
            })
            .collect();
        cluster.nodes.iter_mut().for_each(|node| assert_eq!(node.hear(), "ready"));
        cluster
    }

    /// The masters' addresses for clients.
    pub(crate) fn addresses(&self) -> String {
        let address = |master| self.network.for_clients(master).to_string();
        (0..MASTERS).map(address).collect::<Vec<_>>().join(";")
    }

    pub(crate) fn master(&self, master: usize) -> MutexGuard<'_, Master> {
        self.masters[master].lock().expect("no panic under the lock")
    }

    pub(crate) fn etcd(&self) -> MutexGuard<'_, EtcdCluster> {
        self.etcd.lock().expect("no panic under the lock")
    }

    /// Starts a master that does not run.
    pub(crate) fn launch(&self, master: usize) {
        let mut words = self.network.launcher(master);
        if self.is_skewed && master == MASTERS - 1 {
            let skew = ["unshare", "--time", "--boottime", CLOCK_SKEW, "--monotonic", CLOCK_SKEW];
            words.extend(skew.map(str::to_owned));
        }
        words.push(env!("CARGO_BIN_EXE_mc-master").into());
        words.extend(self.network.flags(master, &self.etcd()));
        words.extend(self.mode.flags().iter().map(|flag| (*flag).to_owned()));
        words.extend(
            [
                "--enable_ha",
                "--ha_lease_ttl=2s",
                "--enable_metric_reporting=false",
                "--rpc_thread_num=2",
                "--snapshot_bytes=1MiB",
                // A put whose end was lost blocks its key no longer than this.
                "--put_start_discard_timeout_sec=2",
                "--put_start_release_timeout_sec=6",
            ]
            .map(str::to_owned),
        );
        words.push(format!("--metadata_dir={}", self.journal(master).display()));
        words.push(format!("--ha_member_id=m{master}"));
        let mut command = Command::new(&words[0]);
        self.master(master).program =
            Some(Program::start(LIMIT, command.args(&words[1..]), Input::None));
    }

    fn disk(&self, master: usize) -> PathBuf {
        self.dir.path().join(master.to_string())
    }

    fn journal(&self, master: usize) -> PathBuf {
        self.disk(master).join("journal")
    }

    /// Kills a master, if it runs.
    pub(crate) fn kill(&self, master: usize) {
        let mut master = self.master(master);
        if let Some(mut program) = master.program.take() {
            program.kill();
            master.logs += &program.finish().err;
        }
    }

    /// Ends a master, if it runs, as an operator does.
    pub(crate) fn terminate(&self, master: usize) {
        let mut master = self.master(master);
        if let Some(program) = master.program.take() {
            let ended = program.end_by(Signal::TERM);
            assert_eq!(ended.code, Some(0), "{}", ended.err);
            master.logs += &ended.err;
        }
    }

    /// Fills the disk of a master.
    pub(crate) fn fill_disk(&self, master: usize) {
        self.master(master).may_end = true;
        // Fails when the disk is full, which is what is wanted.
        let _ = fs::write(filler(&self.disk(master)), vec![0; 80 << 20]);
    }

    pub(crate) fn empty_disk(&self, master: usize) {
        let _ = fs::remove_file(filler(&self.disk(master)));
    }

    /// Starts those masters again that have ended. Returns what they have logged in the end when
    /// they had no reason.
    pub(crate) fn tend(&self) -> Vec<String> {
        let mut violations = Vec::new();
        for number in 0..MASTERS {
            let mut master = self.master(number);
            let has_ended = match &mut master.program {
                Some(program) => !program.is_running(),
                None => true,
            };
            if !has_ended {
                continue;
            }
            if let Some(program) = master.program.take() {
                let ended = program.finish();
                // One that is started while etcd has no quorum says so and ends.
                let has_started = ended.err.contains("metrics at http://");
                if has_started && !master.may_end {
                    let log: Vec<&str> = ended.err.lines().rev().take(5).collect();
                    violations.push(format!("master m{number} ended by itself: {log:#?}"));
                }
                master.logs += &ended.err;
            }
            drop(master);
            self.launch(number);
        }
        violations
    }

    /// Ends all programs, and finds epochs in their logs that two masters have led. Returns how many
    /// there were.
    pub(crate) fn end(mut self, violations: &mut Vec<String>) -> usize {
        self.nodes.clear();
        let mut leaders: BTreeMap<u64, usize> = BTreeMap::new();
        for number in 0..MASTERS {
            self.kill(number);
            let master = self.master(number);
            for epoch in master.logs.lines().filter_map(elected) {
                if let Some(other) = leaders.insert(epoch, number) {
                    violations.push(format!("epoch {epoch} was won by m{other} and by m{number}"));
                }
            }
        }
        if let Some(kept) = std::env::var_os("MC_CHAOS_LOGS") {
            fs::create_dir_all(&kept).expect("a directory");
            for number in 0..MASTERS {
                let path = Path::new(&kept).join(format!("{:?}-m{number}.log", self.mode));
                fs::write(path, &self.master(number).logs).expect("a file");
            }
        }
        leaders.len()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for master in 0..MASTERS {
            // A killed program has let its files go when it was waited for.
            let mut state =
                self.masters[master].lock().unwrap_or_else(|poison| poison.into_inner());
            if let Some(mut program) = state.program.take() {
                program.kill();
                if std::thread::panicking() {
                    let log = program.finish().err;
                    let from = log.len().saturating_sub(2000);
                    eprintln!("m{master}: …{}", String::from_utf8_lossy(&log.as_bytes()[from..]));
                }
            }
            if self.has_disks {
                let disk = self.dir.path().join(master.to_string());
                let _ = Command::new("umount").arg("--lazy").arg(disk).output();
            }
        }
    }
}

/// The epoch in a line about an election.
fn elected(line: &str) -> Option<u64> {
    let at = line.find("elected; taking over")?;
    let number = line[at..].split("epoch=").nth(1)?;
    let end = number.find(|it: char| !it.is_ascii_digit()).unwrap_or(number.len());
    number[..end].parse().ok()
}

fn filler(disk: &Path) -> PathBuf {
    disk.join("filler")
}

/// The number of members that are no majority.
pub(crate) const MINORITY: usize = ETCD_MEMBERS / 2;
