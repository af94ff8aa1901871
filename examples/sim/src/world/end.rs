//! The checks at the end, when nothing has gone wrong for long, and then beside one medium that is
//! bad.

use std::time::Duration;

use mc_cluster_testkit::simulation::{Process, virtual_time};
use mc_history::{Outcome, ValueId};
use mc_meta::ReplicateConfig;
use mc_store::{Client, GetError, PeerError};
use mc_tier::BackendFaults;
use mc_transport::TransferError;
use mc_types::ByteSize;
use tokio::time::{Instant, sleep, timeout};

use super::{Node, World};
use crate::content::{NoValue, value, value_of};
use crate::plan::QUIET;
use crate::workload::{LEASE, key_number, of_put};

/// Most nodes of a cluster whose media are looked at: each minute of a thousand nodes is a second.
const MOST_NODES: u32 = 64;

/// Objects that are read: in a small cluster all.
const READ: usize = 300;

/// How often an object that cannot be read may be listed, and the time between: its owner looks at it when
/// a reader has found it missing or damaged.
const LOOKS: u32 = 5;
const LOOK_AGAIN: Duration = Duration::from_secs(20);

/// The longest time in which a batch is read beside a medium that hangs. A read below memory has 1.5 s.
const BATCH: Duration = Duration::from_secs(60);

/// How long the medium hangs: longer than all that is done meanwhile.
const HANGS: Duration = Duration::from_secs(1000);

/// Values of which one segment holds as many, and how many each node gets.
const VALUES_OF_A_SEGMENT: u64 = 16;
const PUTS_OF_A_NODE: u32 = 40;
const PUTS: u32 = 300;

/// Puts of one value, of which one succeeds.
const TRIES: u32 = 3;

impl World {
    /// Checks what has to be so when nothing has gone wrong for long.
    pub(super) async fn check_end(&self) {
        self.masters.compare();
        let Some(report) = self.masters.report() else { return };
        let first = report.segments.iter().filter(|it| !it.spec.name.ends_with("second"));
        if first.count() != self.nodes.len() {
            let names: Vec<_> = report.segments.iter().map(|it| &it.spec.name).collect();
            self.history.violates(format_args!(
                "{} of {} nodes are back after {QUIET:?} without faults: {names:?}",
                report.segments.len(),
                self.nodes.len()
            ));
            return;
        }
        let Some(client) = self.any_client() else { return };
        let has_media = self.plan.has_disks || self.plan.has_files;
        if has_media && self.plan.nodes <= MOST_NODES {
            self.check_listed().await;
            self.check_beside_bad_medium().await;
            // Disks are full now, and have evicted.
            sleep(LOOK_AGAIN).await;
            self.check_listed().await;
        }
        self.ledger.removes_all();
        if let Err(error) = client.remove_all(true).await {
            self.history.violates(format_args!("objects cannot be removed: {error}"));
            return;
        }
        // Leases end, and space that may be written late is released.
        sleep(Duration::from_secs(90)).await;
        let Some(report) = self.masters.report() else { return };
        for segment in &report.segments {
            if segment.used > 0 {
                self.history.violates(format_args!(
                    "{} bytes of {} are never free again, {:?}",
                    segment.used,
                    segment.spec.name,
                    self.ledger.ranges(segment.spec.id)
                ));
            }
        }
    }

    fn any_client(&self) -> Option<Client> {
        self.nodes.iter().find_map(Node::client)
    }

    /// Checks that what the master lists can be read: at once where no medium has lost anything, or else
    /// after a reader has told that it cannot.
    async fn check_listed(&self) {
        let is_whole = !self.ledger.has_damaged_disks();
        let mut names = self.masters.objects();
        names.truncate(READ);
        for look in 1..=LOOKS {
            // Of its local disk a node finds out alone. Of a file several readers have to say the same.
            let reader = if self.plan.has_files { look as usize % self.nodes.len() } else { 0 };
            let Some(client) = self.nodes[reader].client() else { return };
            let mut unread = Vec::new();
            for name in names {
                if let Some(error) = self.listed_unread(&client, &name).await {
                    self.history.say("end", format_args!("{name} cannot be read: {error:?}"));
                    let is_missing = is_missing(&error);
                    if look == LOOKS
                        || is_whole && is_missing && !self.ledger.is_spoiled(&name, virtual_time())
                    {
                        self.history.violates(format_args!(
                            "{name} is listed and cannot be read, {look} times: {error}"
                        ));
                        return;
                    }
                    unread.push(name);
                }
            }
            names = unread;
            if names.is_empty() {
                return;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Why an object that is there, as the master says, cannot be read.
    async fn listed_unread(&self, client: &Client, name: &str) -> Option<GetError> {
        let key = key_number(name)?;
        if !client.exist(name).await.ok()? {
            return None;
        }
        match client.get(name).await {
            Ok(bytes) => match value_of(key, 0, &bytes) {
                Ok(_) | Err(NoValue::Short) => None,
                Err(wrong) => {
                    self.history.violates(format_args!("{name} has wrong bytes: {wrong}"));
                    None
                }
            },
            Err(error) => Some(error),
        }
    }

    /// Checks that one medium that hangs, is full, broken or read-only costs what it alone has, and no more:
    /// a batch is returned, and no put fails that memory could take.
    async fn check_beside_bad_medium(&self) {
        let number = self.random.below(self.nodes.len() as u64) as usize;
        let node = &self.nodes[number];
        let with_process = |change: &dyn Fn(&Process)| {
            if let Some(running) = &*node.running.borrow() {
                change(&running.process);
            }
        };
        let mut faults = BackendFaults::default();
        let how = match self.random.below(6) {
            0 => {
                faults.space = Some(ByteSize::bytes(0));
                "is full"
            }
            1 => {
                faults.read_only = true;
                "is read-only"
            }
            2 => {
                self.ledger.damages_disk();
                faults.write_fails = 1.0;
                "is broken"
            }
            _ => {
                let until = Instant::now() + HANGS;
                with_process(&|process| process.hang_disk(until));
                "hangs"
            }
        };
        node.disk.set(faults);
        self.history.say("end", format_args!("the medium of n{number} {how}"));
        if let Some(client) = node.client() {
            let mut names = self.masters.objects();
            names.truncate(READ);
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            if timeout(BATCH, client.batch_get(&names)).await.is_err() {
                self.history.violates(format_args!(
                    "a batch is not read after {BATCH:?} while the medium of its node {how}"
                ));
            }
        }
        // The leases of what was read end.
        sleep(2 * LEASE).await;
        self.fill_memory((number + 1) % self.nodes.len(), how).await;
        node.disk.set(BackendFaults::default());
        with_process(&|process| process.hang_disk(Instant::now()));
    }

    /// Puts more than the memory of a small cluster holds. Without readers there is room for all.
    async fn fill_memory(&self, writer: usize, how: &str) {
        let Some(client) = self.nodes[writer].client() else { return };
        let len = (self.segment_size().as_u64() / VALUES_OF_A_SEGMENT) as usize;
        for version in 0..PUTS.min(self.plan.nodes * PUTS_OF_A_NODE) {
            let (name, config) = (format!("last-{version}"), ReplicateConfig::default());
            let id = ValueId { writer: self.plan.nodes, version };
            // One that loses its connection has no time left to wait for a healthy disk.
            for tried in 1..=TRIES {
                let put = client.put_with(&name, value(id, version, len), &config).await;
                let Err(error) = put else { break };
                if of_put(&error) != Outcome::Refused {
                    break;
                }
                self.history.say("end", format_args!("{name}: {error}"));
                if tried == TRIES {
                    self.history.violates(format_args!(
                        "nothing is in use, the medium of one node {how}, and {TRIES} times there is no room \
                         for a put: {error}"
                    ));
                    return;
                }
            }
        }
    }
}

/// Whether an object is not where the master lists it.
fn is_missing(error: &GetError) -> bool {
    matches!(
        error,
        GetError::NotFound
            | GetError::NotReady
            | GetError::Peer(PeerError::Transfer { source: TransferError::DeviceFailed, .. })
    )
}
