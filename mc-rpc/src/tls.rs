//! Encrypted connections, and certificates as credentials.
//!
//! Both sides name the files that they need, in PEM; see [`mc_tls`], whose types these are.
//! The cryptography is `ring`'s, whatever other providers a process has. TLS 1.3 is spoken,
//! and 1.2 with those that know no better.

pub use mc_tls::{
    ClientAuth, ClientTls, PemProblem, Protocol, ServerTls, TlsError, TlsFiles, client_names,
    ends_at, rustls,
};

/// The protocols that a server offers inside TLS, its own first.
pub const ALPN: [&[u8]; 2] = [b"mc/1", b"h2"];

/// The protocols of a server.
pub(crate) const SERVED: Protocol = Protocol::new(&ALPN);

/// The protocol of a client.
pub(crate) const SPOKEN: Protocol = Protocol::new(&[ALPN[0]]);
