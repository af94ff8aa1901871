//! When files are durable.

use core::str::FromStr;
use std::io;
use std::path::Path;

/// When a put or removal is durable.
///
/// The result of closing a file is looked at with each of them. Parsed from `auto`, `none`, `data` and
/// `directory`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncPolicy {
    /// [`None`](Self::None) on a file system of this host, which refuses a write that it has no room for, and
    /// [`Data`](Self::Data) on any other: NFS, CIFS, FUSE and the like accept bytes and may refuse them
    /// when they are written back, which a sync tells. Without it an object would count as stored that is not.
    #[default]
    Auto,
    /// When the operating system or the file system likes. The objects of the last seconds before a
    /// loss of power may be lost or damaged, which readers find out; a killed process loses nothing.
    None,
    /// An object's bytes are durable before the object can be seen: after a loss of power it is there
    /// as a whole, or not at all.
    Data,
    /// Puts and removals are durable when they return.
    DataAndDirectory,
}

/// A text is no [`SyncPolicy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected auto, none, data or directory")]
pub struct UnknownSyncPolicy;

impl FromStr for SyncPolicy {
    type Err = UnknownSyncPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownSyncPolicy> {
        let known = [
            ("auto", Self::Auto),
            ("none", Self::None),
            ("data", Self::Data),
            ("directory", Self::DataAndDirectory),
        ];
        let found = known.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        found.map(|(_, policy)| policy).ok_or(UnknownSyncPolicy)
    }
}

impl SyncPolicy {
    /// The policy for this directory: never [`Auto`](Self::Auto).
    pub(super) fn on(self, directory: &Path) -> io::Result<Self> {
        Ok(match self {
            Self::Auto if is_of_this_host(directory)? => Self::None,
            Self::Auto => Self::Data,
            chosen => chosen,
        })
    }
}

/// Returns whether the file system is known to reserve the room of a write when it takes it.
#[cfg(target_os = "linux")]
fn is_of_this_host(directory: &Path) -> io::Result<bool> {
    /// `statfs(2)`: ext2 to ext4, XFS, Btrfs, tmpfs, ramfs, overlay, ZFS, F2FS, bcachefs.
    const OF_HOSTS: [u32; 9] = [
        0xef53,
        0x5846_5342,
        0x9123_683e,
        0x0102_1994,
        0x8584_58f6,
        0x794c_7630,
        0x2fc1_2fc1,
        0xf2f5_2010,
        0xca45_1a4e,
    ];
    // The type has 32 bits, and other widths and signs on some machines.
    let found = rustix::fs::statfs(directory)?.f_type as u32;
    Ok(OF_HOSTS.contains(&found))
}

#[cfg(not(target_os = "linux"))]
fn is_of_this_host(_: &Path) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_a_name() {
        let of = |text: &str| text.parse::<SyncPolicy>();
        assert_eq!(of("auto"), Ok(SyncPolicy::Auto));
        assert_eq!(of("None"), Ok(SyncPolicy::None));
        assert_eq!(of("data"), Ok(SyncPolicy::Data));
        assert_eq!(of("directory"), Ok(SyncPolicy::DataAndDirectory));
        assert_eq!(of("sometimes"), Err(UnknownSyncPolicy));
    }

    /// `/proc` stands for what is not known: a file system that is not one of hosts' disks.
    #[cfg(target_os = "linux")]
    #[test]
    fn auto_syncs_where_the_file_system_is_not_a_disk_of_this_host() {
        let on = |path: &str| SyncPolicy::Auto.on(Path::new(path)).unwrap();
        assert_eq!(on("/proc"), SyncPolicy::Data);
        assert_eq!(on("/dev/shm"), SyncPolicy::None);
        assert_eq!(SyncPolicy::None.on(Path::new("/proc")).unwrap(), SyncPolicy::None);
        assert_eq!(
            SyncPolicy::Auto.on(Path::new("/nowhere/at/all")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
