//! The cluster: a master, its nodes, and what happens to them.

mod end;

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use mc_cluster_testkit::simulation::{
    Cut, Ending, Fabric, HostClock, Ledger, Network, Process, Random, SimulatedDisk, SimulatedHost,
    virtual_time,
};
use mc_store::{ByteSize, Client, HotCacheConfig, NodeConfig, OwnTier, SegmentOptions};
use mc_tier::{
    BackendFaults, Faults, FaultyBackend, FaultyTier, LogSettings, LogTier, MemoryTier, TierError,
};
use mc_types::LocalDiskId;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep};

use crate::history::History;
use crate::masters::Masters;
use crate::plan::{Fault, Load, Plan, QUIET, Roughness, What};
use crate::requests::Requests;
use crate::workload::Application;

/// The bytes that each node contributes: more than all values need, or, in each second simulation,
/// so little that objects are evicted.
const SEGMENTS: [ByteSize; 2] = [ByteSize::kib(256), ByteSize::kib(24)];

/// Whether a node tells when its reads are over. Older clients do not.
pub(crate) fn tells_reads(node: u32) -> bool {
    node % 4 < 2
}

/// The cache of each second node. It keeps every value, because what it counts lookups with is not
/// part of a simulation's randomness.
fn hot_cache(node: u32) -> HotCacheConfig {
    let mut config = HotCacheConfig::default();
    if node % 2 == 1 {
        (config.capacity, config.admission) = (ByteSize::kib(256), 0);
    }
    config
}

/// Applications on each node, at the same time.
const APPLICATIONS: u32 = 2;

/// Keys for each node.
const KEYS_OF_A_NODE: u32 = 24;

/// The longest time that an access to a disk takes.
const DISK: Duration = Duration::from_millis(30);

/// The longest time beside it when the disk is slow.
const SLOW_DISK: Duration = Duration::from_secs(2);

/// The disk of a node, and the segments of the log on it: as small as they may be.
const DISK_SIZE: ByteSize = ByteSize::kib(512 + 4);
const DISK_SEGMENT: ByteSize = ByteSize::kib(64);

/// How often it is looked whether a violation was found.
const LOOK: Duration = Duration::from_millis(100);

/// How often the master's state is compared with the ledger.
const COMPARE: Duration = Duration::from_secs(30);

pub(crate) fn segment_name(node: u32) -> String {
    format!("node-{node}")
}

fn second_segment_name(node: u32) -> String {
    format!("node-{node}-second")
}

/// The text of an outcome in a history.
fn outcome<T, E: std::fmt::Display>(outcome: &Result<T, E>) -> String {
    outcome.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned())
}

/// A disk that fails as a plan wants it.
type Disk = FaultyBackend<SimulatedDisk>;

/// The log of objects on a node's disk.
fn own_tier(number: u32, disk: &Arc<Disk>) -> Result<OwnTier, TierError> {
    let mut settings = LogSettings::default();
    settings.segment_len = DISK_SEGMENT;
    let log = LogTier::open(Arc::clone(disk), settings)?;
    Ok(OwnTier::new(Arc::new(log), DISK_SIZE, LocalDiskId::from_u128(1 + u128::from(number))))
}

fn node_host(node: u32) -> Ipv4Addr {
    let [_, b, c, d] = (node + 1).to_be_bytes();
    Ipv4Addr::new(10, b, c, d)
}

/// The parts of the simulation.
pub(crate) struct World {
    plan: Plan,
    random: Random,
    network: Arc<Network>,
    fabric: Arc<Fabric>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) history: Arc<History>,
    masters: Masters,
    /// The files of objects, on a file system that all nodes have mounted.
    files: Option<Arc<FaultyTier<MemoryTier>>>,
    requests: Option<Arc<Requests>>,
    nodes: Vec<Node>,
    /// Storms under way.
    storms: Cell<u32>,
    is_over: Cell<bool>,
}

struct Node {
    clock: HostClock,
    /// Outlives the process.
    disk: Arc<Disk>,
    /// The same without its faults.
    sectors: SimulatedDisk,
    versions: Arc<AtomicU32>,
    running: RefCell<Option<RunningNode>>,
    /// Until then it is down.
    down_until: Cell<Duration>,
    incarnation: Cell<u32>,
    on_end: Notify,
}

struct RunningNode {
    client: Option<Client>,
    process: Process,
    applications: Vec<AbortHandle>,
}

impl World {
    pub(crate) fn new(plan: &Plan, history: Arc<History>) -> Rc<Self> {
        let random = Random::of(plan.seed, "world");
        let network = Network::new(plan.network.weather(), Random::of(plan.seed, "network"));
        let mut ledger = Ledger::new();
        if plan.shows_effects {
            let history = Arc::clone(&history);
            ledger = ledger.with_log(move |line| history.say("effect", line));
        }
        let ledger = Arc::new(ledger);
        let fabric = Fabric::new(&network, &ledger);
        let clocks = Random::of(plan.seed, "clocks");
        // Quartz clocks are off by up to a hundred parts of a million.
        let clock = || {
            let drift = clocks.below(201).cast_signed() - 100;
            HostClock::new(drift, Duration::from_secs(clocks.below(1_000_000)))
        };
        let masters = Masters::new(plan, &network, &ledger, &history, clock);
        let nodes = (0..plan.nodes).map(|number| Node::new(clock(), plan.seed + u64::from(number)));
        let nodes = nodes.collect();
        Rc::new(Self {
            plan: plan.clone(),
            random,
            network,
            fabric,
            ledger,
            history,
            masters,
            files: plan.has_files.then(|| Arc::new(FaultyTier::new(MemoryTier::new(), plan.seed))),
            requests: (plan.load == Load::Trace).then(|| Arc::new(Requests::new(plan.seed))),
            nodes,
            storms: Cell::new(0),
            is_over: Cell::new(false),
        })
    }

    /// Runs the plan.
    pub(crate) async fn run(self: Rc<Self>) {
        let keepers: Vec<JoinHandle<()>> = (0..self.plan.nodes)
            .map(|node| {
                let world = Rc::clone(&self);
                tokio::task::spawn_local(async move { world.keep_node(node).await })
            })
            .collect();
        let faults = self.plan.faults.iter().map(|fault| {
            let (world, fault) = (Rc::clone(&self), *fault);
            tokio::task::spawn_local(async move {
                sleep(fault.at.saturating_sub(virtual_time())).await;
                world.inflict(fault).await;
            })
        });
        let faults: Vec<_> = faults.collect();
        let mut compared = Duration::ZERO;
        while virtual_time() < self.plan.time && !self.has_violations() {
            sleep(LOOK.min(self.plan.time - virtual_time())).await;
            if virtual_time() >= compared + COMPARE {
                self.masters.compare();
                compared = virtual_time();
            }
        }
        self.is_over.set(true);
        for node in &self.nodes {
            node.rest();
        }
        if self.has_violations() {
            return;
        }
        for fault in faults {
            // A fault may last beyond the time with load.
            fault.await.expect("faults do not panic");
        }
        sleep(QUIET).await;
        self.check_end().await;
        for (number, node) in (0..).zip(&self.nodes) {
            self.ledger.leaves(&second_segment_name(number));
            node.on_end.notify_one();
        }
        for keeper in keepers {
            keeper.await.expect("nodes do not panic");
        }
    }

    pub(crate) fn has_violations(&self) -> bool {
        self.ledger.has_violations() || self.history.has_violations()
    }

    /// Starts a node again and again, until the end.
    async fn keep_node(self: Rc<Self>, number: u32) {
        let node = &self.nodes[number as usize];
        loop {
            let down = node.down_until.get().saturating_sub(virtual_time());
            sleep(down).await;
            self.run_node(number).await;
            if node.down_until.get() <= virtual_time() && self.is_over.get() {
                return;
            }
        }
    }

    /// Runs a node until it is killed, or until the end.
    async fn run_node(&self, number: u32) {
        let node = &self.nodes[number as usize];
        let process = Process::new(node_host(number));
        *node.running.borrow_mut() =
            Some(RunningNode { client: None, process: process.clone(), applications: Vec::new() });
        let killed = node.on_end.notified();
        tokio::pin!(killed);
        let client = tokio::select! {
            biased;
            () = &mut killed => return,
            client = self.join(number, &process) => client,
        };
        self.history.say(format_args!("n{number}"), "joined");
        let applications = if self.is_over.get() { 0 } else { APPLICATIONS };
        let applications: Vec<_> = (0..applications)
            .map(|_| {
                let application = Application {
                    node: number,
                    client: client.clone(),
                    random: self.random.fork(),
                    history: Arc::clone(&self.history),
                    ledger: Arc::clone(&self.ledger),
                    versions: Arc::clone(&node.versions),
                    keys: self.keys(),
                    nodes: self.plan.nodes,
                    pace: self.plan.pace * APPLICATIONS,
                    requests: self.requests.clone(),
                };
                tokio::spawn(application.work()).abort_handle()
            })
            .collect();
        if let Some(running) = node.running.borrow_mut().as_mut() {
            (running.client, running.applications) = (Some(client.clone()), applications);
        }
        killed.await;
        let running = node.running.borrow_mut().take();
        if let Some(RunningNode { applications, process, .. }) = running {
            applications.iter().for_each(AbortHandle::abort);
            if process.ended().is_none() {
                self.ledger.leaves(&segment_name(number));
                client.shutdown().await;
            }
        }
    }

    async fn join(&self, number: u32, process: &Process) -> Client {
        let node = &self.nodes[number as usize];
        let incarnation = node.incarnation.replace(node.incarnation.get() + 1);
        let name = format!("{}:{}", node_host(number), 17_000 + incarnation);
        let transport = self.fabric.transport(&name, process, &self.random).expect("a new name");
        let transport = Arc::new(transport);
        let host = SimulatedHost::new(
            &self.network,
            process,
            node.clock.boot_clock(),
            &self.random,
            if self.files.is_some() || self.plan.has_disks { DISK } else { Duration::ZERO },
        );
        let host = Arc::new(host);
        loop {
            let mut builder = Client::builder()
                .master(self.masters.addresses())
                .environment(Arc::clone(&host) as _)
                .node(NodeConfig::only(Arc::clone(&transport) as _))
                .segment_size(self.segment_size())
                .hot_cache(hot_cache(number))
                .tells_reads(tells_reads(number))
                .segment_name(segment_name(number))
                .local_buffer(ByteSize::kib(256));
            if let Some(files) = &self.files {
                builder = builder.shared_tier(Arc::clone(files) as _);
            }
            if self.plan.has_disks {
                match own_tier(number, &node.disk) {
                    Ok(tier) => builder = builder.own_tier(tier),
                    Err(error) => self.history.say(
                        format_args!("n{number}"),
                        format_args!("has no disk this time: {error}"),
                    ),
                }
            }
            self.ledger.joins(&segment_name(number));
            match builder.connect().await {
                Ok(client) => return client,
                // The master may be away, or still know the node's former life.
                Err(error) => {
                    let code = std::error::Error::source(&error).map(ToString::to_string);
                    self.history.say(
                        format_args!("n{number}"),
                        format_args!("cannot join: {error} {code:?}"),
                    );
                    sleep(Duration::from_millis(200 + self.random.below(800))).await;
                }
            }
        }
    }

    fn segment_size(&self) -> ByteSize {
        SEGMENTS[(self.plan.seed % 2) as usize]
    }

    pub(crate) fn keys(&self) -> u32 {
        (self.plan.nodes * KEYS_OF_A_NODE).max(100)
    }

    async fn inflict(&self, fault: Fault) {
        self.history.say("fault", fault);
        let until = Instant::now() + fault.lasts;
        let cut = |from, to| self.network.cut(Cut { from, to, until });
        match fault.what {
            What::CutOff(node) => {
                cut(Some(node_host(node)), None);
                cut(None, Some(node_host(node)));
            }
            What::Mute(node) => cut(Some(node_host(node)), None),
            What::Deaf(node) => cut(None, Some(node_host(node))),
            What::Apart(one, two) => {
                cut(Some(node_host(one)), Some(node_host(two)));
                cut(Some(node_host(two)), Some(node_host(one)));
            }
            What::Pause(node) => self.with_process(node, |process| process.pause(until)),
            What::Suspend(node) => {
                self.with_process(node, |process| process.pause(until));
                self.nodes[node as usize].clock.jump(fault.lasts);
            }
            What::Kill(node) => self.end_node(node, Ending::Killed, fault.lasts),
            What::PowerLoss(node) => self.end_node(node, Ending::PowerLost, fault.lasts),
            What::Leave(node) => self.leave(node, fault.lasts).await,
            What::Extend(node) => self.extend(node, fault.lasts).await,
            What::Slow(node) => {
                self.with_process(node, |process| {
                    process.set_slowness(Duration::from_millis(500));
                });
                sleep(fault.lasts).await;
                self.with_process(node, |process| process.set_slowness(Duration::ZERO));
            }
            What::HangDisk(node) => self.with_process(node, |process| process.hang_disk(until)),
            What::SlowDisk(node) => {
                self.with_process(node, |process| process.set_disk_delay(SLOW_DISK));
                sleep(fault.lasts).await;
                self.with_process(node, |process| process.set_disk_delay(Duration::ZERO));
            }
            What::FillDisk(_) | What::BreakDisk(_) | What::FreezeDisk(_) | What::CorruptDisk(_) => {
                self.spoil_disk(fault).await;
            }
            What::BreakFiles => {
                let Some(files) = &self.files else { return };
                self.ledger.damages_files();
                let mut faults = Faults::default();
                (faults.full, faults.write_fails) = (0.3, 0.3);
                (faults.read_fails, faults.flipped_bit) = (0.3, 0.1);
                files.set(faults);
                sleep(fault.lasts).await;
                files.set(Faults::default());
            }
            What::Storm => {
                self.storms.set(self.storms.get() + 1);
                self.network.set_weather(Roughness::Storm.weather());
                sleep(fault.lasts).await;
                self.storms.set(self.storms.get() - 1);
                if self.storms.get() == 0 {
                    self.network.set_weather(self.plan.network.weather());
                }
            }
            _ => self.masters.inflict(fault).await,
        }
    }

    /// Makes a node's disk fail for a while.
    async fn spoil_disk(&self, fault: Fault) {
        let [Some(node), _] = fault.what.nodes() else { return };
        let disk = &self.nodes[node as usize].disk;
        let mut faults = BackendFaults::default();
        match fault.what {
            What::FillDisk(_) => faults.space = Some(ByteSize::bytes(0)),
            What::FreezeDisk(_) => faults.read_only = true,
            What::BreakDisk(_) => {
                // What cannot be read is deleted.
                self.ledger.damages_disk();
                (faults.write_fails, faults.read_fails) = (0.5, 0.5);
            }
            _ => {
                self.ledger.damages_disk();
                (faults.flipped_bit, faults.write_lost) = (0.1, 0.1);
            }
        }
        disk.set(faults);
        sleep(fault.lasts).await;
        disk.set(BackendFaults::default());
    }

    fn with_process(&self, node: u32, change: impl FnOnce(&Process)) {
        if let Some(running) = &*self.nodes[node as usize].running.borrow() {
            change(&running.process);
        }
    }

    fn end_node(&self, number: u32, ending: Ending, down: Duration) {
        let node = &self.nodes[number as usize];
        let Some(running) = node.running.borrow_mut().take() else { return };
        running.applications.iter().for_each(AbortHandle::abort);
        running.process.end(&self.network, ending);
        if ending == Ending::PowerLost {
            node.sectors.lose_power(&self.random);
            self.ledger.damages_disk();
        }
        node.down_until.set(virtual_time() + down);
        node.on_end.notify_one();
    }

    /// Shuts a node down.
    async fn leave(&self, number: u32, down: Duration) {
        let node = &self.nodes[number as usize];
        let Some(client) = node.client() else { return };
        self.ledger.leaves(&segment_name(number));
        self.ledger.leaves(&second_segment_name(number));
        client.shutdown().await;
        self.history.say(format_args!("n{number}"), "left");
        self.end_node(number, Ending::Killed, down);
    }

    /// Mounts a second segment, and unmounts it later.
    async fn extend(&self, number: u32, lasts: Duration) {
        let node = &self.nodes[number as usize];
        let Some(client) = node.client() else { return };
        let who = format!("n{number}");
        let name = second_segment_name(number);
        // A mount without an answer is taken back.
        self.ledger.leaves(&name);
        let mounted =
            client.mount_segment(SegmentOptions::new(self.segment_size()).name(&name)).await;
        self.history.say(&who, format_args!("mounts {name}: {}", outcome(&mounted)));
        let Ok(id) = mounted else { return };
        self.ledger.keeps(&name);
        sleep(lasts).await;
        self.ledger.leaves(&name);
        let grace = Duration::from_secs(self.random.below(2) * 10);
        let unmounted = client.unmount_segment(id, grace).await;
        self.history.say(&who, format_args!("unmounts {name}: {}", outcome(&unmounted)));
    }
}

impl Node {
    fn new(clock: HostClock, seed: u64) -> Self {
        let sectors = SimulatedDisk::new(DISK_SIZE);
        Self {
            clock,
            disk: Arc::new(FaultyBackend::new(sectors.clone(), seed)),
            sectors,
            versions: Arc::default(),
            running: RefCell::new(None),
            down_until: Cell::new(Duration::ZERO),
            incarnation: Cell::new(0),
            on_end: Notify::new(),
        }
    }

    fn client(&self) -> Option<Client> {
        self.running.borrow().as_ref().and_then(|running| running.client.clone())
    }

    /// Ends its applications.
    fn rest(&self) {
        if let Some(running) = &mut *self.running.borrow_mut() {
            running.applications.drain(..).for_each(|application| application.abort());
        }
    }
}
