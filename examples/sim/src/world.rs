//! The cluster: a master, its nodes, and what happens to them.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use mc_cluster_testkit::simulation::{
    Cut, Ending, Fabric, HostClock, Ledger, Network, Process, Random, SimulatedHost, virtual_time,
};
use mc_meta::{ExportCursor, MasterReport, Record, SegmentInfo, SegmentStatus};
use mc_store::{
    ByteSize, Client, HotCacheConfig, Master, MasterConfig, NodeConfig, SegmentOptions,
};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep};

use crate::history::History;
use crate::plan::{Fault, Plan, QUIET, Roughness, What};
use crate::workload::{Application, LEASE};

/// What each node contributes: more than all values need, or, in each second simulation, so little
/// that objects are evicted.
const SEGMENTS: [ByteSize; 2] = [ByteSize::kib(256), ByteSize::kib(24)];

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

/// How often it is looked whether a violation was found.
const LOOK: Duration = Duration::from_millis(100);

/// How often the master's state is compared with the ledger.
const COMPARE: Duration = Duration::from_secs(30);

const MASTER: &str = "master:50051";

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

fn node_host(node: u32) -> Ipv4Addr {
    let [_, b, c, d] = (node + 1).to_be_bytes();
    Ipv4Addr::new(10, b, c, d)
}

const MASTER_HOST: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 1);

pub(crate) fn master_config() -> MasterConfig {
    let mut config = MasterConfig::default();
    config.shards = 8;
    config.lease_ttl = LEASE;
    config.put_start_discard_timeout = Duration::from_secs(20);
    config.put_start_release_timeout = Duration::from_secs(60);
    config.client_ttl = Duration::from_secs(10);
    config.client_return_timeout = Duration::from_secs(40);
    config
}

/// What the simulation is made of.
pub(crate) struct World {
    plan: Plan,
    random: Random,
    network: Arc<Network>,
    fabric: Arc<Fabric>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) history: Arc<History>,
    master: RefCell<Option<RunningMaster>>,
    master_clock: HostClock,
    nodes: Vec<Node>,
    /// Storms under way.
    storms: Cell<u32>,
    is_over: Cell<bool>,
}

struct RunningMaster {
    master: Master,
    process: Process,
}

struct Node {
    clock: HostClock,
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
        let nodes = (0..plan.nodes).map(|_| Node::new(clock())).collect();
        Rc::new(Self {
            plan: plan.clone(),
            random,
            network,
            fabric,
            ledger,
            history,
            master: RefCell::new(None),
            master_clock: clock(),
            nodes,
            storms: Cell::new(0),
            is_over: Cell::new(false),
        })
    }

    /// Runs the plan.
    pub(crate) async fn run(self: Rc<Self>) {
        self.start_master();
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
                self.compare();
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

    fn start_master(&self) {
        let process = Process::new(MASTER_HOST);
        let host = SimulatedHost::new(
            &self.network,
            &process,
            self.master_clock.boot_clock(),
            &self.random,
            Duration::ZERO,
        );
        self.ledger.forget();
        let builder = Master::builder()
            .config(master_config())
            .seed(self.random.next())
            .sink(self.ledger.sink())
            .environment(Arc::new(host));
        let (master, streams) = builder.start_over_streams().expect("a master");
        self.network.listen(MASTER, &process, streams);
        self.history.say("master", "started");
        *self.master.borrow_mut() = Some(RunningMaster { master, process });
    }

    fn report(&self) -> Option<MasterReport> {
        self.master.borrow().as_ref().map(|running| running.master.report())
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
            Duration::ZERO,
        );
        let host = Arc::new(host);
        loop {
            let builder = Client::builder()
                .master(MASTER)
                .environment(Arc::clone(&host) as _)
                .node(NodeConfig::only(Arc::clone(&transport) as _))
                .segment_size(self.segment_size())
                .hot_cache(hot_cache(number))
                .segment_name(segment_name(number))
                .local_buffer(ByteSize::kib(256));
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
            What::Storm => {
                self.storms.set(self.storms.get() + 1);
                self.network.set_weather(Roughness::Storm.weather());
                sleep(fault.lasts).await;
                self.storms.set(self.storms.get() - 1);
                if self.storms.get() == 0 {
                    self.network.set_weather(self.plan.network.weather());
                }
            }
            What::KillMaster => {
                let running = self.master.borrow_mut().take();
                // It may be down already.
                let Some(RunningMaster { master, process }) = running else { return };
                process.end(&self.network, Ending::Killed);
                drop(master);
                self.history.say("master", "killed");
                sleep(fault.lasts).await;
                self.start_master();
            }
            What::PauseMaster => {
                if let Some(running) = &*self.master.borrow() {
                    running.process.pause(until);
                }
            }
        }
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
        let mounted =
            client.mount_segment(SegmentOptions::new(self.segment_size()).name(&name)).await;
        self.history.say(&who, format_args!("mounts {name}: {}", outcome(&mounted)));
        let Ok(id) = mounted else { return };
        sleep(lasts).await;
        self.ledger.leaves(&name);
        let grace = Duration::from_secs(self.random.below(2) * 10);
        let unmounted = client.unmount_segment(id, grace).await;
        self.history.say(&who, format_args!("unmounts {name}: {}", outcome(&unmounted)));
    }

    /// Compares the master's whole state with the ledger.
    fn compare(&self) {
        let master = self.master.borrow();
        let Some(RunningMaster { master, .. }) = &*master else { return };
        let (mut cursor, mut records) = (Some(ExportCursor::default()), Vec::new());
        while let Some(at) = cursor {
            let page = master.state().export(mc_types::Time::ORIGIN, at);
            records.extend(page.records);
            cursor = page.next;
        }
        let objects = records.iter().filter_map(|record| match record {
            Record::Object(object) => Some(object),
            _ => None,
        });
        self.ledger.compare(objects);
        let reports = master.report().damage.reports;
        if reports > 0 {
            self.history.violates(format_args!(
                "{reports} times a reader got other bytes than were put from a replica that was listed"
            ));
        }
    }

    /// Checks what has to be so when nothing has gone wrong for long.
    async fn check_end(&self) {
        self.compare();
        let Some(report) = self.report() else { return };
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
        let takes_objects = |it: &&SegmentInfo| it.status == SegmentStatus::Ok;
        let size: u64 = report.segments.iter().filter(takes_objects).map(|it| it.spec.size).sum();
        if report.capacity != size {
            self.history.violates(format_args!(
                "{} of {size} bytes take new objects after {QUIET:?} without faults",
                report.capacity
            ));
        }
        let Some(client) = self.any_client() else { return };
        self.ledger.removes_all();
        if let Err(error) = client.remove_all(true).await {
            self.history.violates(format_args!("objects cannot be removed: {error}"));
            return;
        }
        // Leases end, and what may be written late is given up.
        sleep(Duration::from_secs(90)).await;
        let Some(report) = self.report() else { return };
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
}

impl Node {
    fn new(clock: HostClock) -> Self {
        Self {
            clock,
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
