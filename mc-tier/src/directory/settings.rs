//! How a directory tier makes files and folders.

use core::fmt;
use core::str::FromStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::SyncPolicy;

/// How a [`DirectoryTier`](super::DirectoryTier) makes files and folders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectorySettings {
    /// When they are durable.
    pub sync: SyncPolicy,
    /// The access of users other than the owner to folders and files; `None` for that of the
    /// process's umask.
    pub mode: Option<FolderMode>,
}

impl From<SyncPolicy> for DirectorySettings {
    fn from(sync: SyncPolicy) -> Self {
        Self { sync, ..Self::default() }
    }
}

/// The permissions of folders, as of `chmod`; files have the same, without those to execute. Parsed from octal
/// digits, such as `2770` for folders of a group, which new files in them belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FolderMode(u32);

/// A text is no [`FolderMode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected permissions in octal digits, such as 0770 or 2775, that let the owner do everything"
)]
pub struct InvalidFolderMode;

/// The permissions that the owner of a folder needs.
const OWNER: u32 = 0o700;
const ALL: u32 = 0o7777;

impl FromStr for FolderMode {
    type Err = InvalidFolderMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_octal = (3..=5).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_digit());
        let mode = u32::from_str_radix(text, 8).ok().filter(|_| is_octal);
        let mode = mode.filter(|mode| mode & OWNER == OWNER && *mode <= ALL);
        mode.map(Self).ok_or(InvalidFolderMode)
    }
}

impl fmt::Display for FolderMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl DirectorySettings {
    /// Makes a folder, but none above it, unless it is there.
    pub(super) fn create_folder(self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Ok(()) => self.permissions(0).map_or(Ok(()), |it| fs::set_permissions(path, it)),
            Err(error) => Err(error),
        }
    }

    /// Lets others use a new file.
    pub(super) fn permit(self, file: &File) -> io::Result<()> {
        self.permissions(0o7111).map_or(Ok(()), |it| file.set_permissions(it))
    }

    fn permissions(self, without: u32) -> Option<Permissions> {
        self.mode.map(|FolderMode(mode)| Permissions::from_mode(mode & !without))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_and_let_the_owner_in() {
        for (text, shown) in
            [("770", "0770"), ("0775", "0775"), ("2770", "2770"), ("01777", "1777")]
        {
            assert_eq!(text.parse::<FolderMode>().unwrap().to_string(), shown);
        }
        for text in
            ["", "7", "70", "077", "0677", "778", "17777", "+770", "0o770", "rwx", "000000770"]
        {
            assert_eq!(text.parse::<FolderMode>(), Err(InvalidFolderMode), "{text}");
        }
    }
}
