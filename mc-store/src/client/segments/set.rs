//! The segments of one client: what is mounted, under which key, and until when.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use mc_environment::Environment;
use mc_meta::SegmentSpec;
use mc_rpc::{ClockReading, MasterClient, RpcError};
use mc_ticket::{Rights, TicketKey};
use mc_transport::{BootTime, MasterClock, Node, Region, RemoteSpan, Tickets, Transport};
use mc_types::{ByteSize, ClientId, Endpoint, ErrorCode, Extent, MediaType, RemoteKey, SegmentId};
use parking_lot::RwLock;
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;
use tracing::{info, warn};

use super::MountedSegment;
use super::error::MountFailure;
use super::memory::{Held, SegmentMemory};
use super::record::KeptFile;
use crate::client::disk_region::LocalDiskLook;
use crate::error::{MAX_SEGMENTS, SegmentError};

/// How long a client that ends, or fails to mount, waits for its master, which may be
/// gone for good; and one that attaches a segment, for what peers have under way there.
pub(super) const LEAVE: Duration = Duration::from_secs(1);

/// Bytes that a node reads of itself to see whether peers can, and how long it may take.
const SAMPLE: u64 = 64;
const SAMPLE_TICKET: Duration = Duration::from_secs(30);

/// How soon to look again whether changes are over.
const BUSY: Duration = Duration::from_millis(10);

/// The segments that a client gives to the pool; none for a pure client.
#[derive(Debug)]
pub(in crate::client) struct Segments {
    pub(super) transport: Arc<Node>,
    environment: Arc<dyn Environment>,
    /// The master's, by which tickets end.
    pub(super) clock: Arc<MasterClock>,
    /// Whether peers show tickets.
    pub(super) tickets: bool,
    /// The name of this host in the names of segments that are given none.
    host: Option<Box<str>>,
    /// Read for every transfer, so it is written for as long as a field takes.
    pub(super) own: RwLock<Vec<Own>>,
    /// Held while the master is told of a change; whether the client has ended.
    pub(super) changes: Mutex<bool>,
    /// A segment has been given a time to leave.
    leaving: Notify,
    /// By the node's own check peers do not reach them.
    cut_off: AtomicBool,
    unproven: AtomicBool,
    /// The reader of objects on the local disk, while there is one.
    disk: RwLock<Option<LocalDiskLook>>,
}

#[derive(Debug)]
pub(super) struct Own {
    pub(super) segment: Arc<Segment>,
    /// `None` only while it is being mounted.
    pub(super) mounted: Option<Mounted>,
    /// The master counts on it.
    pub(super) attached: bool,
    /// There is a record by which the next process can take it over.
    pub(super) is_recorded: bool,
    /// Whether the record could not be written lately; the log says why.
    pub(super) is_record_missed: bool,
    /// Whether the segment could not be attached lately; the log says why.
    is_refused: bool,
    pub(super) leaves: Option<Instant>,
}

/// A segment that is to be mounted, with its memory.
#[derive(Debug)]
pub(super) struct SegmentSetup {
    pub(super) name: Option<String>,
    pub(super) medium: MediaType,
    pub(super) memory: SegmentMemory,
    /// Its file, if it is kept for the next process.
    pub(super) kept: Option<KeptFile>,
}

/// The parts of a segment that do not change when it is mounted anew.
#[derive(Debug)]
pub(super) struct Segment {
    /// The id of the first mount, by which the application may still know it.
    pub(super) first: SegmentId,
    pub(super) name: Box<str>,
    pub(super) endpoint: Endpoint,
    pub(super) medium: MediaType,
    /// That of its present life.
    pub(super) memory: SegmentMemory,
    /// Its file, if it is kept for the next process.
    pub(super) kept: Option<KeptFile>,
}

/// A segment as it is mounted now. Each mount has a key and an id of its own, so
/// that a peer with the key of an earlier one cannot reach this one.
#[derive(Debug)]
pub(super) struct Mounted {
    pub(super) id: SegmentId,
    pub(super) region: Region,
    pub(super) ticket_key: Option<TicketKey>,
}

impl Segment {
    /// The same segment in fresh memory.
    async fn renewed(&self, environment: &dyn Environment) -> Result<Self, MountFailure> {
        let memory = self.memory.clone();
        // Pages may be populated here, which takes seconds for many gigabytes.
        let taken = environment.blocking(move || memory.renewed()).await;
        // There is none when the runtime ends, and this task with it.
        let memory = taken.and_then(Result::ok).ok_or(MountFailure::Ending)??;
        Ok(Self {
            first: self.first,
            name: self.name.clone(),
            endpoint: self.endpoint.clone(),
            medium: self.medium,
            memory,
            kept: self.kept.clone(),
        })
    }

    fn spec(
        &self,
        id: SegmentId,
        remote_key: RemoteKey,
        ticket_key: Option<TicketKey>,
    ) -> SegmentSpec {
        SegmentSpec {
            id,
            name: self.name.clone(),
            base: 0,
            size: self.memory.len() as u64,
            endpoint: self.endpoint.clone(),
            remote_key,
            ticket_key,
            medium: self.medium,
        }
    }
}

impl Own {
    /// A segment that is to be mounted.
    pub(super) fn new(segment: Arc<Segment>) -> Self {
        Self {
            segment,
            mounted: None,
            attached: false,
            is_recorded: false,
            is_record_missed: false,
            is_refused: false,
            leaves: None,
        }
    }

    fn is(&self, id: SegmentId) -> bool {
        self.segment.first == id || self.id() == id
    }

    pub(super) fn id(&self) -> SegmentId {
        self.mounted.as_ref().map_or(self.segment.first, |mounted| mounted.id)
    }
}

impl Segments {
    pub(in crate::client) fn new(
        transport: Arc<Node>,
        environment: Arc<dyn Environment>,
        tickets: bool,
        host: Option<Box<str>>,
    ) -> Self {
        Self {
            transport,
            environment,
            clock: Arc::new(MasterClock::new()),
            tickets,
            host,
            own: RwLock::default(),
            changes: Mutex::new(false),
            leaving: Notify::new(),
            cut_off: AtomicBool::new(false),
            unproven: AtomicBool::new(false),
            disk: RwLock::new(None),
        }
    }

    pub(in crate::client) fn environment(&self) -> &dyn Environment {
        &*self.environment
    }

    /// Takes note of the master's clock, as it was in the answer to a question of `asked`.
    pub(in crate::client) fn observe(&self, asked: BootTime, clock: ClockReading) {
        self.clock.observe(asked, clock.epoch, clock.now);
    }

    /// A new secret to verify tickets with, and the clock by which they end; `None` when peers show no
    /// tickets.
    ///
    /// # Errors
    /// When there is no randomness.
    pub(in crate::client) fn new_tickets(&self) -> io::Result<Option<Tickets>> {
        if !self.tickets {
            return Ok(None);
        }
        let key = TicketKey::from_bytes(self.environment.random_u128()?.to_ne_bytes());
        Ok(Some(Tickets { key, clock: Arc::clone(&self.clock) }))
    }

    /// The bytes at `extent` of the region that `key` opens, if it is ours.
    pub(in crate::client) fn local(&self, key: RemoteKey, extent: Extent) -> Option<Held> {
        self.part(|mounted| mounted.region.key() == key, extent)
    }

    /// The bytes at `extent` of the segment that the master knows by this id, if it is ours.
    pub(in crate::client) fn held(&self, id: SegmentId, extent: Extent) -> Option<Held> {
        self.part(|mounted| mounted.id == id, extent)
    }

    fn part(&self, is_it: impl Fn(&Mounted) -> bool, extent: Extent) -> Option<Held> {
        let own = self.own.read();
        let found = own.iter().find(|own| own.mounted.as_ref().is_some_and(&is_it))?;
        found.segment.memory.part(extent)
    }

    /// A little of one of the segments, where peers are told that it is, and what opens it for
    /// them when the master's clock is at `clock`. It is of memory of the host if there is any:
    /// a device that is slow says little about the way. `None` when there is no segment.
    pub(in crate::client) fn sample(&self, clock: ClockReading) -> Option<(Endpoint, RemoteSpan)> {
        let own = self.own.read();
        let mounted = own.iter().filter_map(|own| Some((&own.segment, own.mounted.as_ref()?)));
        let (segment, mounted) = mounted.min_by_key(|(segment, _)| segment.memory.is_staged())?;
        let extent = Extent::new(0, SAMPLE.min(segment.memory.len() as u64))?;
        let (region, until) = (mounted.region.key(), clock.now + SAMPLE_TICKET);
        let ticket = mounted
            .ticket_key
            .as_ref()
            .map(|key| key.sign(clock.epoch, region, extent, Rights::Read, until));
        Some((segment.endpoint.clone(), RemoteSpan::new(region, extent).with_ticket(ticket)))
    }

    /// Takes note whether peers reach the segments.
    pub(in crate::client) fn set_cut_off(&self, is_cut_off: bool) {
        self.cut_off.store(is_cut_off, Ordering::Relaxed);
    }

    /// Whether peers reach no segment, by the node's own check.
    pub(in crate::client) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// Returns the reader of objects on the local disk.
    pub(in crate::client) fn disk(&self) -> Option<LocalDiskLook> {
        self.disk.read().clone()
    }

    /// The local disk is there, or has gone.
    pub(in crate::client) fn set_disk(&self, disk: Option<LocalDiskLook>) {
        *self.disk.write() = disk;
    }

    /// Takes note whether the node has looked for itself and never had an answer.
    pub(in crate::client) fn set_unproven(&self, is_unproven: bool) {
        self.unproven.store(is_unproven, Ordering::Relaxed);
    }

    /// Whether the node has never had an answer from itself, by its own check.
    pub(in crate::client) fn is_unproven(&self) -> bool {
        self.unproven.load(Ordering::Relaxed)
    }

    /// Returns whether the client contributes no segment.
    pub(in crate::client) fn is_empty(&self) -> bool {
        self.own.read().is_empty()
    }

    pub(in crate::client) fn list(&self) -> Vec<MountedSegment> {
        let now = Instant::now();
        let own = self.own.read();
        let described = own.iter().map(|own| MountedSegment {
            id: own.id(),
            name: own.segment.name.clone(),
            size: ByteSize::bytes(own.segment.memory.len() as u64),
            medium: own.segment.medium,
            endpoint: own.segment.endpoint.clone(),
            leaves_in: own.leaves.map(|at| at.saturating_duration_since(now)),
        });
        described.collect()
    }

    /// Serves `memory` and mounts it. Nothing is left of it when that fails.
    pub(super) async fn add(
        &self,
        master: &MasterClient,
        client: ClientId,
        setup: SegmentSetup,
    ) -> Result<SegmentId, SegmentError> {
        let SegmentSetup { name, medium, memory, kept } = setup;
        let endpoint = self.transport.endpoint().ok_or(SegmentError::NotListening)?.clone();
        let ended = self.changes.lock().await;
        if *ended {
            return Err(SegmentError::Closed);
        }
        if self.own.read().iter().any(|own| own.segment.kept.is_some()) {
            return Err(SegmentError::KeptAlone);
        }
        let name = self.name(name, &endpoint)?;
        let first = self.random_id()?;
        let segment = Arc::new(Segment { first, name, endpoint, medium, memory, kept });
        self.own.write().push(Own::new(segment));
        if let Err(failure) = self.mount(master, client, first, first).await {
            self.forget(first);
            if !matches!(failure, MountFailure::Rpc(RpcError::Refused(_))) {
                // The master may have mounted it and the answer was lost. If this is lost
                // too, the segment goes with the client.
                let told = master.unmount_segment(client, first);
                let _ = tokio::time::timeout(LEAVE, told).await;
            }
            return Err(failure.into());
        }
        Ok(first)
    }

    /// A name that no other segment of this client has: the master takes a second one of
    /// the same name and endpoint for the first, mounted anew.
    pub(super) fn name(
        &self,
        wanted: Option<String>,
        endpoint: &Endpoint,
    ) -> Result<Box<str>, SegmentError> {
        let own = self.own.read();
        if own.len() >= MAX_SEGMENTS {
            return Err(SegmentError::TooMany);
        }
        let is_free = |name: &str| own.iter().all(|own| *own.segment.name != *name);
        if let Some(name) = wanted {
            let name = name.into_boxed_str();
            return if is_free(&name) { Ok(name) } else { Err(SegmentError::NameTaken { name }) };
        }
        let address = endpoint.address();
        let base = match (&self.host, address.rsplit_once(':')) {
            (Some(host), Some((_, port))) => format!("{host}:{port}"),
            _ => address.to_owned(),
        };
        let numbered = (2..).map(|number| format!("{base}/{number}"));
        let mut names = std::iter::once(base.clone()).chain(numbered);
        Ok(names.find(|name| is_free(name)).expect("fewer are taken than there are").into())
    }

    /// Mounts a segment under a new id and a new key. Whatever it held before is given
    /// up, and nothing of the past touches what is put from now on: the old key is
    /// withdrawn, and the operations under it have ended before the memory serves again.
    /// Where other processes have mapped the memory, whom nobody can make let go, the new
    /// life gets fresh pages. Changes must be locked.
    async fn mount(
        &self,
        master: &MasterClient,
        client: ClientId,
        which: SegmentId,
        id: SegmentId,
    ) -> Result<(), MountFailure> {
        self.drop_record(which).await?;
        let Some((segment, before)) = self.change(which, |own| {
            own.attached = false;
            (Arc::clone(&own.segment), own.mounted.take())
        }) else {
            return Ok(());
        };
        if let Some(before) = before {
            before.region.withdraw().await;
        }
        let segment = if segment.memory.was_lent() {
            let renewed = Arc::new(segment.renewed(&*self.environment).await?);
            self.change(which, |own| own.segment = Arc::clone(&renewed));
            renewed
        } else {
            segment
        };
        let tickets = self.new_tickets().map_err(MountFailure::NoRandomness)?;
        let ticket_key = tickets.as_ref().map(|tickets| tickets.key);
        if ticket_key.is_some() {
            // Known before the first ticket is shown, so that no peer is refused.
            let asked = self.environment.clock().now();
            self.observe(asked, master.ping(client).await?.clock);
        }
        let region = segment.memory.register(&self.transport, tickets)?;
        let remote_key = region.key();
        let spec = segment.spec(id, remote_key, ticket_key);
        // Known before the master tells anybody, so that no peer is refused.
        self.change(which, |own| own.mounted = Some(Mounted { id, region, ticket_key }));
        master.mount_segment(client, &spec).await?;
        self.change(which, |own| own.attached = true);
        self.save_record(client, &segment, id, remote_key, ticket_key).await;
        Ok(())
    }

    /// The number of those that the master has as far as this client knows, without those that are to go.
    pub(in crate::client) fn attached(&self) -> usize {
        self.own.read().iter().filter(|own| own.attached && own.leaves.is_none()).count()
    }

    /// The master counts on none of the segments any more, as far as this client knows.
    pub(in crate::client) fn detached(&self) {
        self.own.write().iter_mut().for_each(|own| own.attached = false);
    }

    /// Gives segments to a master that does not count on them: as they are, with all
    /// that they hold, when the master still knows them, and anew when it says that it
    /// does not. A master that does not know one may have given its space to others, or
    /// another master may. After any other failure they stay as they are until the next
    /// call. Each on its own; the log says why one cannot be attached.
    pub(in crate::client) async fn attach(&self, master: &MasterClient, client: ClientId) {
        // A change under way must not hold up the heartbeat: there will be another one.
        let Ok(_changes) = self.changes.try_lock() else { return };
        for (which, _) in self.those(|own| !own.attached) {
            match self.attach_one(master, client, which).await {
                Ok(()) => drop(self.change(which, |own| own.is_refused = false)),
                Err(failure) => self.note_refused(which, &failure),
            }
        }
        self.save_missing_records(client).await;
    }

    /// Logs why a segment could not be attached, unless the log has said so.
    fn note_refused(&self, which: SegmentId, failure: &MountFailure) {
        let told = self.change(which, |own| {
            let is_known = core::mem::replace(&mut own.is_refused, true);
            (!is_known).then(|| (Arc::clone(&own.segment), own.mounted.is_some()))
        });
        let Some((segment, is_kept)) = told.flatten() else { return };
        let state = if is_kept { "with all objects" } else { "empty" };
        let advice = failure.advice();
        warn!(
            segment = %segment.name, error = %failure, advice,
            "the master refuses to mount the segment again; it waits, {state}, and every heartbeat retries"
        );
    }

    pub(super) async fn attach_one(
        &self,
        master: &MasterClient,
        client: ClientId,
        which: SegmentId,
    ) -> Result<(), MountFailure> {
        let described = self.change(which, |own| {
            let mounted = own.mounted.as_ref();
            let mounted = mounted.map(|now| (now.id, now.region.key(), now.ticket_key));
            (Arc::clone(&own.segment), mounted, own.leaves)
        });
        let Some((segment, mounted, leaves)) = described else { return Ok(()) };
        if let Some((id, key, ticket_key)) = mounted {
            // What a master before this one has granted, this one may not know of, and may grant the same
            // space to others from its answer on. No older ticket opens the memory meanwhile: the master
            // signs with its own clock.
            let interrupt =
                self.change(which, |own| Some(own.mounted.as_ref()?.region.interrupt()));
            if let Some(interrupt) = interrupt.flatten()
                && tokio::time::timeout(LEAVE, interrupt).await.is_err()
            {
                // The heartbeat must go on.
                warn!(
                    segment = %segment.name,
                    "a transfer of a peer does not end; the segment is attached when it has"
                );
                return Ok(());
            }
            let asked = self.environment.clock().now();
            match master.remount_segment(client, &segment.spec(id, key, ticket_key)).await {
                Ok(clock) => {
                    // It may be another master's than the one that the heartbeat has just heard.
                    self.observe(asked, clock);
                    info!(segment = %segment.name, "the segment is mounted again, with all objects");
                    if let Some(at) = leaves {
                        let grace = at.saturating_duration_since(Instant::now());
                        master.graceful_unmount_segment(client, id, grace).await?;
                    }
                    self.change(which, |own| own.attached = true);
                    return Ok(());
                }
                // No other refusal, however lasting, says that another object may be given its space.
                Err(RpcError::Refused(refusal)) if refusal.code == ErrorCode::SegmentNotFound => {
                    info!(
                        segment = %segment.name, %refusal,
                        "the master does not know the segment; mounting it anew, empty"
                    );
                }
                Err(error) => return Err(error.into()),
            }
        }
        if leaves.is_some() {
            // It was to go, and what it held is forgotten.
            self.forget(which);
            return Ok(());
        }
        self.mount(master, client, which, self.random_id()?).await
    }

    /// Takes a segment back: at once, or after `grace`.
    pub(in crate::client) async fn remove(
        &self,
        master: &MasterClient,
        client: ClientId,
        which: SegmentId,
        grace: Duration,
    ) -> Result<(), SegmentError> {
        let _changes = self.changes.lock().await;
        let id = self.change(which, |own| own.id());
        let id = id.ok_or(SegmentError::NotFound { id: which })?;
        self.drop_record(which).await?;
        let told = if grace.is_zero() {
            master.unmount_segment(client, id).await
        } else {
            master.graceful_unmount_segment(client, id, grace).await
        };
        match told {
            Ok(()) if !grace.is_zero() => {
                // Counted from after the answer: the master's time is over before ours.
                let at = Instant::now() + grace;
                self.change(which, |own| {
                    own.leaves = Some(own.leaves.map_or(at, |old| old.min(at)));
                });
                self.leaving.notify_one();
            }
            Ok(()) => self.forget(which),
            Err(RpcError::Refused(refusal)) if refusal.code == ErrorCode::SegmentNotFound => {
                self.forget(which);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Waits until the time of a segment has come to leave.
    pub(in crate::client) async fn departure(&self) {
        loop {
            let changed = self.leaving.notified();
            let next = self.own.read().iter().filter_map(|own| own.leaves).min();
            match next {
                Some(at) => tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(at) => return,
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    /// Withdraws the segments whose time has come.
    pub(in crate::client) async fn depart(&self, master: &MasterClient, client: ClientId) {
        // A change under way must not hold up the heartbeat.
        let Ok(_changes) = self.changes.try_lock() else {
            return tokio::time::sleep(BUSY).await;
        };
        let now = Instant::now();
        let over = self.those(|own| own.leaves.is_some_and(|at| at <= now));
        for (which, id) in over {
            // The master has let go of it already, most likely.
            let _ = tokio::time::timeout(LEAVE, master.unmount_segment(client, id)).await;
            self.forget(which);
        }
    }

    /// Unmounts every segment and withdraws its key; no segment is mounted from now on. One that is kept
    /// for the next process is not unmounted.
    /// A master that cannot be told finds out by the missing heartbeat.
    pub(in crate::client) async fn withdraw(&self, master: &MasterClient, client: ClientId) {
        let mut ended = self.changes.lock().await;
        *ended = true;
        let own = core::mem::take(&mut *self.own.write());
        // Served until the master has heard of it, or will not.
        join_all(own.into_iter().map(|own| async move {
            if own.is_recorded {
                return self.leave_for_next(own).await;
            }
            let (name, id) = (&own.segment.name, own.id());
            match tokio::time::timeout(LEAVE, master.unmount_segment(client, id)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    warn!(segment = %name, %error, "could not unmount; the master will notice");
                }
                Err(_) => {
                    warn!(segment = %name, "no answer to unmounting; the master will notice");
                }
            }
        }))
        .await;
    }

    fn random_id(&self) -> Result<SegmentId, MountFailure> {
        let id = self.environment.random_u128().map_err(MountFailure::NoRandomness)?;
        Ok(SegmentId::from_u128(id))
    }

    /// The segments that `picked` picks: their first ids and those that they have now.
    pub(super) fn those(&self, picked: impl Fn(&Own) -> bool) -> Vec<(SegmentId, SegmentId)> {
        let own = self.own.read();
        let picked = own.iter().filter(|own| picked(own));
        picked.map(|own| (own.segment.first, own.id())).collect()
    }

    pub(super) fn change<T>(
        &self,
        which: SegmentId,
        change: impl FnOnce(&mut Own) -> T,
    ) -> Option<T> {
        self.own.write().iter_mut().find(|own| own.is(which)).map(change)
    }

    pub(super) fn forget(&self, which: SegmentId) {
        let mut own = self.own.write();
        let at = own.iter().position(|own| own.is(which));
        let gone = at.map(|at| own.remove(at));
        drop(own);
        // Its key is withdrawn here, and the memory given back, with nothing locked.
        drop(gone);
    }
}
