//! Journals and elections in one thread, on a paused clock: nothing blocks, and time jumps.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use mc_environment::{BootClock, ClientEnvironment, Environment, System, Work};
use mc_ha::election::memory::MemoryCluster;
use mc_ha::election::{Clock, ElectionError, LeaderElection, Member, Standing, Takeover};
use mc_ha::replication::{Applier, ApplierSettings, Hub, HubSettings, follow};
use mc_ha::{
    Batch, Faults, FaultyJournal, Identity, JournalError, JournalProgress, JournalWriter,
    MemoryJournal, MetadataJournal, Position, WriterSettings, take_snapshot_async,
};
use mc_meta::{Corrections, Master, MasterConfig, SegmentSpec};
use mc_types::{ClientId, Epoch, MediaType, RemoteKey, SegmentId, Sequence, Time};
use tokio::time::{Instant, sleep};

/// Runs work as tasks, and what blocks where it is called.
#[derive(Debug)]
struct OneThread;

impl Environment for OneThread {
    fn clock(&self) -> BootClock {
        System.clock()
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        System.random(bytes)
    }

    fn spawn_apart(&self, _: &str, work: Work) -> io::Result<()> {
        drop(tokio::spawn(work));
        Ok(())
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }

    fn address_towards(&self, master: &str) -> io::Result<IpAddr> {
        System.address_towards(master)
    }

    fn to_master(&self) -> Option<Arc<dyn ClientEnvironment>> {
        None
    }
}

/// The time on the runtime's clock.
#[derive(Debug)]
struct Virtual(Instant);

impl Clock for Virtual {
    fn now(&self) -> Time {
        Time::ORIGIN + self.0.elapsed()
    }
}

struct Nobody;

impl JournalProgress for Nobody {
    fn acknowledge(&self, _: Sequence) {}
    fn suspended(&self, _: Option<&JournalError>) {}
    fn appended(&self, _: &[Batch]) {}
}

fn writer(journal: &Arc<dyn MetadataJournal>, hub: Arc<dyn JournalProgress>) -> JournalWriter {
    let (epoch, none, settings) =
        (Epoch::new(1), Corrections::default(), WriterSettings::default());
    JournalWriter::start_in(&OneThread, Arc::clone(journal), epoch, &none, settings, hub).unwrap()
}

fn mount(master: &Master, number: u128) {
    let spec = SegmentSpec {
        id: SegmentId::from_u128(number),
        name: format!("segment-{number}").into(),
        base: 0,
        size: 1 << 30,
        endpoint: "mem://a".parse().unwrap(),
        remote_key: RemoteKey::from_bytes([1; 16]),
        ticket_key: None,
        medium: MediaType::Dram,
    };
    master.mount_segment(Time::ORIGIN, ClientId::from_u128(number), spec).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_leader_and_its_standby() {
    let identity = Identity { seed: 7, secret: [3; 16] };
    let journal: Arc<dyn MetadataJournal> = Arc::new(MemoryJournal::new());
    journal.set_identity(&identity).unwrap();
    let hub =
        Hub::new(Epoch::new(1), Arc::clone(&journal), Arc::new(Nobody), HubSettings::default());
    let hub = Arc::new(hub.unwrap().with_environment(Arc::new(OneThread)));
    let writer = writer(&journal, Arc::clone(&hub) as _);
    let config = MasterConfig::default();
    let master = Master::new(config.clone(), identity.seed).unwrap().with_sink(writer.sink());
    mount(&master, 1);
    take_snapshot_async(&master, &writer, || Time::ORIGIN).await.unwrap();
    mount(&master, 2);

    let own: Arc<dyn MetadataJournal> = Arc::new(MemoryJournal::new());
    let standby = Applier::start_in(&OneThread, own, config, ApplierSettings::default()).unwrap();
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let serving = tokio::spawn(Arc::clone(&hub).serve(ours, || {}));
    let mut state = standby.state();
    let last = Position::new(Epoch::new(1), master.last_sequence());
    tokio::select! {
        ended = follow(theirs, "b", &standby) => panic!("{ended:?}"),
        has_all = state.wait_for(|state| state.durable == last) => drop(has_all.unwrap()),
    }
    serving.abort();
    let replica = standby.close().await.unwrap().unwrap();
    let (rebuilt, _) = replica.finish(Time::ORIGIN).unwrap();
    assert_eq!(rebuilt.master.report().segments.len(), 2);
    writer.close().await;
}

#[tokio::test(start_paused = true)]
async fn closing_a_writer_tries_for_ten_seconds_and_dropping_it_blocks_nothing() {
    let faulty = Arc::new(FaultyJournal::new(MemoryJournal::new()));
    let journal = Arc::clone(&faulty) as Arc<dyn MetadataJournal>;
    let writer = writer(&journal, Arc::new(Nobody));
    let mut faults = Faults::default();
    faults.sync_fails = true;
    faulty.set(faults);
    let master = Master::new(MasterConfig::default(), 1).unwrap().with_sink(writer.sink());
    mount(&master, 1);
    let begun = Instant::now();
    let (watch, until) = (writer.watch(), master.last_sequence());
    let (is_durable, ()) = tokio::join!(writer.durable(until), writer.close());
    assert!(!is_durable && watch.read().gave_up);
    assert!(begun.elapsed() >= Duration::from_secs(10), "{:?}", begun.elapsed());

    drop(writer);
    let journal: Arc<dyn MetadataJournal> = Arc::new(MemoryJournal::new());
    let dropped = self::writer(&journal, Arc::new(Nobody));
    let master = Master::new(MasterConfig::default(), 1).unwrap().with_sink(dropped.sink());
    mount(&master, 1);
    let until = Position::new(Epoch::new(1), master.last_sequence());
    drop(dropped);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(journal.last(), Some(until), "what waited is written by the task");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_cut_off_loses_its_term() {
    let ttl = Duration::from_secs(2);
    let clock = Arc::new(Virtual(Instant::now()));
    let cluster = MemoryCluster::start_in(&OneThread, ttl, clock).unwrap();
    let (a, b) = (cluster.join(), cluster.join());
    for (election, id) in [(&a, "a"), (&b, "b")] {
        election.register(Member::new(id, "host:1").unwrap(), Standing::EMPTY).await.unwrap();
    }
    let first = a.campaign(Takeover::InSync).await.unwrap();
    sleep(10 * ttl).await;
    assert!(first.authority().is_valid(), "it is renewed");
    a.set_cut(true);
    first.authority().ended().await;
    assert!(
        matches!(b.campaign(Takeover::InSync).await, Err(ElectionError::Lost(_))),
        "its lease lasts longer"
    );
    let mut leader = b.leader();
    leader.wait_for(Option::is_none).await.unwrap();
    b.campaign(Takeover::InSync).await.unwrap();
}
