//! The masters: one that forgets everything, one with a journal, or three that elect a leader.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mc_cluster_testkit::simulation::{
    Cut, Ending, HostClock, Ledger, Life, Network, Process, Random, SimulatedHost, SimulatedJournal,
};
use mc_events::EventSystem;
use mc_ha::election::Member;
use mc_ha::election::memory::{MemoryCluster, MemoryElection};
use mc_ha::encoding::BatchBuilder;
use mc_ha::{Durability, Identity, MetadataJournal};
use mc_meta::{
    DiskConfig, ExportCursor, LocalDiskConfig, MasterConfig, MasterReport, PromotionConfig, Record,
};
use mc_rpc::{HaReport, ServerConfig};
use mc_store::{
    ClusterConfig, EventPublisher, HaEnvironment, JournalConfig, Master, MasterStartError, Standby,
    StandbyError,
};
use mc_types::{Epoch, Sequence};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::events::Subscriber;
use crate::history::History;
use crate::plan::{Fault, MasterKind, Plan, What};
use crate::workload::LEASE;

/// How long a leader that is silent is believed to live.
const TERM: Duration = Duration::from_secs(2);

/// Bytes that the files of objects may take.
const FILES: u64 = 1 << 20;

/// How long the segments of a silent node are kept for it: of a short time nodes come back too late,
/// and mount their memory anew while writes of its former life are under way.
const RETURN_TIMEOUTS: [Duration; 2] = [Duration::from_secs(40), Duration::from_secs(2)];

/// The masters, and the service in which they elect a leader.
pub(crate) struct Masters {
    kind: MasterKind,
    hosts: Vec<MasterHost>,
    shared: Shared,
    random: Random,
    election: Option<MemoryCluster>,
    _judge: HostClock,
}

/// What the masters share with those who watch them.
#[derive(Clone)]
struct Shared {
    network: Arc<Network>,
    ledger: Arc<Ledger>,
    history: Arc<History>,
    random: Random,
    /// Objects have files on a tier that all nodes reach.
    has_files: bool,
    /// Each node has a disk of its own.
    has_disks: bool,
    /// How long the segments of a silent node are kept for it.
    return_timeout: Duration,
    leader: Arc<Mutex<Option<Leader>>>,
}

/// The master that leads, or led last.
struct Leader {
    host: usize,
    state: Arc<mc_meta::Master>,
    report: Option<Arc<dyn HaReport>>,
    subscriber: Arc<Subscriber>,
    events: Arc<EventSystem>,
}

struct MasterHost {
    address: Ipv4Addr,
    clock: HostClock,
    /// Outlives the process.
    journal: RefCell<SimulatedJournal>,
    /// What it was some time ago.
    old: RefCell<SimulatedJournal>,
    running: RefCell<Option<Running>>,
    was_killed: Cell<bool>,
}

struct Running {
    process: Process,
    election: Option<Arc<MemoryElection>>,
    life: JoinHandle<()>,
}

impl Shared {
    fn leader(&self) -> MutexGuard<'_, Option<Leader>> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a publisher with a subscriber.
    async fn subscribe(&self) -> (Arc<Subscriber>, EventPublisher) {
        let started = Subscriber::start(&self.history, &self.random).await;
        started.expect("it opens no socket")
    }

    /// The settings of a master: time-outs that a simulation of minutes sees often.
    fn config(&self) -> MasterConfig {
        let mut config = MasterConfig::default();
        config.shards = 8;
        config.lease_ttl = LEASE;
        config.put_start_discard_timeout = Duration::from_secs(20);
        config.put_start_release_timeout = Duration::from_secs(60);
        config.client_ttl = Duration::from_secs(10);
        config.client_return_timeout = self.return_timeout;
        config.disk = self.has_files.then(|| DiskConfig::with_capacity(FILES));
        if self.has_disks {
            let mut disks = LocalDiskConfig::default();
            disks.return_timeout = 2 * self.return_timeout;
            disks.on_evict = self.return_timeout == RETURN_TIMEOUTS[0];
            config.local_disk = Some(disks);
            config.promotion = Some(PromotionConfig::default());
        }
        config
    }

    /// Notes that the master of this host serves clients from now on.
    fn leads(
        &self,
        host: usize,
        master: &Master,
        (life, subscriber): (Life, Arc<Subscriber>),
        is_kept: bool,
    ) {
        let state = Arc::clone(master.state());
        let events = Arc::clone(master.events().expect("it publishes"));
        let records = records(&state);
        self.ledger.leads(life, is_kept, &records);
        let report = master.ha_report();
        *self.leader() = Some(Leader { host, state, report, subscriber, events });
        self.history.say(format_args!("m{host}"), "leads");
    }
}

/// Everything that a master knows.
fn records(state: &mc_meta::Master) -> Vec<Record> {
    let (mut cursor, mut records) = (Some(ExportCursor::default()), Vec::new());
    while let Some(at) = cursor {
        let page = state.export(mc_types::Time::ORIGIN, at);
        records.extend(page.records);
        cursor = page.next;
    }
    records
}

/// The journal of a cluster that has nothing to do with this one, in terms that may be this one's.
fn strange_journal() -> SimulatedJournal {
    let journal = SimulatedJournal::new();
    let identity = Identity { seed: 1, secret: [1; 16] };
    let epoch = Epoch::new(3);
    let mut builder = BatchBuilder::new(epoch);
    (0..100).for_each(|number| builder.effect(Sequence::new(number), None));
    let batch = builder.seal().expect("effects were added");
    let written = journal
        .set_identity(&identity)
        .and_then(|()| journal.begin_epoch(epoch))
        .and_then(|()| journal.append(epoch, &batch))
        .and_then(|()| journal.sync());
    written.expect("it is empty, and in memory");
    journal
}

fn rpc_address(host: Ipv4Addr) -> String {
    format!("{host}:50051")
}

impl Masters {
    pub(crate) fn new(
        plan: &Plan,
        network: &Arc<Network>,
        ledger: &Arc<Ledger>,
        history: &Arc<History>,
        clock: impl Fn() -> HostClock,
    ) -> Self {
        let kind = plan.masters;
        let count = if kind == MasterKind::Three { 3 } else { 1 };
        let hosts = (1..=count).map(|number| MasterHost {
            address: Ipv4Addr::new(172, 16, 0, number),
            clock: clock(),
            journal: RefCell::new(SimulatedJournal::new()),
            old: RefCell::new(SimulatedJournal::new()),
            running: RefCell::new(None),
            was_killed: Cell::new(false),
        });
        let random = Random::of(plan.seed, "masters");
        let shared = Shared {
            network: Arc::clone(network),
            ledger: Arc::clone(ledger),
            history: Arc::clone(history),
            random: random.fork(),
            has_files: plan.has_files,
            has_disks: plan.has_disks,
            return_timeout: RETURN_TIMEOUTS[(plan.seed / 2 % 2) as usize],
            leader: Arc::default(),
        };
        let judge = clock();
        let election = (kind == MasterKind::Three).then(|| {
            let process = Process::new(Ipv4Addr::new(172, 16, 1, 1));
            let none = Duration::ZERO;
            let host = SimulatedHost::new(network, &process, judge.boot_clock(), &random, none);
            let environment = Arc::new(HaEnvironment::new(Arc::new(host)));
            let started =
                MemoryCluster::start_in(&*environment, TERM, Arc::clone(&environment) as _);
            started.expect("tasks can be started")
        });
        let masters =
            Self { kind, hosts: hosts.collect(), shared, random, election, _judge: judge };
        (0..masters.hosts.len()).for_each(|host| masters.start(host));
        masters
    }

    /// The address that clients are given.
    pub(crate) fn addresses(&self) -> String {
        let addresses: Vec<_> = self.hosts.iter().map(|host| rpc_address(host.address)).collect();
        addresses.join(";")
    }

    /// The leader's totals.
    pub(crate) fn report(&self) -> Option<MasterReport> {
        self.shared.leader().as_ref().map(|leader| leader.state.report())
    }

    /// Compares the leader's whole state with the ledger.
    pub(crate) fn compare(&self) {
        let leader = self.shared.leader();
        let Some(Leader { host, state, subscriber, events, .. }) = &*leader else { return };
        if self.hosts[*host].running.borrow().is_none() {
            return;
        }
        let records = records(state);
        self.shared.ledger.compare(records.iter().filter_map(|record| match record {
            Record::Object(object) => Some(object),
            _ => None,
        }));
        subscriber.compare(events, &self.shared.ledger);
        let damage = state.report().damage;
        // Of an object that has gone meanwhile they count as dropped. A file may be replaced while it
        // is read, and is reported then; a second look denies it, or else an effect tells.
        let wrong = damage.reports - damage.dropped;
        if wrong > 0 && !self.shared.has_files && !self.shared.has_disks {
            self.shared.history.violates(format_args!(
                "{wrong} times a reader got other bytes than were put from a replica that was listed"
            ));
        }
    }

    fn start(&self, number: usize) {
        let host = &self.hosts[number];
        if host.was_killed.get()
            && self.kind == MasterKind::Alone
            && (self.shared.has_files || self.shared.has_disks)
        {
            // It has forgotten which values were removed whose files and disks are still to be read.
            self.shared.history.may_undo_all();
        }
        let process = Process::new(host.address);
        let clock = host.clock.boot_clock();
        let network = &self.shared.network;
        let environment =
            Arc::new(SimulatedHost::new(network, &process, clock, &self.random, Duration::ZERO));
        let mut journal = JournalConfig::new(Arc::new(host.journal.borrow().clone()));
        journal.writer.durability = Durability::Sync;
        journal.threads = NonZeroUsize::MIN;
        journal.snapshots.interval = Duration::from_secs(60);
        journal.snapshots.bytes = 64 << 10;
        let (shared, own) = (self.shared.clone(), process.clone());
        let election = self.election.as_ref().map(|election| Arc::new(election.join()));
        let life = match &election {
            None => {
                let journal = (self.kind == MasterKind::Journaled).then_some(journal);
                let seed = self.random.next();
                tokio::spawn(live_alone(shared, number, own, environment, journal, seed))
            }
            Some(election) => {
                let address = rpc_address(host.address);
                let member = Member::new(&format!("m{number}"), &address).expect("a member");
                let mut cluster = ClusterConfig::new(member, Arc::clone(election) as _, journal);
                cluster.replication.semi_synchronous = true;
                cluster.environment = environment;
                tokio::spawn(live_among_others(shared, number, own, address, cluster))
            }
        };
        *host.running.borrow_mut() = Some(Running { process, election, life });
    }

    fn kill(&self, number: usize) -> bool {
        let host = &self.hosts[number];
        let Some(Running { process, election, life }) = host.running.borrow_mut().take() else {
            return false;
        };
        if let Some(election) = election {
            election.set_cut(true);
        }
        process.end(&self.shared.network, Ending::Killed);
        life.abort();
        host.journal.borrow().crash(&self.random);
        host.was_killed.set(true);
        self.shared.history.say(format_args!("m{number}"), "killed");
        true
    }

    /// The master that leads, or a standby.
    fn target(&self, leads: bool) -> usize {
        let leader = self.shared.leader().as_ref().map_or(0, |leader| leader.host);
        if leads { leader } else { (leader + 1) % self.hosts.len() }
    }

    pub(crate) async fn inflict(&self, fault: Fault) {
        let until = Instant::now() + fault.lasts;
        match fault.what {
            What::KillMaster => self.kill_for(self.target(true), fault.lasts).await,
            What::KillStandby => self.kill_for(self.target(false), fault.lasts).await,
            What::KillAllMasters => {
                let all = 0..self.hosts.len();
                let killed: Vec<usize> = all.filter(|number| self.kill(*number)).collect();
                sleep(fault.lasts).await;
                killed.into_iter().for_each(|number| self.start(number));
            }
            What::PauseMaster => {
                let number = self.target(true);
                self.with_process(number, |process| process.pause(until));
                self.without_election(number, until).await;
            }
            What::CutMaster => {
                let host = Some(self.hosts[self.target(true)].address);
                self.shared.network.cut(Cut { from: host, to: None, until });
                self.shared.network.cut(Cut { from: None, to: host, until });
            }
            What::LoseElection => self.without_election(self.target(true), until).await,
            What::HandOver => self.hand_over(),
            What::EmptyStandby => self.replace_journal(fault.lasts, SimulatedJournal::new()).await,
            What::OldStandby => {
                let host = &self.hosts[self.target(false)];
                let old = host.old.replace(host.journal.borrow().copy());
                self.replace_journal(fault.lasts, old).await;
            }
            What::StrangeStandby => self.replace_journal(fault.lasts, strange_journal()).await,
            What::FillJournal => {
                let journal = self.hosts[self.target(true)].journal.borrow().clone();
                journal.set_full(true);
                sleep(fault.lasts).await;
                journal.set_full(false);
            }
            _ => {}
        }
    }

    /// Tells the leader to hand over to whom it likes.
    fn hand_over(&self) {
        let leader = self.shared.leader();
        if let Some(Leader { report: Some(report), .. }) = &*leader {
            // Refused while no standby is in sync.
            let handed = report.hand_over(None);
            self.shared.history.say("masters", format_args!("hand over: {}", handed.is_ok()));
        }
    }

    /// Starts a standby again with another journal. Where there is one master only, nothing happens.
    async fn replace_journal(&self, down: Duration, journal: SimulatedJournal) {
        let number = self.target(false);
        if self.kind == MasterKind::Three && self.kill(number) {
            sleep(down).await;
            self.hosts[number].journal.replace(journal);
            self.start(number);
        }
    }

    async fn kill_for(&self, number: usize, down: Duration) {
        if self.kill(number) {
            sleep(down).await;
            self.start(number);
        }
    }

    fn with_process(&self, number: usize, change: impl FnOnce(&Process)) {
        if let Some(running) = &*self.hosts[number].running.borrow() {
            change(&running.process);
        }
    }

    /// Cuts a master off from the service in which the leader is elected.
    async fn without_election(&self, number: usize, until: Instant) {
        let Some(election) = self.election_of(number) else { return };
        election.set_cut(true);
        sleep_until(until).await;
        // Another one has its place when it was killed meanwhile.
        if self.election_of(number).is_some_and(|now| Arc::ptr_eq(&now, &election)) {
            election.set_cut(false);
        }
    }

    fn election_of(&self, number: usize) -> Option<Arc<MemoryElection>> {
        self.hosts[number].running.borrow().as_ref().and_then(|it| it.election.clone())
    }
}

/// The life of a master without others.
async fn live_alone(
    shared: Shared,
    number: usize,
    process: Process,
    environment: Arc<SimulatedHost>,
    journal: Option<JournalConfig>,
    seed: u64,
) {
    let is_kept = journal.is_some();
    let (master, streams, life, subscriber) = loop {
        let sink = shared.ledger.sink();
        let life = sink.life();
        let (subscriber, publisher) = shared.subscribe().await;
        let mut builder = Master::builder()
            .config(shared.config())
            .seed(seed)
            .sink(sink)
            .events(publisher)
            .environment(Arc::clone(&environment) as _);
        if let Some(journal) = journal.clone() {
            builder = builder.journal(journal);
        }
        match builder.start_over_streams().await {
            Ok((master, streams)) => break (master, streams, life, subscriber),
            // Its disk is full.
            Err(error @ MasterStartError::Journal(_)) => {
                shared.history.say(format_args!("m{number}"), format_args!("cannot lead: {error}"));
                sleep(Duration::from_secs(1)).await;
            }
            Err(error) => {
                shared.history.violates(format_args!("a master does not start: {error}"));
                return;
            }
        }
    };
    shared.leads(number, &master, (life, subscriber), is_kept);
    shared.network.listen(&rpc_address(process.host()), &process, streams);
    std::future::pending::<()>().await;
}

/// The life of a master among others, as the program mc-master lives it.
async fn live_among_others(
    shared: Shared,
    number: usize,
    process: Process,
    address: String,
    cluster: ClusterConfig,
) {
    let who = format!("m{number}");
    let mut was_leader = false;
    loop {
        let (cluster, server) = (cluster.clone(), ServerConfig::default());
        let standby = if was_leader {
            Standby::start_over_streams_after_term(cluster, shared.config(), server).await
        } else {
            Standby::start_over_streams(cluster, shared.config(), server).await
        };
        let (standby, streams) = match standby {
            Ok(started) => started,
            Err(error @ StandbyError::Election(_)) => {
                shared.history.say(&who, format_args!("cannot take part: {error}"));
                sleep(Duration::from_secs(1)).await;
                continue;
            }
            Err(error) => {
                shared.history.violates(format_args!("a standby does not start: {error}"));
                return;
            }
        };
        shared.network.listen(&address, &process, streams);
        shared.history.say(&who, "stands by");
        let seat = match standby.lead().await {
            Ok(seat) => seat,
            Err(error) => {
                shared.history.say(&who, format_args!("cannot lead: {error}"));
                sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        was_leader = true;
        let sink = shared.ledger.sink();
        let life = sink.life();
        let (subscriber, publisher) = shared.subscribe().await;
        let builder =
            Master::builder().config(shared.config()).sink(sink).events(publisher).lead(seat);
        let (master, streams) = match builder.start_over_streams().await {
            Ok(started) => started,
            Err(error @ (MasterStartError::Term(_) | MasterStartError::Journal(_))) => {
                shared.history.say(&who, format_args!("does not lead: {error}"));
                sleep(Duration::from_secs(1)).await;
                continue;
            }
            Err(error) => {
                shared.history.violates(format_args!("a master does not start: {error}"));
                return;
            }
        };
        shared.leads(number, &master, (life, subscriber), true);
        shared.network.listen(&address, &process, streams);
        let journal = master.journal_watch().expect("it has a journal");
        tokio::select! {
            biased;
            () = master.deposed() => {}
            () = journal.gave_up() => {}
        }
        shared.history.say(&who, "leads no more");
        master.shutdown().await;
    }
}
