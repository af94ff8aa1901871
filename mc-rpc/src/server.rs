//! The server's side: listens, takes connections, ends them in good order.

mod accept;
mod audit;
mod close_reason;
mod config;
mod connection;
mod deduplication;
mod dispatch;
mod executor;
mod greet;
mod guest;
mod held_answers;
mod identity;
mod listener;
mod log_limiter;
mod long_calls;
mod metrics;
mod open_connections;
mod peer;
mod shared;
mod standby;
mod term;
mod transit;
mod upgrade;

pub use accept::{Server, ServerHandle, ServerWatch, Streams};
pub use close_reason::CloseReason;
pub use config::{Liveness, ServerConfig};
pub use guest::{Guest, GuestCall, GuestCalls, GuestProtocol};
pub use metrics::{MethodCalls, ServerMetrics};
pub use open_connections::{ConnectionKind, ConnectionReport, OpenConnections};
pub use shared::Buffered;
pub use standby::Standby;
pub use term::{Authority, Term};
pub use upgrade::{TakeStream, Taking};
