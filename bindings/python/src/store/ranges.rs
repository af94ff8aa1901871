//! Reads ranges of many values into ranges of many buffers.
//!
//! All ranges of one value that a call reads come from the same put.

use std::collections::HashMap;
use std::ops::Range;

use mc_store::{Generation, GetInto};
use mc_transport::MemorySlice;
use pyo3::prelude::*;

use super::Store;
use super::arguments::{Items, Size, Texts};
use super::session::Session;
use crate::error::{Failure, count_of};
use crate::interrupt::detached;
use crate::memory::copy_out;

/// The number of attempts to read ranges of one put, when the value is replaced meanwhile.
const ATTEMPTS: u32 = 3;

/// The ranges to read of one value into one buffer.
struct RangesRequest<'a> {
    key: &'a str,
    /// The only put that the ranges may come from, if any.
    generation: Option<Generation>,
    /// The ranges.
    parts: Result<Vec<Part>, Uneven>,
}

/// The lists of offsets and sizes differ in length; that of the longest.
#[derive(Clone, Copy)]
struct Uneven(usize);

/// The memory that ranges may be read into.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Destination {
    Registered,
    /// Other memory costs a copy.
    Any,
}

#[derive(Clone, Copy)]
struct Part {
    /// The offset in the buffer.
    to: usize,
    /// The offset in the value.
    from: usize,
    len: usize,
}

/// A range with its target.
struct Piece<'a> {
    /// The indices of the buffer, the key and the range.
    place: (usize, usize, usize),
    key: &'a str,
    generation: Option<Generation>,
    part: Part,
    /// The target's address.
    address: usize,
    /// The target, if the range can be read there directly.
    target: Option<MemorySlice>,
}

/// One number for each range, of each key, of each buffer.
type Counts = Vec<Vec<Vec<i64>>>;

#[pymethods]
impl Store {
    /// get_into_ranges(self, buffer_ptrs: list[int], all_keys: list[list[str]], all_dst_offsets:
    /// list[list[list[int]]], all_src_offsets: list[list[list[int]]], all_sizes:
    /// list[list[list[int]]]) -> list[list[list[int]]]
    ///
    /// Reads ranges of values. Each buffer has keys, and each key has ranges: a range is size bytes
    /// from the source offset in the value to the destination offset in the buffer. Returns, in
    /// the same shape, the number of bytes read, or a negative number: -600 for a range that
    /// exceeds the value, and for one whose memory is not registered or not all within one
    /// registered buffer, into which nothing is written. All ranges of a key come from the same put.
    fn get_into_ranges(
        &self,
        py: Python<'_>,
        buffer_ptrs: Items<Size>,
        all_keys: Items<Texts>,
        all_dst_offsets: Items<Items<Items<Size>>>,
        all_src_offsets: Items<Items<Items<Size>>>,
        all_sizes: Items<Items<Items<Size>>>,
    ) -> PyResult<Counts> {
        let lists = [&all_dst_offsets, &all_src_offsets, &all_sizes];
        let alike = |list: &&Items<Items<Items<Size>>>| {
            let keys = list.iter().zip(all_keys.iter());
            list.len() == all_keys.len() && { keys }.all(|(list, keys)| list.len() == keys.len())
        };
        let fits = buffer_ptrs.len() == all_keys.len() && lists.iter().all(alike);
        let Some(session) = self.session()?.filter(|_| fits) else {
            let refused = i64::from(Failure::INVALID_PARAMS.code());
            return Ok(all_keys.iter().map(|keys| vec![vec![refused]; keys.len()]).collect());
        };
        let buffers = buffer_ptrs.iter().enumerate().map(|(at, &Size(address))| {
            let keys = all_keys[at].as_strs().into_iter().enumerate();
            let wanted = keys.map(|(nth, key)| {
                let parts = parts(lists.map(|list| &*list[at][nth]));
                RangesRequest { key, generation: None, parts }
            });
            (address, wanted.collect())
        });
        let buffers: Vec<_> = buffers.collect();
        detached(py, || session.read_ranges(&buffers, Destination::Registered))
    }

    /// _get_ranges_of(self, keys: list[str], generations: list[int] | None, all_buffer_ptrs:
    /// list[list[int]], all_src_offsets: list[list[int]], all_sizes: list[list[int]]) ->
    /// list[list[int]]
    ///
    /// Reads ranges of values as get_into_ranges, each to its own address, whose memory costs a copy
    /// if it is not registered. With generations, which _batch_stat returns, only from these puts:
    /// -707 for a range of a value that another put has replaced.
    #[pyo3(name = "_get_ranges_of")]
    fn get_ranges_of(
        &self,
        py: Python<'_>,
        keys: Texts,
        generations: Option<Items<u64>>,
        all_buffer_ptrs: Items<Items<Size>>,
        all_src_offsets: Items<Items<Size>>,
        all_sizes: Items<Items<Size>>,
    ) -> PyResult<Vec<Vec<i64>>> {
        let lists = [&all_buffer_ptrs, &all_src_offsets, &all_sizes];
        let names_puts = generations.as_ref().is_none_or(|numbers| numbers.len() == keys.len());
        let fits = names_puts && lists.iter().all(|list| list.len() == keys.len());
        let Some(session) = self.session()?.filter(|_| fits) else {
            return Ok(vec![vec![Failure::INVALID_PARAMS.code().into()]; keys.len()]);
        };
        let wanted = keys.as_strs().into_iter().enumerate().map(|(nth, key)| {
            let parts = parts(lists.map(|list| &*list[nth]));
            let generation = generations.as_ref().map(|numbers| Generation::new(numbers[nth]));
            RangesRequest { key, generation, parts }
        });
        // One buffer at address 0: the destination offsets are the addresses.
        let buffers = [(0, wanted.collect())];
        let answer = detached(py, || session.read_ranges(&buffers, Destination::Any))?;
        Ok(answer.into_iter().flatten().collect())
    }
}

fn parts([to, from, len]: [&[Size]; 3]) -> Result<Vec<Part>, Uneven> {
    let together = to.len() == from.len() && from.len() == len.len();
    let all = to.iter().zip(from).zip(len);
    let part =
        |((to, from), len): ((&Size, &Size), &Size)| Part { to: to.0, from: from.0, len: len.0 };
    match together {
        true => Ok(all.map(part).collect()),
        false => Err(Uneven(to.len().max(from.len()).max(len.len()))),
    }
}

impl Session {
    fn read_ranges(
        &self,
        buffers: &[(usize, Vec<RangesRequest<'_>>)],
        into: Destination,
    ) -> Counts {
        let refused = i64::from(Failure::INVALID_PARAMS.code());
        let answer = |wanted: &RangesRequest<'_>| match &wanted.parts {
            Ok(parts) => vec![refused; parts.len()],
            Err(Uneven(longest)) => vec![refused; *longest],
        };
        let mut answers: Counts =
            buffers.iter().map(|(_, keys)| keys.iter().map(answer).collect()).collect();
        let pieces = self.pieces(buffers, into, &mut answers);
        let mut copied: HashMap<_, Vec<&Piece<'_>>> = HashMap::new();
        for piece in pieces.iter().filter(|piece| piece.target.is_none()) {
            copied.entry((piece.key, piece.generation)).or_default();
        }
        let mut direct = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            copied.get_mut(&(piece.key, piece.generation)).unwrap_or(&mut direct).push(piece);
        }
        let mut answer = |pieces: Vec<&Piece<'_>>, lengths: Vec<Result<u64, Failure>>| {
            for (piece, length) in pieces.into_iter().zip(lengths) {
                let (buffer, nth, at) = piece.place;
                answers[buffer][nth][at] = count_of(length);
            }
        };
        let lengths = self.read_direct(&direct, None);
        answer(direct, lengths);
        for ((key, generation), pieces) in copied {
            let lengths = self.read_by_copy(key, generation, &pieces);
            answer(pieces, lengths);
        }
        answers
    }

    /// Returns the valid ranges with their targets; sets the count of empty ranges to 0.
    fn pieces<'a>(
        &self,
        buffers: &[(usize, Vec<RangesRequest<'a>>)],
        into: Destination,
        answers: &mut Counts,
    ) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let lookup = self.buffers.lookup();
        for (buffer, (start, keys)) in buffers.iter().enumerate() {
            for (nth, &RangesRequest { key, generation, ref parts }) in keys.iter().enumerate() {
                for (at, &part) in parts.iter().flatten().enumerate() {
                    let Some(address) = start.checked_add(part.to) else { continue };
                    if part.len == 0 {
                        answers[buffer][nth][at] = 0;
                        continue;
                    }
                    // The buffer's length is known only if it is registered.
                    let end = address.saturating_add(part.len);
                    if lookup.end(*start).is_some_and(|registered| end > registered) {
                        continue;
                    }
                    if into == Destination::Registered
                        && !self.is_registered(&lookup, address, part.len)
                    {
                        continue;
                    }
                    let Ok(target) = self.target(&lookup, address, part.len) else { continue };
                    let place = (buffer, nth, at);
                    pieces.push(Piece { place, key, generation, part, address, target });
                }
            }
        }
        pieces
    }

    /// Reads the pieces with a direct target in one call, from the put that a piece names, or else
    /// from `put`. Skips the other pieces.
    fn read_direct<'a>(
        &self,
        pieces: &[&Piece<'a>],
        put: Option<Generation>,
    ) -> Vec<Result<u64, Failure>> {
        let get = |piece: &&Piece<'a>| {
            let into = vec![piece.target.clone()?];
            let generation = piece.generation.or(put);
            Some(GetInto { key: piece.key, into, range: Some(piece.part.range()), generation })
        };
        let gets: Vec<_> = pieces.iter().filter_map(get).collect();
        if gets.is_empty() {
            return Vec::new();
        }
        let lengths = self.backend.batch_get_into(gets).into_iter();
        let wanted = pieces.iter().filter(|piece| piece.target.is_some());
        wanted.zip(lengths).map(|(piece, len)| len.and_then(|len| piece.part.whole(len))).collect()
    }

    /// Reads pieces of one value of which some need a copy, in several calls. Starts again when the
    /// value is replaced meanwhile, unless the pieces name their put.
    fn read_by_copy(
        &self,
        key: &str,
        generation: Option<Generation>,
        pieces: &[&Piece<'_>],
    ) -> Vec<Result<u64, Failure>> {
        let mut attempt = 1;
        loop {
            let put = match generation {
                // One call reads from one put anyway.
                None if pieces.len() > 1 => match self.backend.wait(|store| store.stat(key)) {
                    Ok(found) => Some(found.generation),
                    Err(failure) => return vec![Err(failure); pieces.len()],
                },
                named => named,
            };
            let mut direct = self.read_direct(pieces, put).into_iter();
            let read = |piece: &&Piece<'_>| match piece.target {
                Some(_) => direct.next().unwrap_or(Err(Failure::INTERNAL)),
                None => {
                    let range = piece.part.range();
                    let bytes = self.backend.wait(|store| store.get_range(key, range, put))?;
                    let len = piece.part.whole(bytes.len() as u64)?;
                    copy_out(&bytes, piece.address)?;
                    Ok(len)
                }
            };
            let lengths: Vec<_> = pieces.iter().map(read).collect();
            let is_replaced = lengths.contains(&Err(Failure::LEASE_EXPIRED));
            if !is_replaced || generation.is_some() || attempt == ATTEMPTS {
                return lengths;
            }
            attempt += 1;
        }
    }
}

impl Part {
    fn range(self) -> Range<u64> {
        let from = self.from as u64;
        from..from.saturating_add(self.len as u64)
    }

    /// Rejects a range that exceeds the value.
    fn whole(self, len: u64) -> Result<u64, Failure> {
        if len == self.len as u64 { Ok(len) } else { Err(Failure::INVALID_PARAMS) }
    }
}
