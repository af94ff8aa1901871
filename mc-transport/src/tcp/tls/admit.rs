//! TLS of the side that is reached.

use mc_tls::ServerTls;

use crate::stream::plain::PlainSocket;
use crate::stream::progress::ProgressTimeout;
use crate::stream::raw_io::ToSend;
use crate::stream::server::{End, Service, linger, preface};
use crate::stream::socket::Stream;
use crate::stream::tls::{HandshakeError, PROTOCOL, TlsStream};
use crate::stream::wire::Verdict;

/// Speaks TLS with a peer that has just connected. One who does not, or is not trusted, is
/// told so.
pub(in crate::tcp) async fn admit(
    socket: PlainSocket,
    tls: &ServerTls,
    service: &Service,
) -> Result<Stream, End> {
    let stream = TlsStream::server(socket, tls.current(PROTOCOL))
        .map_err(|error| End::Handshake(HandshakeError::Tls(error)))?;
    let shaken = ProgressTimeout::new(service.connect_timeout).wait(stream.shake_hands()).await?;
    let stream = Stream::Tls(Box::new(stream));
    let Err(error) = shaken else { return Ok(stream) };
    if let HandshakeError::Plain { .. } = error {
        let refusal = preface(service.max_operation, Verdict::TlsRequired);
        let mut out = ToSend::new();
        out.push_bytes(&refusal);
        // A new socket's buffer has room for these few bytes.
        let _ = stream.socket().try_send(&mut out);
        // TLS must not add a word.
        stream.socket().close_sending();
    }
    linger(&stream).await;
    Err(End::Handshake(error))
}
