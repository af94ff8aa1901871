//! Reading parts of many values into parts of many pieces of memory.
//!
//! All parts of one value that a call reads are of one put.

use std::collections::HashMap;
use std::ops::Range;

use mc_store::{Generation, GetInto};
use mc_transport::MemorySlice;
use pyo3::prelude::*;

use super::arguments::{Items, Size, Texts};
use super::session::Session;
use super::{NOT_SET_UP, Store};
use crate::error::{Failure, count_of};
use crate::interrupt::detached;
use crate::memory::copy_out;

/// How often a value that is replaced while several calls read it is read anew.
const ATTEMPTS: u32 = 3;

/// What is read of one value into one buffer.
struct Wanted<'a> {
    key: &'a str,
    /// The only put that it may be of.
    generation: Option<Generation>,
    /// Where each part goes in the buffer, where it begins in the value, and its length; `None`
    /// when there are not as many of each.
    parts: Option<Vec<Part>>,
}

#[derive(Clone, Copy)]
struct Part {
    to: usize,
    from: usize,
    len: usize,
}

/// A part on its way.
struct Piece<'a> {
    /// Which buffer, which of its keys, and which part of that.
    place: (usize, usize, usize),
    key: &'a str,
    generation: Option<Generation>,
    part: Part,
    /// Where it goes.
    address: usize,
    /// The same, if it can go straight there.
    target: Option<MemorySlice>,
}

/// One number for each part, of each key, of each buffer.
type Answer = Vec<Vec<Vec<i64>>>;

#[pymethods]
impl Store {
    /// get_into_ranges(self, buffer_ptrs: list[int], all_keys: list[list[str]], all_dst_offsets:
    /// list[list[list[int]]], all_src_offsets: list[list[list[int]]], all_sizes:
    /// list[list[list[int]]]) -> list[list[list[int]]]
    ///
    /// Reads ranges of values: for each buffer, of each of its keys, for each of its ranges, the
    /// size bytes from the source offset of the value to the destination offset of the buffer.
    /// Returns, in the same shape, how many bytes were read, or a negative number: -600 for a
    /// range that leaves the value, for one that leaves a registered buffer, and for memory
    /// that cannot be written. A key whose lists
    /// are not equally long has one number. All ranges of one key are of one put.
    fn get_into_ranges(
        &self,
        py: Python<'_>,
        buffer_ptrs: Items<Size>,
        all_keys: Items<Texts>,
        all_dst_offsets: Items<Items<Items<Size>>>,
        all_src_offsets: Items<Items<Items<Size>>>,
        all_sizes: Items<Items<Items<Size>>>,
    ) -> PyResult<Answer> {
        let refused = |failure: Failure| {
            let code = i64::from(failure.code());
            all_keys.iter().map(|keys| vec![vec![code]; keys.len()]).collect()
        };
        let Some(session) = self.session()? else { return Ok(refused(NOT_SET_UP)) };
        let lists = [&all_dst_offsets, &all_src_offsets, &all_sizes];
        let alike = |list: &&Items<Items<Items<Size>>>| {
            let keys = list.iter().zip(all_keys.iter());
            list.len() == all_keys.len() && { keys }.all(|(list, keys)| list.len() == keys.len())
        };
        if buffer_ptrs.len() != all_keys.len() || !lists.iter().all(alike) {
            return Ok(refused(Failure::INVALID_PARAMS));
        }
        let buffers = buffer_ptrs.iter().enumerate().map(|(at, &Size(address))| {
            let keys = all_keys[at].as_strs().into_iter().enumerate();
            let wanted = keys.map(|(nth, key)| {
                let parts = parts(lists.map(|list| &*list[at][nth]));
                Wanted { key, generation: None, parts }
            });
            (address, wanted.collect())
        });
        let buffers: Vec<_> = buffers.collect();
        detached(py, || session.read_ranges(&buffers))
    }

    /// _get_ranges_of(self, keys: list[str], generations: list[int], all_buffer_ptrs:
    /// list[list[int]], all_src_offsets: list[list[int]], all_sizes: list[list[int]]) ->
    /// list[list[int]]
    ///
    /// Reads ranges of values as get_into_ranges, each to an address of its own, and only of
    /// these puts, as _batch_stat tells them: -707 for a range of a value that another put has
    /// replaced.
    #[pyo3(name = "_get_ranges_of")]
    fn get_ranges_of(
        &self,
        py: Python<'_>,
        keys: Texts,
        generations: Items<u64>,
        all_buffer_ptrs: Items<Items<Size>>,
        all_src_offsets: Items<Items<Size>>,
        all_sizes: Items<Items<Size>>,
    ) -> PyResult<Vec<Vec<i64>>> {
        let refused = |failure: Failure| vec![vec![failure.code().into()]; keys.len()];
        let Some(session) = self.session()? else { return Ok(refused(NOT_SET_UP)) };
        let lists = [&all_buffer_ptrs, &all_src_offsets, &all_sizes];
        if generations.len() != keys.len() || lists.iter().any(|list| list.len() != keys.len()) {
            return Ok(refused(Failure::INVALID_PARAMS));
        }
        let named = keys.as_strs().into_iter().zip(&*generations).enumerate();
        let wanted = named.map(|(nth, (key, &number))| {
            let parts = parts(lists.map(|list| &*list[nth]));
            Wanted { key, generation: Some(Generation::new(number)), parts }
        });
        // The addresses are those of one buffer that is all memory.
        let buffers = [(0, wanted.collect())];
        let answer = detached(py, || session.read_ranges(&buffers))?;
        Ok(answer.into_iter().flatten().collect())
    }
}

fn parts([to, from, len]: [&[Size]; 3]) -> Option<Vec<Part>> {
    let together = to.len() == from.len() && from.len() == len.len();
    let all = to.iter().zip(from).zip(len);
    let part =
        |((to, from), len): ((&Size, &Size), &Size)| Part { to: to.0, from: from.0, len: len.0 };
    together.then(|| all.map(part).collect())
}

impl Session {
    fn read_ranges(&self, buffers: &[(usize, Vec<Wanted<'_>>)]) -> Answer {
        let refused = i64::from(Failure::INVALID_PARAMS.code());
        let answer = |wanted: &Wanted<'_>| match &wanted.parts {
            Some(parts) => vec![refused; parts.len()],
            None => vec![refused],
        };
        let mut answers: Answer =
            buffers.iter().map(|(_, keys)| keys.iter().map(answer).collect()).collect();
        let pieces = self.pieces(buffers, &mut answers);
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

    /// Everything that there is to read; what has no bytes is answered at once.
    fn pieces<'a>(
        &self,
        buffers: &[(usize, Vec<Wanted<'a>>)],
        answers: &mut Answer,
    ) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let look = self.buffers.look();
        for (buffer, (start, keys)) in buffers.iter().enumerate() {
            for (nth, &Wanted { key, generation, ref parts }) in keys.iter().enumerate() {
                for (at, &part) in parts.iter().flatten().enumerate() {
                    let Some(address) = start.checked_add(part.to) else { continue };
                    if part.len == 0 {
                        answers[buffer][nth][at] = 0;
                        continue;
                    }
                    // The buffer has no length of its own but that of its registration.
                    let end = address.saturating_add(part.len);
                    if look.end(*start).is_some_and(|registered| end > registered) {
                        continue;
                    }
                    let Ok(target) = self.target(&look, address, part.len) else { continue };
                    let place = (buffer, nth, at);
                    pieces.push(Piece { place, key, generation, part, address, target });
                }
            }
        }
        pieces
    }

    /// Reads in one call, whose pieces of one key are of one put: of `put`, unless they name
    /// one themselves. Passes over those that are not read straight to where they go.
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

    /// Reads pieces of one value, some of them by way of a copy, in as many calls as that
    /// takes; anew when the value is replaced meanwhile, unless one put is wanted.
    fn read_by_copy(
        &self,
        key: &str,
        generation: Option<Generation>,
        pieces: &[&Piece<'_>],
    ) -> Vec<Result<u64, Failure>> {
        let mut attempt = 1;
        loop {
            let put = match generation {
                // What one call reads is of one put anyway.
                None if pieces.len() > 1 => match self.backend.stat(key) {
                    Ok(found) => Some(found.generation),
                    Err(failure) => return vec![Err(failure); pieces.len()],
                },
                named => named,
            };
            let mut direct = self.read_direct(pieces, put).into_iter();
            let read = |piece: &&Piece<'_>| match piece.target {
                Some(_) => direct.next().unwrap_or(Err(Failure::INTERNAL)),
                None => {
                    let bytes = self.backend.get_range(key, put, piece.part.range())?;
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

    /// Refuses a range that the value has only a part of.
    fn whole(self, len: u64) -> Result<u64, Failure> {
        if len == self.len as u64 { Ok(len) } else { Err(Failure::INVALID_PARAMS) }
    }
}
