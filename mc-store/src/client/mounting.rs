//! Mounting and unmounting.

use std::sync::Arc;
use std::time::Duration;

use mc_types::{BoxFuture, SegmentId};

use super::core::Core;
use super::{Client, MountedSegment, SegmentOptions};
use crate::error::SegmentError;

impl Client {
    /// Contributes a segment, one more when there are some already. The client must accept
    /// peers: it was given a segment or an address to
    /// [listen](crate::ClientBuilder::listen) when it started.
    ///
    /// The id that is returned names the segment in this client for as long as it is
    /// there, also after a master has forgotten it and was given it anew.
    ///
    /// # Errors
    /// [`SegmentError`]; nothing is contributed then.
    ///
    /// # Cancellation
    /// A segment whose future is dropped may be mounted all the same;
    /// [`segments`](Self::segments) lists it then.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use mc_store::{ByteSize, Client, Master, SegmentOptions};
    /// let master = Master::builder().start().await?;
    /// let client = Client::builder()
    ///     .master(master.local_addr().to_string())
    ///     .listen("127.0.0.1:0".parse()?)
    ///     .connect()
    ///     .await?;
    /// let id = client.mount_segment(SegmentOptions::new(ByteSize::mib(64))).await?;
    /// assert_eq!(client.segments()[0].id, id);
    /// client.unmount_segment(id, Duration::ZERO).await?;
    /// assert!(client.segments().is_empty());
    /// # client.shutdown().await;
    /// # master.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub fn mount_segment<'a>(
        &'a self,
        options: SegmentOptions,
    ) -> BoxFuture<'a, Result<SegmentId, SegmentError>> {
        Box::pin(async move {
            self.core.link.question().map_err(|_| SegmentError::Closed)?;
            let core = Arc::clone(&self.core);
            unhindered(async move { core.mount(options).await }).await
        })
    }

    /// Takes a segment back. When `grace` is zero that is done at once, and what only this
    /// segment held is gone. Otherwise nothing new is put there from now on, what it holds
    /// can be read and is served until the grace is over, and it goes by itself then.
    /// [`drain`](Self::drain) moves what it holds elsewhere before.
    ///
    /// A grace cannot be prolonged; asking again with none at all ends it.
    ///
    /// # Errors
    /// [`SegmentError`]; the segment is still mounted then, unless none has this id.
    ///
    /// # Cancellation
    /// As [`mount_segment`](Self::mount_segment): it may be unmounted all the same.
    pub fn unmount_segment<'a>(
        &'a self,
        id: SegmentId,
        grace: Duration,
    ) -> BoxFuture<'a, Result<(), SegmentError>> {
        Box::pin(async move {
            self.core.link.question().map_err(|_| SegmentError::Closed)?;
            let core = Arc::clone(&self.core);
            unhindered(async move {
                core.segments.remove(&core.link.master, core.link.id, id, grace).await
            })
            .await
        })
    }

    /// The segments that this client contributes, oldest first.
    #[must_use]
    pub fn segments(&self) -> Vec<MountedSegment> {
        self.core.segments.list()
    }
}

/// Carries a change out to its end, even when its caller waits for it no longer.
async fn unhindered<T: Send + 'static>(
    change: impl Future<Output = Result<T, SegmentError>> + Send + 'static,
) -> Result<T, SegmentError> {
    match tokio::spawn(change).await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends.
            Err(_) => Err(SegmentError::Closed),
        },
    }
}

impl Core {
    /// Contributes a segment, and tells the master from then on that this client lives.
    pub(super) async fn mount(
        self: &Arc<Self>,
        options: SegmentOptions,
    ) -> Result<SegmentId, SegmentError> {
        let id = self.segments.contribute(&self.link, &self.settings, options).await?;
        if let Err(error) = self.start_heartbeat() {
            // Without one it would be taken for dead soon.
            let (master, client) = (&self.link.master, self.link.id);
            let _ = self.segments.remove(master, client, id, Duration::ZERO).await;
            return Err(SegmentError::Thread(error));
        }
        Ok(id)
    }
}
