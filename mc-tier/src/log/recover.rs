//! Opens a log: makes the index from the records.

use std::io;

use mc_types::ByteSize;
use parking_lot::{Mutex, RwLock};
use tracing::warn;

use super::index::Location;
use super::record::{BLOCK, FORMAT, LogBlock, Record, encode_log, parse_log, parse_segment};
use super::scan::Records;
use super::writer::{Segment, Writer};
use super::{LogSettings, LogTier, Recovery};
use crate::backend::StorageBackend;
use crate::error::TierError;

/// Fewest segments: one to append to, one to move objects to, and others to take them from.
const MIN_SEGMENTS: u64 = 4;

/// Shortest segment: the longest header and some bytes fit.
const MIN_SEGMENT_LEN: u64 = 64 << 10;

pub(super) fn open(
    backend: Box<dyn StorageBackend>,
    settings: LogSettings,
) -> Result<LogTier, TierError> {
    let segment_len = segment_len(&*backend, settings)?;
    let segments = backend.len().saturating_sub(BLOCK) / segment_len;
    if segments < MIN_SEGMENTS {
        return Err(TierError::TooShort {
            path: backend.path().to_owned(),
            len: ByteSize::bytes(backend.len()),
            least: ByteSize::bytes(segment_len.saturating_mul(MIN_SEGMENTS).saturating_add(BLOCK)),
        });
    }
    let mut log = LogTier {
        backend,
        sync_each_change: settings.sync_each_change,
        segment_len,
        recovery: Recovery::default(),
        writer: Mutex::new(Writer {
            segments: vec![None; segments as usize],
            head: None,
            next_sequence: 1,
            unmarked: Vec::new(),
        }),
        index: RwLock::default(),
    };
    log.recovery =
        log.recover().map_err(|source| TierError::from_io("read", log.backend.path(), source))?;
    if log.recovery.damaged > 0 {
        let path = log.backend.path().display();
        warn!(%path, places = log.recovery.damaged, "objects are lost: their records are damaged");
    }
    Ok(log)
}

/// Reads the length of a log's segments. Makes the log where nothing was written yet.
fn segment_len(backend: &dyn StorageBackend, settings: LogSettings) -> Result<u64, TierError> {
    let path = || backend.path().to_owned();
    let least = ByteSize::bytes(BLOCK + MIN_SEGMENTS * MIN_SEGMENT_LEN);
    if backend.len() < least.as_u64() {
        let len = ByteSize::bytes(backend.len());
        return Err(TierError::TooShort { path: path(), len, least });
    }
    let block =
        read_block(backend, 0).map_err(|e| TierError::from_io("read", backend.path(), e))?;
    match parse_log(&block) {
        LogBlock::New => {
            let wanted = settings.segment_len.as_u64().max(MIN_SEGMENT_LEN);
            let len = wanted - wanted % BLOCK;
            let written = backend.write(0, &encode_log(len));
            written.map_err(|source| TierError::from_io("write", backend.path(), source))?;
            Ok(len)
        }
        LogBlock::Log { segment_len }
            if segment_len >= MIN_SEGMENT_LEN && segment_len.is_multiple_of(BLOCK) =>
        {
            Ok(segment_len)
        }
        LogBlock::Newer { found } => Err(TierError::Newer { path: path(), found, known: FORMAT }),
        LogBlock::Log { .. } | LogBlock::Foreign => Err(TierError::Foreign { path: path() }),
    }
}

fn read_block(backend: &dyn StorageBackend, at: u64) -> io::Result<[u8; BLOCK as usize]> {
    let mut block = [0; BLOCK as usize];
    backend.read(at, &mut block)?;
    Ok(block)
}

impl LogTier {
    fn recover(&self) -> io::Result<Recovery> {
        let mut writer = self.writer.lock();
        let mut used = Vec::new();
        for number in 0..writer.segments.len() {
            let block = read_block(&*self.backend, self.begin_of(number))?;
            used.extend(parse_segment(&block).map(|(sequence, nonce)| (sequence, nonce, number)));
        }
        used.sort_unstable();
        let mut damaged = 0;
        for (sequence, nonce, number) in used {
            // The last one is the one that was begun last.
            writer.head = Some(number);
            writer.next_sequence = sequence.saturating_add(1);
            damaged += self.recover_segment(&mut writer, nonce, number)?;
        }
        Ok(Recovery { objects: self.index.read().len() as u64, damaged })
    }

    /// Returns the number of damaged places.
    fn recover_segment(&self, writer: &mut Writer, nonce: u64, number: usize) -> io::Result<u64> {
        let begin = self.begin_of(number);
        let segment = Segment { nonce, end: begin + BLOCK, live: 0, is_unreadable: false };
        writer.segments[number] = Some(segment);
        let end = begin + self.segment_len;
        let mut records = Records::new(&*self.backend, nonce, begin + BLOCK, end);
        while let Some((offset, record)) = records.next()? {
            let (len, header_len) = (record.len(), record.header_len);
            let location = Location { segment: number, nonce, offset, header_len, len };
            writer.segment(number).end = offset + location.space();
            if record.is_removed {
                continue;
            }
            let before = self.index.read().find(record.object.id());
            if let Some(before) = before {
                if !self.is_whole(&location, &record) {
                    // The power failed before the object had moved here.
                    writer.unmarked.push(offset);
                    continue;
                }
                writer.segment(before.segment).live -= before.space();
                writer.unmarked.push(before.offset);
            }
            writer.segment(number).live += location.space();
            self.index.write().insert(record.object.id().clone(), location);
        }
        Ok(records.damaged)
    }

    fn is_whole(&self, location: &Location, record: &Record) -> bool {
        let cover = record.object.cover(&(0..record.object.object_len()));
        cover.is_some_and(|cover| self.read_slices(location, &record.object, &cover).is_ok())
    }
}
