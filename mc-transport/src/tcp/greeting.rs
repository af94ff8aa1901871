//! The first words of the side that reaches out.

use std::io;
use std::sync::Arc;

use mc_types::Endpoint;

use super::socket::Stream;
use super::stream::{Frame, ReceiveBuffer, SendQueue};
#[cfg(feature = "tls")]
use super::tls::TlsFailure;
use super::wire::{PREFACE_LEN, Preface, VERSION, Verdict};
use crate::error::ConnectError;

/// Exchanges prefaces with the server at the other end of `stream`, which `endpoint`
/// names in errors; the bytes of the largest operation that both take part in.
///
/// # Errors
/// [`ConnectError`] when the server does not serve us. It has as long as the caller lets
/// it.
pub(crate) async fn greet(
    stream: &Stream,
    endpoint: &Endpoint,
    max_operation: u64,
) -> Result<u64, ConnectError> {
    let preface = Preface { version: VERSION, verdict: 0, max_operation };
    let theirs = exchange(stream, preface).await.map_err(|source| lost(endpoint, source))?;
    let endpoint = endpoint.clone();
    let Some(theirs) = theirs else { return Err(ConnectError::NotAPeer { endpoint }) };
    if theirs.verdict == Verdict::Busy as u16 {
        return Err(ConnectError::Busy { endpoint });
    }
    if theirs.verdict == Verdict::TlsRequired as u16 {
        return Err(ConnectError::TlsRequired { endpoint });
    }
    if theirs.verdict != Verdict::Welcome as u16 || theirs.version != VERSION {
        let (ours, theirs) = (VERSION, theirs.version);
        return Err(ConnectError::VersionMismatch { endpoint, ours, theirs });
    }
    Ok(max_operation.min(theirs.max_operation))
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

/// Sends our preface and takes the peer's; `None` when it sent something else.
async fn exchange(stream: &Stream, ours: Preface) -> io::Result<Option<Preface>> {
    let mut out = SendQueue::default();
    out.push(Frame::bare(&ours.encode()));
    while !out.is_empty() {
        match out.try_send(stream) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            // The peer may have said why it hung up.
            Err(_) => break,
        }
    }
    let mut received = ReceiveBuffer::new();
    loop {
        if let Some(bytes) = received.take::<PREFACE_LEN>() {
            return Ok(Preface::decode(&bytes));
        }
        match received.try_receive(stream, PREFACE_LEN - received.len()) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            // A few words in another language, such as an alert of TLS.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && received.len() > 0 => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
}
