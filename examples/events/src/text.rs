//! The program's output.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};

use mc_events::subscribe::Index;
use mc_events::{Medium, Replica};

use crate::IndexError;

pub(crate) fn print(text: &str) -> Result<(), IndexError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(IndexError::WriteOutput(error))
        }
        _ => Ok(()),
    }
}

/// Replicas in an order that does not depend on the publisher's.
pub(crate) fn replicas(replicas: &[Replica]) -> String {
    let mut texts: Vec<String> = replicas.iter().map(replica).collect();
    texts.sort_unstable();
    texts.join(" ")
}

fn replica(replica: &Replica) -> String {
    let kind = match replica.medium {
        Medium::Memory => "memory",
        Medium::SharedFile => "disk",
        Medium::LocalDisk => "local_disk",
        _ => "other",
    };
    match &*replica.location {
        "" => kind.into(),
        location => format!("{kind}={}", location.escape_debug()),
    }
}

/// A line for each object: the key and its replicas.
pub(crate) fn all(index: &Index) -> String {
    let line =
        |(key, held): (&str, &[Replica])| format!("{}\t{}\n", key.escape_debug(), replicas(held));
    let mut lines: Vec<String> = index.iter().map(line).collect();
    lines.sort_unstable();
    lines.concat()
}

/// One line. Two indexes with the same objects and replicas have the same digest.
pub(crate) fn summary(index: &Index, next: u64) -> String {
    let (mut count, mut digest) = (0, 0);
    for (key, held) in index.iter() {
        count += held.len();
        let mut hasher = DefaultHasher::new();
        (key, replicas(held)).hash(&mut hasher);
        digest ^= hasher.finish();
    }
    let objects = index.len();
    format!("{objects} objects, {count} replicas, next message {next}, digest {digest:016x}\n")
}
