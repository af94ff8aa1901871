//! The masters: one that forgets everything, one with a journal, or three that elect a leader.

mod lives;

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mc_cluster_testkit::simulation::{
    Beginning, Cut, Ending, HostClock, Ledger, Life, Network, Process, Random, SimulatedHost,
    SimulatedJournal, virtual_time,
};
use mc_events::EventSystem;
use mc_ha::election::Member;
use mc_ha::election::memory::{MemoryCluster, MemoryElection};
use mc_ha::encoding::BatchBuilder;
use mc_ha::{Identity, MetadataJournal, Position};
use mc_meta::{
    ExportCursor, LocalDiskConfig, MasterConfig, MasterReport, PromotionConfig, Record,
    SharedTierConfig,
};
use mc_rpc::HaReport;
use mc_store::{ClusterConfig, Environment as _, EventPublisher, JournalConfig, Master};
use mc_types::{Epoch, Sequence};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::events::Subscriber;
use crate::history::History;
use crate::plan::{Durability, Fault, MasterKind, Plan, Replication, What};
use crate::workload::{LEASE, key_number};
use lives::{live_alone, live_among_others};

/// How long a leader that is silent is believed to live.
const TERM: Duration = Duration::from_secs(2);

/// How much older than a change all those must be that are on disk when it is acknowledged, with
/// [`Durability::Async`].
const DURABLE_WITHIN: Duration = Duration::from_millis(100);

/// How long a standby that takes over may have lacked changes, with [`Replication::Async`]: that of the
/// candidates, and the time until the election is told.
const REPLICATED_WITHIN: Duration = Duration::from_secs(14);

/// A leader that hands over does so within this time, or stays the leader.
const HANDED_OVER_WITHIN: Duration = Duration::from_secs(6);

/// How long standbys lack the changes of a leader that is stranded: they are in sync still.
const STRANDED: Duration = Duration::from_millis(1500);

/// A journal that was full is written again within this time.
const WRITTEN_AGAIN: Duration = Duration::from_secs(2);

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

/// The state that the masters share with their observers.
#[derive(Clone)]
struct Shared {
    network: Arc<Network>,
    ledger: Arc<Ledger>,
    history: Arc<History>,
    random: Random,
    durability: Durability,
    replication: Replication,
    /// Objects have files on a tier that all nodes reach.
    has_files: bool,
    /// Each node has a disk of its own.
    has_disks: bool,
    /// How long the segments of a silent node are kept for it.
    return_timeout: Duration,
    leader: Arc<Mutex<Option<Leader>>>,
    /// Until then a journal may be unwritable.
    full_until: Arc<Mutex<Duration>>,
}

/// The master that leads, or led last.
struct Leader {
    host: usize,
    /// When it was last told to hand over, and agreed.
    told: Option<Duration>,
    /// Whether the master has handed over as it was told to.
    has_handed_over: bool,
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
    /// An earlier state of the journal.
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
        config.shared_tier = self.has_files.then(|| SharedTierConfig::with_capacity(FILES));
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
        kept: Option<(&dyn MetadataJournal, Position)>,
    ) {
        let state = Arc::clone(master.state());
        let events = Arc::clone(master.events().expect("it publishes"));
        let records = records(&state);
        let may_lack = self.may_lack(host);
        let beginning = kept.map_or(Beginning::Empty, |(journal, from)| Beginning::Journal {
            term: journal.epoch(),
            from,
            may_lack,
        });
        let undone = self.ledger.leads(life, beginning, &records);
        let report = master.ha_report();
        let (told, has_handed_over) = (None, false);
        *self.leader() =
            Some(Leader { host, told, has_handed_over, state, report, subscriber, events });
        self.history.say(format_args!("m{host}"), format_args!("leads: {beginning:?}"));
        for undone in &undone {
            self.history.say("undone", format_args!("{} since {:?}", undone.key, undone.since));
            if let Some(key) = key_number(&undone.key) {
                self.history.undoes(key, undone.since);
            }
        }
    }

    /// Returns what the journal with which this master begins to lead may lack of what was acknowledged;
    /// see [`Beginning::Journal`] and docs/availability.md.
    fn may_lack(&self, host: usize) -> Option<Duration> {
        let leader = self.leader();
        let before = leader.as_ref()?;
        if before.host == host {
            // It may have crashed.
            return (self.durability == Durability::Async).then_some(DURABLE_WITHIN);
        }
        let is_promised = self.replication == Replication::SemiSync || before.has_handed_over;
        (!is_promised).then_some(REPLICATED_WITHIN)
    }

    /// Notes that the master of this host leads no more. A planned change of leaders loses nothing.
    fn leads_no_more(&self, host: usize, has_successor: bool) {
        let now = virtual_time();
        let is_written = *self.full_until() < now;
        if let Some(leader) = self.leader().as_mut().filter(|it| it.host == host) {
            let is_told = leader.told.is_some_and(|told| now < told + HANDED_OVER_WITHIN);
            leader.has_handed_over = is_told && has_successor && is_written;
        }
    }

    fn full_until(&self) -> MutexGuard<'_, Duration> {
        self.full_until.lock().unwrap_or_else(PoisonError::into_inner)
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
            durability: plan.durability,
            replication: plan.replication,
            has_files: plan.has_files,
            has_disks: plan.has_disks,
            return_timeout: RETURN_TIMEOUTS[(plan.seed / 2 % 2) as usize],
            leader: Arc::default(),
            full_until: Arc::default(),
        };
        let judge = clock();
        let election = (kind == MasterKind::Three).then(|| {
            let process = Process::new(Ipv4Addr::new(172, 16, 1, 1));
            let none = Duration::ZERO;
            let host = SimulatedHost::new(network, &process, judge.boot_clock(), &random, none);
            let since_now = Arc::new(host.clock().now());
            MemoryCluster::start_in(&host, TERM, since_now).expect("tasks can be started")
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

    /// The names of all objects that the leader lists.
    pub(crate) fn objects(&self) -> Vec<String> {
        let leader = self.shared.leader();
        let records = leader.as_ref().map(|leader| records(&leader.state)).unwrap_or_default();
        let names = records.into_iter().filter_map(|record| match record {
            Record::Object(object) => Some(object.key.as_str().to_owned()),
            _ => None,
        });
        names.collect()
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
        let totals = state.report().totals;
        // Of an object that has gone meanwhile they count as dropped. A file may be replaced while it
        // is read, and is reported then; a second look denies it, or else an effect tells.
        let wrong = totals.damage_reports - totals.damage_dropped;
        let may_be =
            self.shared.has_files || self.shared.has_disks || self.shared.ledger.has_spoiled();
        if wrong > 0 && !may_be {
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
        journal.writer.durability = match self.shared.durability {
            Durability::Sync => mc_ha::Durability::Sync,
            Durability::Async => mc_ha::Durability::Async(DURABLE_WITHIN),
        };
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
                cluster.replication.semi_synchronous =
                    self.shared.replication == Replication::SemiSync;
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
            What::StrandMaster => self.strand(fault.lasts).await,
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
                *self.shared.full_until() = virtual_time() + fault.lasts + WRITTEN_AGAIN;
                journal.set_full(true);
                sleep(fault.lasts).await;
                journal.set_full(false);
            }
            _ => {}
        }
    }

    /// Kills the leader when standbys lack its last changes, or its own journal does where none are.
    async fn strand(&self, down: Duration) {
        let number = self.target(true);
        let lasts = down.min(STRANDED);
        let leader = &self.hosts[number];
        let journal = leader.journal.borrow().clone();
        // What is held up until then is lost with its sender.
        let until = Instant::now() + 2 * lasts;
        for standby in self.hosts.iter().filter(|it| it.address != leader.address) {
            let ways = [(leader, standby), (standby, leader)];
            ways.map(|(from, to)| Cut { from: Some(from.address), to: Some(to.address), until })
                .into_iter()
                .for_each(|cut| self.shared.network.cut(cut));
        }
        if self.kind != MasterKind::Three {
            *self.shared.full_until() = virtual_time() + lasts + WRITTEN_AGAIN;
            journal.set_full(true);
        }
        sleep(lasts).await;
        let is_killed = self.kill(number);
        journal.set_full(false);
        if is_killed {
            sleep(down).await;
            self.start(number);
        }
    }

    /// Tells the leader to hand over to whom it likes.
    fn hand_over(&self) {
        let mut leader = self.shared.leader();
        if let Some(Leader { report: Some(report), told, .. }) = &mut *leader {
            // Refused while no standby is in sync.
            let handed = report.hand_over(None);
            if handed.is_ok() {
                *told = Some(virtual_time());
            }
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
