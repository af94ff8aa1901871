//! Bringing objects that are in files alone back into memory, by a client without a disk of its own.

use std::sync::Weak;
use std::time::Duration;

use mc_rpc::RpcError;
use mc_types::ErrorCode;
use tracing::debug;

use crate::client::core::Core;
use crate::client::tier_work::promote::promote_all;

/// Time between two questions: from right after there was something to do to a while after there was
/// nothing although a heartbeat has said that there is, as those of older masters may.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Time after a failure.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Brings files back as the master says, until the client has gone. Asks only after a heartbeat that says
/// that there is something to do.
pub(super) async fn promote_files(core: Weak<Core>) {
    let Some(mut told) = core.upgrade().map(|core| core.liveness.heard.disk_work()) else { return };
    let mut pause = SHORTEST_PAUSE;
    loop {
        if told.wait_for(|has_work| *has_work == Some(true)).await.is_err() {
            return;
        }
        let Some(core) = core.upgrade() else { return };
        let done = promote_all(&core).await;
        drop(core);
        let mut is_over = false;
        match done {
            Ok(true) => pause = SHORTEST_PAUSE,
            Ok(false) => {
                // The next heartbeat says whether there is more.
                told.mark_unchanged();
                is_over = true;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(RpcError::Refused(refusal))
                if matches!(
                    refusal.code,
                    ErrorCode::NotSupported | ErrorCode::PermissionDenied
                ) =>
            {
                debug!(%refusal, "this client brings no objects back into memory");
                return;
            }
            Err(error) => {
                debug!(%error, "the master has nothing to bring back into memory now");
                pause = FAILURE_PAUSE;
            }
        }
        tokio::time::sleep(pause).await;
        if is_over && told.changed().await.is_err() {
            return;
        }
    }
}
