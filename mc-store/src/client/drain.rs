//! Emptying a client's segments before it leaves.

use mc_types::BoxFuture;
use std::time::Duration;

use mc_meta::JobStatus;
use mc_rpc::DrainJob;
use tokio::time::Instant;
use tracing::info;

use super::Client;
use crate::error::CallError;

/// How soon to ask a drain job again how far it is; ever later.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How long a job that is canceled may take to end: the moves under way come to their end.
const LAST_MOVES: Duration = Duration::from_secs(5);

/// How often to log how far a long drain is.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The outcome of a [drain](Client::drain).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainReport {
    /// Whether the segments are empty, so that nothing is lost when they go.
    pub complete: bool,
    /// Objects that were moved elsewhere.
    pub moved: u64,
    /// Bytes of those.
    pub moved_bytes: u64,
    /// Objects seen last that could not be moved yet: unfinished ones, those that others
    /// copy or move, and those that no other segment had room for.
    pub blocked: u64,
    /// Objects whose move failed too often.
    pub failed: u64,
    /// A message about the drain; empty when all went well.
    pub outcome: Box<str>,
}

impl DrainReport {
    fn of(job: DrainJob) -> Self {
        Self {
            complete: job.status == JobStatus::Succeeded,
            moved: job.moved,
            moved_bytes: job.moved_bytes,
            blocked: job.blocked,
            failed: job.failed,
            outcome: job.outcome,
        }
    }
}

impl Client {
    /// Moves what this client's segments hold to those named `targets`, or to any when none
    /// is named, so that nothing is lost when the client shuts down. Nothing new is put
    /// there from the beginning of this call on; objects stay readable throughout. The last
    /// ones are only left alone when readers that came before have had the time of a lease,
    /// so a drain takes that long at least, unless there was nothing to move.
    ///
    /// When the segments are not empty after `limit`, the drain is called off and they take
    /// new objects again; so they do when objects cannot be moved. Segments that were
    /// drained stay closed until they are unmounted. Segments with a
    /// [grace](Client::unmount_segment) are on their way out already and are left out.
    ///
    /// # Errors
    /// [`CallError`] when the master refuses, for instance because no other segment is
    /// mounted or this client may not ask for it (it takes the role of an administrator
    /// where roles are given), or cannot be asked. A drain that was begun is then called
    /// off as far as the master can be reached.
    ///
    /// # Cancellation
    /// The drain goes on without the caller.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use std::time::Duration;
    /// use mc_store::{ByteSize, Client, SegmentOptions};
    /// # let master = client.master().addr().to_owned();
    /// let leaver = Client::builder().master(master).listen("127.0.0.1:0".parse()?);
    /// let leaver = leaver.segment_size(ByteSize::mib(4)).connect().await?;
    /// let report = leaver.drain(&[], Duration::from_secs(60)).await?;
    /// assert!(report.complete, "{}", report.outcome);
    /// leaver.shutdown().await;
    /// # Ok(()) });
    /// ```
    pub fn drain<'a>(
        &'a self,
        targets: &'a [&'a str],
        limit: Duration,
    ) -> BoxFuture<'a, Result<DrainReport, CallError>> {
        Box::pin(self.drain_within(targets, limit))
    }

    async fn drain_within(
        &self,
        targets: &[&str],
        limit: Duration,
    ) -> Result<DrainReport, CallError> {
        let master = self.core.link.question()?;
        let segments = self.segments();
        let own = segments.iter().filter(|segment| segment.leaves_in.is_none());
        let names: Vec<&str> = own.map(|segment| &*segment.name).collect();
        if names.is_empty() {
            return Ok(DrainReport {
                complete: true,
                moved: 0,
                moved_bytes: 0,
                blocked: 0,
                failed: 0,
                outcome: Box::default(),
            });
        }
        let id = master.create_drain_job(&names, targets, super::tasks::WIDTH).await?;
        let mut deadline = Instant::now() + limit;
        let mut pause = FIRST_PAUSE;
        let mut canceled = false;
        let mut told = Instant::now();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match master.query_drain_job(id).await {
                Ok(job) if job.status.is_final() || (left.is_zero() && canceled) => {
                    return Ok(DrainReport::of(job));
                }
                Ok(job) if told.elapsed() >= TELL_EVERY => {
                    told = Instant::now();
                    let (moved, bytes) = (job.moved, job.moved_bytes);
                    info!(moved, bytes, blocked = job.blocked, "moving what the segments hold");
                }
                Ok(_) => {}
                Err(error) if error.is_retryable() && !left.is_zero() => {}
                Err(error) => {
                    let _ = master.cancel_drain_job(id).await;
                    return Err(error.into());
                }
            }
            if left.is_zero() {
                master.cancel_drain_job(id).await?;
                (canceled, deadline, pause) = (true, Instant::now() + LAST_MOVES, FIRST_PAUSE);
                continue;
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
