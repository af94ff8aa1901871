//! The verbs that put, get, look for and remove objects.

use std::fs::File;
use std::future::Future;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use bytes::Bytes;
use mc_cli::visible;
use mc_meta::ObjectsLeft;
use mc_store::{Client, PutOutcome, ReplicateConfig, SoftPinAction};
use mc_types::{ByteSize, ErrorCode, KeyRef};

use crate::args;
use crate::error::CtlError;
use crate::progress;
use crate::removal;
use crate::text::print;

pub(crate) async fn put(client: &Client, put: &args::Put) -> Result<ExitCode, CtlError> {
    let failed = |source| CtlError::Put { key: put.key.clone(), source };
    let work = async {
        let (value, config) = prepare(client, put).await?;
        let len = value.len() as u64;
        let outcome = client.put_with(&put.key, value, &config).await;
        outcome.map(|outcome| (outcome, len)).map_err(failed)
    };
    let (outcome, len) = sent(put, work).await?;
    match outcome {
        PutOutcome::Stored => tell_stored(client, put, len),
        PutOutcome::Existing if put.quiet => Ok(ExitCode::SUCCESS),
        PutOutcome::Existing => {
            let key = visible(&put.key);
            print(format!("{key} already exists; value unchanged\n").as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        PutOutcome::Pending => Err(CtlError::PutPending { key: put.key.clone() }),
    }
}

pub(crate) async fn upsert(client: &Client, put: &args::Put) -> Result<ExitCode, CtlError> {
    let failed = |source| CtlError::Put { key: put.key.clone(), source };
    let work = async {
        let (value, config) = prepare(client, put).await?;
        let len = value.len() as u64;
        let stored = client.upsert_with(&put.key, value, &config).await;
        stored.map(|_| ((), len)).map_err(failed)
    };
    let ((), len) = sent(put, work).await?;
    tell_stored(client, put, len)
}

/// Waits for a value to be read and stored; a file's shows that it is on its way.
async fn sent<T>(
    put: &args::Put,
    work: impl Future<Output = Result<(T, u64), CtlError>>,
) -> Result<(T, u64), CtlError> {
    let what = format!("putting {}", visible(&put.key));
    let len = |done: &Result<(T, u64), _>| done.as_ref().ok().map(|(_, len)| *len);
    progress::shown(&what, put.quiet || put.file.is_none(), work, len).await
}

fn tell_stored(client: &Client, put: &args::Put, len: u64) -> Result<ExitCode, CtlError> {
    if !put.quiet {
        let size = ByteSize::bytes(len);
        print(format!("stored {} ({size})\n", visible(&put.key)).as_bytes())?;
    }
    warn_of_few_replicas(client, put);
    Ok(ExitCode::SUCCESS)
}

fn warn_of_few_replicas(client: &Client, put: &args::Put) {
    if client.metrics().reports.few_replicas > 0 {
        eprintln!(
            "warning: {} has fewer than {} replicas: no other segment has room; mount more, or \
             remove something",
            visible(&put.key),
            put.replica_num
        );
    }
}

/// The value to put, and how.
async fn prepare(client: &Client, put: &args::Put) -> Result<(Bytes, ReplicateConfig), CtlError> {
    // Before anything is read: a bad key makes reading pointless.
    KeyRef::new(&put.key)
        .map_err(|source| CtlError::Put { key: put.key.clone(), source: source.into() })?;
    let value = read_value(client, put).await?;
    let mut config = ReplicateConfig::default().replicas(put.replica_num);
    config.with_hard_pin = put.with_hard_pin;
    config.soft_pin = match (put.with_soft_pin, put.soft_pin_ttl) {
        (false, None) => SoftPinAction::Preserve,
        (_, ttl) => SoftPinAction::Enable { ttl },
    };
    config.medium = put.medium;
    config.preferred_segments =
        put.preferred_segments.iter().map(|name| name.as_str().into()).collect();
    Ok((value, config))
}

/// The most bytes read of a value when the caller may not see the segments.
const LARGEST_UNSEEN: u64 = 64 << 30;

/// The value to put. What comes from a file or a pipe is read up to the size of
/// the largest segment and no further, because more can never be stored.
async fn read_value(client: &Client, put: &args::Put) -> Result<Bytes, CtlError> {
    if let Some(value) = &put.value {
        return Ok(Bytes::copy_from_slice(value.as_bytes()));
    }
    let largest = match client.cluster_report().await {
        Ok(report) => report.segments.iter().map(|segment| segment.size).max(),
        // Writers see their own objects only.
        Err(error) if error.code() == ErrorCode::PermissionDenied => Some(LARGEST_UNSEEN),
        Err(error) => return Err(error.into()),
    };
    let largest = largest.ok_or(CtlError::NoSegment)?;
    let value = match &put.file {
        Some(path) => {
            let read = {
                let path = path.clone();
                blocking(move || read_up_to(File::open(path)?, largest)).await
            };
            read.map_err(|source| CtlError::ReadFile { path: path.clone(), source })?
        }
        None => read_up_to(io::stdin().lock(), largest).map_err(CtlError::ReadInput)?,
    };
    value.ok_or(CtlError::TooLarge { largest: ByteSize::bytes(largest) })
}

/// Has a thread of its own do what blocks.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// All of `source`; `None` when it has more than `most` bytes.
fn read_up_to(source: impl Read, most: u64) -> io::Result<Option<Bytes>> {
    let mut value = Vec::new();
    source.take(most.saturating_add(1)).read_to_end(&mut value)?;
    Ok((value.len() as u64 <= most).then(|| value.into()))
}

pub(crate) async fn get(client: &Client, get: &args::Get) -> Result<ExitCode, CtlError> {
    let work = async {
        let value = client.get(&get.key).await;
        let value = value.map_err(|source| CtlError::Get { key: get.key.clone(), source })?;
        let len = value.len() as u64;
        match &get.output {
            Some(path) => {
                let written = {
                    let path = path.clone();
                    blocking(move || write_whole(&path, &value)).await
                };
                written.map_err(|source| CtlError::WriteFile { path: path.clone(), source })?;
            }
            None => print(&value)?,
        }
        Ok(len)
    };
    let what = format!("getting {}", visible(&get.key));
    let len = |done: &Result<u64, CtlError>| done.as_ref().ok().copied();
    progress::shown(&what, get.quiet || get.output.is_none(), work, len).await?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a file that has all of `value` or is not there: no half of one takes the place of what was
/// there before. What is no file, such as a pipe, is written as it is.
fn write_whole(path: &Path, value: &[u8]) -> io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return std::fs::write(path, value);
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let part = path.with_file_name(format!(".{name}.{}.part", std::process::id()));
    let written = File::create_new(&part).and_then(|mut file| {
        file.write_all(value)?;
        // Some systems find out only now that there is no room.
        file.sync_all()?;
        std::fs::rename(&part, path)
    });
    if written.is_err() {
        // That it is incomplete is what the caller learns.
        let _ = std::fs::remove_file(&part);
    }
    written
}

pub(crate) async fn exist(client: &Client, exist: &args::Exist) -> Result<ExitCode, CtlError> {
    let keys: Vec<&str> = exist.keys.iter().map(String::as_str).collect();
    let found = client.batch_exist(&keys).await?;
    let mut text = String::new();
    for (key, found) in keys.iter().zip(&found) {
        text += if *found { "yes  " } else { "no   " };
        text += &visible(key);
        text.push('\n');
    }
    print(text.as_bytes())?;
    Ok(if found.contains(&false) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

pub(crate) async fn remove(client: &Client, remove: &args::Remove) -> Result<ExitCode, CtlError> {
    let prefix = remove.prefix.as_deref().map(removal::pattern_of);
    if let Some(pattern) = remove.regex.as_ref().or(prefix.as_ref()) {
        return removal::remove_matching(client, pattern, remove.force).await;
    }
    let keys: Vec<&str> = remove.keys.iter().map(String::as_str).collect();
    let outcomes = client.batch_remove(&keys, remove.force).await?;
    let mut text = String::new();
    let mut failures = Vec::new();
    for (key, outcome) in keys.iter().zip(outcomes) {
        match outcome {
            Ok(()) => text += &format!("removed {}\n", visible(key)),
            Err(refusal) => failures.push(format!("{key:?}: {refusal}")),
        }
    }
    print(text.as_bytes())?;
    if failures.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let reasons = failures.join("; ");
    Err(CtlError::NotRemoved { failed: failures.len(), asked: keys.len(), reasons })
}

pub(crate) async fn remove_all(client: &Client, force: bool) -> Result<ExitCode, CtlError> {
    let done = client.remove_all_counted(force).await?;
    let mut text = format!("removed {} objects\n", done.removed);
    if let Some(left) = done.left {
        text += &what_is_left(left);
    }
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// A line about the objects that a removal left, each number with what removes them; empty when
/// there are none.
fn what_is_left(left: ObjectsLeft) -> String {
    let reasons = [
        (left.leased, "under lease (--force removes them, too)"),
        (left.in_transfer, "being copied or moved (try again when that is done)"),
        (left.unfinished, "being written (they end or expire by themselves)"),
    ];
    let all: u64 = reasons.iter().map(|(count, _)| count).sum();
    let told: Vec<String> = reasons
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, reason)| format!("{count} {reason}"))
        .collect();
    if told.is_empty() { String::new() } else { format!("left {all}: {}\n", told.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_with_its_reasons() {
        let left = ObjectsLeft { leased: 2, in_transfer: 0, unfinished: 1 };
        assert_eq!(
            what_is_left(left),
            "left 3: 2 under lease (--force removes them, too), \
             1 being written (they end or expire by themselves)\n"
        );
        assert_eq!(what_is_left(ObjectsLeft::default()), "");
    }

    #[test]
    fn a_file_is_written_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("value");
        let files = || std::fs::read_dir(directory.path()).unwrap().count();
        for value in [&b"first"[..], b"second, and longer", b""] {
            write_whole(&path, value).unwrap();
            assert_eq!((std::fs::read(&path).unwrap().as_slice(), files()), (value, 1));
        }
        // Always full.
        let full = write_whole(Path::new("/dev/full"), b"x").unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert!(write_whole(&directory.path().join("no/such"), b"x").is_err());
        write_whole(Path::new("/dev/null"), b"x").unwrap();
        assert_eq!(files(), 1);
    }

    #[test]
    fn sources_are_read_up_to_the_limit() {
        for (len, whole) in [(0, true), (9, true), (10, true), (11, false), (1 << 20, false)] {
            let read = read_up_to(io::repeat(7).take(len), 10).unwrap();
            assert_eq!(read.is_some(), whole, "{len}");
        }
        // A source without an end ends too.
        assert_eq!(read_up_to(io::repeat(7), 10).unwrap(), None);
    }
}
