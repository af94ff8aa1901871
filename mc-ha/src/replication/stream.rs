//! One standby's stream, on the leader's side.

use core::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::frame::{Frame, ReplicationError};
use super::hub::Hub;
use crate::encoding::{Batch, BatchKind, BatchReader};
use crate::journal::{MetadataJournal, SnapshotInfo};
use crate::position::Position;

/// How long a standby may take to say who it is.
const HELLO: Duration = Duration::from_secs(5);

/// How often a standby hears of its leader.
const BEAT: Duration = Duration::from_millis(300);

/// How long a standby may take nothing.
const STALL: Duration = Duration::from_secs(20);

/// How long a standby waits for a snapshot to be taken.
const SNAPSHOT: Duration = Duration::from_secs(120);

/// Batches that are read from the journal at a time.
const AT_A_TIME: usize = 32;

impl Hub {
    /// Sends the journal to the standby at the other end of this stream, until the stream ends.
    /// `take_snapshot` asks for a snapshot when there is none that the standby could begin with.
    ///
    /// # Errors
    /// [`ReplicationError`]: how the stream ended.
    pub async fn serve(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        take_snapshot: impl Fn() + Send,
    ) -> Result<(), ReplicationError> {
        let (input, output) = tokio::io::split(stream);
        let (mut input, output) =
            (BufReader::new(input), BufWriter::with_capacity(1 << 18, output));
        let hello = timeout(HELLO, Frame::read(&mut input)).await;
        let Frame::Hello { id, position } = hello.map_err(|_| ReplicationError::Silent)?? else {
            return Err(ReplicationError::Protocol("something before its hello"));
        };
        let stream = self.joined(&id, position);
        let receive = async {
            loop {
                match Frame::read(&mut input).await? {
                    Frame::Acknowledged(position) => self.acknowledged_by(&id, stream, position),
                    _ => return Err(ReplicationError::Protocol("what only a leader sends")),
                }
            }
        };
        let ended = tokio::select! {
            ended = receive => ended,
            ended = self.send(output, position, &take_snapshot) => ended,
        };
        self.left(&id, stream);
        ended
    }

    async fn send(
        &self,
        mut output: BufWriter<impl AsyncWrite + Unpin>,
        position: Position,
        take_snapshot: &(impl Fn() + Send),
    ) -> Result<(), ReplicationError> {
        let (epoch, identity) = (self.epoch(), self.identity());
        let journal = Arc::clone(self.journal());
        let is_known = blocking(move || journal.contains(position)).await?;
        let start = Frame::Start { epoch, identity, with_snapshot: !is_known };
        start.write(&mut output).await?;
        let mut position = position;
        if !is_known {
            let snapshot = self.snapshot(take_snapshot).await?;
            self.send_snapshot(&mut output, snapshot).await?;
            position = snapshot.at;
        }
        let mut last = self.last();
        loop {
            let batches = match self.recent_after(position) {
                Some(batches) => batches,
                None => {
                    let journal = Arc::clone(self.journal());
                    blocking(move || read_some(&*journal, position)).await?
                }
            };
            let end = batches.last().map(Batch::last);
            for batch in batches {
                let written = timeout(STALL, Frame::Batch(batch).write(&mut output)).await;
                written.map_err(|_| ReplicationError::Silent)??;
            }
            match end {
                Some(end) => {
                    position = end;
                    if *last.borrow_and_update() > position {
                        continue;
                    }
                }
                None => {
                    let now = *last.borrow_and_update();
                    Frame::Beat(now).write(&mut output).await?;
                }
            }
            timeout(STALL, output.flush()).await.map_err(|_| ReplicationError::Silent)??;
            if *last.borrow() <= position {
                // Silence is over when it is over: a beat.
                let _ = timeout(BEAT, last.changed()).await;
            }
        }
    }

    /// The newest snapshot that the journal goes on from.
    async fn snapshot(
        &self,
        take_snapshot: &(impl Fn() + Send),
    ) -> Result<SnapshotInfo, ReplicationError> {
        let waited = timeout(SNAPSHOT, async {
            loop {
                let journal = Arc::clone(self.journal());
                let snapshots = blocking(move || journal.snapshots()).await?;
                if let Some(newest) = snapshots.first() {
                    return Ok(*newest);
                }
                take_snapshot();
                tokio::time::sleep(BEAT).await;
            }
        });
        waited.await.map_err(|_| ReplicationError::NoSnapshot)?
    }

    async fn send_snapshot(
        &self,
        output: &mut BufWriter<impl AsyncWrite + Unpin>,
        snapshot: SnapshotInfo,
    ) -> Result<(), ReplicationError> {
        let (sender, mut batches) = mpsc::channel(8);
        let journal = Arc::clone(self.journal());
        let reading = tokio::task::spawn_blocking(move || -> Result<(), ReplicationError> {
            let mut reader = BatchReader::new(journal.open_snapshot(snapshot.at)?);
            while let Some(batch) = reader.next_batch()? {
                let batch = batch?;
                let is_end = batch.kind() == BatchKind::End;
                // It fails when the stream has ended.
                if sender.blocking_send(batch).is_err() || is_end {
                    break;
                }
            }
            Ok(())
        });
        while let Some(batch) = batches.recv().await {
            let written = timeout(STALL, Frame::Batch(batch).write(output)).await;
            written.map_err(|_| ReplicationError::Silent)??;
        }
        reading.await.map_err(|_| ReplicationError::Ended)?
    }
}

fn read_some(
    journal: &dyn MetadataJournal,
    after: Position,
) -> Result<Vec<Batch>, ReplicationError> {
    let mut some = Ok(Vec::new());
    journal.read(after, &mut |batch| match (batch, &mut some) {
        (Ok(batch), Ok(batches)) => {
            batches.push(batch);
            if batches.len() < AT_A_TIME {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        }
        (Err(damaged), _) => {
            some = Err(ReplicationError::Batch(damaged.source));
            ControlFlow::Break(())
        }
        (_, Err(_)) => ControlFlow::Break(()),
    })?;
    some
}

/// Runs what may block.
async fn blocking<T: Send + 'static, E: Into<ReplicationError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, ReplicationError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ReplicationError::Ended)?.map_err(Into::into)
}
