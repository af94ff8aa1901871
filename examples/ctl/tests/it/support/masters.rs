//! Several masters of one cluster, and their etcd.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use mc_testkit::{EtcdCluster, Input, Program, binary, eventually_blocking};
use serde_json::Value;

use super::{DEADLINE, ctl, free_port};

/// Masters of one cluster, each with a directory of its own.
pub(crate) struct Cluster {
    pub(crate) etcd: EtcdCluster,
    directory: tempfile::TempDir,
    pub(crate) ports: Vec<u16>,
    /// How each is started.
    pub(crate) flags: Vec<&'static str>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

impl Cluster {
    /// One of so many members, none of which runs yet; everything acknowledged is on all in sync.
    pub(crate) fn new(members: usize) -> Self {
        Self {
            etcd: EtcdCluster::start(1),
            directory: tempfile::tempdir().expect("a directory"),
            ports: (0..members).map(|_| free_port()).collect(),
            flags: vec!["--durability=sync", "--replication=semi_sync", "--ha_lease_ttl=2s"],
            environment: Vec::new(),
        }
    }

    pub(crate) fn path(&self, member: usize) -> PathBuf {
        self.directory.path().join(member.to_string())
    }

    pub(crate) fn address(&self, member: usize) -> String {
        format!("127.0.0.1:{}", self.ports[member])
    }

    /// The addresses of all members.
    pub(crate) fn all(&self) -> String {
        (0..self.ports.len()).map(|member| self.address(member)).collect::<Vec<_>>().join(";")
    }

    /// Starts a member.
    pub(crate) fn start(&self, member: usize) -> Program {
        let mut flags = vec![
            "--enable_ha".to_owned(),
            format!("--etcd_endpoints={}", self.etcd.endpoints().join(";")),
            format!("--rpc_port={}", self.ports[member]),
            format!("--metadata_dir={}", self.path(member).display()),
            format!("--ha_member_id=m{member}"),
        ];
        let common = ["--rpc_address=127.0.0.1", "--metrics_port=0"];
        flags.extend(common.iter().chain(&self.flags).map(|flag| (*flag).to_owned()));
        let mut command = Command::new(binary("mc-master"));
        let environment = self.environment.iter().map(|(name, value)| (name, value));
        command.args(flags).envs(environment);
        let master = Program::start(DEADLINE, &mut command, Input::None);
        master.wait_out(|line| line.contains("Master service listening").then_some(()));
        master
    }

    /// Returns the status page of a member; `None` when it does not answer.
    pub(crate) fn status(&self, member: usize) -> Option<Value> {
        let said = ctl(&self.address(member), &["ha", "status", "--json"]);
        let own = format!("\"member\":\"m{member}\"");
        let line = said.text().lines().find(|line| line.contains(&own))?;
        serde_json::from_str(line).ok()
    }

    pub(crate) fn leads(&self, member: usize) -> bool {
        self.status(member).is_some_and(|status| status["role"] == "leader")
    }

    pub(crate) fn wait_until_leads(&self, member: usize) {
        let what = format!("m{member} leads");
        eventually_blocking(DEADLINE, &what, || self.leads(member));
    }

    /// Waits until a member is in sync with the leader.
    pub(crate) fn wait_until_in_sync(&self, member: usize, leader: usize) {
        let is_in_sync = || {
            let status = self.status(leader).unwrap_or_default();
            let members = status["in_sync"].as_array().cloned().unwrap_or_default();
            members.iter().any(|id| *id == format!("m{member}"))
        };
        eventually_blocking(DEADLINE, "it is in sync", is_in_sync);
    }

    /// The directories that a member has set aside.
    pub(crate) fn former(&self, member: usize) -> Vec<PathBuf> {
        let all = fs::read_dir(self.path(member).join("former"));
        all.into_iter().flatten().map(|entry| entry.expect("an entry").path()).collect()
    }
}
