//! The archive around a state dict: zip with entries that are not compressed.
//!
//! A reader of its own, because it can be strict: the directory is read at once, from the one place
//! where torch.save writes it, and within a limit. General readers search for directories and take
//! memory for as many entries as one claims.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};

use crc_fast::{CrcAlgorithm, checksum};

use super::error::TorchError;

/// Limit on the directory's bytes: about a hundred for each storage.
const MAX_DIRECTORY: u64 = 16 << 20;

/// The record at the end of the file, which has no comment.
const END: usize = 22;
/// The record before it in files that may be large, and the one that points to that.
const END_64: usize = 56;
const LOCATOR_64: usize = 20;
/// An entry of the directory, and the header before its content; without the names.
const ENTRY: usize = 46;
const HEADER: usize = 30;

/// An open archive.
#[derive(Debug)]
pub(crate) struct Archive<R> {
    reader: R,
    len: u64,
    /// Entries by name, without the folder that has all of them.
    entries: HashMap<String, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    header: u64,
    len: u64,
    crc: u32,
    is_packed: bool,
}

/// Numbers of a record, little-endian.
struct Record<'a>(&'a [u8]);

impl Record<'_> {
    fn u16(&self, at: usize) -> u16 {
        self.0[at..at + 2].try_into().map_or(0, u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> u32 {
        self.0[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
    }

    fn u64(&self, at: usize) -> u64 {
        self.0[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
    }
}

/// The place of the directory.
struct Directory {
    start: u64,
    len: u64,
    entries: u64,
}

impl<R: Read + Seek> Archive<R> {
    /// Opens an archive by its directory.
    pub(crate) fn open(mut reader: R) -> Result<Self, TorchError> {
        let len = reader.seek(SeekFrom::End(0))?;
        let mut begin = [0; 2];
        reader.seek(SeekFrom::Start(0))?;
        let known = reader.by_ref().take(2).read(&mut begin)?;
        match &begin[..known] {
            b"PK" => {}
            // The first instruction of a pickle.
            [0x80, _] => return Err(TorchError::Legacy),
            _ => return Err(TorchError::NotAnArchive),
        }
        let directory = directory(&mut reader, len)?;
        if directory.len > MAX_DIRECTORY {
            return Err(TorchError::Limit { what: "a directory with bytes", limit: MAX_DIRECTORY });
        }
        let bytes = read_at(&mut reader, directory.start, directory.len)?;
        let entries = entries(&bytes, directory.entries)?;
        Ok(Self { reader, len, entries })
    }

    /// The file's length.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Returns the length of an entry.
    pub(crate) fn entry_len(&self, entry: &str) -> Result<u64, TorchError> {
        Ok(self.entry(entry)?.len)
    }

    /// Returns whether there is such an entry.
    pub(crate) fn has(&self, entry: &str) -> bool {
        self.entries.contains_key(entry)
    }

    fn entry(&self, name: &str) -> Result<Entry, TorchError> {
        match self.entries.get(name) {
            None => Err(TorchError::NoEntry { entry: name.to_owned() }),
            Some(entry) if entry.is_packed => Err(TorchError::Packed { entry: name.to_owned() }),
            Some(entry) => Ok(*entry),
        }
    }

    /// Reads an entry and compares its checksum.
    pub(crate) fn read(&mut self, name: &str) -> Result<Vec<u8>, TorchError> {
        let Entry { header, len, crc, .. } = self.entry(name)?;
        let damaged = TorchError::Archive { what: "the place of an entry is wrong" };
        // Nothing is allocated for bytes that the file does not have.
        if header.checked_add(HEADER as u64).and_then(|at| at.checked_add(len)) > Some(self.len) {
            return Err(damaged);
        }
        let bytes = read_at(&mut self.reader, header, HEADER as u64)?;
        let record = Record(&bytes);
        if !record.0.starts_with(b"PK\x03\x04") {
            return Err(damaged);
        }
        let names = u64::from(record.u16(26)) + u64::from(record.u16(28));
        let start = header + HEADER as u64 + names;
        if start.checked_add(len) > Some(self.len) {
            return Err(damaged);
        }
        let content = read_at(&mut self.reader, start, len)?;
        if checksum(CrcAlgorithm::Crc32IsoHdlc, &content) != u64::from(crc) {
            return Err(TorchError::Checksum { entry: name.to_owned() });
        }
        Ok(content)
    }
}

/// Reads bytes that the file has.
fn read_at(reader: &mut (impl Read + Seek), start: u64, len: u64) -> io::Result<Vec<u8>> {
    reader.seek(SeekFrom::Start(start))?;
    let len = usize::try_from(len).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Finds the directory by the records at the end of the file.
fn directory(reader: &mut (impl Read + Seek), len: u64) -> Result<Directory, TorchError> {
    let tail_len = len.min((END_64 + LOCATOR_64 + END) as u64);
    let tail = read_at(reader, len - tail_len, tail_len)?;
    let damaged = |what| TorchError::Archive { what };
    let Some(at) = tail.len().checked_sub(END).filter(|at| tail[*at..].starts_with(b"PK\x05\x06"))
    else {
        return Err(damaged("its end is missing"));
    };
    let (before, end) = tail.split_at(at);
    let end = Record(end);
    let is_large = before.len() == END_64 + LOCATOR_64
        && before.starts_with(b"PK\x06\x06")
        && before[END_64..].starts_with(b"PK\x06\x07");
    let (found, records) = if is_large {
        let record = Record(before);
        let (entries, len, start) = (record.u64(32), record.u64(40), record.u64(48));
        (Directory { start, len, entries }, tail_len)
    } else {
        let (entries, len, start) = (end.u16(10).into(), end.u32(12).into(), end.u32(16).into());
        (Directory { start, len, entries }, END as u64)
    };
    // It lies directly before the records: there is only one place.
    if found.start.checked_add(found.len) != Some(len - records) {
        return Err(damaged("its directory is not where its end says"));
    }
    Ok(found)
}

/// Reads the entries of a directory, which are in the same folder.
fn entries(mut bytes: &[u8], count: u64) -> Result<HashMap<String, Entry>, TorchError> {
    let malformed = || TorchError::Archive { what: "its directory is malformed" };
    let mut folder = None;
    let mut entries = HashMap::new();
    let mut seen = 0;
    while !bytes.is_empty() {
        let Some((fixed, rest)) = bytes.split_at_checked(ENTRY) else { return Err(malformed()) };
        let record = Record(fixed);
        let lens = [28, 30, 32].map(|at| usize::from(record.u16(at)));
        let Some((names, next)) = rest.split_at_checked(lens.iter().sum()) else {
            return Err(malformed());
        };
        if !fixed.starts_with(b"PK\x01\x02") {
            return Err(malformed());
        }
        bytes = next;
        seen += 1;
        let (name, extra) = names.split_at(lens[0]);
        let (flags, method) = (record.u16(8), record.u16(10));
        let mut sizes = [record.u32(24), record.u32(20), record.u32(42)].map(u64::from);
        widen(&mut sizes, &extra[..lens[1]]);
        let [len, packed_len, header] = sizes;
        // Encrypted, or by a method other than as it is.
        let is_packed = flags & 1 != 0 || method != 0 || len != packed_len;
        let entry = Entry { header, len, crc: record.u32(16), is_packed };
        let name = core::str::from_utf8(name).map_err(|_| malformed())?;
        let Some((of, name)) = name.split_once('/') else { return Err(malformed()) };
        if folder.get_or_insert(of) != &of || entries.insert(name.to_owned(), entry).is_some() {
            return Err(malformed());
        }
    }
    if seen != count {
        return Err(TorchError::Archive { what: "its directory has another number of entries" });
    }
    Ok(entries)
}

/// Takes numbers that do not fit 32 bits from the extra fields.
fn widen(sizes: &mut [u64; 3], mut extra: &[u8]) {
    while let Some((field, rest)) = extra.split_at_checked(4) {
        let (id, len) = (Record(field).u16(0), usize::from(Record(field).u16(2)));
        let Some((content, next)) = rest.split_at_checked(len) else { return };
        extra = next;
        if id == 1 {
            let wide = sizes.iter_mut().filter(|size| **size == u64::from(u32::MAX));
            for (size, bytes) in wide.zip(content.as_chunks().0) {
                *size = u64::from_le_bytes(*bytes);
            }
        }
    }
}
