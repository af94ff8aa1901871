//! Puts of which it is not known whether they ended.
//!
//! When the master's answer to a PutEnd is lost, the put's caller hears of a failure, but the
//! put may still be open: its key could neither be read nor written until the master discards
//! it. A task gives such puts up as soon as the master does that again. A put that had ended is
//! left as it is, because the master refuses to revoke it, and so is every later put of the
//! key, because each has another generation.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_meta::{LateWrites, PutHandle};
use mc_rpc::{PutRevokeItem, Refusal, RpcError};
use mc_transport::BootTime;
use mc_types::{ErrorCode, ObjectKey};

use super::core::Core;
use super::late::spawn_if_free;
use super::master_link::MasterLink;
use super::put::PutMode as Mode;

/// The first pause before the master is asked again; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A put that may be open or have ended. Nothing is written for it any more.
pub(super) struct Unsettled {
    pub(super) key: ObjectKey,
    pub(super) handle: PutHandle,
    /// When the master discards the put by itself.
    pub(super) until: BootTime,
}

/// Has a task revoke those of the puts that are still open. Without a free place for the
/// task they wait for their grants' end.
pub(super) fn settle(core: &Arc<Core>, puts: Vec<Unsettled>, mode: Mode) {
    spawn_if_free(core, |core| revoke_open(core, puts, mode));
}

/// Revokes puts, so that their keys are free again.
pub(super) async fn revoke_puts(
    link: &MasterLink,
    revokes: &[PutRevokeItem<'_>],
    mode: Mode,
) -> Result<Vec<Result<(), Refusal>>, RpcError> {
    match mode {
        Mode::Put => link.master.batch_put_revoke(link.id, revokes).await,
        Mode::Upsert => link.master.batch_upsert_revoke(link.id, revokes).await,
    }
}

/// Revokes the puts, again and again until the master answers, the client is gone or the
/// grants have ended.
async fn revoke_open(core: Weak<Core>, puts: Vec<Unsettled>, mode: Mode) {
    let mut pause = FIRST_PAUSE;
    while puts.iter().any(|put| !put.until.has_passed()) {
        let Some(core) = core.upgrade() else { return };
        let revokes: Vec<PutRevokeItem<'_>> = puts
            .iter()
            .map(|put| PutRevokeItem {
                key: put.key.as_ref(),
                handle: put.handle,
                // Every write was answered before the put was to end.
                late: LateWrites::Impossible,
            })
            .collect();
        match revoke_puts(&core.link, &revokes, mode).await {
            Ok(_) => return,
            // It would be refused again. Any other refusal is the master's state, which passes, or
            // one of rights, which an operator may change: the puts are open meanwhile.
            Err(RpcError::Refused(refusal)) if refusal.code == ErrorCode::InvalidParams => return,
            Err(_) => {}
        }
        // The client may end meanwhile.
        drop(core);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
