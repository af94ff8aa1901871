//! Objects and space as others see them.

use mc_types::{Checksum, ClientId, Generation, KeyRef};

use crate::object::Object;
use crate::object::local_disk::LocalDiskReplica;
use crate::side_tables::promotion::Promotion;
use crate::side_tables::transfer::{Transfer, TransferInfo};
use crate::space::replica::{Placements, Replica, Replicas};
use crate::vocabulary::kinds::ReplicaKinds;
use crate::vocabulary::request::Slices;
use crate::vocabulary::states::ReplicaStatus;

/// An object at the moment of a change. Nothing is copied before it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct ObjectView<'a> {
    pub(crate) key: KeyRef<'a>,
    pub(crate) owner: ClientId,
    pub(crate) object: &'a Object,
    /// The copy or move that is under way.
    pub(crate) transfer: Option<&'a Transfer>,
    /// Where it comes back into memory.
    pub(crate) promotion: Option<&'a Promotion>,
}

impl<'a> ObjectView<'a> {
    /// Returns the object's key.
    #[must_use]
    pub fn key(&self) -> KeyRef<'a> {
        self.key
    }

    /// The put that it comes from.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.object.generation
    }

    /// The client that put it.
    #[must_use]
    pub fn owner(&self) -> ClientId {
        self.owner
    }

    /// Returns whether its put has ended.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.object.is_complete()
    }

    /// Its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no object is empty")]
    pub fn len(&self) -> u64 {
        self.object.len()
    }

    /// Returns the lengths and checksums of the object's slices.
    #[must_use]
    pub fn slices(&self) -> Slices {
        self.object.slices()
    }

    /// The checksums of its slices' prefixes; empty when there are none.
    #[must_use]
    pub fn prefixes(&self) -> &'a [Checksum] {
        self.object.prefixes()
    }

    /// The copy or move that is under way.
    #[must_use]
    pub fn transfer(&self) -> Option<TransferInfo> {
        self.transfer.map(Transfer::info)
    }

    /// The state of its memory replicas.
    #[must_use]
    pub fn memory(&self) -> ReplicaStatus {
        match self.object.has_memory() {
            false => ReplicaStatus::Removed,
            true => self.object.status(),
        }
    }

    /// The state of its file on the shared tier, if it has one.
    #[must_use]
    pub fn file(&self) -> Option<ReplicaStatus> {
        self.object.file().status()
    }

    /// Its replicas on clients' local disks.
    #[must_use]
    pub fn local_disks(&self) -> Vec<LocalDiskReplica> {
        self.object.local_disk_replicas()
    }

    /// The kinds of replicas that can be read, in memory also those in suspended segments.
    #[must_use]
    pub fn readable_kinds(&self) -> ReplicaKinds {
        self.object.readable_kinds()
    }

    /// The name of its group.
    #[must_use]
    pub fn group(&self) -> Option<&'a str> {
        self.object.group().map(|group| group.name())
    }

    /// Returns whether it can be read now.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.object.is_readable()
    }

    /// Its memory replicas, those in suspended segments included.
    #[must_use]
    pub fn placements(&self) -> Placements {
        self.object.replicas().map(Replica::placement).collect()
    }
}

/// Space that belongs to no object any more.
#[derive(Clone, Copy, Debug)]
pub struct SpaceView<'a> {
    pub(crate) replicas: &'a Replicas,
}

impl SpaceView<'_> {
    /// Its places, those in segments that are away or gone included.
    #[must_use]
    pub fn placements(&self) -> Placements {
        self.replicas.placements()
    }
}
