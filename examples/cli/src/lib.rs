#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod compat;
mod config;
mod credentials;
mod entry;
mod flags;
mod heap;
mod latencies;
mod log_limit;
mod log_queue;
mod logging;
mod member;
mod node_load;
mod refusal;
mod reports;
mod runtime;
mod server;
mod shutdown;
mod story;
mod text;
#[cfg(feature = "otel")]
mod traces;
mod transfer;
mod value;

pub use config::{ClientFlags, Configured, Effective, Origin, Program, Reloaded, Reloader};
pub use credentials::{CredentialArgs, check_client_files};
pub use entry::{UsageError, run, run_program};
pub use flags::{Parsed, parse_compatible, parse_from};
pub use latencies::Latencies;
pub use log_queue::flush_log;
pub use logging::{LogError, init_tracing};
pub use member::{
    BadSegmentSize, MemberArgs, MemberError, SegmentTooSmall, check_segment_size,
    parse_segment_size,
};
pub use node_load::{millis, node_load_json, slow_nodes};
pub use refusal::{Refusal, cause_chain};
pub use reports::{connection_json, minute_json, tenant_json};
pub use runtime::block_on_threads;
pub use server::{ServerArgs, reload_on_hangup};
pub use shutdown::{Hangups, Shutdown, Signal};
pub use story::{became, duration, kept_because};
pub use text::{table, visible};
pub use transfer::{PathArgs, TransferArgs};
pub use value::{
    MAX_CONNECTIONS, MAX_THREADS, ParseConnectionCountError, ParseDurationError,
    ParseFractionError, ParsePositiveSizeError, ParseThreadCountError, parse_connection_count,
    parse_duration, parse_fraction, parse_positive_size, parse_thread_count,
};
