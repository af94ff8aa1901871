#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod context;
#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod otel;
#[cfg(feature = "otlp")]
pub mod otlp;

pub use context::{NotATraceParent, TraceContext};
#[cfg(not(feature = "otel"))]
pub use off::{Span, carried, current, is_on, under};
#[cfg(feature = "otel")]
pub use otel::{Span, Within, carried, current, install, is_on, under};

/// The side of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A step of this process alone.
    Internal,
    /// A step that waits for the answer of a peer.
    Client,
    /// A step that answers a peer.
    Server,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
    /// A text.
    Text(String),
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<u64> for Value {
    /// Larger numbers than the largest `i64` are that.
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::from(number as u64)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}
