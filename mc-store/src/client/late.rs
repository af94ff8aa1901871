//! Writes with an unknown outcome.
//!
//! When a write times out, or its link is lost, its bytes may wait in the network or in the
//! buffers of a peer that is stopped, and arrive later. The master keeps their space until
//! the end of its grant then. Here it comes back sooner: a task asks the peer for the end of
//! the lost link, over a new one, and tells the master when the peer has answered.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_transport::{BootTime, Link as _, Node, Transport as _};
use tracing::debug;

use super::core::Core;
use super::data::LostLinks;

/// Tasks that ask peers, at most. What is revoked beyond these waits for its grant's end.
pub(super) const MAX_TASKS: usize = 256;

/// The first pause before a peer is asked again; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Has a task wait until nothing that was lost with `links` can arrive any more, and
/// call `settled` then. Gives up at `until`, when the master needs no telling.
pub(super) fn when_fenced<F>(
    core: &Arc<Core>,
    links: Vec<Arc<LostLinks>>,
    until: BootTime,
    settled: impl FnOnce(Arc<Core>) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send,
{
    // A lost link without an id cannot be fenced.
    if links.iter().any(|links| links.ids.is_empty()) {
        return;
    }
    spawn_if_free(core, |core| async move {
        if let Some(core) = fence(core, &links, until).await {
            settled(core).await;
        }
    });
}

/// Spawns a task that settles what a write has left behind, if there is a place for one more.
pub(super) fn spawn_if_free<F>(core: &Arc<Core>, task: impl FnOnce(Weak<Core>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let Ok(place) = Arc::clone(&core.fencing).try_acquire_owned() else { return };
    let task = task(Arc::downgrade(core));
    core.background.spawn(async move {
        let _place = place;
        task.await;
    });
}

/// Asks for the end of the links, again and again; the client once all have ended. `None`
/// when it is too late, or the client has gone.
async fn fence(core: Weak<Core>, links: &[Arc<LostLinks>], until: BootTime) -> Option<Arc<Core>> {
    let mut pause = FIRST_PAUSE;
    let mut open: Vec<&LostLinks> = links.iter().map(|links| &**links).collect();
    while !until.has_passed() {
        let core = core.upgrade()?;
        let mut left = Vec::new();
        for links in open {
            if !end_links(&core.transfers.transport, links).await {
                left.push(links);
            }
        }
        if left.is_empty() {
            return Some(core);
        }
        open = left;
        // The client may end meanwhile.
        drop(core);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    None
}

/// Makes the peer end the links; `false` when it cannot be asked now.
async fn end_links(transport: &Node, links: &LostLinks) -> bool {
    let link = match transport.connect(&links.endpoint).await {
        Ok(link) => link,
        Err(error) => {
            debug!(endpoint = %links.endpoint, %error, "lost writes cannot be ended yet");
            return false;
        }
    };
    for id in &links.ids {
        if link.fence(*id).await.iter().any(Result::is_err) {
            return false;
        }
    }
    true
}
