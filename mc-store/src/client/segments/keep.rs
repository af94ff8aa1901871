//! A segment that outlives its process.
//!
//! The memory is a file, which one process at a time has: it holds a lock as long as anything of it
//! can touch the bytes. Beside the file is a [record](super::record) of the segment that the bytes
//! are of. It is there only while the master may know that segment and nothing else has been put
//! into the memory: it is written when the master has mounted the segment, and removed before the
//! memory begins any other life. The next process registers the memory as the record says and asks the master, which
//! alone decides whether the segment is there still.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mc_environment::Environment;
use mc_rpc::MasterClient;
use mc_ticket::TicketKey;
use mc_transport::{
    Access, FileLock, Memory, MemoryError, MemoryOptions, Region, RegisterError, Tickets, Transport,
};
use mc_types::{ByteSize, ClientId, MediaType, RemoteKey, SegmentId};
use tokio::time::Instant;
use tracing::{info, warn};

use super::error::MountFailure;
use super::memory::SegmentMemory;
use super::record::{
    FileIdentity, KeptFile, NotKept, Present, RecordPath, SegmentRecord, directory_of,
    endpoint_text,
};
use super::set::{LEAVE, Mounted, Own, Segment, SegmentSetup, Segments};
use crate::error::{KeepError, SegmentError, StartError};

/// The name of this run of the system.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// How long to wait for the end of the process that has the file, and how often to look. The supervisor
/// of a process waits about as long before it kills it.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long a record may take. A heartbeat is late by that, once, which is less than masters allow.
const RECORD_LIMIT: Duration = Duration::from_secs(2);

/// The memory of a segment that is kept, and the record of the process before.
#[derive(Debug)]
pub(in crate::client) struct KeptMemory {
    memory: Memory,
    options: MemoryOptions,
    file: KeptFile,
    found: Result<SegmentRecord, NotKept>,
}

impl KeptMemory {
    /// Takes the file for this process alone, as soon as the one before has ended, and reads the record. No
    /// byte of the file is changed.
    pub(in crate::client) async fn open(
        environment: &dyn Environment,
        options: &MemoryOptions,
        size: ByteSize,
    ) -> Result<Self, StartError> {
        let path = options.path().ok_or(KeepError::NoFile)?;
        let options = options.clone().lock(FileLock::Exclusive);
        let len = usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
        let place = PathBuf::from(path);
        let takes = environment.blocking(move || check_place(&place)).await;
        takes.and_then(Result::ok).ok_or(StartError::Ending)??;
        let begun = Instant::now();
        let mut is_told = false;
        let memory = loop {
            let options = options.clone();
            let taken = environment.blocking(move || options.allocate(len)).await;
            match taken.and_then(Result::ok).ok_or(StartError::Ending)? {
                Ok(memory) => break memory,
                Err(MemoryError::FileInUse { .. }) if begun.elapsed() < LONGEST_WAIT => {}
                Err(MemoryError::FileInUse { path }) => {
                    return Err(KeepError::InUse { path, waited: LONGEST_WAIT }.into());
                }
                Err(source) => return Err(StartError::Memory { size, source }),
            }
            if !is_told {
                is_told = true;
                info!(
                    file = %path.display(),
                    "waiting for the end of the process that has the segment file, for up to {LONGEST_WAIT:?}"
                );
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        };
        let path = PathBuf::from(path);
        let looked = environment.blocking(move || look(&path)).await;
        let (file, found) = looked.and_then(Result::ok).ok_or(StartError::Ending)??;
        Ok(Self { memory, options, file, found })
    }
}

/// Looks at the file and the record beside it.
fn look(path: &Path) -> Result<(KeptFile, Result<SegmentRecord, NotKept>), KeepError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| KeepError::File { action, path, source }
    };
    let boot = std::fs::read_to_string(BOOT_ID).map_err(failed("read", Path::new(BOOT_ID)))?;
    let identity = FileIdentity::of(path).map_err(failed("look at", path))?;
    let record = RecordPath::beside(path);
    let found = record.read();
    let file = KeptFile {
        path: path.into(),
        record,
        boot: boot.trim().into(),
        identity,
        turn: Arc::default(),
    };
    Ok((file, found))
}

/// Refuses a directory where files can only be mapped, and not written, before there is a segment in it.
#[cfg(target_os = "linux")]
fn check_place(file: &Path) -> Result<(), KeepError> {
    const HUGETLBFS: u64 = 0x9584_58f6;
    let directory = directory_of(file);
    let system = rustix::fs::statfs(directory).map_err(|error| KeepError::File {
        action: "look at",
        path: directory.to_owned(),
        source: error.into(),
    })?;
    if system.f_type as u64 & 0xffff_ffff == HUGETLBFS {
        return Err(KeepError::HugePages { path: file.to_owned() });
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn check_place(_: &Path) -> Result<(), KeepError> {
    Ok(())
}

impl Segments {
    /// Mounts kept memory: with all that it holds where the master still knows it, and else anew. Returns
    /// the client as which this was done, that of the process before or `client`.
    pub(in crate::client) async fn mount_kept(
        &self,
        master: &MasterClient,
        client: ClientId,
        kept: KeptMemory,
        name: Option<String>,
        medium: MediaType,
    ) -> Result<ClientId, SegmentError> {
        let KeptMemory { memory, options, file, found } = kept;
        let endpoint = self.transport.endpoint().ok_or(SegmentError::NotListening)?.clone();
        let name = self.name(name, &endpoint)?;
        let present = Present {
            boot: &file.boot,
            name: &name,
            size: memory.len() as u64,
            medium,
            endpoint: &endpoint,
            tickets: self.tickets,
            file: file.identity,
        };
        let record = found.and_then(|record| record.check(&present).map(|()| record));
        let opened = match record {
            Ok(record) => {
                let opened = self.open_again(master, &memory, record).await;
                opened.inspect_err(|failure| tell_left(&file, failure))?
            }
            Err(reason) => Err(reason),
        };
        let path = Arc::clone(&file.path);
        let memory = SegmentMemory::Host { memory, options };
        match opened {
            Ok((record, region)) => {
                let (client, first) = (record.client, record.id);
                let kept = Some(file.clone());
                let segment = Segment { first, name, endpoint, medium, memory, kept };
                let taken =
                    self.take_over(master, client, segment, region, record.ticket_key).await;
                taken.inspect_err(|failure| tell_left(&file, failure)).map(|()| client)
            }
            Err(reason) => {
                match reason {
                    NotKept::NoRecord => {
                        info!(file = %path.display(), "the segment begins empty: {reason}");
                    }
                    reason => warn!(file = %path.display(), "the segment begins empty: {reason}"),
                }
                let (name, kept) = (Some(name.into()), Some(file));
                let setup = SegmentSetup { name, medium, memory, kept };
                self.add(master, client, setup).await.map(|_| client)
            }
        }
    }

    /// Opens the memory to peers as the record says.
    async fn open_again(
        &self,
        master: &MasterClient,
        memory: &Memory,
        record: SegmentRecord,
    ) -> Result<Result<(SegmentRecord, Region), NotKept>, SegmentError> {
        let clock = Arc::clone(&self.clock);
        let tickets = record.ticket_key.map(|key| Tickets { key, clock });
        if tickets.is_some() {
            // Known before the first ticket is shown, so that no peer is refused.
            let asked = self.environment().clock().now();
            self.observe(asked, master.ping(record.client).await?.clock);
        }
        let (access, key) = (Access::ReadWrite, record.remote_key);
        match self.transport.register_again(memory, access, tickets, key) {
            Ok(region) => Ok(Ok((record, region))),
            Err(RegisterError::NoReuse) => Ok(Err(NotKept::NewKeysOnly)),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks the master whether it still knows a segment of the process before, which is open to peers
    /// again, and mounts it anew when it does not.
    async fn take_over(
        &self,
        master: &MasterClient,
        client: ClientId,
        segment: Segment,
        region: Region,
        ticket_key: Option<TicketKey>,
    ) -> Result<(), SegmentError> {
        let _changes = self.changes.lock().await;
        let (id, size) = (segment.first, ByteSize::bytes(segment.memory.len() as u64));
        let name = segment.name.clone();
        let mounted = Some(Mounted { id, region, ticket_key });
        let mut own = Own::new(Arc::new(segment));
        (own.mounted, own.is_recorded) = (mounted, true);
        self.own.write().push(own);
        if let Err(failure) = self.attach_one(master, client, id).await {
            // Its record stays, unless it was removed for a life that did not begin.
            self.forget(id);
            return Err(failure.into());
        }
        if self.change(id, |own| own.id() == id && own.attached) == Some(true) {
            info!(segment = %name, %size, "took the segment of the process before over, with all objects");
        }
        Ok(())
    }

    /// Removes the record of a segment, before its memory begins another life.
    pub(super) async fn drop_record(&self, which: SegmentId) -> Result<(), MountFailure> {
        let kept = self.change(which, |own| {
            own.is_recorded = false;
            own.segment.kept.clone()
        });
        let Some(kept) = kept.flatten() else { return Ok(()) };
        let removed = self.on_record(&kept, RecordPath::remove).await;
        let path = kept.record.as_path().to_owned();
        let removed = removed.ok_or(MountFailure::Ending)?;
        removed.map_err(|source| MountFailure::Record { path, source })
    }

    /// Does `work` to the record of a segment, which may be on a medium that does not answer. `None` when the
    /// runtime ends.
    async fn on_record(
        &self,
        kept: &KeptFile,
        work: impl FnOnce(&RecordPath) -> io::Result<()> + Send + 'static,
    ) -> Option<io::Result<()>> {
        let hangs = || io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer");
        // Held for as long as the work lasts, so that a late write is not after a removal.
        let Ok(turn) = Arc::clone(&kept.turn).try_lock_owned() else { return Some(Err(hangs())) };
        let place = kept.record.clone();
        let done = self.environment().blocking(move || {
            let done = work(&place);
            drop(turn);
            done
        });
        match tokio::time::timeout(RECORD_LIMIT, done).await {
            Ok(done) => done.and_then(Result::ok),
            Err(_) => Some(Err(hangs())),
        }
    }

    /// Writes the records that are missing.
    pub(super) async fn save_missing_records(&self, client: ClientId) {
        let is_missing = |own: &Own| {
            own.attached && !own.is_recorded && own.leaves.is_none() && own.segment.kept.is_some()
        };
        for (which, _) in self.those(is_missing) {
            let described = self.change(which, |own| {
                let mounted = own.mounted.as_ref()?;
                let (id, key) = (mounted.id, mounted.region.key());
                Some((Arc::clone(&own.segment), id, key, mounted.ticket_key))
            });
            if let Some((segment, id, key, ticket_key)) = described.flatten() {
                self.save_record(client, &segment, id, key, ticket_key).await;
            }
        }
    }

    /// Writes the record of a segment that the master has mounted. Without it the segment works, and ends
    /// with the process; each heartbeat tries again.
    pub(super) async fn save_record(
        &self,
        client: ClientId,
        segment: &Segment,
        id: SegmentId,
        remote_key: RemoteKey,
        ticket_key: Option<TicketKey>,
    ) {
        let Some(kept) = &segment.kept else { return };
        let record = SegmentRecord {
            boot: (*kept.boot).into(),
            client,
            id,
            name: segment.name.clone(),
            size: segment.memory.len() as u64,
            medium: segment.medium,
            endpoint: endpoint_text(&segment.endpoint),
            remote_key,
            ticket_key,
            file: kept.identity,
        };
        let Some(written) = self.on_record(kept, move |place| place.write(&record)).await else {
            return;
        };
        let is_written = written.is_ok();
        let was_missed = self.change(id, |own| {
            own.is_recorded = is_written;
            core::mem::replace(&mut own.is_record_missed, !is_written)
        });
        let (path, name) = (kept.record.as_path().display(), &segment.name);
        match (written, was_missed == Some(true)) {
            (Ok(()), true) => {
                info!(segment = %name, "wrote {path}: the segment is kept for the next process after all");
            }
            (Err(error), false) => warn!(
                segment = %name, %error,
                "cannot write {path}: the next process will find no segment to take over; look at the \
                 directory's room and permissions; every heartbeat retries"
            ),
            _ => {}
        }
    }

    /// Ends the transfers of peers in a segment that stays for the next process.
    pub(super) async fn leave_for_next(&self, own: Own) {
        if let Some(mounted) = own.mounted
            && tokio::time::timeout(LEAVE, mounted.region.withdraw()).await.is_err()
        {
            warn!(segment = %own.segment.name, "a transfer of a peer does not end");
        }
        info!(segment = %own.segment.name, "the segment stays, with all objects, for the next process");
    }
}

/// Logs that the segment of the process before is left as it is.
fn tell_left(file: &KeptFile, failure: &SegmentError) {
    warn!(
        file = %file.path.display(), error = %failure,
        "the segment of the process before cannot be taken over now; the next start tries again, and \
         begins with an empty segment when {} is removed",
        file.record.as_path().display()
    );
}

#[cfg(test)]
mod tests {
    use mc_environment::System;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_that_another_process_has_is_waited_for_and_then_refused() {
        let directory = tempfile::tempdir().unwrap();
        let options = Memory::options().file(directory.path().join("segment"));
        let size = ByteSize::mib(1);
        let open = || KeptMemory::open(&System, &options, size);
        let first = open().await.unwrap();
        let begun = Instant::now();
        let refused = open().await.unwrap_err();
        assert!(begun.elapsed() >= LONGEST_WAIT);
        assert!(matches!(refused, StartError::Keep(KeepError::InUse { .. })), "{refused}");
        assert!(refused.to_string().contains("/segment has been in use"), "{refused}");
        let (second, ()) = tokio::join!(open(), async {
            tokio::time::sleep(LONGEST_WAIT / 2).await;
            drop(first);
        });
        assert!(matches!(second.unwrap().found, Err(NotKept::NoRecord)));
    }
}
