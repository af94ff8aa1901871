//! Classifies the failure of a call to one member of etcd.

use std::error::Error as StdError;
use std::fmt::Write as _;

use tonic::{Code, Status};

/// Most bytes of a failure in an error's text.
const MAX_TEXT: usize = 400;

/// Why a call to one member of etcd failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The member cannot be reached, or does not answer in time; another one may.
    Unreachable(Box<str>),
    /// The member answers, and knows no leader of etcd.
    NoLeader(Box<str>),
    /// The token is not or no longer valid.
    StaleToken(Status),
    /// The user or the password is wrong, or missing.
    Credentials(Status),
    /// The user may not do this.
    Forbidden(Status),
    /// There is no such lease, or no longer.
    LeaseEnded,
    /// The cluster of etcd has no authentication.
    NoAuthentication,
    /// Anything else that etcd rejects.
    Rejected(Status),
}

impl Failure {
    /// The meaning of a status: etcd's own errors begin with its name.
    pub(super) fn of(status: Status) -> Self {
        let message = status.message();
        let Some(reason) = message.strip_prefix("etcdserver: ") else {
            return match status.code() {
                Code::Unauthenticated => Self::Credentials(status),
                Code::PermissionDenied => Self::Forbidden(status),
                Code::Unimplemented | Code::InvalidArgument | Code::OutOfRange => {
                    Self::Rejected(status)
                }
                _ => Self::Unreachable(causes(&status)),
            };
        };
        match (status.code(), reason) {
            (Code::Unauthenticated, _) => Self::StaleToken(status),
            (_, reason) if reason.starts_with("revision of auth store is old") => {
                Self::StaleToken(status)
            }
            (_, reason) if reason.starts_with("authentication is not enabled") => {
                Self::NoAuthentication
            }
            (_, reason)
                if reason.starts_with("authentication failed")
                    || reason.starts_with("user name is empty") =>
            {
                Self::Credentials(status)
            }
            (Code::PermissionDenied, _) => Self::Forbidden(status),
            (_, reason) if reason.starts_with("requested lease not found") => Self::LeaseEnded,
            // "no leader", "leader changed", "request timed out" and others of its kind.
            (Code::Unavailable | Code::DeadlineExceeded, reason) => Self::NoLeader(reason.into()),
            _ => Self::Rejected(status),
        }
    }
}

/// A status without a word of etcd's: what the libraries below say, down to the system.
fn causes(status: &Status) -> Box<str> {
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            // Writing to a string cannot fail.
            let _ = write!(text, ": {said}");
        }
        cause = error.source();
    }
    text.chars().take(MAX_TEXT).collect::<String>().into()
}
