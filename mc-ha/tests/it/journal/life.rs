//! The life of a master with a journal, as the tests lead it.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_ha::{
    Batch, Identity, JournalError, JournalProgress, JournalWriter, MetadataJournal, RecoverError,
    ReplayReport, Replica, WriterSettings,
};
use mc_meta::{
    ExportCursor, Master, MasterConfig, ObjectRecord, PutEnd, PutStart, Record, ReplicateConfig,
    SegmentSpec, SegmentStatus,
};
use mc_types::{ClientId, Epoch, KeyRef, MediaType, RemoteKey, SegmentId, Sequence, Time};
use parking_lot::Mutex;

pub(crate) const IDENTITY: Identity = Identity { seed: 1, secret: [7; 16] };
pub(crate) const NODE: ClientId = ClientId::from_u128(100);
pub(crate) const WRITER: ClientId = ClientId::from_u128(101);
pub(crate) const NOW: Time = Time::from_millis(1000);
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The acknowledgements and suspensions that a journal reported.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    acknowledged: AtomicU64,
    suspensions: Mutex<Vec<Option<String>>>,
}

impl Progress {
    pub(crate) fn acknowledged(&self) -> Sequence {
        Sequence::new(self.acknowledged.load(Ordering::SeqCst))
    }

    pub(crate) fn suspensions(&self) -> Vec<Option<String>> {
        self.suspensions.lock().clone()
    }
}

impl JournalProgress for Progress {
    fn acknowledge(&self, until: Sequence) {
        self.acknowledged.fetch_max(until.as_u64(), Ordering::SeqCst);
    }

    fn suspended(&self, cause: Option<&JournalError>) {
        self.suspensions.lock().push(cause.map(ToString::to_string));
    }

    fn appended(&self, _: &[Batch]) {}
}

/// A master and its journal. Dropping it ends the master first.
pub(crate) struct Life {
    pub(crate) master: Master,
    pub(crate) writer: JournalWriter,
    pub(crate) progress: Arc<Progress>,
    pub(crate) report: ReplayReport,
}

pub(crate) fn config(shards: usize) -> MasterConfig {
    let mut config = MasterConfig::default();
    config.shards = shards;
    config
}

pub(crate) fn recover(
    journal: &dyn MetadataJournal,
    config: &MasterConfig,
    threads: usize,
) -> Result<(mc_meta::Rebuilt, ReplayReport), RecoverError> {
    let threads = NonZeroUsize::new(threads).unwrap();
    Replica::load(journal, config, &IDENTITY, threads)?.finish(NOW)
}

impl Life {
    /// Goes on from what the journal tells.
    pub(crate) fn begin(
        journal: Arc<dyn MetadataJournal>,
        config: &MasterConfig,
        threads: usize,
        settings: WriterSettings,
    ) -> Self {
        let (rebuilt, report) = recover(&*journal, config, threads).unwrap();
        let dropped = rebuilt.report.dropped;
        assert!(dropped.total() == 0 || report.damaged > 0, "{dropped:?}");
        let epoch = Epoch::new(journal.epoch().as_u64() + 1);
        let progress = Arc::new(Progress::default());
        let told = Arc::clone(&progress);
        let writer =
            JournalWriter::start(journal, epoch, &rebuilt.corrections, settings, told).unwrap();
        let master = rebuilt.master.with_sink(writer.sink());
        let life = Self { master, writer, progress, report };
        for segment in life.master.report().segments {
            life.master.mount_segment(NOW, segment.client, segment.spec).unwrap();
        }
        life
    }

    /// As [`begin`](Self::begin), with a segment of this size to put into.
    pub(crate) fn with_segment(
        journal: Arc<dyn MetadataJournal>,
        settings: WriterSettings,
    ) -> Self {
        let life = Self::begin(journal, &config(8), 1, settings);
        if life.master.report().segments.is_empty() {
            life.master.mount_segment(NOW, NODE, segment(1, 1 << 40)).unwrap();
        }
        life
    }

    /// Puts an object, and returns the effect that ends it.
    pub(crate) fn put(&self, name: &str) -> Sequence {
        let receipt = self.master.receipt(|master| put(master, name, 100).unwrap());
        receipt.sequence.unwrap()
    }

    pub(crate) fn put_all(&self, names: impl IntoIterator<Item = String>) {
        for name in names {
            self.put(&name);
        }
    }

    pub(crate) fn settle(&self) {
        assert!(self.writer.wait_durable(self.master.last_sequence(), LONG), "it becomes durable");
    }

    pub(crate) fn snapshot(&self) -> mc_ha::SnapshotInfo {
        mc_ha::take_snapshot(&self.master, &self.writer, || NOW).unwrap()
    }
}

pub(crate) fn segment(number: u128, size: u64) -> SegmentSpec {
    SegmentSpec {
        id: SegmentId::from_u128(number),
        name: format!("segment-{number}").into(),
        base: 0,
        size,
        endpoint: format!("mem://node-{number}").parse().unwrap(),
        remote_key: RemoteKey::from_bytes([1; 16]),
        ticket_key: None,
        medium: MediaType::Dram,
    }
}

/// Puts an object; `None` when the master refuses.
pub(crate) fn put(master: &Master, name: &str, len: u64) -> Option<()> {
    put_with(master, name, len, &ReplicateConfig::default())
}

pub(crate) fn put_with(
    master: &Master,
    name: &str,
    len: u64,
    config: &ReplicateConfig,
) -> Option<()> {
    let key = KeyRef::new(name).unwrap();
    let start = PutStart { key, slice_lengths: &[len], config };
    let grant = master.put_start(NOW, WRITER, &start).ok()?;
    master.put_end(NOW, WRITER, &PutEnd::new(key, grant.handle)).ok()
}

pub(crate) fn export(master: &Master) -> Vec<Record> {
    let mut records = Vec::new();
    let mut next = Some(ExportCursor::default());
    while let Some(cursor) = next {
        let page = master.export(NOW, cursor);
        records.extend(page.records);
        next = page.next;
    }
    records
}

/// The keys of all complete objects.
pub(crate) fn keys(master: &Master) -> BTreeSet<String> {
    let complete = |record| match record {
        Record::Object(object) if object.complete => Some(object.key.as_str().to_owned()),
        _ => None,
    };
    export(master).into_iter().filter_map(complete).collect()
}

/// Everything that a master has in common with the one that is made of its journal.
#[derive(Debug, PartialEq)]
pub(crate) struct State {
    segments: Vec<(SegmentSpec, ClientId, SegmentStatus, Option<Duration>)>,
    objects: Vec<ObjectRecord>,
    /// Segment, offset and length.
    kept: Vec<(u128, u64, u64)>,
}

pub(crate) fn state(master: &Master) -> State {
    let mut state = State { segments: Vec::new(), objects: Vec::new(), kept: Vec::new() };
    let place =
        |at: &mc_meta::Location| (at.segment.as_u128(), at.extent.offset(), at.extent.len());
    for record in export(master) {
        match record {
            Record::Segment { spec, client, status, grace } => {
                state.segments.push((spec, client, status, grace));
            }
            Record::Object(mut object) => {
                // Space that was reserved is kept.
                state.kept.extend(object.reserved.drain(..).map(|at| place(&at)));
                object.idle = Duration::ZERO;
                if object.replicas.is_empty() {
                    // An object that lost its memory is noticed at the next look.
                    object.group = None;
                }
                state.objects.push(object);
            }
            Record::SpaceKept { space, .. } => state.kept.extend(space.iter().map(place)),
            _ => {}
        }
    }
    state.segments.sort_by_key(|(spec, ..)| spec.id.as_u128());
    state.objects.sort_by_key(|object| (object.key.clone(), object.generation));
    state.kept.sort_unstable();
    state
}
