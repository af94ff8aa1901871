//! How much of everything thin clients may have.

use std::sync::Arc;
use std::time::Duration;

use mc_types::ByteSize;

use super::budget::Budget;
use crate::is_ours;

/// See the methods of [`ServerBuilder`](super::ServerBuilder).
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(super) allow_users: Vec<u32>,
    pub(super) clients: usize,
    pub(super) calls: u32,
    pub(super) memories: usize,
    pub(super) shared: u64,
    pub(super) patience: Duration,
}

impl Limits {
    pub(super) const MOST_CALLS: u32 = 65_536;

    /// Bytes of requests of one thin client that are worked on at the same time, with
    /// those that their answers may have. More than what one call takes at most, and so little that
    /// eight that take no answers leave others of their user a third.
    const CALL_BYTES: u64 = 4 << 20;

    /// The same of all thin clients together, beyond their reserves.
    const CALL_BYTES_OF_ALL: u64 = 96 << 20;

    /// Bytes of all reserves together.
    const RESERVES: u64 = 32 << 20;

    /// The largest and the smallest reserve of a thin client. Calls that name no object fit in
    /// either.
    const RESERVE: (u64, u64) = (128 << 10, 2 << 10);

    /// Returns the memory for requests and answers.
    pub(super) fn budget(&self) -> Arc<Budget> {
        let (most, least) = Self::RESERVE;
        let reserve = Self::RESERVES / self.clients.max(1) as u64;
        Budget::new(Self::CALL_BYTES_OF_ALL, reserve.clamp(least, most), Self::CALL_BYTES)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            allow_users: Vec::new(),
            clients: 256,
            calls: 256,
            memories: 256,
            shared: ByteSize::gib(4096).as_u64(),
            patience: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// Whether a process of `user` is served.
    pub(super) fn admits(&self, user: u32) -> bool {
        is_ours(user) || self.allow_users.contains(&user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_not_admitted() {
        let mut limits = Limits::default();
        let ours = rustix::process::geteuid().as_raw();
        let stranger = ours.wrapping_add(1).max(1);
        assert!(limits.admits(ours) && limits.admits(0) && !limits.admits(stranger));
        limits.allow_users.push(stranger);
        assert!(limits.admits(stranger) && !limits.admits(stranger + 1));
    }
}
