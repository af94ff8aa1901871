//! Reports damaged replicas and segments that could not be reached to the master, which has a
//! replica checked and removed, and places nothing in a segment until its node has answered.
//!
//! Reports wait in one bounded queue for a task that sends them. Reads and writes never wait for
//! it; a report that does not fit is left to the next reader.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use mc_meta::{ReplicaPlace, TenantId};
use mc_rpc::{Failure, MasterClient, ReplicaLocation, RpcError, TenantKey};
use mc_types::{ClientId, ErrorCode, Generation, KeyRef, ObjectKey, SegmentId};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::metrics::ReportMetrics;
use crate::error::PeerError;

/// Reports that wait.
const QUEUE: usize = 256;

/// How long a client that leaves waits for its reports to be sent.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// Keys whose reports are remembered.
const MAX_KEYS: usize = 1024;

/// How long the same is not reported again. The owner of a replica looks at it within this
/// time, when it is well.
const PAUSE: Duration = Duration::from_secs(3);

/// How long a segment is not reported again: until about the next heartbeat of its node, which
/// ends the master's doubts.
const SEGMENT_PAUSE: Duration = Duration::from_secs(1);

/// Segments whose reports are remembered.
const MAX_SEGMENTS: usize = 4096;

/// Preferred segments that the log tells of, at most.
const MAX_MISSED: usize = 256;

/// A report to the master.
#[derive(Debug)]
enum Report {
    Damaged {
        /// The object's tenant, when it is not the client's own.
        tenant: Option<TenantId>,
        key: ObjectKey,
        generation: Generation,
        place: ReplicaPlace,
    },
    Unreachable {
        segment: SegmentId,
    },
}

impl Report {
    fn as_failure(&self) -> Failure<'_> {
        match self {
            Self::Damaged { tenant, key, generation, place } => Failure::Damaged {
                object: match tenant {
                    Some(tenant) => TenantKey::of(tenant, key.as_ref()),
                    None => key.as_ref().into(),
                },
                generation: *generation,
                place: *place,
            },
            Self::Unreachable { segment } => Failure::Unreachable { segment: *segment },
        }
    }
}

/// The failures that this client has to tell of, and those that it told of lately.
#[derive(Debug)]
pub(super) struct Reports {
    queue: mpsc::Sender<Report>,
    /// Taken by the task that sends them.
    waiting: Mutex<Option<mpsc::Receiver<Report>>>,
    recent: Mutex<HashMap<Box<str>, SmallVec<[Recent; 1]>>>,
    segments: Mutex<HashMap<SegmentId, Instant>>,
    /// Preferred segments that the log has told of.
    missed: Mutex<HashSet<Box<str>>>,
    counts: Arc<ReportCounts>,
}

#[derive(Debug)]
struct Recent {
    generation: Generation,
    place: ReplicaPlace,
    at: Instant,
}

#[derive(Debug, Default)]
struct ReportCounts {
    damaged: AtomicU64,
    unreachable: AtomicU64,
    moved_on: AtomicU64,
    few_replicas: AtomicU64,
    not_preferred: AtomicU64,
    sent: AtomicU64,
    lost: AtomicU64,
    /// Reports that wait or are being sent.
    pending: AtomicUsize,
    /// Told when there are none.
    flushed: Notify,
}

impl ReportCounts {
    fn ended(&self, reports: usize) {
        if self.pending.fetch_sub(reports, Ordering::AcqRel) == reports {
            self.flushed.notify_waiters();
        }
    }
}

impl Default for Reports {
    fn default() -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (waiting, counts) = (Mutex::new(Some(waiting)), Arc::default());
        let (recent, segments, missed) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { queue, waiting, recent, segments, missed, counts }
    }
}

impl Reports {
    /// Takes note that a replica of an object of this tenant, or of the client's own, has not the
    /// bytes that were put.
    pub(super) fn damaged(
        &self,
        tenant: Option<&TenantId>,
        key: KeyRef<'_>,
        generation: Generation,
        replica: &ReplicaLocation,
    ) {
        self.counts.damaged.fetch_add(1, Ordering::Relaxed);
        let (segment, extent) = (replica.segment.id, replica.extent);
        let place = ReplicaPlace::Memory { segment, extent };
        if !self.is_news(key, generation, place) {
            return;
        }
        warn!(
            %key, %generation, segment = %replica.segment.name, offset = extent.offset(),
            "a replica is damaged; the master is told"
        );
        let (tenant, key) = (tenant.cloned(), key.to_owned());
        self.send(Report::Damaged { tenant, key, generation, place });
    }

    /// Takes note that an object of the client's own tenant is missing on a disk, or has not the bytes
    /// that were put.
    pub(super) fn damaged_on_disk(
        &self,
        key: KeyRef<'_>,
        generation: Generation,
        place: ReplicaPlace,
    ) {
        self.counts.damaged.fetch_add(1, Ordering::Relaxed);
        if self.is_news(key, generation, place) {
            warn!(%key, %generation, ?place, "an object on a disk is damaged; the master is told");
            self.send(Report::Damaged { tenant: None, key: key.to_owned(), generation, place });
        }
    }

    /// Takes note of a failure with a segment, if it was that its endpoint did not answer.
    pub(super) fn failed(&self, segment: SegmentId, name: &str, error: &PeerError) {
        if !error.is_silence() {
            return;
        }
        self.counts.unreachable.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let is_over = |at: &Instant| now - *at >= SEGMENT_PAUSE;
        {
            let mut segments = self.segments.lock();
            if segments.get(&segment).is_some_and(|at| !is_over(at)) {
                return;
            }
            if segments.len() >= MAX_SEGMENTS {
                segments.retain(|_, at| !is_over(at));
            }
            if segments.len() < MAX_SEGMENTS {
                segments.insert(segment, now);
            }
        }
        debug!(segment = %name, %error, "a segment cannot be reached; the master is told");
        self.send(Report::Unreachable { segment });
    }

    /// Takes note that a read left a replica whose node stalled.
    pub(super) fn moved_on(&self) {
        self.counts.moved_on.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes note that a put got fewer replicas than it asked for. The log tells of the first,
    /// the second, the fourth and so on.
    pub(super) fn few_replicas(&self, key: &str, got: usize, asked: u32) {
        let count = self.counts.few_replicas.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            warn!(
                key,
                got, asked, count, "fewer replicas than asked for: no other segment has room"
            );
        }
    }

    /// Takes note that no replica of a put is in a segment that it prefers. The log tells of each such
    /// segment once.
    pub(super) fn not_preferred(&self, key: &str, preferred: &str) {
        self.counts.not_preferred.fetch_add(1, Ordering::Relaxed);
        let mut missed = self.missed.lock();
        let is_new = missed.len() < MAX_MISSED && missed.insert(preferred.into());
        drop(missed);
        if is_new {
            warn!(
                key,
                preferred,
                "a put misses the segment that it prefers: none has that name, or it is full"
            );
        }
    }

    fn send(&self, report: Report) {
        self.counts.pending.fetch_add(1, Ordering::Relaxed);
        if self.queue.try_send(report).is_err() {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
            self.counts.ended(1);
        }
    }

    /// Returns the work of sending reports, which ends with these; `None` if it was given out
    /// before.
    pub(super) fn sending(
        &self,
        master: MasterClient,
        client: ClientId,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let waiting = self.waiting.lock().take()?;
        Some(send(master, client, waiting, Arc::clone(&self.counts)))
    }

    /// Waits until every report has been sent or is lost, for a bounded time: what a client that
    /// reads one object and leaves has found, no other client may find for long.
    pub(super) async fn flush(&self) {
        let all_ended = async {
            loop {
                let mut flushed = pin!(self.counts.flushed.notified());
                flushed.as_mut().enable();
                if self.counts.pending.load(Ordering::Acquire) == 0 {
                    return;
                }
                flushed.await;
            }
        };
        if tokio::time::timeout(FLUSH_TIME, all_ended).await.is_err() {
            debug!("the client leaves before it could report what it could not read or reach");
        }
    }

    /// Whether this was not reported a moment ago.
    fn is_news(&self, key: KeyRef<'_>, generation: Generation, place: ReplicaPlace) -> bool {
        let now = Instant::now();
        let mut recent = self.recent.lock();
        if recent.len() >= MAX_KEYS && !recent.contains_key(key.as_str()) {
            recent.retain(|_, all| all.iter().any(|one| now - one.at < PAUSE));
            if recent.len() >= MAX_KEYS {
                self.counts.lost.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
        let all = recent.entry(key.as_str().into()).or_default();
        all.retain(|one| now - one.at < PAUSE);
        if all.iter().any(|one| one.generation == generation && one.place == place) {
            return false;
        }
        all.push(Recent { generation, place, at: now });
        true
    }

    /// Whether this client found the key's object damaged a moment ago, so that it may be gone
    /// soon.
    pub(super) fn is_doubtful(&self, key: &str) -> bool {
        let recent = self.recent.lock();
        let all = recent.get(key);
        all.is_some_and(|all| all.iter().any(|one| one.at.elapsed() < PAUSE))
    }

    pub(super) fn metrics(&self) -> ReportMetrics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ReportCounts { damaged, unreachable, moved_on, few_replicas, .. } = &*self.counts;
        let ReportCounts { not_preferred, sent, lost, .. } = &*self.counts;
        ReportMetrics {
            damaged: load(damaged),
            unreachable: load(unreachable),
            moved_on: load(moved_on),
            few_replicas: load(few_replicas),
            not_preferred: load(not_preferred),
            sent: load(sent),
            lost: load(lost),
        }
    }
}

/// Sends what waits until the client is gone, or a master does not know the call.
async fn send(
    master: MasterClient,
    client: ClientId,
    mut waiting: mpsc::Receiver<Report>,
    counts: Arc<ReportCounts>,
) {
    let mut reports = Vec::with_capacity(QUEUE);
    while waiting.recv_many(&mut reports, QUEUE).await > 0 {
        let failures: Vec<Failure<'_>> = reports.iter().map(Report::as_failure).collect();
        let told = master.report_failures(client, &failures).await;
        let counter = if told.is_ok() { &counts.sent } else { &counts.lost };
        counter.fetch_add(failures.len() as u64, Ordering::Relaxed);
        counts.ended(failures.len());
        match told {
            Ok(reported) => {
                debug!(?reported, "reported replicas that could not be read or reached");
            }
            Err(RpcError::Refused(refusal)) if refusal.code == ErrorCode::NotSupported => {
                info!("the master takes no reports of failures; it is an older one");
                waiting.close();
                while let Some(_unsent) = waiting.recv().await {
                    counts.ended(1);
                }
                return;
            }
            // The next reader reports it again.
            Err(error) => {
                debug!(%error, "cannot report replicas that could not be read or reached");
            }
        }
        reports.clear();
    }
}

#[cfg(test)]
mod tests {
    use mc_types::Extent;

    use super::*;

    #[test]
    fn the_same_is_reported_once_in_a_while_and_keys_are_bounded() {
        let reports = Reports::default();
        let segment = SegmentId::from_u128(1);
        let place = |at| ReplicaPlace::Memory { segment, extent: Extent::new(at, 10).unwrap() };
        let (one, two) = (Generation::new(1), Generation::new(2));
        let key = KeyRef::new("k").unwrap();
        assert!(!reports.is_doubtful("k"));
        assert!(reports.is_news(key, one, place(0)));
        assert!(!reports.is_news(key, one, place(0)));
        assert!(reports.is_news(key, one, place(10)));
        assert!(reports.is_news(key, two, place(0)));
        assert!(reports.is_doubtful("k") && !reports.is_doubtful("other"));
        for n in 0..2 * MAX_KEYS {
            reports.is_news(KeyRef::new(&format!("k{n}")).unwrap(), one, place(0));
        }
        assert_eq!(reports.recent.lock().len(), MAX_KEYS);
    }
}
