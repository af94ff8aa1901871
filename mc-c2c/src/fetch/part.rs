//! The file that a download is written to before it has its name, and what is known of its parts.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::checksum::Sha256Sum;
use super::error::FetchError;

/// Bytes behind the data, which say how much of it is there.
const TRAILER: usize = 4096;
/// Digits of the checksum that a trailer begins with, and a space.
const SUM: usize = 65;
/// Spans of a plan that is read; no more are written.
pub(super) const MAX_SPANS: usize = 16;

/// A file that is being fetched, and the parts of it that are there.
pub(super) struct Plan {
    /// Its length, if the server said it.
    pub(super) total: Option<u64>,
    /// The validator, which changes when the file does.
    pub(super) validator: Option<String>,
    /// From its first byte to its last.
    pub(super) spans: Vec<Span>,
}

/// A part of the file that is fetched from its first byte to its last.
pub(super) struct Span {
    start: u64,
    next: AtomicU64,
    /// Behind its last byte.
    pub(super) end: u64,
}

impl Plan {
    /// A file of which nothing is there, in equal parts. A file whose length is not known has one.
    pub(super) fn new(total: Option<u64>, validator: Option<String>, parts: usize) -> Self {
        let end = total.unwrap_or(u64::MAX);
        let parts = parts.clamp(1, MAX_SPANS) as u64;
        let bound = |part| (u128::from(end) * u128::from(part) / u128::from(parts)) as u64;
        let spans = (0..parts).map(|part| Span {
            start: bound(part),
            next: AtomicU64::new(bound(part)),
            end: bound(part + 1),
        });
        Self { total, validator, spans: spans.collect() }
    }

    /// Bytes that are there.
    pub(super) fn done(&self) -> u64 {
        self.spans.iter().map(|span| span.next() - span.start).sum()
    }

    /// The parts that are not complete.
    pub(super) fn open(&self) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.next() < span.end).collect()
    }

    /// Returns whether another request can go on where this one ended.
    pub(super) const fn is_resumable(&self) -> bool {
        self.total.is_some() && self.validator.is_some()
    }

    fn to_json(&self) -> Value {
        let spans = self.spans.iter().map(|span| [span.start, span.next(), span.end]);
        let spans: Vec<[u64; 3]> = spans.collect();
        json!({ "total": self.total, "validator": self.validator, "spans": spans })
    }

    /// Reads what [`to_json`](Self::to_json) wrote, if the spans are those of `total` bytes.
    fn from_json(value: &Value, total: u64) -> Option<Self> {
        let validator = value["validator"].as_str()?.to_owned();
        let listed = value["spans"].as_array().filter(|listed| listed.len() <= MAX_SPANS)?;
        let (mut at, mut spans) = (0, Vec::new());
        for span in listed {
            let [start, next, end] = [0, 1, 2].map(|index| span[index].as_u64());
            let (start, next, end) = (start?, next?, end?);
            if start != at || !(start..=end).contains(&next) {
                return None;
            }
            at = end;
            spans.push(Span { start, next: AtomicU64::new(next), end });
        }
        let is_whole = at == total && value["total"].as_u64() == Some(total);
        is_whole.then_some(Self { total: Some(total), validator: Some(validator), spans })
    }
}

impl Span {
    /// The first byte that is not there.
    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Bytes behind the last ones were written.
    pub(super) fn advance(&self, bytes: usize) {
        self.next.fetch_add(bytes as u64, Ordering::Release);
    }
}

/// The file of a download that is not complete, locked: others that want the same file wait.
pub(super) struct Part {
    path: PathBuf,
    file: File,
}

impl Part {
    /// Opens or creates the file and waits until no other call has it.
    pub(super) fn lock(path: PathBuf) -> Result<Self, FetchError> {
        loop {
            let failed = FetchError::io(&path);
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false);
            let file = file.open(&path).map_err(&failed)?;
            while let Err(error) = file.lock() {
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(failed(error));
                }
            }
            // Who had it before may have renamed or removed it.
            let ours = file.metadata().map_err(&failed)?;
            match fs::metadata(&path) {
                Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
                    drop(failed);
                    return Ok(Self { path, file });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Returns the part that is there of a file of at most `limit` bytes, if a download can go on
    /// with it.
    pub(super) fn saved(&self, limit: u64) -> Option<Plan> {
        let total = self.file.metadata().ok()?.len().checked_sub(TRAILER as u64)?;
        let mut trailer = [0; TRAILER];
        self.file.read_exact_at(&mut trailer, total).ok()?;
        let (sum, json) = trailer.split_at(SUM);
        let sum: Sha256Sum = std::str::from_utf8(sum).ok()?.trim_end().parse().ok()?;
        let is_sound = total <= limit && Sha256Sum::of(json) == sum;
        Plan::from_json(&serde_json::from_slice(is_sound.then_some(json)?).ok()?, total)
    }

    /// Writes down what is there, so that a later download can continue it. The bytes are on the
    /// disk before the plan says so.
    pub(super) fn save(&self, plan: &Plan) -> Result<(), FetchError> {
        let Some(total) = plan.total.filter(|_| plan.is_resumable()) else { return Ok(()) };
        let json = format!("{:<width$}", plan.to_json().to_string(), width = TRAILER - SUM);
        if json.len() > TRAILER - SUM {
            return Ok(());
        }
        let trailer = format!("{} {json}", Sha256Sum::of(json.as_bytes()));
        let write = || {
            self.file.sync_data()?;
            self.file.write_all_at(trailer.as_bytes(), total)
        };
        write().map_err(FetchError::io(&self.path))
    }

    pub(super) fn write(&self, bytes: &[u8], at: u64) -> Result<(), FetchError> {
        self.file.write_all_at(bytes, at).map_err(FetchError::io(&self.path))
    }

    /// Cuts off what is behind the first `len` bytes.
    pub(super) fn truncate(&self, len: u64) -> Result<(), FetchError> {
        self.file.set_len(len).map_err(FetchError::io(&self.path))
    }

    /// Calls `check` with the file, at its beginning.
    pub(super) fn check(
        &self,
        check: impl FnOnce(&File) -> Result<(), FetchError>,
    ) -> Result<(), FetchError> {
        (&self.file).rewind().map_err(FetchError::io(&self.path))?;
        check(&self.file)
    }

    /// Gives the complete file its name. It is on the disk then.
    pub(super) fn publish(self, name: &Path) -> Result<(), FetchError> {
        let publish = || {
            self.file.sync_all()?;
            fs::rename(&self.path, name)?;
            // The name is part of the directory.
            name.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
        };
        publish().map_err(FetchError::io(name))
    }

    /// Removes the file.
    pub(super) fn remove(self) {
        // What stays is cleared by the next download.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_as_it_was_saved() {
        let dir = tempfile::tempdir().unwrap();
        let part = Part::lock(dir.path().join("x.part")).unwrap();
        assert!(part.saved(u64::MAX).is_none());
        let plan = Plan::new(Some(1001), Some("\"tag\"".into()), 4);
        let bounds: Vec<_> = plan.spans.iter().map(|span| (span.start, span.end)).collect();
        assert_eq!(bounds, [(0, 250), (250, 500), (500, 750), (750, 1001)]);
        plan.spans[1].advance(100);
        plan.spans[3].advance(251);
        part.save(&plan).unwrap();

        let read = part.saved(1001).unwrap();
        assert_eq!((read.to_json(), read.done()), (plan.to_json(), 351));
        assert_eq!(read.open().len(), 3);
        assert!(part.saved(1000).is_none(), "it is longer than allowed");

        // Damaged anywhere, it is none.
        for at in [1001, 1001 + SUM as u64 + 20, 1001 + TRAILER as u64 - 1] {
            part.write(b"~", at).unwrap();
            assert!(part.saved(1001).is_none(), "{at}");
            part.save(&plan).unwrap();
        }
        part.truncate(1001).unwrap();
        assert!(part.saved(1001).is_none());
    }

    #[test]
    fn spans_with_gaps_are_no_plan() {
        let plan = |spans: Value| {
            let value = json!({ "total": 10, "validator": "\"x\"", "spans": spans });
            Plan::from_json(&value, 10).is_some()
        };
        assert!(plan(json!([[0, 3, 5], [5, 5, 10]])));
        for bad in [
            json!([]),
            json!(7),
            json!([[0, 3]]),
            json!([[0, 3, 5]]),
            json!([[0, 3, 5], [6, 6, 10]]),
            json!([[0, 6, 5], [5, 5, 10]]),
            json!([[0, 11, 10]]),
            json!([[0, 3, 11]]),
            json!([[-1, 3, 10]]),
        ] {
            assert!(!plan(bad.clone()), "{bad}");
        }
    }
}
