//! What stands behind a server: calls in, answers out, without I/O.
//!
//! A file for each family of calls; each call is a method of [`Turn`].

mod admin;
mod bunches;
mod clock;
mod disks;
mod drains;
mod failures;
mod files;
mod leases;
mod owners;
mod patterns;
mod promotion;
mod puts;
mod reads;
mod removal;
mod segments;
mod tasks;
mod tenants;
mod transfers;
mod upserts;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::BytesMut;
use mc_meta::{Master, ScopedKey, TenantId};
use mc_ticket::ClockEpoch;
use mc_types::{ClientId, ErrorCode, KeyRef, Time};

use crate::caller::{Caller, Role};
use crate::error::Refusal;
use crate::method::Method;
use crate::reply::Signer;
use crate::request::TenantKey;
use owners::Owners;

pub use clock::{Clock, SystemClock};

/// One call as it reached a server.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What is asked for.
    pub method: Method,
    /// The method's request message.
    pub payload: &'a [u8],
    /// Most bytes that the caller accepts as an answer.
    pub max_reply: usize,
    /// Who calls. The server has made sure that it is them, not that they may.
    pub caller: &'a Caller,
    /// The host that it comes from, where the connection tells: an IPv4 address, or the first
    /// 64 bits of an IPv6 address.
    pub from: Option<IpAddr>,
}

/// Answers calls. A server runs short calls on the thread that reads the
/// socket, so an implementation never waits.
pub trait Service: Send + Sync + 'static {
    /// Answers `call` by appending the method's response message to `out`, and
    /// at most [`Call::max_reply`] bytes of it; a longer answer is replaced by a
    /// refusal. What was in `out` before stays.
    ///
    /// # Errors
    /// The [`Refusal`] that the caller gets instead of an answer; whatever was
    /// appended to `out` is dropped then.
    fn call(&self, call: Call<'_>, out: &mut BytesMut) -> Result<(), Refusal>;
}

impl<S: Service + ?Sized> Service for Arc<S> {
    fn call(&self, call: Call<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        (**self).call(call, out)
    }
}

/// `MasterService` of the `.proto`, answered by a [`Master`].
///
/// Every call is refused whose [role](Method::role) its caller does not have, and every
/// key is one of the caller's tenant. The id of a client that contributes memory is its
/// caller's: nobody else calls with it but administrators.
#[derive(Debug)]
pub struct MasterService<C = SystemClock> {
    master: Arc<Master>,
    clock: C,
    epoch: ClockEpoch,
    owners: Owners,
}

impl<C: Clock> MasterService<C> {
    /// Answers from `master`, whose time `clock` tells. The clock's epoch is drawn here: a
    /// master has one service, and clones of its [`Arc`] share it.
    ///
    /// # Panics
    /// When the operating system gives no random numbers.
    #[must_use]
    pub fn new(master: Arc<Master>, clock: C) -> Self {
        let mut number = [0; 8];
        getrandom::fill(&mut number).expect("the system gives random numbers");
        let epoch = ClockEpoch::new(u64::from_le_bytes(number));
        Self { master, clock, epoch, owners: Owners::default() }
    }

    /// Takes this epoch instead of one drawn at random: for simulations, in which the same
    /// calls have the same answers.
    #[must_use]
    pub fn with_clock_epoch(mut self, epoch: ClockEpoch) -> Self {
        self.epoch = epoch;
        self
    }

    /// Names the run of the clock by which the tickets of this service end.
    #[must_use]
    pub fn clock_epoch(&self) -> ClockEpoch {
        self.epoch
    }

    /// The master behind it.
    #[must_use]
    pub fn master(&self) -> &Arc<Master> {
        &self.master
    }
}

impl<C: Clock> Service for MasterService<C> {
    fn call(&self, call: Call<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        let Call { method, payload, caller, .. } = call;
        if caller.role() < method.role() {
            return Err(Refusal::new(
                ErrorCode::PermissionDenied,
                format!(
                    "{method} is for the role {} and above, {} has {}",
                    method.role(),
                    caller.name(),
                    caller.role()
                ),
            ));
        }
        match owners::client(method, payload, caller)? {
            Some(client) => self.answer_as(client, call, out),
            None => self.answer(call, out),
        }
    }
}

impl<C: Clock> MasterService<C> {
    /// Answers somebody who is known and calls as this client.
    fn answer_as(
        &self,
        client: ClientId,
        call: Call<'_>,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        self.owners.check(client, call.caller, &self.master)?;
        let claim = if owners::contributes(call.method) {
            Some(self.owners.claim(client, call.caller, &self.master)?)
        } else {
            None
        };
        let answered = self.answer(call, out);
        let (claimed, done) = (claim.is_some(), answered.is_ok());
        drop(claim);
        if (claimed && !done) || (done && owners::withdraws(call.method)) {
            self.owners.release(client, &self.master);
        }
        answered
    }

    fn answer(&self, call: Call<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        let Call { method, payload, max_reply, caller, from } = call;
        let (master, tenant) = (&*self.master, caller.tenant());
        let (now, role) = (self.clock.now(), caller.role());
        let signer = Signer { epoch: self.epoch, now };
        let turn = Turn { master, now, signer, tenant, role, caller, from, payload, max_reply };
        match method {
            Method::GetReplicaList => turn.get_replica_list(out),
            Method::ExistKey => turn.exist(out),
            Method::LongestPrefix => turn.longest_prefix(out),
            Method::BatchGetReplicaList => turn.batch_get_replica_list(out),
            Method::BatchExistKey => turn.batch_exist(out),
            Method::RenewLease => turn.renew_lease(out),
            Method::BatchRenewLease => turn.batch_renew_lease(out),
            Method::PutStart => turn.put_start(out),
            Method::PutEnd => turn.put_end(out),
            Method::PutRevoke => turn.put_revoke(out),
            Method::BatchPutStart => turn.batch_put_start(out),
            Method::BatchPutEnd => turn.batch_put_end(out),
            Method::BatchPutRevoke => turn.batch_put_revoke(out),
            Method::UpsertStart => turn.upsert_start(out),
            Method::UpsertEnd => turn.upsert_end(out),
            Method::UpsertRevoke => turn.upsert_revoke(out),
            Method::BatchUpsertStart => turn.batch_upsert_start(out),
            Method::BatchUpsertEnd => turn.batch_upsert_end(out),
            Method::BatchUpsertRevoke => turn.batch_upsert_revoke(out),
            Method::Remove => turn.remove(out),
            Method::BatchRemove => turn.batch_remove(out),
            Method::RemoveAll => turn.remove_all(out),
            Method::BatchReplicaClear => turn.batch_replica_clear(out),
            Method::GetReplicaListByRegex => turn.get_replica_list_by_regex(out),
            Method::RemoveByRegex => turn.remove_by_regex(out),
            Method::MountSegment => turn.mount_segment(out),
            Method::ReMountSegment => turn.remount_segment(out),
            Method::UnmountSegment => turn.unmount_segment(out),
            Method::BatchQueryIp => turn.batch_query_ip(out),
            Method::GracefulUnmountSegment => turn.graceful_unmount_segment(out),
            Method::Ping => turn.ping(out),
            Method::DescribeObject => turn.describe(out),
            Method::ExplainObject => turn.explain(out),
            Method::ListKeys => turn.list_keys(out),
            Method::ClusterReport => turn.cluster_report(out),
            Method::CopyStart => turn.copy_start(out),
            Method::CopyEnd => turn.copy_end(),
            Method::CopyRevoke => turn.copy_revoke(),
            Method::MoveStart => turn.move_start(out),
            Method::MoveEnd => turn.move_end(),
            Method::MoveRevoke => turn.move_revoke(),
            Method::CreateCopyTask => turn.create_copy_task(out),
            Method::CreateMoveTask => turn.create_move_task(out),
            Method::QueryTask => turn.query_task(out),
            Method::FetchTasks => turn.fetch_tasks(out),
            Method::MarkTaskToComplete => turn.mark_task_to_complete(out),
            Method::CreateDrainJob => turn.create_drain_job(out),
            Method::QueryDrainJob => turn.query_drain_job(out),
            Method::ListDrainJobs => turn.list_drain_jobs(out),
            Method::CancelDrainJob => turn.cancel_drain_job(out),
            Method::ReopenSegment => turn.reopen_segment(),
            Method::SetTenantQuota => turn.set_tenant_quota(),
            Method::ReplaceTenantQuotas => turn.replace_tenant_quotas(),
            Method::DeleteTenantQuota => turn.delete_tenant_quota(),
            Method::GetTenantQuota => turn.get_tenant_quota(out),
            Method::ListTenantQuotas => turn.list_tenant_quotas(out),
            Method::DiskPutEnd => turn.disk_put_end(),
            Method::DiskPutRevoke => turn.disk_put_revoke(),
            Method::MemoryPutRevoke => turn.memory_put_revoke(),
            Method::EvictDiskReplica => turn.evict_disk_replica(),
            Method::BatchEvictDiskReplica => turn.batch_evict_disk_replica(out),
            Method::MountLocalDisk => turn.mount_local_disk(),
            Method::UnmountLocalDisk => turn.unmount_local_disk(),
            Method::OffloadHeartbeat => turn.offload_heartbeat(out),
            Method::NotifyOffload => turn.notify_offload(out),
            Method::ReportLocalDisk => turn.report_local_disk(out),
            Method::ReportSsdCapacity => turn.report_ssd_capacity(),
            Method::PollRemoveAll => turn.poll_remove_all(out),
            Method::ListLocalDisks => turn.list_local_disks(out),
            Method::PromotionHeartbeat => turn.promotion_heartbeat(out),
            Method::PromotionAllocStart => turn.promotion_alloc_start(out),
            Method::NotifyPromotionSuccess => turn.notify_promotion_success(),
            Method::NotifyPromotionFailure => turn.notify_promotion_failure(),
            Method::ReportFailures => turn.report_failures(out),
        }
    }
}

/// One call while it is answered. Its methods append the answer to what they are given.
#[derive(Clone, Copy)]
struct Turn<'a> {
    master: &'a Master,
    now: Time,
    signer: Signer,
    tenant: &'a TenantId,
    role: Role,
    caller: &'a Caller,
    from: Option<IpAddr>,
    payload: &'a [u8],
    /// Most bytes that the answer may have.
    max_reply: usize,
}

impl Turn<'_> {
    /// The key as the master stores it, which every command takes.
    fn scoped<'k>(&self, key: KeyRef<'k>) -> Result<ScopedKey<'k>, Refusal> {
        Ok(self.master.scoped(self.tenant, key)?)
    }

    /// The same for a key that may be another tenant's.
    fn scoped_of<'k>(&self, object: &TenantKey<'k>) -> Result<ScopedKey<'k>, Refusal> {
        match &object.tenant {
            None => self.scoped(object.key),
            Some(tenant) if tenant == self.tenant || self.role >= Role::Node => {
                Ok(self.master.scoped(tenant, object.key)?)
            }
            Some(tenant) => Err(Refusal::new(
                ErrorCode::PermissionDenied,
                format!(
                    "tenant_id is {tenant}, the caller acts for {}; the role {} may name others",
                    self.tenant,
                    Role::Node
                ),
            )),
        }
    }
}
