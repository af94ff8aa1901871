//! Objects that come back from disks into memory.

use core::slice;
use core::time::Duration;

use bytes::BytesMut;
use mc_meta::{LateWrites, MAX_NAMED_SEGMENTS, TransferHandle};
use mc_ticket::PutToken;
use mc_types::{ClientId, Generation, TransferId};

use super::disks::{DISK_JOB_CEILING, disk_jobs, job_to_proto};
use super::objects::location;
use super::{
    BadField, CallContext, TierJob, calls, client_id, message, millis, missing, reply,
    segment_names, tenant_name, texts,
};
use crate::answer::{ReplicaLocation, read_done};
use crate::proto;
use crate::refusal::Refusal;
use crate::reply::{Names, Signer, put_placements};
use crate::request::{MAX_PAGE, TenantKey};
use crate::wire::{put_fixed64, put_u64};

/// Memory to bring an object back into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromotionGrant {
    /// Names this way back, and proves that its holder began it: only this answer tells it.
    pub handle: TransferHandle,
    /// The replica to write, as long as the object.
    pub replica: ReplicaLocation,
    /// How long it may be written to, counted from when the master wrote the answer: the
    /// client counts from before it asked.
    pub time_left: Duration,
}

calls! {
    /// Returns the next objects that a client is to bring back from a disk into memory.
    fn promotion_heartbeat(&self, client: ClientId) -> Vec<TierJob> {
        PromotionHeartbeat "When the answer is lost the objects wait until their time is up.",
        message(proto::PromotionHeartbeatRequest { client_id: client.to_bytes().into() }),
        reply(|answer: &proto::PromotionHeartbeatResponse| disk_jobs(&answer.jobs)),
    }

    /// Grants memory to bring an object of `len` bytes back into, if possible in one of the
    /// segments named `preferred`.
    fn promotion_alloc_start(&self, client: ClientId, object: &TenantKey<'_>, generation: Generation, len: u64, preferred: &[&str]) -> PromotionGrant {
        PromotionAllocStart
            "Refused with the codes of [`mc_meta::PromotionStartError`], after which there is \
             nothing more to do.",
        message(proto::PromotionAllocStartRequest {
            key: object.key.as_str().into(),
            client_id: client.to_bytes().into(),
            generation: generation.as_u64(),
            length: len,
            preferred_segments: texts(preferred),
            tenant_id: tenant_name(object),
        }),
        reply(|answer| PromotionGrant::from_proto(answer, len)),
    }

    /// Reports that an object is in the memory that was granted for it; it can be read there
    /// then.
    fn notify_promotion_success(&self, client: ClientId, object: &TenantKey<'_>, generation: Generation, handle: TransferHandle) -> () {
        NotifyPromotionSuccess "Refused with the codes of [`mc_meta::PromotionError`].",
        message(proto::NotifyPromotionSuccessRequest {
            key: object.key.as_str().into(),
            client_id: client.to_bytes().into(),
            generation: generation.as_u64(),
            tenant_id: tenant_name(object),
            transfer: Some(handle.id.as_u64()),
            transfer_token: handle.token.as_u64(),
        }),
        read_done,
    }

    /// Reports that a client does not bring an object back; with the handle of the memory that
    /// was granted for it, if any was. Where bytes may arrive late the memory is kept until
    /// the grant's end, or until the same is said once more without them.
    fn notify_promotion_failure(&self, client: ClientId, object: &TenantKey<'_>, generation: Generation, handle: Option<TransferHandle>, late: LateWrites) -> () {
        NotifyPromotionFailure "Refused with the codes of [`mc_meta::PromotionError`].",
        message(proto::NotifyPromotionFailureRequest {
            key: object.key.as_str().into(),
            client_id: client.to_bytes().into(),
            generation: generation.as_u64(),
            tenant_id: tenant_name(object),
            transfer: handle.map(|handle| handle.id.as_u64()),
            transfer_token: handle.map_or(0, |handle| handle.token.as_u64()),
            late_writes: late == LateWrites::Possible,
        }),
        read_done,
    }
}

impl CallContext<'_> {
    pub(crate) fn promotion_heartbeat(
        self,
        request: &proto::PromotionHeartbeatRequest,
    ) -> Result<proto::PromotionHeartbeatResponse, Refusal> {
        let client = client_id(&request.client_id)?;
        let jobs = self.master.promotion_heartbeat(self.now, client);
        let fit = jobs.len().min(MAX_PAGE).min(self.max_reply / DISK_JOB_CEILING);
        // The others would belong to no client until their time is up. When they are read again
        // they are tried again.
        for job in &jobs[fit..] {
            let key = job.key.as_ref();
            let (generation, late) = (job.generation, LateWrites::Impossible);
            self.master.notify_promotion_failure(self.now, client, key, generation, None, late)?;
        }
        let jobs = jobs[..fit].iter().map(job_to_proto).collect();
        Ok(proto::PromotionHeartbeatResponse { jobs, ..Default::default() })
    }

    pub(crate) fn promotion_alloc_start(
        self,
        request: &proto::PromotionAllocStartRequest,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let client = client_id(&request.client_id)?;
        let key = self.stored(&request.key, &request.tenant_id)?;
        let names = &request.preferred_segments;
        let preferred: Vec<&str> = segment_names(names, MAX_NAMED_SEGMENTS, "preferred_segments")?;
        let grant = self.master.promotion_alloc_start(
            self.now,
            client,
            key.as_ref(),
            Generation::new(request.generation),
            request.length,
            &preferred,
        )?;
        write_promotion(out, &grant, self.signer);
        Ok(())
    }

    pub(crate) fn notify_promotion_success(
        self,
        request: &proto::NotifyPromotionSuccessRequest,
    ) -> Result<(), Refusal> {
        let missing = || Refusal::invalid("transfer is missing; it says which memory is meant");
        let (client, generation) =
            (client_id(&request.client_id)?, Generation::new(request.generation));
        let handle = handle(request.transfer, request.transfer_token).ok_or_else(missing)?;
        let key = self.stored(&request.key, &request.tenant_id)?;
        let (now, key) = (self.now, key.as_ref());
        Ok(self.master.notify_promotion_success(now, client, key, generation, handle)?)
    }

    pub(crate) fn notify_promotion_failure(
        self,
        request: &proto::NotifyPromotionFailureRequest,
    ) -> Result<(), Refusal> {
        let (client, generation) =
            (client_id(&request.client_id)?, Generation::new(request.generation));
        let (handle, late) =
            (handle(request.transfer, request.transfer_token), late_writes(request.late_writes));
        let key = self.stored(&request.key, &request.tenant_id)?;
        let (now, key) = (self.now, key.as_ref());
        Ok(self.master.notify_promotion_failure(now, client, key, generation, handle, late)?)
    }
}

/// `PromotionAllocStartResponse`.
fn write_promotion(out: &mut BytesMut, grant: &mc_meta::PromotionGrant, signer: Signer) {
    let (placements, terms) = (slice::from_ref(&grant.placement), signer.writing(grant.time_left));
    put_placements(out, 2, placements, terms, |_| Names::Inline);
    put_u64(out, 3, millis(grant.time_left));
    put_u64(out, 4, grant.handle.id.as_u64());
    put_fixed64(out, 5, grant.handle.token.as_u64());
}

impl PromotionGrant {
    /// The grant for an object of `len` bytes.
    fn from_proto(answer: &proto::PromotionAllocStartResponse, len: u64) -> Result<Self, BadField> {
        let replica = location(answer.replica.as_ref().ok_or(missing("replica"))?)?;
        if replica.extent.len() != len {
            return Err(BadField::new("replica", "is of another length than asked for"));
        }
        let id = TransferId::new(answer.transfer);
        let token = PutToken::from_u64(answer.transfer_token);
        let time_left = Duration::from_millis(answer.grant_ttl_ms);
        Ok(Self { handle: TransferHandle { id, token }, replica, time_left })
    }
}

/// Returns the handle of a copy, a move or a promotion, if the request has one.
pub(super) fn handle(id: Option<u64>, token: u64) -> Option<TransferHandle> {
    let (id, token) = (TransferId::new(id?), PutToken::from_u64(token));
    Some(TransferHandle { id, token })
}

pub(super) fn late_writes(may_come: bool) -> LateWrites {
    if may_come { LateWrites::Possible } else { LateWrites::Impossible }
}
