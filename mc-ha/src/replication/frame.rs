//! The frames of a replication stream.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use mc_types::{Epoch, Sequence};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::encoding::{Batch, BatchError, MAX_BATCH_LEN};
use crate::journal::{Identity, JournalError};
use crate::position::Position;
use crate::recover::RecoverError;

/// The version of the protocol.
const VERSION: u8 = 1;

/// Longest id of a standby in bytes.
const MAX_ID: usize = 256;

/// Why replication over one stream ended.
#[derive(Debug, thiserror::Error)]
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
    Version {
        /// Its version.
        theirs: u8,
    },
    /// A batch was damaged on its way.
    #[error("a batch arrived damaged: {0}")]
    Batch(#[from] BatchError),
    /// The journal failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The journal cannot be read back.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// The leader's term is older than one that this master knows of.
    #[error("the leader of term {theirs} was replaced; term {known} has begun")]
    Deposed {
        /// The leader's term.
        theirs: Epoch,
        /// The youngest one known.
        known: Epoch,
    },
    /// Nothing was heard for too long.
    #[error("the other master was silent for too long")]
    Silent,
    /// The leader has no snapshot to send.
    #[error("the leader took no snapshot in time")]
    NoSnapshot,
    /// The standby's journal takes nothing more of this stream.
    #[error("the standby cannot go on: {0}")]
    Applier(std::sync::Arc<ReplicationError>),
    /// What keeps or reads the journal has ended.
    #[error("this master's journal is kept no more")]
    Ended,
}

/// What one side says to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Hello { id: String, position: Position },
    Acknowledged(Position),
    Start { epoch: Epoch, identity: Identity, with_snapshot: bool },
    Batch(Batch),
    Beat(Position),
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
            Self::Start { epoch, identity, with_snapshot } => {
                payload.put_u8(VERSION);
                payload.put_u64_le(epoch.as_u64());
                payload.put_u64_le(identity.seed);
                payload.put_slice(&identity.secret);
                payload.put_u8((*with_snapshot).into());
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
                    return Self::parse_start(&mut payload).ok_or(short);
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

    fn parse_start(payload: &mut Bytes) -> Option<Self> {
        let epoch = Epoch::new(payload.try_get_u64_le().ok()?);
        let seed = payload.try_get_u64_le().ok()?;
        let mut secret = [0; 16];
        payload.try_copy_to_slice(&mut secret).ok()?;
        let with_snapshot = payload.try_get_u8().ok()? != 0;
        Some(Self::Start { epoch, identity: Identity { seed, secret }, with_snapshot })
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
            Frame::Start {
                epoch: at.epoch,
                identity: Identity { seed: 1, secret: [7; 16] },
                with_snapshot: true,
            },
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

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let _ = block_on(Frame::read(&mut &bytes[..]));
        }
    }
}
