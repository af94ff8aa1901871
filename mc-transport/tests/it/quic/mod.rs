//! The QUIC transport: the public suite, certificates, faults, and peers that attack,
//! played by plain QUIC connections that speak the protocol of `docs/quic-wire.md` by
//! hand.

mod attacks;
mod crowd;
mod liars;
mod nodes;
mod paths;
mod pki;
mod raw;
#[cfg(all(feature = "tls", target_os = "linux"))]
mod staged;
mod suite;
mod trust;
