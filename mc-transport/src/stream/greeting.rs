//! The first words of the side that reaches out.

use std::io;
use std::sync::Arc;

use mc_types::Endpoint;

use super::frames::{Frame, ReceiveBuffer, SendQueue};
use super::socket::Stream;
use super::wire::{PREFACE_LEN, Preface, VERSION, Verdict};
use crate::backend::description::{Description, MAX_DESCRIPTION};
use crate::error::ConnectError;
#[cfg(feature = "tls")]
use crate::tls_failure::TlsFailure;

/// A server that serves us.
pub(crate) struct Greeted {
    /// The connection to it.
    pub(crate) stream: Stream,
    /// Bytes of the largest operation that both take part in.
    pub(crate) max_operation: u64,
    /// Its description of itself.
    pub(crate) description: Description,
}

/// Exchanges prefaces with the server at the other end of `stream`, which `endpoint`
/// names in errors.
///
/// # Errors
/// [`ConnectError`] when the server does not serve us. It has as long as the caller lets
/// it.
pub(crate) async fn greet(
    stream: Stream,
    endpoint: &Endpoint,
    max_operation: u64,
) -> Result<Greeted, ConnectError> {
    let lost = |source| lost(endpoint, source);
    let mut received = ReceiveBuffer::new();
    let preface = Preface { version: VERSION, verdict: 0, max_operation };
    send(&stream, preface).await.map_err(lost)?;
    let not_a_peer = || ConnectError::NotAPeer { endpoint: endpoint.clone() };
    // A few words in another language, such as an alert of TLS, end early.
    let theirs = match receive::<PREFACE_LEN>(&stream, &mut received).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && received.len() > 0 => None,
        theirs => Preface::decode(&theirs.map_err(lost)?),
    };
    let theirs = theirs.ok_or_else(not_a_peer)?;
    if theirs.verdict == Verdict::Busy as u16 {
        return Err(ConnectError::Busy { endpoint: endpoint.clone() });
    }
    if theirs.verdict == Verdict::TlsRequired as u16 {
        return Err(ConnectError::TlsRequired { endpoint: endpoint.clone() });
    }
    if theirs.verdict != Verdict::Welcome as u16 || theirs.version != VERSION {
        let (ours, theirs) = (VERSION, theirs.version);
        return Err(ConnectError::VersionMismatch { endpoint: endpoint.clone(), ours, theirs });
    }
    let len = receive::<4>(&stream, &mut received).await.map_err(lost)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_DESCRIPTION {
        return Err(not_a_peer());
    }
    receive_at_least(&stream, &mut received, len).await.map_err(lost)?;
    let description = Description::decode(received.take_front(len)).ok_or_else(not_a_peer)?;
    let max_operation = max_operation.min(theirs.max_operation);
    Ok(Greeted { stream, max_operation, description })
}

/// Why a connection was lost before the prefaces were exchanged.
fn lost(endpoint: &Endpoint, source: io::Error) -> ConnectError {
    let endpoint = endpoint.clone();
    // A server refuses a client's certificate when that believes the handshake done.
    #[cfg(feature = "tls")]
    if let Some(source) = TlsFailure::of(&source) {
        return ConnectError::Tls { endpoint, source };
    }
    ConnectError::Unreachable { endpoint, source: Arc::new(source) }
}

async fn send(stream: &Stream, preface: Preface) -> io::Result<()> {
    let mut out = SendQueue::default();
    out.push(Frame::bare(&preface.encode()));
    while !out.is_empty() {
        match out.try_send(stream) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            // The peer may have said why it hung up.
            Err(_) => break,
        }
    }
    Ok(())
}

async fn receive<const N: usize>(
    stream: &Stream,
    received: &mut ReceiveBuffer,
) -> io::Result<[u8; N]> {
    receive_at_least(stream, received, N).await?;
    Ok(received.take().expect("as many bytes were received"))
}

/// Receives until `len` bytes wait, and no more than those.
async fn receive_at_least(
    stream: &Stream,
    received: &mut ReceiveBuffer,
    len: usize,
) -> io::Result<()> {
    while received.len() < len {
        match received.try_receive(stream, len - received.len()) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
