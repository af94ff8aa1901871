//! The client's side: the master's commands as methods.

mod address;
mod backoff;
pub mod blocking;
mod call;
mod config;
mod connection;
mod credentials;
mod denials;
mod dial;
mod handed;
mod journal;
mod link;
mod master_client;
mod metrics;
mod outage;
mod outcome;
mod read_counter;
mod request;
mod settle_task;
mod socket;
mod spans;
mod token;
mod youngest_term;

pub use address::Resolve;
pub use config::ClientConfig;
pub use journal::JournalStream;
pub use master_client::MasterClient;
pub use mc_environment::{ClientEnvironment, Connecting};
pub use metrics::{ClientMetrics, MethodMetrics};
pub use read_counter::{OpenRead, ReadCounter};
pub use token::Token;
