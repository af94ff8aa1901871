//! Reading what memory does not have: files on the shared tier.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::join_all;
use mc_meta::Slices;
use mc_rpc::ReplicaList;
use mc_tier::{ObjectId, Tier, TierError};
use mc_types::KeyRef;
use tokio::time::Instant;

use super::{Object, Read};
use crate::client::checksums::{Pieces, prefix, scatter};
use crate::client::core::Core;
use crate::error::GetError;

/// A part of an object and the memory that it is read into.
struct Wanted {
    part: usize,
    range: Range<u64>,
    target: Pieces,
}

/// Why nothing was read from a file.
enum Failure {
    /// The file is missing or damaged: it is of no use any more.
    Useless(Option<TierError>),
    Tier(TierError),
    Target,
}

impl Core {
    /// Returns whether the client can read the object from a file.
    pub(super) fn has_file(&self, list: &ReplicaList) -> bool {
        let shared = self.shared_tier.as_ref();
        list.disk.is_some() && shared.is_some_and(|shared| shared.tier().is_some())
    }

    /// Reads from files the parts that no replica in memory gave.
    pub(super) async fn read_files(&self, reads: &mut [Read], objects: &[Object<'_>]) {
        let is_open = |read: &&mut Read| {
            !read.lost && read.parts.iter().any(|part| !part.verified) && self.has_file(&read.list)
        };
        let reads = reads.iter_mut().filter(is_open);
        join_all(reads.map(|read| self.read_file(objects[read.object].key, read))).await;
    }

    async fn read_file(&self, key: KeyRef<'_>, read: &mut Read) {
        let Some(shared) = &self.shared_tier else { return };
        let generation = read.list.generation;
        let (Some(tier), Ok(id)) = (shared.tier().cloned(), shared.id(key, generation)) else {
            return;
        };
        let open = read.parts.iter().enumerate().filter(|(_, part)| !part.verified);
        let wanted: Vec<Wanted> = open
            .map(|(at, part)| Wanted {
                part: at,
                range: part.wanted(),
                target: part.target().iter().cloned().collect(),
            })
            .collect();
        let slices = read.list.slices.clone();
        let _place = shared.reader().await;
        let begun = Instant::now();
        let reading = self.settings.environment.blocking(move || {
            let outcome = read_from(&*tier, &id, &slices, &wanted);
            (wanted, outcome)
        });
        let Some(Ok((wanted, outcome))) = reading.await else { return };
        let bytes = wanted.iter().map(|wanted| wanted.range.end - wanted.range.start).sum();
        shared.counters.read(
            begun.elapsed(),
            match &outcome {
                Ok(()) => Ok(Some(bytes)),
                Err(Failure::Useless(None)) => Ok(None),
                Err(_) => Err(()),
            },
        );
        let failure = match outcome {
            Ok(()) => {
                wanted.iter().for_each(|wanted| read.parts[wanted.part].verified = true);
                return;
            }
            Err(Failure::Useless(error)) => {
                self.reports.damaged_file(key, generation);
                match error {
                    Some(error) => GetError::File(Arc::new(error)),
                    None => GetError::NotFound,
                }
            }
            Err(Failure::Tier(error)) => GetError::File(Arc::new(error)),
            Err(Failure::Target) => GetError::TargetReadOnly,
        };
        for wanted in wanted {
            let part = &mut read.parts[wanted.part];
            // A failure in memory says more.
            part.failure.get_or_insert_with(|| failure.clone());
        }
    }
}

/// Reads the wanted ranges of an object of these slices.
fn read_from(
    tier: &dyn Tier,
    id: &ObjectId,
    slices: &Slices,
    wanted: &[Wanted],
) -> Result<(), Failure> {
    let len = slices.total_len();
    if let [only] = wanted
        && only.range != (0..len)
        && !only.range.is_empty()
    {
        let bytes = tier.get_range(id, only.range.clone()).map_err(of_tier)?;
        let bytes = bytes.ok_or(Failure::Useless(None))?;
        return scatter(&bytes, &only.target).map_err(|_| Failure::Target);
    }
    let object = tier.get(id).map_err(of_tier)?.ok_or(Failure::Useless(None))?;
    let expected = slices.as_slice();
    let found = object.slices();
    let is_same = expected.len() == found.len()
        && expected.iter().zip(found).all(|(expected, found)| {
            let info = found.info();
            expected.len == info.len && expected.checksum.is_none_or(|sum| sum == info.checksum)
        });
    if !is_same {
        return Err(Failure::Useless(None));
    }
    for Wanted { range, target, .. } in wanted {
        let mut at = 0;
        let mut filled = 0;
        for slice in found {
            let here = at..at + slice.bytes().len() as u64;
            at = here.end;
            let (start, end) = (here.start.max(range.start), here.end.min(range.end));
            if start >= end {
                continue;
            }
            // Within bytes that are in memory.
            let part = (start - here.start) as usize..(end - here.start) as usize;
            let rest = behind(target, filled);
            let pieces = prefix(&rest, end - start).ok_or(Failure::Target)?;
            scatter(&slice.bytes()[part], &pieces).map_err(|_| Failure::Target)?;
            filled += end - start;
        }
    }
    Ok(())
}

fn of_tier(error: TierError) -> Failure {
    match error {
        TierError::Damaged { .. } => Failure::Useless(Some(error)),
        error => Failure::Tier(error),
    }
}

/// The pieces without their first `len` bytes.
fn behind(pieces: &Pieces, mut len: u64) -> Pieces {
    let mut rest = Pieces::new();
    for piece in pieces {
        let skipped = len.min(piece.len() as u64);
        len -= skipped;
        rest.extend(piece.part(skipped as usize, piece.len() - skipped as usize));
    }
    rest
}
