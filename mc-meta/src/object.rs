//! One object: its replicas, its state and what protects it.
//!
//! [`objects`]: all objects of a shard. [`spans`]: the parts of an object whose bytes can be verified
//! alone. [`group`]: objects that are evicted together. [`local_disk`]: a client's local disk, as the objects on it
//! know it.

pub(crate) mod group;
pub(crate) mod local_disk;
pub(crate) mod objects;
pub(crate) mod spans;

use core::num::NonZeroU64;
use std::sync::Arc;

use mc_lease::{Protection, SoftPin};
use mc_types::{Checksum, ClientId, Extent, Generation, Time};

use crate::object::group::{Group, Membership};
use crate::object::local_disk::{
    LocalDisk, LocalDiskIds, LocalDiskPlacement, LocalDiskReplica, OnLocalDisk,
};
use crate::space::replica::{Placements, Replica, Replicas};
use crate::tables::owners::OwnerSlot;
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::kinds::{FileState, ReplicaKind, ReplicaKinds, SharedFile};
use crate::vocabulary::request::{Slice, Slices};
use crate::vocabulary::slot::ObjectSlot;
use crate::vocabulary::states::ReplicaStatus;

/// The use that a client makes of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The client asks whether the object is there, and is told nothing of its memory.
    Asks,
    /// The client reads the memory, and reports when it is done if it `tells`.
    Reads { tells: bool },
}

/// The order of eviction that an object is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// None: it is not complete, or never evicted, or has nothing in memory.
    None,
    /// Ordinary objects.
    Main,
    /// Objects under a soft pin of the master's duration.
    Pinned,
    /// Objects under a soft pin of a duration of their own.
    Timed,
    /// Objects whose soft pin has lapsed, in the order of their last use.
    Lapsed,
    /// Offered as a victim while protected; it comes back when the protection ends.
    Aside,
    /// The same for an object that no client uses, but whose going would make no room.
    Held,
    /// None: all that is left of it is on disks.
    OnLocalDisk,
    /// None: its memory goes when it is on a disk.
    Offloading,
}

impl Queue {
    /// Returns whether an object may be in `next` after this. One is taken out of an order before
    /// it enters another, but for one that it changes to where it is.
    const fn can_become(self, next: Self) -> bool {
        use Queue::{Aside, Held, None};
        matches!((self, next), (None, _) | (_, None) | (Held, Aside))
    }
}

/// Fields that only some objects have.
#[derive(Debug, Default)]
struct Extra {
    /// Its slices, when there is more than one.
    slices: Option<Arc<[Slice]>>,
    /// Its replicas but the first.
    more: Vec<Replica>,
    /// The objects that it is evicted with.
    group: Option<Membership>,
    /// The hash of the key that this one continues.
    parent: Option<NonZeroU64>,
    /// The clients' local disks that it is on.
    local_disks: Vec<OnLocalDisk>,
}

impl Extra {
    fn is_empty(&self) -> bool {
        let Self { slices, more, group, parent, local_disks } = self;
        let plain = slices.is_none() && more.is_empty() && local_disks.is_empty();
        let alone = group.is_none() && parent.is_none();
        plain && alone
    }

    /// Returns whether no replica is in a segment or on a disk that is gone for good, and the group was not
    /// condemned.
    fn is_whole(&self) -> bool {
        !self.more.iter().any(|replica| replica.segment.is_gone())
            && !self.local_disks.iter().any(OnLocalDisk::is_gone)
            && !self.group.as_ref().is_some_and(|membership| membership.group().is_condemned())
    }
}

/// Fields that most small objects do not have.
#[derive(Debug, Default)]
struct Rest {
    /// The checksums of its slices' prefixes.
    prefixes: Box<[Checksum]>,
    extra: Option<Box<Extra>>,
}

/// Everything kept of one object but its key's text.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) generation: Generation,
    /// When it was used; while it is unfinished, when its put began.
    protection: Protection,
    /// Its length in bytes.
    len: u64,
    first: Option<Replica>,
    rest: Option<Box<Rest>>,
    /// The part of its key's hash that its shard's index goes by.
    pub(crate) tag: u32,
    pub(crate) owner: OwnerSlot,
    /// The checksum of its only slice, if it has one.
    checksum: u32,
    /// Being written or readable.
    status: ReplicaStatus,
    queue: Queue,
    marks: Marks,
}

/// The small facts of an object in two bytes: the state of its file, the round of comparisons in which that was
/// last seen, whether its tenant is charged for it, the kinds of replicas that the sinks know of, whether there is
/// a checksum, whether the object is never evicted, and whether a side table has an entry of it.
#[derive(Clone, Copy, Debug)]
struct Marks(u16);

impl Marks {
    const FILE: u16 = 0b11;
    const ROUND: u16 = 1 << 2;
    const FILE_CHARGED: u16 = 1 << 3;
    const CHECKSUM: u16 = 1 << 7;
    const HARD_PIN: u16 = 1 << 8;
    const BESIDE: u16 = 1 << 9;
    const TOLD_AT: u16 = 4;
    const TOLD: u16 = 0b111 << Self::TOLD_AT;

    const fn file(self) -> FileState {
        FileState::from_u8((self.0 & Self::FILE) as u8)
    }

    fn set_file(&mut self, file: FileState) {
        self.0 = self.0 & !Self::FILE | file as u16;
    }

    const fn has(self, mark: u16) -> bool {
        self.0 & mark != 0
    }

    const fn set(&mut self, mark: u16, yes: bool) {
        self.0 = self.0 & !mark | if yes { mark } else { 0 };
    }

    const fn told(self) -> ReplicaKinds {
        ReplicaKinds::from_bits(((self.0 & Self::TOLD) >> Self::TOLD_AT) as u8)
    }

    fn set_told(&mut self, kinds: ReplicaKinds) {
        self.0 = self.0 & !Self::TOLD | (kinds.bits() as u16) << Self::TOLD_AT;
    }
}

const _: () = assert!(size_of::<Option<Object>>() == 88, "kept once per object");
// With 15 prefixes of 4 bytes, and a malloc that rounds up, 112 bytes for an object of 1 MiB:
// 7 for each 64 KiB.
const _: () = assert!(size_of::<Rest>() == 24, "kept once per object with prefixes");
const _: () = assert!(size_of::<Extra>() == 104, "kept once per object with two replicas");

/// The parts of an object whose put begins.
#[derive(Debug)]
pub(crate) struct PendingPut {
    pub(crate) generation: Generation,
    pub(crate) slices: Slices,
    pub(crate) replicas: Replicas,
    pub(crate) soft_pin: SoftPin,
    pub(crate) hard_pin: bool,
    pub(crate) group: Option<Membership>,
    pub(crate) parent: Option<NonZeroU64>,
    /// The slot of the readable object whose place it is to take.
    pub(crate) replaces: Option<ObjectSlot>,
    /// Whether it is to have a file, for which room is taken.
    pub(crate) file: bool,
    /// The tenant that has been charged for it.
    pub(crate) tenant: TenantSlot,
}

impl Object {
    /// An object whose put begins.
    pub(crate) fn begun(now: Time, tag: u32, owner: OwnerSlot, begun: PendingPut) -> Self {
        // The shard notes the tenant and what is replaced.
        let PendingPut { generation, slices, replicas, soft_pin, hard_pin, .. } = begun;
        let PendingPut { group, parent, file, .. } = begun;
        let mut object = Self {
            generation,
            protection: Protection::committed(now, soft_pin),
            len: 0,
            first: None,
            rest: None,
            tag,
            owner,
            checksum: 0,
            status: ReplicaStatus::Processing,
            queue: Queue::None,
            marks: Marks(if file {
                FileState::Writing as u16 | Marks::FILE_CHARGED
            } else {
                FileState::None as u16
            }),
        };
        object.marks.set(Marks::HARD_PIN, hard_pin);
        object.set_slices(slices);
        object.set_replicas(replicas);
        if group.is_some() || parent.is_some() {
            object.change_extra(|extra| (extra.group, extra.parent) = (group, parent));
        }
        object
    }

    /// Gives it a soft pin from its last use on, or takes every pin from it, one for ever too.
    pub(crate) fn pin(&mut self, pin: SoftPin) {
        self.protection.pin(pin);
        if !pin.is_wanted() && self.is_hard_pinned() {
            self.marks.set(Marks::HARD_PIN, false);
            // As its put would have done without the pin.
            self.release_group();
        }
    }

    /// Returns whether it is never evicted.
    pub(crate) const fn is_hard_pinned(&self) -> bool {
        self.marks.has(Marks::HARD_PIN)
    }

    /// Returns whether a side table of its shard may have an entry of it.
    pub(crate) const fn is_beside(&self) -> bool {
        self.marks.has(Marks::BESIDE)
    }

    /// Notes whether a side table of its shard has an entry of it.
    pub(crate) const fn set_beside(&mut self, yes: bool) {
        self.marks.set(Marks::BESIDE, yes);
    }

    /// Returns whether all that there is of it is here and in memory: no side table has an entry of it, and no
    /// tier below memory.
    pub(crate) fn is_plain(&self) -> bool {
        const BELOW: u16 = Marks::FILE | Marks::BESIDE;
        !self.marks.has(BELOW)
            && !matches!(self.queue, Queue::OnLocalDisk | Queue::Offloading)
            && self.local_disks().is_empty()
    }

    /// Being written or readable.
    pub(crate) const fn status(&self) -> ReplicaStatus {
        self.status
    }

    /// Returns whether it can be read: its put has ended.
    pub(crate) const fn is_complete(&self) -> bool {
        matches!(self.status, ReplicaStatus::Complete)
    }

    /// When its put began, while it is unfinished.
    pub(crate) fn begun_at(&self) -> Option<Time> {
        (!self.is_complete()).then(|| self.protection.last_touched())
    }

    fn change_status(&mut self, next: ReplicaStatus) {
        debug_assert!(self.status.can_become(next), "{:?} became {next:?}", self.status);
        self.status = next;
    }

    /// Ends its put: it is readable from now on, and leased if readers were promised that it
    /// would be.
    pub(crate) fn complete(&mut self, now: Time, is_promised: bool) {
        self.change_status(ReplicaStatus::Complete);
        self.renew(now, is_promised);
    }

    /// Makes an object readable that was found so, with the times that it was found with.
    pub(crate) fn complete_as_found(&mut self) {
        self.change_status(ReplicaStatus::Complete);
    }

    /// Counts its times from now on.
    pub(crate) fn renew(&mut self, now: Time, is_leased: bool) {
        self.protection = Protection::committed(now, self.protection.soft_pin());
        if is_leased {
            // All of them are [waited for](crate::side_tables::readers::Readers::follow_former).
            self.protection.read(now, true);
        }
    }

    /// The kinds of replicas that can be read.
    pub(crate) fn readable_kinds(&self) -> ReplicaKinds {
        let has_disk = self.local_disks().iter().any(OnLocalDisk::is_readable);
        [
            (ReplicaKind::Memory, self.is_complete() && self.has_memory()),
            (ReplicaKind::SharedFile, self.file() == FileState::Persisted),
            (ReplicaKind::LocalDisk, self.is_complete() && has_disk),
        ]
        .into_iter()
        .filter(|(_, has)| *has)
        .fold(ReplicaKinds::NONE, |kinds, (kind, _)| kinds.with(kind))
    }

    /// Notes that the sinks know the kinds of its replicas. Returns those that they knew of before.
    pub(crate) fn tell_kinds(&mut self) -> ReplicaKinds {
        let before = self.marks.told();
        self.marks.set_told(self.readable_kinds());
        before
    }

    /// Its protection from eviction and removal.
    pub(crate) const fn protection(&self) -> &Protection {
        &self.protection
    }

    /// Grants a lease; to one that reads, with the use of its memory.
    pub(crate) fn access(&mut self, access: Access, now: Time) {
        debug_assert!(self.is_complete(), "the time of an unfinished put is that of its beginning");
        match access {
            Access::Asks => self.protection.access(now),
            Access::Reads { tells } => self.protection.read(now, tells),
        }
    }

    /// Returns the order of eviction that it is in.
    pub(crate) const fn queue(&self) -> Queue {
        self.queue
    }

    /// Notes which order of eviction holds it from now on.
    pub(crate) fn enter(&mut self, next: Queue) {
        debug_assert!(self.queue.can_become(next), "{:?} became {next:?}", self.queue);
        self.queue = next;
    }

    /// Its length in bytes.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn slices(&self) -> Slices {
        match self.extra().and_then(|extra| extra.slices.as_ref()) {
            Some(slices) => Slices::Many(Arc::clone(slices)),
            None => Slices::One(Slice {
                len: self.len,
                checksum: self
                    .marks
                    .has(Marks::CHECKSUM)
                    .then_some(Checksum::from_crc32c(self.checksum)),
            }),
        }
    }

    pub(crate) fn set_slices(&mut self, slices: Slices) {
        self.len = slices.total_len();
        let many = match slices {
            Slices::One(slice) => {
                self.checksum = slice.checksum.map_or(0, Checksum::as_u32);
                self.marks.set(Marks::CHECKSUM, slice.checksum.is_some());
                None
            }
            Slices::Many(slices) => Some(slices),
        };
        if many.is_some() || self.extra().is_some() {
            self.change_extra(|extra| extra.slices = many);
        }
    }

    pub(crate) fn group(&self) -> Option<&Arc<Group>> {
        self.membership().map(Membership::group)
    }

    pub(crate) fn parent(&self) -> Option<NonZeroU64> {
        self.extra()?.parent
    }

    /// Its memory replicas.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = &Replica> {
        let more = self.extra().map_or(&[][..], |extra| &extra.more);
        self.first.iter().chain(more)
    }

    /// Where it can be read in memory now, suspect segments last.
    pub(crate) fn placements(&self) -> Placements {
        let mut placements = Placements::new();
        let mut is_any_suspect = false;
        for replica in self.readable() {
            match replica.segment.is_suspect() {
                true => is_any_suspect = true,
                false => placements.push(replica.placement()),
            }
        }
        if is_any_suspect {
            let suspects = self.readable().filter(|replica| replica.segment.is_suspect());
            placements.extend(suspects.map(Replica::placement));
        }
        placements
    }

    pub(crate) fn set_replicas(&mut self, replicas: Replicas) {
        let Replicas { first, more } = replicas;
        self.first = first;
        if !more.is_empty() || self.extra().is_some() {
            self.change_extra(|extra| extra.more = more);
        }
    }

    pub(crate) fn add_replica(&mut self, replica: Replica) {
        if self.first.is_none() {
            self.first = Some(replica);
        } else {
            self.change_extra(|extra| extra.more.push(replica));
        }
    }

    pub(crate) fn take_replicas(&mut self) -> Replicas {
        let first = self.first.take();
        let mut more = Vec::new();
        if self.extra().is_some() {
            self.change_extra(|extra| more = core::mem::take(&mut extra.more));
        }
        Replicas { first, more }
    }

    /// Takes the replicas out for which `goes` says so.
    pub(crate) fn take_replicas_if(&mut self, mut goes: impl FnMut(&Replica) -> bool) -> Replicas {
        if !self.replicas().any(&mut goes) {
            return Replicas::default();
        }
        let (gone, kept): (Vec<_>, Vec<_>) = self.take_replicas().into_iter().partition(goes);
        self.set_replicas(kept.into_iter().collect());
        gone.into_iter().collect()
    }

    /// Takes the replicas out whose segment is gone for good, and forgets disks that are.
    pub(crate) fn take_dead_replicas(&mut self) -> Replicas {
        if self.local_disks().iter().any(|disk| disk.is_gone()) {
            self.change_extra(|extra| extra.local_disks.retain(|disk| !disk.is_gone()));
        }
        self.take_replicas_if(|replica| replica.segment.is_gone())
    }

    /// Reads from its first and its last bytes, so that the processor fetches all of it.
    pub(crate) const fn touch(&self) -> u32 {
        self.generation.as_u64() as u32 ^ self.marks.0 as u32
    }

    /// Returns whether it is live and no replica is in a segment or on a disk that is gone for
    /// good.
    pub(crate) fn is_whole(&self) -> bool {
        self.first.as_ref().map_or_else(|| self.outlives_memory(), |first| !first.segment.is_gone())
            && self.extra().is_none_or(Extra::is_whole)
    }

    /// Returns whether anything is left that can be read, or could be once a client is back or
    /// has written it.
    pub(crate) fn is_live(&self) -> bool {
        (self.has_memory() || self.outlives_memory())
            && !self.group().is_some_and(|group| group.is_condemned())
    }

    /// The state of its file on the shared tier.
    pub(crate) const fn file(&self) -> FileState {
        self.marks.file()
    }

    pub(crate) fn set_file(&mut self, file: FileState) {
        self.marks.set_file(file);
        if file == FileState::None {
            self.marks.set(Marks::FILE_CHARGED, false);
        }
    }

    /// Returns whether its tenant is charged for its file.
    pub(crate) const fn is_file_charged(&self) -> bool {
        self.marks.has(Marks::FILE_CHARGED)
    }

    pub(crate) fn set_file_charged(&mut self, yes: bool) {
        self.marks.set(Marks::FILE_CHARGED, yes);
    }

    /// Charges a tenant for the bytes on disks that are charged to no tenant.
    pub(crate) fn charge_disks(&mut self, tenant: TenantSlot) {
        if !self.local_disks().is_empty() {
            self.change_extra(|extra| {
                extra.local_disks.iter_mut().for_each(|disk| disk.charge(tenant));
            });
        }
    }

    /// Notes that it is on no client's local disk any more.
    pub(crate) fn leave_disks(&mut self) {
        self.change_extra(|extra| extra.local_disks.clear());
    }

    /// Makes its file readable, which is there in this round of comparisons.
    pub(crate) fn persist_file(&mut self, round: bool) {
        self.marks.set_file(FileState::Persisted);
        self.marks.set(Marks::ROUND, round);
    }

    /// Returns whether it has a file that can be read and was not seen in this round of comparisons.
    pub(crate) const fn has_unseen_file(&self, round: bool) -> bool {
        matches!(self.file(), FileState::Persisted) && self.marks.has(Marks::ROUND) != round
    }

    /// The clients' local disks that it is on, gone ones included.
    pub(crate) fn local_disks(&self) -> &[OnLocalDisk] {
        self.extra().map_or(&[], |extra| &extra.local_disks)
    }

    /// Its file on the shared tier, if that can be read.
    pub(crate) fn shared_file(&self) -> Option<SharedFile> {
        (self.file() == FileState::Persisted).then_some(SharedFile { len: self.len })
    }

    /// The clients' local disks that it is on, those that are away included.
    pub(crate) fn local_disk_ids(&self) -> LocalDiskIds {
        let there = self.local_disks().iter().filter(|disk| !disk.is_gone());
        there.map(|disk| disk.disk().id()).collect()
    }

    /// Where it can be read on clients' local disks.
    pub(crate) fn local_disk_placements(&self) -> Vec<LocalDiskPlacement> {
        self.local_disks().iter().filter_map(OnLocalDisk::placement).collect()
    }

    /// The clients' local disks that it can be read from.
    pub(crate) fn local_disk_replicas(&self) -> Vec<LocalDiskReplica> {
        self.local_disk_placements().into_iter().map(LocalDiskReplica::from).collect()
    }

    /// Returns whether it has memory that is not gone.
    pub(crate) fn has_memory(&self) -> bool {
        self.replicas().any(|replica| !replica.segment.is_gone())
    }

    /// Returns whether it is on a disk, or about to be.
    pub(crate) fn outlives_memory(&self) -> bool {
        self.file() != FileState::None || self.local_disks().iter().any(|disk| !disk.is_gone())
    }

    /// Returns whether it is on a disk, one that is away included.
    pub(crate) fn is_in_tier(&self) -> bool {
        self.file() == FileState::Persisted || self.local_disks().iter().any(|disk| !disk.is_gone())
    }

    /// Returns whether it can be read from a disk.
    fn is_readable_in_tier(&self) -> bool {
        self.file() == FileState::Persisted
            || self.local_disks().iter().any(OnLocalDisk::is_readable)
    }

    /// Returns whether it has been readable.
    pub(crate) fn is_stored(&self) -> bool {
        self.is_complete() || self.file() == FileState::Persisted
    }

    /// Its memory replicas that can be read now.
    fn readable(&self) -> impl Iterator<Item = &Replica> {
        let complete = self.is_complete();
        self.replicas().filter(move |replica| complete && replica.segment.is_readable())
    }

    /// Readable replicas of every kind.
    pub(crate) fn count_readable(&self) -> usize {
        let local = self.local_disks().iter().filter(|disk| disk.is_readable());
        self.readable().count() + usize::from(self.file() == FileState::Persisted) + local.count()
    }

    /// Returns whether it can be read now.
    pub(crate) fn is_readable(&self) -> bool {
        self.readable().next().is_some() || self.is_readable_in_tier()
    }

    /// Returns whether it cannot be read, but may be again when the clients come back that hold it.
    pub(crate) fn is_away(&self) -> bool {
        self.is_complete() && (self.has_memory() || self.is_in_tier()) && !self.is_readable()
    }

    /// Returns whether evicting it would make room.
    pub(crate) fn frees_room(&self) -> bool {
        self.replicas().any(|replica| replica.segment.is_allocatable())
    }

    /// Notes where it is on this disk.
    pub(crate) fn add_local_disk(&mut self, place: OnLocalDisk) {
        self.change_extra(|extra| {
            extra.local_disks.retain(|other| other.disk().id() != place.disk().id());
            extra.local_disks.push(place);
        });
    }

    /// Notes that it was on this disk, which is away, before a restart.
    pub(crate) fn note_local_disk(&mut self, disk: Arc<LocalDisk>, len: u64) {
        if let Some(extent) = Extent::new(0, len) {
            self.add_local_disk(OnLocalDisk::uncharged(disk, extent));
        }
    }

    /// Notes that it is not on the disk of this client any more.
    pub(crate) fn remove_local_disk(&mut self, client: ClientId) {
        self.change_extra(|extra| extra.local_disks.retain(|disk| disk.client() != Some(client)));
    }

    pub(crate) fn membership(&self) -> Option<&Membership> {
        self.extra()?.group.as_ref()
    }

    /// Lets it go with its group from now on, unless it is hard-pinned.
    pub(crate) fn release_group(&mut self) {
        if !self.is_hard_pinned() && self.group().is_some() {
            self.change_extra(|extra| extra.group.iter_mut().for_each(Membership::release));
        }
    }

    /// Takes it out of its group.
    pub(crate) fn leave_group(&mut self) {
        if self.group().is_some() {
            self.change_extra(|extra| extra.group = None);
        }
    }

    /// Changes what only some objects have, and keeps it only while there is some.
    fn change_extra(&mut self, change: impl FnOnce(&mut Extra)) {
        let mut rest = self.rest.take().unwrap_or_default();
        let mut extra = rest.extra.take().unwrap_or_default();
        change(&mut extra);
        rest.extra = (!extra.is_empty()).then_some(extra);
        self.rest = (rest.extra.is_some() || !rest.prefixes.is_empty()).then_some(rest);
    }

    fn extra(&self) -> Option<&Extra> {
        self.rest.as_ref()?.extra.as_deref()
    }

    /// The checksums of its slices' prefixes, slice after slice; empty when they are not
    /// known.
    pub(crate) fn prefixes(&self) -> &[Checksum] {
        self.rest.as_ref().map_or(&[], |rest| &rest.prefixes)
    }

    pub(crate) fn set_prefixes(&mut self, prefixes: Box<[Checksum]>) {
        if prefixes.is_empty() && self.prefixes().is_empty() {
            // The usual case of small objects, for which nothing is kept.
            return;
        }
        let mut rest = self.rest.take().unwrap_or_default();
        rest.prefixes = prefixes;
        self.rest = (rest.extra.is_some() || !rest.prefixes.is_empty()).then_some(rest);
    }
}
