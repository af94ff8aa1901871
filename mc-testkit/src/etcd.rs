//! Members of etcd, as Debian's `etcd-server` installs it.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::{Input, Program, Signal};

/// How long a member may take to start or to stop.
const LIMIT: Duration = Duration::from_secs(60);

/// Time without a heartbeat after which the members elect another leader of theirs. With it
/// etcd grants leases of one second and more: it lengthens those below one and a half of this.
const ELECTION_TIMEOUT: Duration = Duration::from_millis(600);

/// A cluster of etcd on loopback addresses of its own. Dropping it kills the members and removes
/// their data.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Member>,
    election_timeout: Duration,
    dir: TempDir,
    /// The certificate and the key that clients are shown.
    identity: Option<(PathBuf, PathBuf)>,
}

#[derive(Debug)]
struct Member {
    clients: SocketAddr,
    peers: SocketAddr,
    program: Option<Program>,
}

impl EtcdCluster {
    /// Whether the programs `etcd` and `etcdctl` are installed. Prints a line when they are not:
    /// the test that asks leaves itself out then.
    #[must_use]
    pub fn is_installed() -> bool {
        let there = |name| Command::new(name).arg("--version").output().is_ok();
        let installed = there("etcd") && there("etcdctl");
        if !installed {
            // Past the harness, which shows what is printed by failing tests alone.
            let line = "left out: etcd is not installed (on Debian: apt-get install etcd-server \
                        etcd-client)";
            let _ = writeln!(std::io::stderr(), "{line}");
        }
        installed
    }

    /// Starts so many members, and waits until they have a leader.
    ///
    /// # Panics
    /// When they do not start.
    #[track_caller]
    #[must_use]
    pub fn start(members: usize) -> Self {
        Self::start_as(members, own_address(), ELECTION_TIMEOUT, None)
    }

    /// Starts as [`start`](Self::start) members that wait so long for their leader before they elect
    /// another. etcd's default is a second.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[track_caller]
    #[must_use]
    pub fn start_with_election_timeout(members: usize, timeout: Duration) -> Self {
        Self::start_as(members, own_address(), timeout, None)
    }

    /// Starts as [`start`](Self::start) on an address of this host, whose ports no other program may
    /// take.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[track_caller]
    #[must_use]
    pub fn start_at(ip: Ipv4Addr, members: usize) -> Self {
        Self::start_as(members, ip, ELECTION_TIMEOUT, None)
    }

    /// Starts as [`start`](Self::start) one member that clients reach over TLS, with a certificate
    /// and its key in PEM. Those who use `etcdctl` here are not served.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[track_caller]
    #[must_use]
    pub fn start_encrypted(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        let identity = Some((certificate.into(), key.into()));
        Self::start_as(1, own_address(), ELECTION_TIMEOUT, identity)
    }

    #[track_caller]
    fn start_as(
        members: usize,
        ip: Ipv4Addr,
        election_timeout: Duration,
        identity: Option<(PathBuf, PathBuf)>,
    ) -> Self {
        let addresses = free_addresses(ip, 2 * members);
        let members = addresses
            .chunks(2)
            .map(|pair| Member { clients: pair[0], peers: pair[1], program: None })
            .collect();
        // In memory where that is possible: leases of a second end while a busy disk syncs.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("mc-etcd-").tempdir_in(parent);
        let dir = dir.expect("a directory");
        let mut cluster = Self { members, election_timeout, dir, identity };
        for member in 0..cluster.members.len() {
            cluster.launch(member);
        }
        cluster.members.iter().for_each(Member::wait_until_ready);
        cluster
    }

    /// The members' addresses for clients, as `host:port`, in the order of their numbers.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.clients.to_string()).collect()
    }

    /// The address for clients of one member.
    ///
    /// # Panics
    /// When there is no such member; so do all that take a member's number.
    #[must_use]
    pub fn address(&self, member: usize) -> SocketAddr {
        self.members[member].clients
    }

    /// Kills a member.
    pub fn kill(&mut self, member: usize) {
        // Dropping it kills it.
        self.members[member].program = None;
    }

    /// Starts a member that was killed, with the data that it had. It is ready when it is a part of
    /// a majority, which this does not wait for; [`wait_until_ready`](Self::wait_until_ready) does.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn restart(&mut self, member: usize) {
        self.kill(member);
        self.launch(member);
    }

    /// Waits until a member that was started answers.
    ///
    /// # Panics
    /// When it does not in time, as without a majority.
    #[track_caller]
    pub fn wait_until_ready(&self, member: usize) {
        self.members[member].wait_until_ready();
    }

    /// Freezes a member: its connections stay, and nothing is answered.
    ///
    /// # Panics
    /// When it does not run.
    #[track_caller]
    pub fn freeze(&self, member: usize) {
        self.members[member].running().freeze();
    }

    /// Ends what [`freeze`](Self::freeze) began.
    ///
    /// # Panics
    /// When it does not run.
    #[track_caller]
    pub fn resume(&self, member: usize) {
        self.members[member].running().signal(Signal::CONT);
    }

    /// The number of the member that the others follow; `None` while there is none.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        (0..self.members.len()).find(|member| {
            let address = self.members[*member].clients.to_string();
            let mut status = Command::new("etcdctl");
            status.env("ETCDCTL_API", "3").args(["--command-timeout=1s", "--endpoints", &address]);
            let Ok(status) = status.args(["endpoint", "status"]).output() else { return false };
            // ADDRESS, ID, VERSION, SIZE, IS LEADER, …
            let status = String::from_utf8_lossy(&status.stdout).into_owned();
            status.split(", ").nth(4) == Some("true")
        })
    }

    /// Runs `etcdctl` with these arguments against the first member, and returns what it prints.
    ///
    /// # Panics
    /// When it fails or is not installed (on Debian: `apt-get install etcd-client`).
    #[track_caller]
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let mut ctl = Command::new("etcdctl");
        ctl.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoints()[0]]).args(arguments);
        let done = Program::start(LIMIT, &mut ctl, Input::None).finish();
        assert_eq!(done.code, Some(0), "etcdctl {arguments:?}: {}", done.err);
        done.text().to_owned()
    }

    #[track_caller]
    fn launch(&mut self, member: usize) {
        let all: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .map(|(number, member)| format!("m{number}=http://{}", member.peers))
            .collect();
        let timeout = self.election_timeout.as_millis();
        let Member { clients, peers, program } = &mut self.members[member];
        let scheme = if self.identity.is_some() { "https" } else { "http" };
        let (clients, peers) = (format!("{scheme}://{clients}"), format!("http://{peers}"));
        let mut etcd = Command::new("etcd");
        etcd.env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH.replace("aarch64", "arm64"))
            .args(["--name", &format!("m{member}")])
            .arg("--data-dir")
            .arg(self.dir.path().join(member.to_string()))
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &all.join(","), "--initial-cluster-state", "new"])
            .args(["--heartbeat-interval", &(timeout / 6).to_string()])
            .args(["--election-timeout", &timeout.to_string()]);
        if let Some((certificate, key)) = &self.identity {
            etcd.arg("--cert-file").arg(certificate).arg("--key-file").arg(key);
        }
        *program = Some(Program::start(LIMIT, &mut etcd, Input::None));
    }
}

impl Member {
    #[track_caller]
    fn running(&self) -> &Program {
        self.program.as_ref().expect("the member runs")
    }

    #[track_caller]
    fn wait_until_ready(&self) {
        self.running()
            .wait_err(|line| line.contains("ready to serve client requests").then_some(()));
    }
}

/// A loopback address that no other cluster uses: neither another test nor an outgoing connection
/// takes a port of it in the time in which a member is down.
fn own_address() -> Ipv4Addr {
    static CLUSTERS: AtomicU8 = AtomicU8::new(0);
    let cluster = CLUSTERS.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 100 + cluster % 100, high, low)
}

fn free_addresses(ip: Ipv4Addr, number: usize) -> Vec<SocketAddr> {
    // All at once, so that they are different.
    let bound: Vec<TcpListener> =
        (0..number).map(|_| TcpListener::bind((ip, 0)).expect("a free port")).collect();
    bound.iter().map(|listener| listener.local_addr().expect("an address")).collect()
}
