//! Logs what becomes of segments and clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_meta::{Effect, EffectSink, ReplicaPlace, Segment, SegmentStatus};
use mc_types::{ByteSize, ClientId, Generation, Sequence, Time};
use tokio::sync::mpsc;
use tracing::{info, warn};

/// Changes that wait to be logged. When more happen at once, the rest are only
/// counted.
const QUEUE: usize = 4096;

/// The master's end: appends to a queue and returns, because the master holds a
/// lock meanwhile.
#[derive(Debug)]
pub(crate) struct ChangeQueue {
    queue: mpsc::Sender<Change>,
    dropped: Arc<AtomicU64>,
}

/// The other end: takes changes from the queue and logs them.
#[derive(Debug)]
pub(crate) struct ChangeLog {
    queue: mpsc::Receiver<Change>,
    dropped: Arc<AtomicU64>,
}

/// The log line of an effect.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Mounted(SegmentIdentity),
    Status(SegmentIdentity, SegmentStatus),
    Gone(SegmentIdentity),
    Expired(ClientId),
    Damaged(DamagedReplica),
    /// Whether it cannot be reached.
    Suspected(SegmentIdentity, bool),
}

#[derive(Debug, PartialEq, Eq)]
struct DamagedReplica {
    key: Box<str>,
    generation: Generation,
    place: ReplicaPlace,
    segment: Option<Box<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SegmentIdentity {
    name: Box<str>,
    endpoint: Box<str>,
    size: u64,
    client: ClientId,
}

/// A queue and the log behind it.
pub(crate) fn change_log() -> (ChangeQueue, ChangeLog) {
    let (sender, queue) = mpsc::channel(QUEUE);
    let dropped = Arc::new(AtomicU64::new(0));
    (ChangeQueue { queue: sender, dropped: Arc::clone(&dropped) }, ChangeLog { queue, dropped })
}

impl EffectSink for ChangeQueue {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        let change = match effect {
            Effect::SegmentMounted { segment } => Change::Mounted(SegmentIdentity::of(segment)),
            Effect::SegmentChanged { segment, status } => {
                Change::Status(SegmentIdentity::of(segment), *status)
            }
            Effect::SegmentGone { segment } => Change::Gone(SegmentIdentity::of(segment)),
            Effect::ClientExpired { client } => Change::Expired(*client),
            Effect::Damaged { key, generation, place, segment } => {
                Change::Damaged(DamagedReplica {
                    key: key.as_str().into(),
                    generation: *generation,
                    place: *place,
                    segment: segment.map(|segment| segment.spec().name.clone()),
                })
            }
            Effect::SegmentSuspected { segment, is_suspect } => {
                Change::Suspected(SegmentIdentity::of(segment), *is_suspect)
            }
            _ => return,
        };
        if self.queue.try_send(change).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Objects come and go by the million a minute; the metrics count them.
    fn wants_objects(&self) -> bool {
        false
    }
}

impl ChangeLog {
    /// Logs until the master is gone and the queue is empty.
    pub(crate) async fn run(mut self) {
        while let Some(change) = self.queue.recv().await {
            change.log();
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                warn!(dropped, "too many changes at once; some are not logged");
            }
        }
    }
}

impl SegmentIdentity {
    fn of(segment: &Segment) -> Self {
        let spec = segment.spec();
        Self {
            name: spec.name.clone(),
            endpoint: spec.endpoint.as_str().into(),
            size: spec.size,
            client: segment.client(),
        }
    }

    fn log_status(&self, status: SegmentStatus) {
        let Self { name, endpoint, size, client } = self;
        let size = ByteSize::bytes(*size);
        match status {
            SegmentStatus::Ok => {
                info!(segment = ?name, %size, ?endpoint, %client, "segment mounted again, with all its objects");
            }
            SegmentStatus::Suspended => warn!(
                segment = ?name, %size, ?endpoint, %client,
                "segment suspended: what it holds cannot be read until its client is back"
            ),
            SegmentStatus::Draining => {
                info!(segment = ?name, %size, ?endpoint, %client, "segment is being drained");
            }
            SegmentStatus::Drained => {
                info!(segment = ?name, %size, ?endpoint, %client, "segment is drained");
            }
            SegmentStatus::GracefullyUnmounting => info!(
                segment = ?name, %size, ?endpoint, %client,
                "segment is about to be unmounted; nothing new is put there"
            ),
            // Told as gone.
            SegmentStatus::Unmounted => {}
        }
    }
}

impl Change {
    fn log(&self) {
        match self {
            Self::Mounted(SegmentIdentity { name, endpoint, size, client }) => {
                let size = ByteSize::bytes(*size);
                // Names are the client's words: debug format keeps them on one line.
                info!(segment = ?name, %size, ?endpoint, %client, "segment mounted");
            }
            Self::Status(segment, status) => segment.log_status(*status),
            Self::Gone(SegmentIdentity { name, endpoint, size, client }) => {
                let size = ByteSize::bytes(*size);
                info!(segment = ?name, %size, ?endpoint, %client, "segment removed, its objects are lost");
            }
            Self::Expired(client) => {
                warn!(%client, "client timed out: no heartbeat");
            }
            Self::Suspected(SegmentIdentity { name, endpoint, client, .. }, true) => warn!(
                segment = ?name, ?endpoint, %client,
                "clients, or its own node, cannot reach a segment: nothing new is put there until its \
                 node says that it is well"
            ),
            Self::Suspected(SegmentIdentity { name, endpoint, client, .. }, false) => {
                info!(segment = ?name, ?endpoint, %client, "segment takes new objects again");
            }
            Self::Damaged(DamagedReplica { key, generation, place, segment }) => match segment {
                Some(segment) => warn!(
                    ?key, %generation, ?segment, ?place,
                    "a replica was damaged and is removed; if this goes on, the node's memory is bad"
                ),
                None => warn!(
                    ?key, %generation, ?place,
                    "a replica on a disk was damaged and is removed"
                ),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_meta::{Master, MasterConfig, SegmentSpec};
    use mc_types::{RemoteKey, SegmentId};
    use std::time::Duration;

    fn mount(master: &Master, number: u128) {
        mount_at(master, number, Time::ORIGIN);
    }

    fn mount_at(master: &Master, number: u128, now: Time) {
        let spec = SegmentSpec {
            id: SegmentId::from_u128(number),
            name: format!("s{number}").into(),
            base: 0,
            size: 4096,
            endpoint: format!("tcp://127.0.0.1:{number}").parse().unwrap(),
            remote_key: RemoteKey::from_bytes([1; 16]),
            ticket_key: None,
            medium: mc_types::MediaType::Dram,
        };
        master.mount_segment(now, ClientId::from_u128(number), spec).unwrap();
    }

    #[test]
    fn segments_and_expiry_are_queued() {
        let (queue, mut log) = change_log();
        let master = Master::new(MasterConfig::default(), 1).unwrap().with_sink(queue);
        mount(&master, 1);
        let Ok(Change::Mounted(segment)) = log.queue.try_recv() else { panic!("no mount") };
        assert_eq!((&*segment.name, segment.size), ("s1", 4096));
        // Silent for an hour, then for another one.
        for hours in 1..=2 {
            while master.tick(Time::ORIGIN + Duration::from_secs(hours * 3600)) {}
        }
        assert_eq!(log.queue.try_recv(), Ok(Change::Expired(ClientId::from_u128(1))));
        let suspended = Change::Status(segment.clone(), SegmentStatus::Suspended);
        assert_eq!(log.queue.try_recv(), Ok(suspended));
        assert_eq!(log.queue.try_recv(), Ok(Change::Gone(segment)));
    }

    #[test]
    fn every_change_of_a_segment_is_queued() {
        let (queue, mut log) = change_log();
        let master = Master::new(MasterConfig::default(), 1).unwrap().with_sink(queue);
        mount(&master, 1);
        let (client, id) = (ClientId::from_u128(1), SegmentId::from_u128(1));
        let away = Time::ORIGIN + Duration::from_secs(11);
        while master.tick(away) {}
        mount_at(&master, 1, away);
        master.graceful_unmount_segment(away, client, id, Duration::ZERO).unwrap();
        while master.tick(away) {}
        let mut changes = Vec::new();
        while let Ok(change) = log.queue.try_recv() {
            change.log(); // none of them panics
            changes.push(change);
        }
        let statuses: Vec<_> = changes
            .iter()
            .map(|change| match change {
                Change::Status(_, status) => status.as_str(),
                Change::Mounted(_) => "mounted",
                Change::Gone(_) => "gone",
                Change::Expired(_) => "expired",
                Change::Damaged(_) => "damaged",
                Change::Suspected(..) => "suspected",
            })
            .collect();
        assert_eq!(
            statuses,
            ["mounted", "expired", "suspended", "ok", "gracefully_unmounting", "gone"]
        );
    }

    #[test]
    fn a_full_queue_counts_and_never_waits() {
        let (queue, log) = change_log();
        let dropped = Arc::clone(&log.dropped);
        let master = Master::new(MasterConfig::default(), 1).unwrap().with_sink(queue);
        for number in 1..=QUEUE as u128 + 5 {
            mount(&master, number);
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 5);
    }
}
