//! One object's file: written once, then only read.

use core::ops::Range;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use bytes::Bytes;
use rustix::fs::OFlags;

use super::close::close;
use super::{DirectorySettings, SyncPolicy};
use crate::error::Damage;
use crate::object::{Cover, ObjectBytes, SliceBytes, StoredObject};
use crate::object_file::{HeaderError, MAX_HEADER_LEN, parse_header};

/// Smaller slices are gathered into writes of this many bytes.
const WRITE_LEN: usize = 64 << 10;

/// A file that is not longer is written and read at once: over a network each operation takes longer than
/// the bytes.
const AT_ONCE: usize = 128 << 10;

/// The purpose for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To read the description of the object.
    Header,
    /// To read its bytes, too.
    Bytes,
}

/// Writes a new file, durably if the policy wants it.
///
/// A file system that writes back later, such as NFS, tells at the sync or at the close that it has no room for
/// bytes that it took: the file is not written then.
pub(super) fn write(
    path: &Path,
    header: &[u8],
    object: &ObjectBytes,
    settings: DirectorySettings,
) -> io::Result<()> {
    let slices = object.slices().iter().map(|slice| slice.bytes().len());
    let len = slices.fold(header.len(), usize::saturating_add);
    // A buffer with a byte to spare is not written before its end.
    let capacity = if len <= AT_ONCE { len + 1 } else { WRITE_LEN };
    let mut writer = BufWriter::with_capacity(capacity, File::create_new(path)?);
    writer.write_all(header)?;
    for slice in object.slices() {
        writer.write_all(slice.bytes())?;
    }
    let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    settings.permit(&file)?;
    if settings.sync != SyncPolicy::None {
        file.sync_data()?;
    }
    close(file)
}

/// A file whose header and length are right.
#[derive(Debug)]
pub(super) struct ObjectFile {
    file: File,
    object: StoredObject,
    header_len: u64,
    /// The whole file, if it is short.
    whole: Option<Bytes>,
}

impl ObjectFile {
    pub(super) fn open(path: &Path, purpose: Purpose) -> Result<Self, ReadError> {
        // A pipe or a device of this name must not stop the reader.
        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file").into());
        }
        let found = metadata.len();
        let is_at_once = purpose == Purpose::Bytes && found <= AT_ONCE as u64;
        let first = if is_at_once { AT_ONCE } else { MAX_HEADER_LEN };
        let mut header = vec![0; found.min(first as u64) as usize];
        file.read_exact_at(&mut header, 0)?;
        let (object, header_len) = parse_header(&header)?;
        let header_len = header_len as u64;
        let expected = header_len + object.object_len();
        if found != expected {
            return Err(Damage::Length { expected, found }.into());
        }
        let whole = is_at_once.then(|| header.into());
        Ok(Self { file, object, header_len, whole })
    }

    pub(super) const fn object(&self) -> &StoredObject {
        &self.object
    }

    /// Reads consecutive slices: all of their bytes in one piece, and each slice.
    pub(super) fn read(&mut self, cover: &Cover) -> Result<(Bytes, Vec<SliceBytes>), ReadError> {
        let bytes = self.read_unverified(&cover.bytes)?;
        let slices = self.object.verify(cover, &bytes)?;
        Ok((bytes, slices))
    }

    /// Reads a range of the object, and compares nothing.
    pub(super) fn read_unverified(&mut self, range: &Range<u64>) -> Result<Bytes, ReadError> {
        if let Some(whole) = &self.whole {
            let at = |offset| (self.header_len + offset) as usize;
            return Ok(whole.slice(at(range.start)..at(range.end)));
        }
        let expected = range.end - range.start;
        let mut bytes = Vec::new();
        // The length is that of the file, and bounded.
        bytes.try_reserve_exact(expected as usize).map_err(io::Error::from)?;
        self.file.seek(SeekFrom::Start(self.header_len + range.start))?;
        (&self.file).take(expected).read_to_end(&mut bytes)?;
        let found = bytes.len() as u64;
        if found != expected {
            return Err(Damage::Length { expected, found }.into());
        }
        Ok(bytes.into())
    }
}

/// Why a file cannot be read.
#[derive(Debug)]
pub(super) enum ReadError {
    Io(io::Error),
    Damaged(Damage),
    Newer { found: u32 },
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Damage> for ReadError {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

impl From<HeaderError> for ReadError {
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::Damaged(damage) => Self::Damaged(damage),
            HeaderError::Newer { found } => Self::Newer { found },
        }
    }
}
