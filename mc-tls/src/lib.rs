#![cfg_attr(feature = "rustls", doc = include_str!("../README.md"))]
#![cfg_attr(not(feature = "rustls"), doc = "Files that are read again when they are renewed.")]
#![forbid(unsafe_code)]

#[cfg(feature = "rustls")]
mod client;
#[cfg(feature = "rustls")]
mod error;
#[cfg(feature = "rustls")]
mod identity;
#[cfg(feature = "rustls")]
mod protocol;
mod reload;
#[cfg(feature = "rustls")]
mod server;

#[cfg(feature = "rustls")]
pub use client::ClientTls;
#[cfg(feature = "rustls")]
pub use error::{PemProblem, TlsError};
#[cfg(feature = "rustls")]
pub use identity::ends_at;
#[cfg(feature = "rustls")]
pub use protocol::Protocol;
pub use reload::{FileError, Reload, Reloading, read_file};
#[cfg(feature = "rustls")]
pub use rustls;
#[cfg(feature = "rustls")]
pub use server::{ClientAuth, ServerTls, TlsFiles, client_names};
