//! Reading a preface from a socket.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::frame::check_magic;
use crate::frame::preface::HandshakeError;
use crate::refusal::Refusal;

/// Why no preface could be read.
pub(crate) enum PrefaceError {
    Io(io::Error),
    Handshake(HandshakeError),
    Refused(Refusal),
}

impl From<io::Error> for PrefaceError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Reads a preface whose first bytes are there, and stops at the first byte that cannot
/// belong to one: a peer of another protocol may send fewer bytes than that and wait.
pub(crate) async fn read_preface<const N: usize>(
    stream: &mut (impl AsyncRead + Unpin),
    begin: &[u8],
) -> Result<[u8; N], PrefaceError> {
    check_magic(begin).map_err(PrefaceError::Handshake)?;
    let (mut preface, mut len) = ([0; N], begin.len());
    preface[..len].copy_from_slice(begin);
    while len < N {
        let read = stream.read(&mut preface[len..]).await?;
        if read == 0 {
            let text = "the connection was closed during the handshake";
            return Err(PrefaceError::Io(io::Error::new(io::ErrorKind::UnexpectedEof, text)));
        }
        len += read;
        check_magic(&preface[..len]).map_err(PrefaceError::Handshake)?;
    }
    Ok(preface)
}

/// Reads the bytes that a preface announces.
pub(crate) async fn read_exactly(
    stream: &mut (impl AsyncRead + Unpin),
    len: usize,
) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}
