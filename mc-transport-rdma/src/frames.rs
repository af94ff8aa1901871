//! Frames over a connection: a length of four bytes, and as many bytes.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Receives a frame of at most `max` bytes, without its length.
///
/// # Errors
/// What the connection said; `InvalidData` for a frame that is longer.
///
/// # Cancellation
/// Part of the frame may be lost; the connection is of no use then.
pub(super) async fn receive(
    from: &mut (impl AsyncRead + Unpin),
    max: usize,
) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len).await?;
    let len = usize::try_from(u32::from_le_bytes(len)).unwrap_or(usize::MAX);
    if len > max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame that is too long"));
    }
    // Grows with what arrives, not with what is announced.
    let mut frame = Vec::with_capacity(len.min(4096));
    from.take(len as u64).read_to_end(&mut frame).await?;
    if frame.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(frame)
}
