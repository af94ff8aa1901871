//! Transports as their users and their peers see them: the public suite on each, several links or
//! connections used as one, memory that is reached through stages, and peers that fail, lie and attack.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

mod bundle;
#[cfg(feature = "tls")]
mod certificates;
mod conformance;
#[cfg(target_os = "linux")]
mod names;
#[cfg(target_os = "linux")]
mod node;
#[cfg(all(feature = "tls", target_os = "linux"))]
mod staged;
#[cfg(all(feature = "tls", target_os = "linux"))]
mod staged_slow;
mod tcp_faults;
mod tcp_rails;
#[cfg(feature = "tls")]
mod tcp_tls;
mod tcp_wire;
