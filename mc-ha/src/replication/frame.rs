//! The frames of a replication stream.

use core::fmt;
use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use mc_types::{Epoch, Sequence};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::encoding::{Batch, BatchError, MAX_BATCH_LEN};
use crate::identity::{HistoryId, Identity};
use crate::journal::JournalError;
use crate::position::Position;
use crate::recover::RecoverError;

/// The version of the protocol.
const VERSION: u8 = 1;

/// Longest id of a standby in bytes.
const MAX_ID: usize = 256;

/// Why replication over one stream ended.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum ReplicationError {
    /// The stream broke.
    #[error("the connection was lost: {0}")]
    Stream(#[from] io::Error),
    /// The other side does not keep to the protocol.
    #[error("the other master sent {0}")]
    Protocol(&'static str),
    /// The other side speaks another version.
    #[error("the other master speaks version {theirs} of the replication, and this one {VERSION}")]
    Version { theirs: u8 },
    /// A batch was damaged on its way.
    #[error("a batch arrived damaged: {0}")]
    Batch(#[from] BatchError),
    /// The journal failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The journal cannot be read back.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// Nothing was heard for too long.
    #[error("the other master was silent for too long")]
    Silent,
    /// This master's journal is not the beginning of the leader's: one of them is of another cluster, or
    /// both went on apart.
    #[error(
        "this master's journal, which ends at {position}, is not of the history {theirs} of the leader \
         of term {epoch}: {difference}"
    )]
    OtherHistory {
        epoch: Epoch,
        theirs: HistoryId,
        /// Where the journal ends.
        position: Position,
        /// How they differ.
        difference: Difference,
    },
    /// The leader has no snapshot to send.
    #[error("the leader took no snapshot in time")]
    NoSnapshot,
    /// The standby's journal takes nothing more of this stream.
    #[error("the standby cannot go on: {0}")]
    Applier(std::sync::Arc<ReplicationError>),
    /// The thread that keeps or reads the journal has ended.
    #[error("this master's journal is kept no more")]
    Ended,
}

/// How two histories differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// The histories began with other secrets.
    Origin,
    /// The batch at the end of the journal is another one on the leader's side.
    Batch,
    /// The journal has met this term, which is younger than the leader's.
    Term(Epoch),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Origin => f.write_str("they began apart"),
            Self::Batch => f.write_str("the batch there is another one"),
            Self::Term(known) => write!(f, "the journal has met term {known}"),
        }
    }
}

/// A message between leader and standby.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Hello { id: String, position: Position },
    Acknowledged(Position),
    Start(Start),
    Batch(Batch),
    Beat(Position),
}

/// How a leader begins a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// The leader's term.
    pub(super) epoch: Epoch,
    /// The secrets of its history.
    pub(super) identity: Identity,
    /// Whether a snapshot comes first.
    pub(super) with_snapshot: bool,
    /// The last term that began with a member that was not known to have everything; older versions
    /// do not say.
    pub(super) last_unclean: Epoch,
    /// The checksum of its batch that ends where the standby's journal does, if it still has it.
    pub(super) checksum: Option<u32>,
}

const HELLO: u8 = 1;
const ACKNOWLEDGED: u8 = 2;
const START: u8 = 16;
const BATCH: u8 = 17;
const BEAT: u8 = 18;

fn put_position(out: &mut BytesMut, position: Position) {
    out.put_u64_le(position.epoch.as_u64());
    out.put_u64_le(position.sequence.as_u64());
}

fn position(payload: &mut Bytes) -> Option<Position> {
    let epoch = Epoch::new(payload.try_get_u64_le().ok()?);
    Some(Position::new(epoch, Sequence::new(payload.try_get_u64_le().ok()?)))
}

impl Frame {
    /// Writes it, without flushing.
    pub(super) async fn write(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), ReplicationError> {
        let mut payload = BytesMut::new();
        let kind = match self {
            Self::Hello { id, position } => {
                payload.put_u8(VERSION);
                put_position(&mut payload, *position);
                payload.put_slice(id.as_bytes());
                HELLO
            }
            Self::Acknowledged(position) => {
                put_position(&mut payload, *position);
                ACKNOWLEDGED
            }
            Self::Start(start) => {
                let Start { epoch, identity, with_snapshot, last_unclean, checksum } = *start;
                payload.put_u8(VERSION);
                payload.put_u64_le(epoch.as_u64());
                payload.put_u64_le(identity.seed);
                payload.put_slice(&identity.secret);
                payload.put_u8(with_snapshot.into());
                payload.put_u64_le(last_unclean.as_u64());
                payload.put_u8(checksum.is_some().into());
                payload.put_u32_le(checksum.unwrap_or(0));
                START
            }
            Self::Batch(batch) => {
                stream.write_u8(BATCH).await?;
                stream.write_u32_le(batch.bytes().len() as u32).await?;
                stream.write_all(batch.bytes()).await?;
                return Ok(());
            }
            Self::Beat(position) => {
                put_position(&mut payload, *position);
                BEAT
            }
        };
        stream.write_u8(kind).await?;
        stream.write_u32_le(payload.len() as u32).await?;
        stream.write_all(&payload).await?;
        Ok(())
    }

    /// Reads the next one. Cancelling loses what was read of it.
    pub(super) async fn read(
        stream: &mut (impl AsyncRead + Unpin),
    ) -> Result<Self, ReplicationError> {
        let kind = stream.read_u8().await?;
        let len = stream.read_u32_le().await? as usize;
        let most = if kind == BATCH { MAX_BATCH_LEN } else { 64 + MAX_ID };
        if len > most {
            return Err(ReplicationError::Protocol("a frame that is too long"));
        }
        // Reserved as it comes.
        let mut payload = BytesMut::new();
        let mut rest = stream.take(len as u64);
        while payload.len() < len {
            payload.reserve((len - payload.len()).min(1 << 20));
            if rest.read_buf(&mut payload).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Self::parse(kind, payload.freeze())
    }

    fn parse(kind: u8, mut payload: Bytes) -> Result<Self, ReplicationError> {
        let short = ReplicationError::Protocol("a frame that is too short");
        match kind {
            HELLO | START => {
                let theirs =
                    payload.try_get_u8().map_err(|_| ReplicationError::Protocol("nothing"))?;
                if theirs != VERSION {
                    return Err(ReplicationError::Version { theirs });
                }
                if kind == START {
                    return Start::parse(&mut payload).map(Self::Start).ok_or(short);
                }
                let position = position(&mut payload).ok_or(short)?;
                let id = String::from_utf8(payload.to_vec())
                    .map_err(|_| ReplicationError::Protocol("an id that is no text"))?;
                Ok(Self::Hello { id, position })
            }
            ACKNOWLEDGED => position(&mut payload).map(Self::Acknowledged).ok_or(short),
            BATCH => Ok(Self::Batch(Batch::parse(payload)?)),
            BEAT => position(&mut payload).map(Self::Beat).ok_or(short),
            _ => Err(ReplicationError::Protocol("a frame of an unknown kind")),
        }
    }
}

impl Start {
    fn parse(payload: &mut Bytes) -> Option<Self> {
        let epoch = Epoch::new(payload.try_get_u64_le().ok()?);
        let seed = payload.try_get_u64_le().ok()?;
        let mut secret = [0; 16];
        payload.try_copy_to_slice(&mut secret).ok()?;
        let with_snapshot = payload.try_get_u8().ok()? != 0;
        // Leaders of the first version end here.
        let last_unclean = Epoch::new(payload.try_get_u64_le().unwrap_or(0));
        let has_checksum = payload.try_get_u8().is_ok_and(|flag| flag != 0);
        let checksum = has_checksum.then(|| payload.try_get_u32_le().ok()).flatten();
        let identity = Identity { seed, secret };
        Some(Self { epoch, identity, with_snapshot, last_unclean, checksum })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encoding::BatchBuilder;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn frames_come_back() {
        let at = Position::new(Epoch::new(3), Sequence::new(9));
        let mut builder = BatchBuilder::new(at.epoch);
        builder.effect(at.sequence, None);
        for frame in [
            Frame::Hello { id: "a".into(), position: at },
            Frame::Acknowledged(at),
            Frame::Batch(builder.seal().unwrap()),
            Frame::Beat(at),
        ] {
            let mut bytes = Vec::new();
            block_on(frame.write(&mut bytes)).unwrap();
            assert_eq!(block_on(Frame::read(&mut &bytes[..])).unwrap(), frame);
            for len in 0..bytes.len() {
                assert!(block_on(Frame::read(&mut &bytes[..len])).is_err(), "{frame:?} {len}");
            }
        }
    }

    #[test]
    fn the_start_of_an_older_leader_is_read() {
        let start = Start {
            epoch: Epoch::new(3),
            identity: Identity { seed: 1, secret: [7; 16] },
            with_snapshot: true,
            last_unclean: Epoch::new(2),
            checksum: Some(9),
        };
        let mut bytes = Vec::new();
        block_on(Frame::Start(start).write(&mut bytes)).unwrap();
        assert_eq!(block_on(Frame::read(&mut &bytes[..])).unwrap(), Frame::Start(start));
        let old = Start { last_unclean: Epoch::new(0), checksum: None, ..start };
        // A byte for its kind, its length, and what the first version wrote.
        bytes.truncate(5 + 34);
        bytes[1] = 34;
        assert_eq!(block_on(Frame::read(&mut &bytes[..])).unwrap(), Frame::Start(old));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let _ = block_on(Frame::read(&mut &bytes[..]));
        }
    }
}
