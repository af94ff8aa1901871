//! The end of work on a tier that its client leaves.

use std::sync::Weak;
use std::time::Duration;

use tokio::time::{sleep, timeout};

/// How long a client that leaves waits for what is under way on a tier, and how often it looks.
const LAST_WORK: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Waits until no task works any more on a tier that the client has let go of. Returns whether that was in
/// time.
pub(super) async fn wait_until_unused<T: ?Sized>(tier: Weak<T>) -> bool {
    let is_unused = async {
        while tier.strong_count() > 0 {
            sleep(LOOK_AGAIN).await;
        }
    };
    timeout(LAST_WORK, is_unused).await.is_ok()
}
