//! Bringing objects back from disks into memory.

use std::sync::Arc;

use mc_meta::LateWrites;
use mc_rpc::{PromotionGrant, RpcError, TierJob};
use mc_tier::{ObjectBytes, Tier};
use mc_transport::{BootTime, Operation, RemoteSpan, Source};
use tracing::debug;

use super::LocalDisk;
use crate::client::core::Core;
use crate::client::data::{Job, Patience};
use crate::client::tiers::objects::id_of;
use crate::client::tiers::shared::SharedTier;

impl Core {
    /// Reads an object from a disk into memory that the master grants. What goes wrong is logged: the
    /// object stays where it is.
    pub(in crate::client::tiers) async fn promote(&self, job: &TierJob) {
        let Some(object) = self.stored(job).await else {
            let _ = self.give_up_promotion(job, None, LateWrites::Impossible).await;
            return;
        };
        // The master counts from later on.
        let asked = self.settings.clock.now();
        let own: Vec<Box<str>> = self.segments.list().into_iter().map(|own| own.name).collect();
        let own: Vec<&str> =
            own.iter().take(mc_meta::MAX_NAMED_SEGMENTS).map(|name| &**name).collect();
        let (id, generation, object_key) = (self.link.id, job.generation, job.object());
        let granted =
            self.link.master.promotion_alloc_start(id, &object_key, generation, job.len, &own);
        let grant = match granted.await {
            Ok(grant) => grant,
            Err(error) => {
                debug!(key = %job.key, %error, "no memory to bring an object back into");
                return;
            }
        };
        let handle = grant.handle;
        let until = asked + grant.time_left;
        let outcome = match self.write_promoted(&object, grant, until).await {
            Ok(()) => {
                self.link.master.notify_promotion_success(id, &object_key, generation, handle).await
            }
            // Its space comes back when the grant has ended.
            Err(late) => self.give_up_promotion(job, Some(handle), late).await,
        };
        if let Err(error) = outcome {
            debug!(key = %job.key, %error, "an object was not brought back into memory");
        }
    }

    async fn give_up_promotion(
        &self,
        job: &TierJob,
        handle: Option<mc_meta::TransferHandle>,
        late: LateWrites,
    ) -> Result<(), RpcError> {
        let (id, generation) = (self.link.id, job.generation);
        self.link.master.notify_promotion_failure(id, &job.object(), generation, handle, late).await
    }

    /// The object of a job: from the local disk, or else from the shared tier.
    async fn stored(&self, job: &TierJob) -> Option<ObjectBytes> {
        let id = id_of(job).ok()?;
        let own = self.tiers.local_disk.get().and_then(LocalDisk::tier);
        let shared = self.tiers.shared.as_ref().and_then(SharedTier::tier);
        let tiers: Vec<Arc<dyn Tier>> = own.into_iter().chain(shared).collect();
        let read = move || {
            tiers.iter().find_map(|tier| match tier.get(&id) {
                Ok(object) => object,
                Err(error) => {
                    debug!(%error, "an object cannot be brought back into memory");
                    None
                }
            })
        };
        self.settings.environment.blocking(read).await?.ok()?
    }

    /// Writes the object into the memory that was granted. Otherwise says whether bytes may still
    /// arrive.
    async fn write_promoted(
        &self,
        object: &ObjectBytes,
        grant: PromotionGrant,
        until: BootTime,
    ) -> Result<(), LateWrites> {
        let replica = grant.replica;
        let to = RemoteSpan::new(replica.segment.remote_key, replica.extent)
            .with_ticket(replica.ticket)
            .until(until);
        let sources = object.slices().iter().map(|slice| Source::Bytes(slice.bytes().clone()));
        let sources: Vec<Source> = sources.collect();
        let operation = Operation::write(sources, to);
        let endpoint = replica.segment.endpoint.clone();
        let job = Job { endpoint, operation, patience: Patience::Whole };
        match self.transfers.transfer(vec![job]).await.pop() {
            Some(Ok(_)) => Ok(()),
            Some(Err(failed)) if failed.late.is_some() => Err(LateWrites::Possible),
            _ => Err(LateWrites::Impossible),
        }
    }
}
