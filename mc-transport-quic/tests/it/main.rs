//! The QUIC transport: the public suite, certificates, faults, and peers that attack,
//! played by plain QUIC connections that speak the protocol of `docs/quic-wire.md` by
//! hand.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

mod attacks;
mod crowd;
mod liars;
mod nodes;
mod paths;
mod pki;
mod raw;
mod staged;
mod suite;
mod trust;
