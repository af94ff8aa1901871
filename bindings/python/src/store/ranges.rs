//! Reading parts of many values into parts of many pieces of memory.

use mc_store::GetInto;
use pyo3::prelude::*;

use super::arguments::{Items, Size, Texts};
use super::session::Session;
use super::{NOT_SET_UP, Store};
use crate::error::{Failure, count_of};
use crate::interrupt::detached;
use crate::memory::copy_out;

/// What is read of one value into one buffer.
struct Wanted<'a> {
    key: &'a str,
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

/// One number for each part, of each key, of each buffer.
type Answer = Vec<Vec<Vec<i64>>>;

#[pymethods]
impl Store {
    /// get_into_ranges(self, buffer_ptrs: list[int], all_keys: list[list[str]], all_dst_offsets: list[list[list[int]]], all_src_offsets: list[list[list[int]]], all_sizes: list[list[list[int]]]) -> list[list[list[int]]]
    ///
    /// Reads ranges of values: for each buffer, of each of its keys, for each of its ranges, the
    /// size bytes from the source offset of the value to the destination offset of the buffer.
    /// Returns, in the same shape, how many bytes were read, or a negative number: -600 for a
    /// range that leaves the value, and for memory that cannot be written. A key whose lists
    /// are not equally long has one number.
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
            let wanted = keys
                .map(|(nth, key)| Wanted { key, parts: parts(lists.map(|list| &*list[at][nth])) });
            (address, wanted.collect())
        });
        let buffers: Vec<_> = buffers.collect();
        detached(py, || session.read_ranges(&buffers))
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
        let (mut direct, mut direct_at) = (Vec::new(), Vec::new());
        let mut staged = Vec::new();
        let look = self.buffers.look();
        for (buffer, (address, keys)) in buffers.iter().enumerate() {
            for (nth, Wanted { key, parts }) in keys.iter().enumerate() {
                for (at, part) in parts.iter().flatten().enumerate() {
                    let place = (buffer, nth, at);
                    let Some(target) = address.checked_add(part.to) else { continue };
                    if part.len == 0 {
                        answers[buffer][nth][at] = 0;
                    } else if let Some(slice) = self.target(&look, target, part.len) {
                        direct.push(GetInto::new(key, slice).range(range(part)));
                        direct_at.push((place, part.len));
                    } else {
                        staged.push((place, *key, target, part));
                    }
                }
            }
        }
        drop(look);
        if !direct.is_empty() {
            let lengths = self.backend.batch_get_into(direct);
            for (((buffer, nth, at), wanted), length) in direct_at.into_iter().zip(lengths) {
                answers[buffer][nth][at] = count_of(length.and_then(|len| whole(len, wanted)));
            }
        }
        for ((buffer, nth, at), key, target, part) in staged {
            let read = self.backend.get_range(key, range(part)).and_then(|bytes| {
                let len = whole(bytes.len() as u64, part.len)?;
                copy_out(&bytes, target)?;
                Ok(len)
            });
            answers[buffer][nth][at] = count_of(read);
        }
        answers
    }
}

fn range(part: &Part) -> std::ops::Range<u64> {
    let from = part.from as u64;
    from..from.saturating_add(part.len as u64)
}

/// Refuses a range that the value has only a part of.
fn whole(len: u64, wanted: usize) -> Result<u64, Failure> {
    if len == wanted as u64 { Ok(len) } else { Err(Failure::INVALID_PARAMS) }
}
