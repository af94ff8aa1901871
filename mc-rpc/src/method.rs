//! The calls there are.

use core::fmt;

#[cfg(doc)]
use mc_types::ErrorCode;

use crate::caller::Role;

/// Whether a call may be executed twice without harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The second execution answers as the first did, or as if it had come later.
    Harmless,
    /// The second execution would be refused, or answer something else, and do no harm: the call
    /// names what it is about, so that nothing younger is meant. The client gives such a call a
    /// token, by which the server knows the second attempt and repeats its answer. A server that
    /// does not know the first attempt, because another one had it, executes the second.
    Tracked,
    /// The second execution would do something else: grant space again, or remove what was stored
    /// in the meantime. Such a call has a token, too, and is refused
    /// ([`ErrorCode::OutcomeUnknown`]) by a server that cannot know whether another one has executed
    /// the first attempt.
    Once,
}

/// Where a server executes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Takes microseconds, and runs on the thread that read it unless its payload is large.
    Short,
    /// May look at every object; never holds up others.
    Long,
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $number:literal: $role:ident, $repeat:ident, $pace:ident
        => $kind:ident $answer:ident;)*) => {
        /// A call of `MasterService`, with its number in a frame. Numbers are
        /// never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum Method {
            $($(#[$doc])* $name = $number,)*
        }

        impl Method {
            /// Every method, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The method with this number.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The rpc's name in the `.proto`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The least role that may call it.
            #[must_use]
            pub const fn role(self) -> Role {
                match self { $(Self::$name => Role::$role,)* }
            }

            pub(crate) const fn repeat(self) -> Repeat {
                match self { $(Self::$name => Repeat::$repeat,)* }
            }

            pub(crate) const fn pace(self) -> Pace {
                match self { $(Self::$name => Pace::$pace,)* }
            }
        }
    };
}

/// Hands the table of the calls to the macro of this name: each call with its number, the least role
/// that may make it, whether it may be repeated, its pace, and the method of the call context that
/// answers it.
macro_rules! table {
    ($then:ident) => {
        $then! {
            /// Where to read an object.
            GetReplicaList = 1: Reader, Harmless, Short => hot get_replica_list;
            /// Space to write an object into.
            PutStart = 2: Writer, Once, Short => hot put_start;
            /// The object is written.
            PutEnd = 3: Writer, Tracked, Short => hot put_end;
            /// Gives up a put.
            PutRevoke = 4: Writer, Tracked, Short => hot put_revoke;
            /// Removes an object.
            Remove = 5: Writer, Once, Short => hot remove;
            /// Removes every object.
            RemoveAll = 6: Writer, Once, Long => cold remove_all;
            /// Whether an object can be read.
            ExistKey = 7: Reader, Harmless, Short => hot exist;
            /// Contributes a segment.
            MountSegment = 8: Node, Harmless, Short => cold mount_segment;
            /// Takes a segment back.
            UnmountSegment = 9: Node, Tracked, Short => cold unmount_segment;
            /// Tells the master that a client lives.
            Ping = 10: Reader, Harmless, Short => hot ping;
            /// How many leading keys exist.
            LongestPrefix = 11: Reader, Harmless, Short => hot longest_prefix;
            /// `GetReplicaList` of many keys.
            BatchGetReplicaList = 12: Reader, Harmless, Short => hot batch_get_replica_list;
            /// `PutStart` of many objects.
            BatchPutStart = 13: Writer, Once, Short => hot batch_put_start;
            /// `PutEnd` of many objects.
            BatchPutEnd = 14: Writer, Tracked, Short => hot batch_put_end;
            /// `PutRevoke` of many objects.
            BatchPutRevoke = 15: Writer, Tracked, Short => hot batch_put_revoke;
            /// `ExistKey` of many keys.
            BatchExistKey = 16: Reader, Harmless, Short => hot batch_exist;
            /// `Remove` of many keys.
            BatchRemove = 17: Writer, Once, Short => hot batch_remove;
            /// Everything known of one object.
            DescribeObject = 18: Reader, Harmless, Short => cold describe;
            /// A page of keys.
            ListKeys = 19: Reader, Harmless, Long => cold list_keys;
            /// The master's totals.
            ClusterReport = 20: Admin, Harmless, Long => cold cluster_report;
            /// Attaches a suspended segment again.
            ReMountSegment = 21: Node, Harmless, Short => cold remount_segment;
            /// Space to write a new value into.
            UpsertStart = 22: Writer, Once, Short => hot upsert_start;
            /// The new value is written.
            UpsertEnd = 23: Writer, Tracked, Short => hot upsert_end;
            /// Gives up an upsert.
            UpsertRevoke = 24: Writer, Tracked, Short => hot upsert_revoke;
            /// `UpsertStart` of many objects.
            BatchUpsertStart = 25: Writer, Once, Short => hot batch_upsert_start;
            /// `UpsertEnd` of many objects.
            BatchUpsertEnd = 26: Writer, Tracked, Short => hot batch_upsert_end;
            /// `UpsertRevoke` of many objects.
            BatchUpsertRevoke = 27: Writer, Tracked, Short => hot batch_upsert_revoke;
            /// `GetReplicaList` of every object whose key matches a pattern.
            GetReplicaListByRegex = 28: Reader, Harmless, Long => written get_replica_list_by_regex;
            /// Removes every object whose key matches a pattern.
            RemoveByRegex = 29: Writer, Once, Long => cold remove_by_regex;
            /// Where clients serve their segments.
            BatchQueryIp = 30: Reader, Harmless, Short => cold batch_query_ip;
            /// Takes back replicas of what a client has put.
            BatchReplicaClear = 31: Writer, Once, Short => cold batch_replica_clear;
            /// Extends the lease of an object that is being read.
            RenewLease = 32: Reader, Harmless, Short => hot renew_lease;
            /// `RenewLease` of many objects.
            BatchRenewLease = 33: Reader, Harmless, Short => hot batch_renew_lease;
            /// Takes a segment back after a time of grace.
            GracefulUnmountSegment = 34: Node, Tracked, Short => cold graceful_unmount_segment;
            /// Why a key is as it is.
            ExplainObject = 35: Reader, Harmless, Short => cold explain;

            /// Space to copy an object into.
            CopyStart = 50: Node, Once, Short => written copy_start;
            /// The copies are written.
            CopyEnd = 51: Node, Tracked, Short => cold copy_end;
            /// Gives up a copy.
            CopyRevoke = 52: Node, Tracked, Short => cold copy_revoke;
            /// Space to move a replica into.
            MoveStart = 53: Node, Once, Short => written move_start;
            /// The moved replica is written.
            MoveEnd = 54: Node, Tracked, Short => cold move_end;
            /// Gives up a move.
            MoveRevoke = 55: Node, Tracked, Short => cold move_revoke;
            /// Has a node copy an object.
            CreateCopyTask = 56: Writer, Once, Short => cold create_copy_task;
            /// Has a node move a replica.
            CreateMoveTask = 57: Writer, Once, Short => cold create_move_task;
            /// The state of a task.
            QueryTask = 58: Writer, Harmless, Short => cold query_task;
            /// The tasks that wait for a node.
            FetchTasks = 59: Node, Tracked, Short => cold fetch_tasks;
            /// How a task went.
            MarkTaskToComplete = 60: Node, Harmless, Short => cold mark_task_to_complete;
            /// Begins to empty segments.
            CreateDrainJob = 61: Admin, Once, Short => cold create_drain_job;
            /// Returns the state of a drain job.
            QueryDrainJob = 62: Admin, Harmless, Short => cold query_drain_job;
            /// The drain jobs that are known.
            ListDrainJobs = 63: Admin, Harmless, Long => cold list_drain_jobs;
            /// Begins no more moves for a drain job.
            CancelDrainJob = 64: Admin, Tracked, Short => cold cancel_drain_job;
            /// Takes new objects into a drained segment again.
            ReopenSegment = 65: Admin, Harmless, Short => cold reopen_segment;
            /// Gives a tenant a quota.
            SetTenantQuota = 66: Admin, Harmless, Long => cold set_tenant_quota;
            /// Makes these the only quotas.
            ReplaceTenantQuotas = 67: Admin, Harmless, Long => cold replace_tenant_quotas;
            /// Takes a tenant's quota away.
            DeleteTenantQuota = 68: Admin, Once, Long => cold delete_tenant_quota;
            /// The quota and usage of one tenant.
            GetTenantQuota = 69: Admin, Harmless, Long => cold get_tenant_quota;
            /// The quotas and usage of all tenants.
            ListTenantQuotas = 70: Admin, Harmless, Long => cold list_tenant_quotas;
            /// The file of an object is written.
            DiskPutEnd = 71: Writer, Tracked, Short => hot file_put_end;
            /// The file of an object will not be written.
            DiskPutRevoke = 72: Writer, Tracked, Short => hot file_put_revoke;
            /// Gives up the memory of a put.
            MemoryPutRevoke = 73: Writer, Tracked, Short => hot memory_put_revoke;
            /// An object was deleted from a disk.
            EvictDiskReplica = 74: Writer, Tracked, Short => cold evict_from_tier;
            /// `EvictDiskReplica` of many objects.
            BatchEvictDiskReplica = 75: Writer, Tracked, Short => written batch_evict_from_tier;
            /// Makes a client's local disk known.
            MountLocalDisk = 76: Node, Harmless, Short => cold mount_local_disk;
            /// Forgets a client's local disk.
            UnmountLocalDisk = 77: Node, Tracked, Short => cold unmount_local_disk;
            /// The objects that a client is to write to its disk.
            OffloadHeartbeat = 78: Node, Tracked, Short => cold offload_heartbeat;
            /// How the writing of objects to a disk went.
            NotifyOffload = 79: Node, Tracked, Short => written notify_offload;
            /// Reports the objects that a client has found on its disk.
            ReportLocalDisk = 80: Node, Harmless, Short => written report_local_disk;
            /// How much a client's disk can hold.
            ReportSsdCapacity = 81: Node, Harmless, Short => cold report_ssd_capacity;
            /// Whether a client is to delete everything on its disk.
            PollRemoveAll = 82: Node, Tracked, Short => cold poll_remove_all;
            /// The clients' local disks.
            ListLocalDisks = 83: Admin, Harmless, Long => cold list_local_disks;
            /// The objects that a client is to bring back into memory.
            PromotionHeartbeat = 84: Node, Tracked, Short => cold promotion_heartbeat;
            /// Memory to bring an object back into.
            PromotionAllocStart = 85: Node, Once, Short => written promotion_alloc_start;
            /// An object is back in memory.
            NotifyPromotionSuccess = 86: Node, Tracked, Short => cold notify_promotion_success;
            /// An object is not brought back.
            NotifyPromotionFailure = 87: Node, Harmless, Short => cold notify_promotion_failure;
            /// Reports replicas that could not be read or reached.
            ReportFailures = 88: Reader, Harmless, Short => cold report_failures;
            /// Which objects clients convert for other models.
            GetC2cConfig = 89: Writer, Harmless, Short => cold get_c2c_config;
            /// Which part this master has among those of its cluster.
            HaStatus = 90: Reader, Harmless, Short => cold ha_status;
            /// Asks the leader to hand over.
            HandOver = 91: Admin, Once, Short => cold hand_over;
            /// Where clients keep files of objects.
            GetStorageConfig = 92: Reader, Harmless, Short => cold get_storage_config;
            /// `DiskPutEnd` or `DiskPutRevoke` of many objects.
            BatchDiskPutEnd = 93: Writer, Tracked, Short => written batch_file_put_end;
            /// Work on the shared tier of files.
            FetchFileJobs = 94: Node, Tracked, Short => cold fetch_file_jobs;
            /// The files that a client has found.
            ReportFiles = 95: Node, Harmless, Short => written report_files;
            /// The objects that a client is to delete from its disk.
            FetchDiskDeletions = 96: Node, Tracked, Short => cold fetch_disk_deletions;
            /// Removes the objects of particular puts.
            BatchRemoveGeneration = 97: Writer, Once, Short => written batch_remove_generation;
            /// The connections that are open.
            Connections = 98: Admin, Harmless, Long => cold connections;
            /// The tasks that are known.
            ListTasks = 99: Admin, Harmless, Long => cold list_tasks;
            /// The totals of the last hour.
            History = 100: Admin, Harmless, Long => cold history;
            /// Pins an object that is there, or takes its pins.
            PinObject = 101: Writer, Harmless, Short => cold pin_object;
        }
    };
}
pub(crate) use table;

table!(methods);

impl Method {
    /// The method that has this name in the `.proto`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|method| method.as_str() == name)
    }

    /// Returns whether the answer tells where objects are, to a caller that
    /// [says](crate::ReadCounter) when it is done with them.
    pub(crate) const fn reads(self) -> bool {
        matches!(
            self,
            Self::GetReplicaList
                | Self::BatchGetReplicaList
                | Self::RenewLease
                | Self::BatchRenewLease
        )
    }

    /// Returns whether the call removes many objects, or changes what tenants, segments and masters may do:
    /// servers write it down.
    pub(crate) const fn is_administrative(self) -> bool {
        matches!(
            self,
            Self::RemoveAll
                | Self::RemoveByRegex
                | Self::BatchReplicaClear
                | Self::CreateCopyTask
                | Self::CreateMoveTask
                | Self::CreateDrainJob
                | Self::CancelDrainJob
                | Self::ReopenSegment
                | Self::SetTenantQuota
                | Self::ReplaceTenantQuotas
                | Self::DeleteTenantQuota
                | Self::HandOver
                | Self::PinObject
        )
    }

    /// The method's number in a frame.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_round_trip() {
        for &method in Method::ALL {
            assert_eq!(Method::from_name(method.as_str()), Some(method));
            assert_eq!(Method::from_number(method.number()), Some(method));
        }
        assert_eq!(Method::from_number(0), None);
        assert_eq!(Method::from_number(u16::MAX), None);
        assert_eq!(Method::from_name("existkey"), None);
    }
}
