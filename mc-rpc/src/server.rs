//! The server's side: listens, takes connections, ends them in good order.

mod accept;
mod close_reason;
mod config;
mod connection;
mod deduplication;
mod dispatch;
mod executor;
mod greet;
#[cfg(feature = "grpc")]
mod grpc;
mod held_answers;
mod identity;
mod listener;
mod log_limiter;
mod long_calls;
mod metrics;
mod peer;
mod shared;
mod standby;
mod term;
mod transit;
mod upgrade;

pub use accept::{Server, ServerHandle, ServerWatch, Streams};
pub use config::{Liveness, ServerConfig};
pub use executor::RunBlocking;
pub use metrics::{MethodCalls, ServerMetrics};
pub use standby::Standby;
pub use term::{Authority, Term};
pub use upgrade::{TakeStream, Taking};
