//! The errors of a master's start.

use std::io;

use mc_ha::election::ElectionError;
use mc_meta::ConfigError;
use mc_rpc::BindError;
use thiserror::Error;

use crate::ha::JournalStartError;

/// Why a master does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MasterStartError {
    /// The settings make no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address cannot be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system has no randomness for a seed.
    #[error("the system gave no random bytes for a seed")]
    NoRandomness(#[source] io::Error),
    /// No thread for the ticks.
    #[error("cannot start the thread that does what is due")]
    Thread(#[source] io::Error),
    /// The journal cannot be used.
    #[error("cannot use the journal: {0}")]
    Journal(#[source] JournalStartError),
    /// The term was lost before it began, or the election cannot be reached.
    #[error("the term cannot begin: {0}")]
    Term(#[source] ElectionError),
}
