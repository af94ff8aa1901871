#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(feature = "server")]
mod crowd;
mod metrics;
#[cfg(feature = "server")]
mod openmetrics;
#[cfg(feature = "server")]
mod page;
#[cfg(feature = "server")]
mod port;
mod process;
#[cfg(feature = "server")]
mod request;

#[cfg(feature = "server")]
pub use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
pub use metrics::{MetricKind, MetricsText};
#[cfg(feature = "server")]
pub use page::Page;
#[cfg(feature = "server")]
pub use port::{BindError, HttpPort};
