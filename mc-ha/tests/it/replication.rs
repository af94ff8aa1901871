//! A leader's journal on its standbys.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_ha::encoding::BatchBuilder;
use mc_ha::replication::{
    Applier, ApplierSettings, Difference, Hub, HubSettings, ReplicationError, follow,
};
use mc_ha::{
    Batch, DirectoryJournal, Identity, JournalError, JournalProgress, JournalWriter, MemoryJournal,
    MetadataJournal, Position, Replica, WriterSettings, take_snapshot,
};
use mc_meta::{
    Corrections, ExportCursor, Master, MasterConfig, PutEnd, PutStart, Record, ReplicateConfig,
    SegmentSpec,
};
use mc_testkit::eventually;
use mc_types::{ClientId, Epoch, KeyRef, MediaType, RemoteKey, SegmentId, Sequence, Time};
use tokio::task::JoinHandle;

const DEADLINE: Duration = Duration::from_secs(20);
const ME: ClientId = ClientId::from_u128(1);
const IDENTITY: Identity = Identity { seed: 7, secret: [3; 16] };

fn config() -> MasterConfig {
    let mut config = MasterConfig::default();
    config.shards = 4;
    config
}

#[derive(Default)]
struct Acknowledged(AtomicU64);

impl JournalProgress for Acknowledged {
    fn acknowledge(&self, until: Sequence) {
        self.0.fetch_max(until.as_u64(), Ordering::SeqCst);
    }
    fn suspended(&self, _: Option<&JournalError>) {}
    fn appended(&self, _: &[Batch]) {}
}

/// A master of one term, with what it sends to standbys.
struct Leader {
    master: Arc<Master>,
    writer: Arc<JournalWriter>,
    hub: Arc<Hub>,
    acknowledged: Arc<Acknowledged>,
}

impl Leader {
    fn of(journal: &MemoryJournal, epoch: u64, semi_synchronous: bool) -> Self {
        Self::over(Arc::new(journal.clone()), epoch, semi_synchronous)
    }

    fn over(journal: Arc<dyn MetadataJournal>, epoch: u64, semi_synchronous: bool) -> Self {
        Self::after(journal, epoch, semi_synchronous, Epoch::new(0))
    }

    fn after(
        journal: Arc<dyn MetadataJournal>,
        epoch: u64,
        semi_synchronous: bool,
        last_unclean: Epoch,
    ) -> Self {
        let (master, corrections) = match journal.identity().unwrap() {
            None => {
                journal.set_identity(&IDENTITY).unwrap();
                (Master::new(config(), IDENTITY.seed).unwrap(), Corrections::default())
            }
            Some(identity) => {
                let replica = Replica::load(&*journal, &config(), &identity, NonZeroUsize::MIN);
                let (rebuilt, _) = replica.unwrap().finish(Time::ORIGIN).unwrap();
                (rebuilt.master, rebuilt.corrections)
            }
        };
        let acknowledged = Arc::<Acknowledged>::default();
        let mut settings = HubSettings::default();
        settings.semi_synchronous = semi_synchronous;
        let epoch = Epoch::new(epoch);
        let told = Arc::clone(&acknowledged) as Arc<dyn JournalProgress>;
        let hub = Hub::new(epoch, Arc::clone(&journal), told, settings).unwrap();
        let hub = Arc::new(hub.with_last_unclean(last_unclean));
        let writer = JournalWriter::start(
            journal,
            epoch,
            &corrections,
            WriterSettings::default(),
            Arc::clone(&hub) as Arc<dyn JournalProgress>,
        );
        let writer = Arc::new(writer.unwrap());
        let master = Arc::new(master.with_sink(writer.sink()));
        Self { master, writer, hub, acknowledged }
    }

    fn mount(&self) {
        let spec = SegmentSpec {
            id: SegmentId::from_u128(9),
            name: "a".into(),
            base: 0,
            size: 1 << 30,
            endpoint: "mem://a".parse().unwrap(),
            remote_key: RemoteKey::from_bytes([1; 16]),
            ticket_key: None,
            medium: MediaType::Dram,
        };
        self.master.mount_segment(Time::ORIGIN, ME, spec).unwrap();
    }

    fn put(&self, keys: std::ops::Range<u32>) {
        for number in keys {
            let name = format!("key-{number}");
            let key = KeyRef::new(&name).unwrap();
            let put = PutStart { key, slice_lengths: &[512], config: &ReplicateConfig::default() };
            let grant = self.master.put_start(Time::ORIGIN, ME, &put).unwrap();
            let end = PutEnd::new(key, grant.handle);
            self.master.put_end(Time::ORIGIN, ME, &end).unwrap();
        }
    }

    /// Sends the journal to a standby from now on.
    fn serve(&self, standby: &Arc<Applier>, id: &'static str) -> JoinHandle<ReplicationError> {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (hub, master, writer) =
            (Arc::clone(&self.hub), Arc::clone(&self.master), Arc::clone(&self.writer));
        tokio::spawn(async move {
            let snapshot = move || {
                take_snapshot(&master, &writer, || Time::ORIGIN).unwrap();
            };
            let _ = hub.serve(ours, snapshot).await;
        });
        let standby = Arc::clone(standby);
        tokio::spawn(async move {
            match follow(theirs, id, &standby).await {
                Ok(never) => match never {},
                Err(error) => error,
            }
        })
    }

    fn last(&self) -> Position {
        Position::new(self.hub.epoch(), self.master.last_sequence())
    }
}

fn standby(journal: &MemoryJournal) -> Arc<Applier> {
    let journal = Arc::new(journal.clone());
    Arc::new(Applier::start(journal, config(), ApplierSettings::default()).unwrap())
}

async fn catches_up(standby: &Applier, leader: &Leader) {
    let state = standby.state();
    eventually(DEADLINE, "the standby has everything", || state.borrow().durable == leader.last())
        .await;
}

/// The state that a standby would lead with.
async fn takes_over(standby: Arc<Applier>, following: JoinHandle<ReplicationError>) -> Master {
    following.abort();
    let _ = following.await;
    let standby = Arc::into_inner(standby).expect("nobody follows any more");
    let replica = tokio::task::spawn_blocking(move || standby.stop()).await.unwrap().unwrap();
    let replica = replica.unwrap();
    assert!(replica.is_settled(), "it is ready whenever it has caught up");
    replica.finish(Time::ORIGIN).unwrap().0.master
}

/// Everything of a master but what a takeover changes: generations jump, segments are suspended.
fn objects(master: &Master) -> Vec<String> {
    let (mut found, mut next) = (Vec::new(), Some(ExportCursor::default()));
    while let Some(cursor) = next {
        let page = master.export(Time::ORIGIN, cursor);
        found.extend(page.records.iter().filter_map(|record| match record {
            Record::Object(object) => {
                Some(format!("{} {} {:?}", object.key.as_str(), object.generation, object.replicas))
            }
            _ => None,
        }));
        next = page.next;
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_standby_gets_a_snapshot_and_then_what_follows() {
    let leader = Leader::of(&MemoryJournal::new(), 1, false);
    leader.mount();
    leader.put(0..500);
    let own = MemoryJournal::new();
    let standby = standby(&own);
    let following = leader.serve(&standby, "b");
    catches_up(&standby, &leader).await;
    leader.put(500..1000);
    catches_up(&standby, &leader).await;
    assert_eq!(own.identity().unwrap(), Some(IDENTITY), "tokens of open puts are good there, too");
    assert_eq!(leader.hub.in_sync(), ["b"]);
    let master = takes_over(standby, following).await;
    assert_eq!(objects(&master), objects(&leader.master));
    assert_eq!(objects(&master).len(), 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_was_away_gets_what_it_lacks_and_nothing_twice() {
    let leader = Leader::of(&MemoryJournal::new(), 1, false);
    leader.mount();
    let own = MemoryJournal::new();
    let (first, second) = (standby(&own), MemoryJournal::new());
    let following = leader.serve(&first, "b");
    leader.put(0..100);
    catches_up(&first, &leader).await;
    drop(takes_over(first, following).await);
    leader.put(100..200);
    let snapshots = own.snapshots().unwrap();
    let again = standby(&own);
    let following = leader.serve(&again, "b");
    catches_up(&again, &leader).await;
    assert_eq!(own.snapshots().unwrap(), snapshots, "no snapshot was sent again");
    // One more, beside it.
    let other = standby(&second);
    let beside = leader.serve(&other, "c");
    catches_up(&other, &leader).await;
    assert_eq!(leader.hub.in_sync(), ["b", "c"]);
    beside.abort();
    let master = takes_over(again, following).await;
    assert_eq!(objects(&master), objects(&leader.master));
}

/// The former leader had changes that no standby got; the next one did others.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_deposed_leader_had_alone_is_given_up() {
    let (old, new) = (MemoryJournal::new(), MemoryJournal::new());
    let first = Leader::of(&old, 1, false);
    first.mount();
    first.put(0..50);
    let applier = standby(&new);
    let following = first.serve(&applier, "b");
    catches_up(&applier, &first).await;
    drop(takes_over(applier, following).await);
    // No standby gets these.
    first.put(50..60);
    assert!(first.writer.wait_durable(first.master.last_sequence(), DEADLINE));
    drop(first);

    let second = Leader::of(&new, 2, false);
    second.mount();
    second.put(70..80);
    let deposed = standby(&old);
    let following = second.serve(&deposed, "a");
    catches_up(&deposed, &second).await;
    assert!(!old.contains(Position::new(Epoch::new(1), Sequence::new(121))).unwrap());
    let master = takes_over(deposed, following).await;
    assert_eq!(objects(&master), objects(&second.master));
    assert_eq!(objects(&master).len(), 60);
}

/// A journal that ends in this term, with so many objects.
fn led(identity: &Identity, epoch: u64, keys: std::ops::Range<u32>) -> MemoryJournal {
    let journal = MemoryJournal::new();
    journal.set_identity(identity).unwrap();
    let leader = Leader::of(&journal, epoch, false);
    leader.mount();
    leader.put(keys);
    assert!(leader.writer.wait_durable(leader.master.last_sequence(), DEADLINE));
    journal
}

const STRANGER: Identity = Identity { seed: 8, ..IDENTITY };

async fn refuses(leader: &Leader, standby: &Arc<Applier>, own: &MemoryJournal) -> Difference {
    let before = own.last();
    let refused = leader.serve(standby, "b").await.unwrap();
    assert_eq!(own.last(), before, "nothing is taken");
    let ReplicationError::Applier(refused) = refused else { panic!("{refused}") };
    let ReplicationError::OtherHistory { difference, position, .. } = &*refused else {
        panic!("{refused}")
    };
    assert_eq!(Some(*position), before);
    *difference
}

/// Follows after its own journal was set aside.
async fn follows_anew(leader: &Leader, standby: Arc<Applier>, own: &MemoryJournal) {
    standby.set_aside().await.unwrap();
    assert_eq!(standby.state().borrow().durable, Position::EMPTY);
    let following = leader.serve(&standby, "b");
    catches_up(&standby, leader).await;
    assert_eq!(standby.state().borrow().history, Some(IDENTITY.history()));
    assert_eq!(own.identity().unwrap(), Some(IDENTITY));
    let master = takes_over(standby, following).await;
    assert_eq!(objects(&master), objects(&leader.master));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_nothing_from_a_leader_that_has_met_fewer_terms() {
    let own = led(&IDENTITY, 5, 0..10);
    let leader = Leader::of(&led(&IDENTITY, 3, 0..20), 4, false);
    let standby = standby(&own);
    assert_eq!(refuses(&leader, &standby, &own).await, Difference::Term(Epoch::new(5)));
    follows_anew(&leader, standby, &own).await;
}

/// Both have a batch that ends at the position of the other's end.
#[tokio::test(flavor = "multi_thread")]
async fn two_histories_of_the_same_terms_are_told_apart() {
    let theirs = led(&IDENTITY, 1, 0..20);
    for (identity, expected) in [(STRANGER, Difference::Origin), (IDENTITY, Difference::Batch)] {
        let own = MemoryJournal::new();
        own.set_identity(&identity).unwrap();
        own.begin_epoch(theirs.epoch()).unwrap();
        let mut at = Vec::new();
        let all = theirs.read(Position::EMPTY, &mut |batch| {
            at.push(batch.unwrap());
            core::ops::ControlFlow::Continue(())
        });
        all.unwrap();
        // The same ends, other contents.
        for batch in &at {
            let mut builder = BatchBuilder::new(batch.epoch());
            let (first, last) = (batch.first().sequence.as_u64(), batch.last().sequence.as_u64());
            (first..=last).for_each(|number| builder.effect(Sequence::new(number), None));
            own.append(theirs.epoch(), &builder.seal().unwrap()).unwrap();
        }
        let leader = Leader::of(&theirs.clone(), theirs.epoch().as_u64() + 1, false);
        let standby = standby(&own);
        assert_eq!(refuses(&leader, &standby, &own).await, expected);
        follows_anew(&leader, standby, &own).await;
    }
}

/// A member that is ahead of one that took over uncleanly keeps what it has.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_unclean_takeover_lost_is_set_aside_and_not_erased() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Arc::new(DirectoryJournal::open(directory.path()).unwrap());
    let own = open();
    let first = Leader::over(Arc::clone(&own) as _, 1, false);
    first.mount();
    first.put(0..20);
    let new = MemoryJournal::new();
    let applier = standby(&new);
    let following = first.serve(&applier, "b");
    catches_up(&applier, &first).await;
    drop(takes_over(applier, following).await);
    // The standby does not get these.
    first.put(20..30);
    assert!(first.writer.wait_durable(first.master.last_sequence(), DEADLINE));
    let ahead = objects(&first.master);
    drop((first, own));

    let second = Leader::after(Arc::new(new), 2, false, Epoch::new(2));
    let journal = open() as Arc<dyn MetadataJournal>;
    let settings = ApplierSettings::default();
    let returned = Arc::new(Applier::start(journal, config(), settings).unwrap());
    let following = second.serve(&returned, "a");
    catches_up(&returned, &second).await;
    let master = takes_over(returned, following).await;
    assert_eq!(objects(&master), objects(&second.master));

    let former = std::fs::read_dir(directory.path().join("former")).unwrap();
    let former: Vec<_> = former.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(former.len(), 1);
    let former = DirectoryJournal::open(&former[0]).unwrap();
    let identity = former.identity().unwrap().unwrap();
    let kept = Replica::load(&former, &config(), &identity, NonZeroUsize::MIN).unwrap();
    assert_eq!(objects(&kept.finish(Time::ORIGIN).unwrap().0.master), ahead);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_journal_of_a_standby_stays_as_short_as_the_leaders() {
    let leader = Leader::of(&MemoryJournal::new(), 1, false);
    leader.mount();
    let own = MemoryJournal::new();
    let mut settings = ApplierSettings::default();
    settings.snapshots.bytes = 32 << 10;
    settings.snapshots.min_interval = Duration::ZERO;
    let standby = Applier::start(Arc::new(own.clone()), config(), settings).unwrap();
    let standby = Arc::new(standby);
    let following = leader.serve(&standby, "b");
    for round in 0..40 {
        leader.put(0..200);
        let removed = leader.master.remove_all(Time::ORIGIN, true);
        assert!(removed > 0, "{round}");
        catches_up(&standby, &leader).await;
    }
    leader.put(0..300);
    catches_up(&standby, &leader).await;
    let written = leader.writer.state().written;
    let bounded = || {
        let usage = own.usage();
        usage.journal_bytes + usage.snapshot_bytes < 4 * (32 << 10) && usage.snapshot_bytes > 0
    };
    eventually(DEADLINE, "the journal is short", bounded).await;
    assert!(written > 10 * (32 << 10), "{written} bytes were written");
    // What it has now is everything, also for one that begins with it.
    drop(takes_over(standby, following).await);
    let replica = Replica::load(&own, &config(), &IDENTITY, NonZeroUsize::MIN).unwrap();
    assert!(replica.report().snapshot.is_some());
    assert_eq!(objects(&replica.finish(Time::ORIGIN).unwrap().0.master), objects(&leader.master));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_acknowledged_that_a_standby_in_sync_lacks() {
    let leader = Leader::of(&MemoryJournal::new(), 1, true);
    leader.mount();
    let own = MemoryJournal::new();
    let standby = standby(&own);
    let following = leader.serve(&standby, "b");
    catches_up(&standby, &leader).await;
    leader.hub.count_on(&["b".into()]);
    leader.put(0..10);
    let acknowledged = || leader.acknowledged.0.load(Ordering::SeqCst);
    let all = leader.master.last_sequence().as_u64();
    eventually(DEADLINE, "the standby has acknowledged", || acknowledged() == all).await;
    // It is gone, and counted on until the election was told.
    following.abort();
    let _ = following.await;
    leader.put(10..20);
    assert!(leader.writer.wait_durable(leader.master.last_sequence(), DEADLINE));
    assert_eq!(acknowledged(), all);
    eventually(DEADLINE, "it is not in sync any more", || leader.hub.in_sync().is_empty()).await;
    leader.hub.count_on(&[]);
    let all = leader.master.last_sequence().as_u64();
    eventually(DEADLINE, "the leader goes on alone", || acknowledged() == all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_is_counted_on_may_lack_what_was_acknowledged_before() {
    let leader = Leader::of(&MemoryJournal::new(), 1, true);
    leader.mount();
    let standby = standby(&MemoryJournal::new());
    let following = leader.serve(&standby, "b");
    catches_up(&standby, &leader).await;
    following.abort();
    let _ = following.await;
    // It is not counted on yet, and misses these.
    leader.put(0..10);
    let all = leader.master.last_sequence().as_u64();
    let acknowledged = || leader.acknowledged.0.load(Ordering::SeqCst);
    eventually(DEADLINE, "the leader goes on alone", || acknowledged() == all).await;
    leader.hub.count_on(&["b".into()]);
    assert!(!leader.hub.has_all_acknowledged("b"));
    assert!(!leader.hub.has_all_acknowledged("nobody"));
    // Nothing more is acknowledged until it has that, too.
    leader.put(10..20);
    assert!(leader.writer.wait_durable(leader.master.last_sequence(), DEADLINE));
    assert_eq!(acknowledged(), all);
    let _following = leader.serve(&standby, "b");
    let has_all = || leader.hub.has_all_acknowledged("b");
    eventually(DEADLINE, "it has caught up", has_all).await;
    let all = leader.master.last_sequence().as_u64();
    eventually(DEADLINE, "the rest is acknowledged", || acknowledged() == all).await;
}
