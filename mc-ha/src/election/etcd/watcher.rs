//! Follows the keys of a cluster.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::sleep;

use super::super::error::ElectionError;
use super::super::member::{ClusterView, Leader};
use super::keys::{self, Keys, MAX_KEYS, Record};
use super::shared::{Etcd, RETRY_PAUSE};
use super::sighting::Sighting;
use crate::etcd::messages::event::EventType;
use crate::etcd::messages::{Event, KeyValue, RangeResponse};

/// Publishes every change of the cluster, as long as the runtime lasts.
///
/// A watch reports changes at once. A read now and then tells whether the watch still does: the
/// member of etcd behind it may be frozen or cut off, which looks like silence.
pub(super) async fn follow(
    etcd: Arc<Etcd>,
    view: watch::Sender<Option<Arc<ClusterView>>>,
    leader: watch::Sender<Option<Leader>>,
) {
    let publish = |known: &Known| {
        let mut seen = known.view(&etcd.keys);
        // Not the recorded one, whose term may be over.
        let term = etcd.sighting.lock().clone().filter(|term| !term.over);
        seen.leader = term.map(|term| term.leader);
        leader.send_if_modified(|there| {
            let changed = *there != seen.leader;
            there.clone_from(&seen.leader);
            changed
        });
        view.send_if_modified(|there| {
            let changed = there.as_deref() != Some(&seen);
            if changed {
                *there = Some(Arc::new(seen));
            }
            changed
        });
    };
    loop {
        if let Err(error) = watch_once(&etcd, &publish).await {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "cannot watch the keys of the election; retrying"
            );
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Reads and watches until the watch ends or another server is to be asked.
async fn watch_once(etcd: &Etcd, publish: &impl Fn(&Known)) -> Result<(), ElectionError> {
    let mut known = Known::read(etcd.client.range(etcd.keys.all()).await?);
    look(etcd, &known, true);
    publish(&known);
    let all = etcd.keys.all();
    let from = known.revision + 1;
    let (server, mut changes) = etcd.client.watch(all.key, all.range_end, from).await?;
    let read_in = async |pause| {
        sleep(pause).await;
        etcd.client.range(etcd.keys.all()).await
    };
    let poll = etcd.ttl / 4;
    let mut reading = pin!(read_in(poll));
    let mut reading_now = false;
    loop {
        let ending = etcd.sighting.lock().as_ref().filter(|seen| !seen.over).map(|seen| seen.end());
        let left = ending.map_or(poll, |end| end - etcd.clock.now());
        tokio::select! {
            changed = changes.message() => match changed {
                Ok(Some(response)) if !response.canceled => {
                    known.apply(response.events);
                    look(etcd, &known, false);
                    publish(&known);
                }
                // A member of etcd that has lost its leader says so here.
                Ok(_) | Err(_) => return Ok(()),
            },
            read = &mut reading => {
                let read = Known::read(read?);
                // Otherwise the watch was faster.
                if read.revision >= known.revision {
                    known = read;
                    look(etcd, &known, true);
                    publish(&known);
                }
                if etcd.client.preferred() != server {
                    return Ok(());
                }
                reading.set(read_in(poll));
                reading_now = false;
            }
            // The term is over, unless a renewal was missed.
            () = sleep(left), if ending.is_some() && !reading_now => {
                reading.set(read_in(Duration::ZERO));
                reading_now = true;
            }
        }
    }
}

/// Notes which term was seen. Only what was read just now shows that a term was not renewed.
fn look(etcd: &Etcd, known: &Known, just_read: bool) {
    let now = etcd.clock.now();
    let mut sighting = etcd.sighting.lock();
    let record = known.record(&etcd.keys);
    if let Some((record, _)) = &record {
        etcd.highest.fetch_max(record.epoch().as_u64(), Ordering::Relaxed);
    }
    match record {
        Some((Record::Term { leader, ttl }, renewed)) => match &mut *sighting {
            Some(seen) if seen.renewed == renewed && seen.leader == leader => {
                seen.over |= just_read && now >= seen.end();
            }
            _ => *sighting = Some(Sighting { leader, renewed, at: now, ttl, over: false }),
        },
        Some((Record::Vacant { .. }, _)) => *sighting = None,
        // Deleted by hand, or by an etcd that was set up anew: the leader may not know it yet.
        None => {
            if let Some(seen) = &mut *sighting {
                seen.over |= now >= seen.end();
            }
        }
    }
}

/// The pairs of a cluster at a revision of etcd.
pub(super) struct Known {
    pub(super) revision: i64,
    /// Values, and the revisions that wrote them.
    pairs: BTreeMap<Bytes, (Bytes, i64)>,
}

impl Known {
    pub(super) fn read(read: RangeResponse) -> Self {
        let pairs = read.kvs.into_iter().map(|pair| (pair.key, (pair.value, pair.mod_revision)));
        Self { revision: read.header.map_or(0, |header| header.revision), pairs: pairs.collect() }
    }

    /// The revision that wrote the leader's key, zero when there is none, and its record.
    pub(super) fn leader(&self, names: &Keys) -> Result<(i64, Option<Record>), ElectionError> {
        let Some((value, revision)) = self.pairs.get(names.leader.as_bytes()) else {
            return Ok((0, None));
        };
        Ok((*revision, Some(Record::decode(&names.leader, value)?)))
    }

    fn apply(&mut self, events: Vec<Event>) {
        for event in events {
            let kind = event.r#type();
            let Some(KeyValue { key, value, mod_revision }) = event.kv else { continue };
            // Several keys change by one revision.
            if mod_revision < self.revision {
                continue;
            }
            self.revision = mod_revision;
            if kind == EventType::Delete {
                self.pairs.remove(&key);
            } else if self.pairs.len() < MAX_KEYS || self.pairs.contains_key(&key) {
                self.pairs.insert(key, (value, mod_revision));
            }
        }
    }

    /// As [`leader`](Self::leader); nothing when it cannot be read.
    fn record(&self, names: &Keys) -> Option<(Record, i64)> {
        match self.leader(names) {
            Ok((revision, record)) => record.map(|record| (record, revision)),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "ignoring a malformed key of the election"
                );
                None
            }
        }
    }

    /// Returns the view that the keys give, with the leader whether or not its term is over.
    pub(super) fn view(&self, names: &Keys) -> ClusterView {
        let mut view = ClusterView::default();
        match self.record(names) {
            Some((Record::Term { leader, .. }, _)) => view.leader = Some(leader),
            Some((Record::Vacant { successor, .. }, _)) => view.successor = successor,
            None => {}
        }
        for (key, (value, _)) in &self.pairs {
            let Ok(key) = std::str::from_utf8(key) else { continue };
            let read = if key == names.in_sync {
                keys::decode_in_sync(key, value).map(|in_sync| view.in_sync = Some(in_sync))
            } else if key == names.progress {
                keys::decode_progress(key, value).map(|progress| view.progress = Some(progress))
            } else if let Some(id) = names.member_of(key) {
                keys::decode_member(key, id, value).map(|status| view.members.push(status))
            } else {
                continue;
            };
            if let Err(error) = read {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "ignoring a malformed key of the election"
                );
            }
        }
        view
    }
}
