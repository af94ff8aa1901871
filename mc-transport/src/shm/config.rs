//! Settings of the transport.

use std::path::PathBuf;
use std::time::Duration;

use mc_types::ByteSize;

use crate::copiers::Copiers;

/// Settings of a [`ShmTransport`](super::ShmTransport).
///
/// ```
/// use std::time::Duration;
/// use mc_transport::{ShmConfig, shm::ShmListen};
/// let mut config = ShmConfig::default();
/// config.listen = ShmListen::Path("/run/mc-store/shm".into());
/// config.stall_timeout = Duration::from_secs(10);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShmConfig {
    /// Where peers of this host connect. Default: a random name.
    pub listen: ShmListen,
    /// Users, by number, whose processes are admitted and connected to beside those
    /// of our own user and of root. What they are given they may keep. The system says
    /// 65534 of every user that is unknown in this process's user namespace. Default
    /// none.
    pub allow_users: Vec<u32>,
    /// Only peers that know the [secret](super::ShmTransport::secret) are admitted.
    /// Default `false`.
    pub require_proof: bool,
    /// Time limit for connecting and the handshake, on either side, and how long
    /// a peer has to open a region. Default 5 s.
    pub connect_timeout: Duration,
    /// Time that a peer that owes something on a stream may go without 64 KiB of
    /// progress, or the end of an operation, before the stream is closed. Default
    /// 5 s.
    pub stall_timeout: Duration,
    /// The largest operation, in bytes; the smaller limit of both sides counts.
    /// Default 1 GiB.
    pub max_operation: ByteSize,
    /// Connections of peers at the same time, their streams included; further ones
    /// are told to come back later. Default 4096.
    pub max_connections: usize,
    /// Regions that a link keeps mapped. When there are more, one that was not used
    /// of late is unmapped, to be mapped again when it is needed. Default 4096.
    pub max_mapped_regions: usize,
    /// Address space that the mapped regions of all peers may take together. Those
    /// that find no room are reached by streams. Default 16 TiB, an eighth of what a
    /// process usually has.
    pub max_mapped_bytes: ByteSize,
    /// The threads that share long copies. Default two where there are two CPUs.
    pub copiers: Copiers,
}

/// Where peers of this host connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShmListen {
    /// Nowhere; such a node can still reach others.
    Nowhere,
    /// At an abstract socket with a name of 128 random bits.
    #[default]
    Random,
    /// At the abstract socket of this name. It leaves no file behind, and is known in
    /// one network namespace.
    Abstract(String),
    /// At a socket file with this absolute path.
    Path(PathBuf),
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self {
            listen: ShmListen::default(),
            allow_users: Vec::new(),
            require_proof: false,
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(5),
            max_operation: ByteSize::gib(1),
            max_connections: 4096,
            max_mapped_regions: 4096,
            max_mapped_bytes: ByteSize::gib(16 << 10),
            copiers: Copiers::default(),
        }
    }
}

impl ShmConfig {
    /// Returns whether a process of `user` is trusted with shared memory.
    pub(super) fn admits(&self, user: u32) -> bool {
        const ROOT: u32 = 0;
        let ours = rustix::process::geteuid().as_raw();
        user == ours || user == ROOT || self.allow_users.contains(&user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_not_admitted() {
        let mut config = ShmConfig::default();
        let ours = rustix::process::geteuid().as_raw();
        let stranger = ours.wrapping_add(1).max(1);
        assert!(config.admits(ours) && config.admits(0) && !config.admits(stranger));
        config.allow_users.push(stranger);
        assert!(config.admits(stranger) && !config.admits(stranger + 1));
    }
}
