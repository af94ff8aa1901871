//! Why a call of the election failed.

use std::error::Error as StdError;
use std::sync::Arc;

use mc_types::Epoch;
use thiserror::Error;

use super::member::{Leader, MAX_MEMBERS, MemberError};

/// A cause from the library that an implementation uses.
type Cause = Arc<dyn StdError + Send + Sync>;

/// Why a call of the election failed.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum ElectionError {
    /// No endpoint of the election service can be reached.
    #[error(
        "the election service cannot be reached: {failures}; check that it runs at these addresses"
    )]
    Unreachable {
        /// Each endpoint and its failure.
        failures: Box<str>,
    },
    /// Members of the election service answer, but too few of them to decide anything.
    #[error("the election service has no quorum: {failures}; start the members that are missing")]
    NoQuorum {
        /// Each endpoint and its failure.
        failures: Box<str>,
    },
    /// The election service does not accept the user and the password, or wants them.
    #[error("etcd at {endpoint} rejects {user}; check the etcd user and password")]
    Credentials {
        /// The member that said so.
        endpoint: Box<str>,
        /// The user in words, or that none is set.
        user: Box<str>,
        source: Cause,
    },
    /// The user may not read and write the keys of the election.
    #[error("etcd at {endpoint} does not let {user} use the keys below {prefix}; grant it a role")]
    Forbidden {
        /// The member that said so.
        endpoint: Box<str>,
        /// The user in words, or that none is set.
        user: Box<str>,
        /// The beginning of the election's keys.
        prefix: Box<str>,
        source: Cause,
    },
    /// The election service rejects a request.
    #[error("etcd at {endpoint} rejects {call}")]
    Rejected {
        /// The member that said so.
        endpoint: Box<str>,
        call: &'static str,
        source: Cause,
    },
    /// A lease has ended.
    #[error("the lease has ended; it was not renewed in time")]
    LeaseEnded,
    /// A file of the TLS settings cannot be used.
    #[error("the TLS settings for etcd cannot be used")]
    Tls { source: Cause },
    /// A key of the election has a value that this version cannot read.
    #[error("the value of the key {key} in etcd is not readable; delete it if no master needs it")]
    Malformed { key: Box<str>, source: Cause },
    /// Another member leads.
    #[error("{} leads at {} in epoch {}", .0.member.id(), .0.member.rpc_address(), .0.epoch.as_u64())]
    Lost(Leader),
    /// Another member campaigned at the same time.
    #[error("another member campaigned at the same time; campaign again if nobody leads")]
    Contended,
    /// The term is over.
    #[error("the term of epoch {} is over; another member may lead", .epoch.as_u64())]
    Deposed { epoch: Epoch },
    /// Every epoch that there can be was used.
    #[error("there is no epoch after {}; the journal's epoch is damaged", .epoch.as_u64())]
    NoEpochLeft { epoch: Epoch },
    /// This master has not registered.
    #[error("this master is not a member; register it first")]
    NotRegistered,
    /// The in-sync set has too many members.
    #[error("an in-sync set has at most {MAX_MEMBERS} members, not {wanted}")]
    TooManyMembers { wanted: usize },
    /// The data of a member is not valid.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The thread that talks to the election service could not be started.
    #[error("cannot start the thread of the election; check the limit of threads")]
    Thread { source: Arc<std::io::Error> },
    /// The election was closed.
    #[error("the election was closed")]
    Closed,
}

impl ElectionError {
    /// Returns whether the same call can succeed later without a change of the settings.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::NoQuorum { .. }
                | Self::Rejected { .. }
                // An administrator may delete the key.
                | Self::Malformed { .. }
                | Self::LeaseEnded
                | Self::Lost(_)
                | Self::Contended
                | Self::Deposed { .. }
        )
    }
}
