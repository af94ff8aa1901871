#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod compat;
mod credentials;
mod entry;
mod flags;
mod heap;
mod latencies;
mod log_queue;
mod logging;
mod member;
mod refusal;
mod runtime;
mod shutdown;
mod story;
mod text;
mod transfer;
mod value;

pub use credentials::CredentialArgs;
pub use entry::{UsageError, cause_chain, run, run_with};
pub use flags::{Parsed, last_value, parse_compatible, parse_from};
pub use latencies::Latencies;
pub use log_queue::flush_log;
pub use logging::{LogError, init_tracing};
pub use member::{
    BadSegmentSize, MemberArgs, MemberError, SegmentTooSmall, check_segment_size,
    parse_segment_size,
};
pub use refusal::Refusal;
pub use runtime::block_on_threads;
pub use shutdown::{Shutdown, Signal};
pub use story::{became, duration, kept_because};
pub use text::{table, visible};
pub use transfer::{PathArgs, TransferArgs};
pub use value::{
    MAX_CONNECTIONS, MAX_THREADS, ParseConnectionCountError, ParseDurationError,
    ParseFractionError, ParsePositiveSizeError, ParseThreadCountError, parse_connection_count,
    parse_duration, parse_fraction, parse_positive_size, parse_thread_count,
};
