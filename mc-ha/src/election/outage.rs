//! An election service that does not answer.

use std::time::Instant;

use super::error::ElectionError;

/// An election service that has not answered a member since a time.
#[derive(Clone, Debug)]
pub struct ServiceOutage {
    /// When the first of the calls was made that have failed since the last answer.
    pub since: Instant,
    /// Why the last one failed.
    pub cause: ElectionError,
}
