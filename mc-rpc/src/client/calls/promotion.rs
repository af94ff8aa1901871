//! Calls of those who bring objects back from disks into memory.

use bytes::BytesMut;
use mc_meta::{LateWrites, TransferHandle};
use mc_types::{ClientId, Generation};

use super::calls;
use crate::answer::{self, DiskJob, PromotionGrant};
use crate::request::{self, PromotionFinishRequest, PromotionStartRequest, TenantKey};

calls! {
    /// The next objects that a client is to bring back from a disk into memory.
    ///
    /// # Errors
    /// Any [`RpcError`]. When the answer is lost the objects wait until their time is up.
    fn promotion_heartbeat(&self, client: ClientId) -> Vec<DiskJob> {
        PromotionHeartbeat,
        |out: &mut BytesMut| request::write_ping(out, client),
        answer::read_disk_jobs,
    }

    /// Memory to bring an object of `len` bytes back into, if possible in one of the
    /// segments named `preferred`.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PromotionStartError`], after which there is
    /// nothing more to do; or any other [`RpcError`].
    fn promotion_alloc_start(&self, client: ClientId, object: &TenantKey<'_>, generation: Generation, len: u64, preferred: &[&str]) -> PromotionGrant {
        PromotionAllocStart,
        |out: &mut BytesMut| PromotionStartRequest::write(out, client, object, generation, len, preferred),
        |message: &[u8]| answer::read_promotion(message, len),
    }

    /// Says that an object is in the memory that was granted for it; it can be read there
    /// then.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PromotionError`]; or any other
    /// [`RpcError`].
    fn notify_promotion_success(&self, client: ClientId, object: &TenantKey<'_>, generation: Generation, handle: TransferHandle) -> () {
        NotifyPromotionSuccess,
        |out: &mut BytesMut| PromotionFinishRequest::write(out, client, object, generation, Some(handle), LateWrites::Impossible),
        answer::read_done,
    }

    /// Says that a client does not bring an object back; with the handle of the memory that
    /// was granted for it, if any was. Where bytes may arrive late the memory is kept until
    /// the grant's end, or until the same is said once more without them.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PromotionError`]; or any other
    /// [`RpcError`].
    fn notify_promotion_failure(&self, client: ClientId, object: &TenantKey<'_>, generation: Generation, handle: Option<TransferHandle>, late: LateWrites) -> () {
        NotifyPromotionFailure,
        |out: &mut BytesMut| PromotionFinishRequest::write(out, client, object, generation, handle, late),
        answer::read_done,
    }
}
