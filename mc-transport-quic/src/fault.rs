//! Close codes of connections: those that we send, and the errors for those that we receive.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mc_tls::rustls::{self, AlertDescription, CertificateError};
use mc_transport::{ConnectError, ProtocolViolation, TlsFailure, TransferError};
use mc_types::Endpoint;
use quinn::{ConnectionError, ReadError, TransportErrorCode, VarInt, WriteError};

use super::flow::FlowError;

/// The sender of the code ends on its own account.
pub(super) const CLOSED: VarInt = VarInt::from_u32(0);
/// The receiver sent something that the protocol does not define.
pub(super) const MALFORMED: VarInt = VarInt::from_u32(1);
/// The receiver made no progress for too long.
pub(super) const STALLED: VarInt = VarInt::from_u32(2);

/// Why there is no connection to `endpoint`, which had `after` to make one.
pub(super) fn not_connected(
    error: &ConnectionError,
    endpoint: &Endpoint,
    after: Duration,
) -> ConnectError {
    let endpoint = endpoint.clone();
    match error {
        ConnectionError::TransportError(ours) => match alert_of(ours.code) {
            Some(alert) => ConnectError::Tls { endpoint, source: distrust(alert, &ours.reason) },
            None => ConnectError::NotAPeer { endpoint },
        },
        ConnectionError::ConnectionClosed(theirs) => match alert_of(theirs.error_code) {
            Some(alert) => {
                let source = rustls::Error::AlertReceived(alert).into();
                ConnectError::Tls { endpoint, source }
            }
            None if theirs.error_code == TransportErrorCode::CONNECTION_REFUSED => {
                ConnectError::Busy { endpoint }
            }
            None => ConnectError::NotAPeer { endpoint },
        },
        ConnectionError::ApplicationClosed(theirs) if theirs.error_code != CLOSED => {
            ConnectError::NotAPeer { endpoint }
        }
        ConnectionError::VersionMismatch => ConnectError::NotAPeer { endpoint },
        ConnectionError::TimedOut => ConnectError::TimedOut { endpoint, after },
        ConnectionError::LocallyClosed => ConnectError::Closed,
        _ => ConnectError::Unreachable { endpoint, source: lost(error) },
    }
}

/// Why an operation on a connection that ended failed; `idle` is how long it may be
/// silent.
pub(super) fn disconnected(error: &ConnectionError, idle: Duration) -> TransferError {
    match error {
        ConnectionError::TimedOut => TransferError::TimedOut { after: idle },
        ConnectionError::LocallyClosed => TransferError::Closed,
        ConnectionError::ApplicationClosed(theirs) if theirs.error_code == MALFORMED => {
            TransferError::Protocol(ProtocolViolation::RequestNotUnderstood)
        }
        _ => TransferError::LinkLost { source: lost(error) },
    }
}

/// Why an operation failed on whose stream `error` happened.
pub(super) fn broken(error: FlowError, idle: Duration) -> TransferError {
    match error {
        FlowError::Read(ReadError::ConnectionLost(error))
        | FlowError::Write(WriteError::ConnectionLost(error)) => disconnected(&error, idle),
        other => {
            let source = io::Error::new(io::ErrorKind::ConnectionReset, other);
            TransferError::LinkLost { source: Arc::new(source) }
        }
    }
}

fn lost(error: &ConnectionError) -> Arc<io::Error> {
    let kind = match error {
        ConnectionError::Reset => io::ErrorKind::ConnectionReset,
        _ => io::ErrorKind::ConnectionAborted,
    };
    Arc::new(io::Error::new(kind, error.clone()))
}

/// QUIC carries the alerts of TLS (RFC 8446, section 6) as codes from 0x100 on.
fn alert_of(code: TransportErrorCode) -> Option<AlertDescription> {
    let code = u64::from(code);
    (code & !0xff == 0x100).then(|| AlertDescription::from(code as u8)) // the low byte
}

/// Why this side sent `alert`, which is all that quinn keeps of it beside words.
fn distrust(alert: AlertDescription, words: &str) -> TlsFailure {
    TlsFailure::Untrusted(match alert {
        AlertDescription::UnknownCA => CertificateError::UnknownIssuer,
        AlertDescription::CertificateExpired => CertificateError::Expired,
        // Of an authority that has the name of a trusted one, and another key.
        AlertDescription::DecryptError => CertificateError::BadSignature,
        // The alert does not tell this from damage, which no authority signs.
        AlertDescription::BadCertificate if words.contains("not valid for name") => {
            CertificateError::NotValidForName
        }
        AlertDescription::NoApplicationProtocol => return TlsFailure::OtherProtocol,
        _ => return TlsFailure::Broken(rustls::Error::General(words.to_owned())),
    })
}
