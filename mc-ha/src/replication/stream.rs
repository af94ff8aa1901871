//! One standby's stream, on the leader's side.

use core::ops::ControlFlow;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::time::timeout;

use super::frame::{Frame, ReplicationError, Start};
use super::hub::Hub;
use crate::encoding::{Batch, BatchKind, BatchReader};
use crate::journal::{MetadataJournal, SnapshotInfo};
use crate::position::Position;

/// How long a standby may take to say who it is.
const HELLO: Duration = Duration::from_secs(5);

/// The interval of a leader's signs of life to a standby.
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
            biased;
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
        let known = self.read(move |journal| {
            let is_known = journal.contains(position)?;
            Ok((is_known, is_known.then(|| journal.checksum_at(position)).transpose()?.flatten()))
        });
        let (is_known, checksum) = known.await?;
        let last_unclean = self.last_unclean();
        let start = Start { epoch, identity, with_snapshot: !is_known, last_unclean, checksum };
        Frame::Start(start).write(&mut output).await?;
        let mut position = position;
        if !is_known {
            let snapshot = self.snapshot(take_snapshot).await?;
            self.send_snapshot(&mut output, snapshot).await?;
            position = snapshot.at;
        }
        loop {
            let batches = match self.recent_after(position) {
                Some(batches) => batches,
                None => self.read(move |journal| read_some(journal, position)).await?,
            };
            let end = batches.last().map(Batch::last);
            for batch in batches {
                let written = timeout(STALL, Frame::Batch(batch).write(&mut output)).await;
                written.map_err(|_| ReplicationError::Silent)??;
            }
            match end {
                Some(end) => {
                    position = end;
                    if self.last() > position {
                        continue;
                    }
                }
                None => {
                    Frame::Beat(self.last()).write(&mut output).await?;
                }
            }
            timeout(STALL, output.flush()).await.map_err(|_| ReplicationError::Silent)??;
            let more = self.more();
            if self.last() <= position {
                // Silence is over when it is over: a beat.
                let _ = timeout(BEAT, more).await;
            }
        }
    }

    /// The newest snapshot that the journal continues.
    async fn snapshot(
        &self,
        take_snapshot: &(impl Fn() + Send),
    ) -> Result<SnapshotInfo, ReplicationError> {
        let waited = timeout(SNAPSHOT, async {
            loop {
                let snapshots = self.read(|journal| Ok(journal.snapshots()?)).await?;
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
        let at = snapshot.at;
        let mut reading =
            self.read(move |journal| read_pages(BatchReader::new(journal.open_snapshot(at)?)));
        loop {
            let (reader, pages) = reading.await?;
            let is_over = pages.last().is_none_or(|last| last.kind() == BatchKind::End);
            // The next ones are read while these are sent.
            let next = (!is_over).then(|| self.read(move |_| read_pages(reader)));
            for page in pages {
                let written = timeout(STALL, Frame::Batch(page).write(output)).await;
                written.map_err(|_| ReplicationError::Silent)??;
            }
            match next {
                Some(next) => reading = next,
                None => return Ok(()),
            }
        }
    }
}

/// Reads the next pages of a snapshot; none at its end.
fn read_pages<R: Read>(
    mut reader: BatchReader<R>,
) -> Result<(BatchReader<R>, Vec<Batch>), ReplicationError> {
    let mut pages = Vec::new();
    while pages.len() < AT_A_TIME
        && let Some(page) = reader.next_batch()?
    {
        let page = page?;
        let is_end = page.kind() == BatchKind::End;
        pages.push(page);
        if is_end {
            break;
        }
    }
    Ok((reader, pages))
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
