//! Bringing objects back from disks into memory.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _};
use mc_meta::LateWrites;
use mc_rpc::{PromotionGrant, RpcError, TierJob};
use mc_tier::{ObjectBytes, Tier};
use mc_transport::{BootTime, Operation, RemoteSpan, Source};
use tracing::debug;

use crate::client::core::Core;
use crate::client::data::{Holder, Job, Patience};
use crate::client::tiers::id_of;
use crate::client::tiers::local_disk::LocalDisk;
use crate::client::tiers::shared::SharedTier;

/// Objects that are brought back at a time.
const WIDTH: usize = 4;

/// Brings back what the master hands out. Returns whether that was anything.
pub(super) async fn promote_all(core: &Core) -> Result<bool, RpcError> {
    let jobs = core.link.master.promotion_heartbeat(core.link.id).await?;
    let has_worked = !jobs.is_empty();
    let promote = |job: TierJob| async move { promote(core, &job).await };
    stream::iter(jobs).for_each_concurrent(WIDTH, promote).await;
    Ok(has_worked)
}

/// Reads an object from a disk into memory that the master grants. What goes wrong is logged: the
/// object stays where it is.
async fn promote(core: &Core, job: &TierJob) {
    let Some(object) = stored(core, job).await else {
        let _ = give_up_promotion(core, job, None, LateWrites::Impossible).await;
        return;
    };
    // The master counts from later on.
    let asked = core.settings.clock.now();
    let own: Vec<Box<str>> = core.segments.list().into_iter().map(|own| own.name).collect();
    let own: Vec<&str> = own.iter().take(mc_meta::MAX_NAMED_SEGMENTS).map(|name| &**name).collect();
    let (id, generation, object_key) = (core.link.id, job.generation, job.object());
    let granted =
        core.link.master.promotion_alloc_start(id, &object_key, generation, job.len, &own);
    let grant = match granted.await {
        Ok(grant) => grant,
        Err(error) => {
            debug!(key = %job.key, %error, "no memory to bring an object back into");
            return;
        }
    };
    let handle = grant.handle;
    let until = asked + grant.time_left;
    let outcome = match write_promoted(core, &object, grant, until).await {
        Ok(()) => {
            core.link.master.notify_promotion_success(id, &object_key, generation, handle).await
        }
        // Its space comes back when the grant has ended.
        Err(late) => give_up_promotion(core, job, Some(handle), late).await,
    };
    if let Err(error) = outcome {
        debug!(key = %job.key, %error, "an object was not brought back into memory");
    }
}

async fn give_up_promotion(
    core: &Core,
    job: &TierJob,
    handle: Option<mc_meta::TransferHandle>,
    late: LateWrites,
) -> Result<(), RpcError> {
    let (id, generation) = (core.link.id, job.generation);
    core.link.master.notify_promotion_failure(id, &job.object(), generation, handle, late).await
}

/// The object of a job: from the local disk, or else from the shared tier.
async fn stored(core: &Core, job: &TierJob) -> Option<ObjectBytes> {
    let id = id_of(job).ok()?;
    let own = core.tiers.local_disk.get().and_then(LocalDisk::tier);
    let shared = core.tiers.shared.as_ref().and_then(SharedTier::tier);
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
    core.tiers.environment.blocking(read).await?.ok()?
}

/// Writes the object into the memory that was granted. Otherwise says whether bytes may still
/// arrive.
async fn write_promoted(
    core: &Core,
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
    let holder = Holder::Segment(replica.segment);
    let job = Job { holder, operation, patience: Patience::Whole };
    match core.transfers.transfer(vec![job]).await.pop() {
        Some(Ok(_)) => Ok(()),
        Some(Err(failed)) if failed.late.is_some() => Err(LateWrites::Possible),
        _ => Err(LateWrites::Impossible),
    }
}
