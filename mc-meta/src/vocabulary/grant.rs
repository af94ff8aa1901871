//! How long the space of a grant is its client's own.

use core::time::Duration;

use mc_types::Time;

/// How long a client may write to space that it was granted for a put, a file, a copy, a move or a promotion, counted
/// from the time of the grant.
///
/// This is how long space is kept after an ambiguous failure: when a client times out, dies, is preempted or
/// revokes its grant without a proof that no write is on its way, the space is granted to no other client before
/// [`end`](Self::end). A client that proves it ([`LateWrites::Impossible`](crate::LateWrites)) gives it back
/// at once, and so does the end of the grant's segment. Space that readers may be using is kept for their leases
/// instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantTime(pub(crate) Duration);

impl GrantTime {
    /// The end of a grant of that time.
    pub(crate) fn end(self, begun: Time) -> Time {
        begun + self.0
    }
}
