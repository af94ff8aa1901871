//! Gets: values as Python objects, and reads into memory by address.

use bytes::Bytes;
use mc_store::GetInto;
use mc_transport::MemorySlice;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::Store;
use super::arguments::{Items, Size, Texts, pair_up};
use super::backend::Backend;
use super::handle::{BufferHandle, bytes_object};
use super::in_place::BytesObjects;
use super::session::Session;
use crate::error::{Failure, count_of};
use crate::memory::{self, DeviceMemory, Lookup, check_mapped, copy_out};

/// Bytes of pinned memory that a get takes at a time.
const LONGEST_STAGED: usize = 64 << 20;

/// Reads the values of many keys, and removes them or not.
type ReadAll = fn(&Backend, &[&str]) -> Vec<Result<Bytes, Failure>>;

/// Makes pieces of memory of addresses and sizes; `None` if their numbers differ.
type ToPieces<T> = fn((T, T)) -> Option<Vec<(Size, Size)>>;

#[pymethods]
impl Store {
    /// get(self, key: str) -> bytes
    ///
    /// Returns the value of key; b"" when there is none, or it cannot be read.
    fn get<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyBytes>> {
        let objects = BytesObjects::new(1);
        let make = |at, len| objects.make(at, len);
        let value = self.with(py, |session| {
            session.check_handles_values()?;
            session.backend.wait(|store| store.get_made(key, &make))
        })?;
        objects.take(py, 0, value.unwrap_or_default())
    }

    /// get_batch(self, keys: list[str]) -> list[bytes]
    ///
    /// Returns get(key) for each key.
    fn get_batch<'py>(&self, py: Python<'py>, keys: Texts) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let objects = BytesObjects::new(keys.len());
        let values =
            self.with_each(py, &keys, |session, keys| match session.check_handles_values() {
                Ok(()) => session.backend.batch_get_made(keys, &|at, len| objects.make(at, len)),
                Err(refused) => vec![Err(refused); keys.len()],
            })?;
        let values = values.into_iter().enumerate();
        values.map(|(at, value)| objects.take(py, at, value.unwrap_or_default())).collect()
    }

    /// get_and_remove(self, key: str) -> bytes
    ///
    /// Returns the value of key and removes it: of several callers, one gets the value, the others
    /// b"". The value is removed when it has been read, also while others read it; b"" when there is
    /// none, or it cannot be read or removed.
    fn get_and_remove<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyBytes>> {
        let taken = self.with(py, |session| {
            session.check_handles_values()?;
            session.backend.wait(|store| store.get_and_remove(key))
        })?;
        bytes_object(py, &taken.unwrap_or_default())
    }

    /// batch_get_and_remove(self, keys: list[str]) -> list[bytes]
    ///
    /// Returns get_and_remove(key) for each key.
    fn batch_get_and_remove<'py>(
        &self,
        py: Python<'py>,
        keys: Texts,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        self.read_bytes(py, &keys, Backend::batch_get_and_remove)
    }

    /// get_buffer(self, key: str) -> BufferHandle | None
    ///
    /// Returns the value of key without a copy; None when there is none, or it cannot be read.
    fn get_buffer(&self, py: Python<'_>, key: &str) -> PyResult<Option<BufferHandle>> {
        Ok(self.with(py, |session| session.value_of(key))?.ok().map(BufferHandle::new))
    }

    /// batch_get_buffer(self, keys: list[str]) -> list[BufferHandle | None]
    ///
    /// Returns get_buffer(key) for each key.
    fn batch_get_buffer(&self, py: Python<'_>, keys: Texts) -> PyResult<Vec<Option<BufferHandle>>> {
        let values = self.read_all(py, &keys, Backend::batch_get)?;
        Ok(values.into_iter().map(|value| value.ok().map(BufferHandle::new)).collect())
    }

    /// get_into(self, key: str, buffer_ptr: int, size: int) -> int
    ///
    /// Reads the value of key into the size bytes at buffer_ptr: directly when they are
    /// registered, otherwise with a copy. Returns the value's length; -600 when it exceeds size,
    /// or the memory cannot be written; -704 when there is no value. After a failure the
    /// content of the memory is undefined.
    fn get_into(&self, py: Python<'_>, key: &str, buffer_ptr: Size, size: Size) -> PyResult<i64> {
        self.count(py, |session| session.read_into(key, buffer_ptr.0, size.0))
    }

    /// batch_get_into(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]
    ///
    /// get_into for many values at once, with one result for each.
    fn batch_get_into(
        &self,
        py: Python<'_>,
        keys: Texts,
        buffer_ptrs: Items<Size>,
        sizes: Items<Size>,
    ) -> PyResult<Vec<i64>> {
        self.read_into_each(py, &keys, buffer_ptrs, sizes, |target| Some(vec![target]))
    }

    /// batch_get_into_multi_buffers(self, keys: list[str], all_buffer_ptrs: list[list[int]],
    /// all_sizes: list[list[int]], prefer_alloc_in_same_node: bool = False) -> list[int]
    ///
    /// batch_get_into that scatters each value over several pieces of memory, in their order.
    /// prefer_alloc_in_same_node has no effect.
    #[pyo3(signature = (keys, all_buffer_ptrs, all_sizes, prefer_alloc_in_same_node = false))]
    fn batch_get_into_multi_buffers(
        &self,
        py: Python<'_>,
        keys: Texts,
        all_buffer_ptrs: Items<Items<Size>>,
        all_sizes: Items<Items<Size>>,
        prefer_alloc_in_same_node: bool,
    ) -> PyResult<Vec<i64>> {
        let _ = prefer_alloc_in_same_node;
        self.read_into_each(py, &keys, all_buffer_ptrs, all_sizes, pair_up)
    }
}

impl Store {
    fn read_all(
        &self,
        py: Python<'_>,
        keys: &Texts,
        read: ReadAll,
    ) -> PyResult<Vec<Result<Bytes, Failure>>> {
        self.with_each(py, keys, |session, keys| match session.check_handles_values() {
            Ok(()) => read(&session.backend, keys),
            Err(refused) => vec![Err(refused); keys.len()],
        })
    }

    /// [`read_all`](Self::read_all), with empty values for those that cannot be read.
    fn read_bytes<'py>(
        &self,
        py: Python<'py>,
        keys: &Texts,
        read: ReadAll,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let values = self.read_all(py, keys, read)?.into_iter();
        values.map(|value| bytes_object(py, &value.unwrap_or_default())).collect()
    }

    /// Reads the value of each key into the memory that `pieces` makes of its address and size.
    fn read_into_each<T: Send>(
        &self,
        py: Python<'_>,
        keys: &Texts,
        addresses: Items<T>,
        sizes: Items<T>,
        pieces: ToPieces<T>,
    ) -> PyResult<Vec<i64>> {
        let lengths = self.with_each(py, keys, |session, keys| {
            if addresses.len() != keys.len() || sizes.len() != keys.len() {
                return vec![Err(Failure::INVALID_PARAMS); keys.len()];
            }
            session.read_scattered(keys, addresses.into_iter().zip(sizes).map(pieces).collect())
        })?;
        Ok(lengths.into_iter().map(count_of).collect())
    }
}

impl Session {
    fn value_of(&self, key: &str) -> Result<Bytes, Failure> {
        self.check_handles_values()?;
        self.backend.wait(|store| store.get(key))
    }

    fn read_into(&self, key: &str, address: usize, len: usize) -> Result<u64, Failure> {
        if len == 0 {
            return Err(Failure::INVALID_PARAMS);
        }
        if let Some(pieces) =
            self.on_devices(&self.buffers.lookup(), &[(Size(address), Size(len))])?
        {
            return self.read_staged(vec![(key, pieces)]).pop().unwrap_or(Err(Failure::INTERNAL));
        }
        let target = self.target(&self.buffers.lookup(), address, len)?;
        match target {
            Some(target) => self.backend.wait(|store| store.get_into(key, &target)),
            None => {
                check_mapped(address, len)?;
                let mut values = self.backend.get_at_most(&[(key, len as u64)]);
                let value = values.pop().unwrap_or(Err(Failure::INTERNAL))?;
                scatter(&value, &[(Size(address), Size(len))])
            }
        }
    }

    /// Reads the value of each key into the key's pieces of memory, in their order.
    fn read_scattered(
        &self,
        keys: &[&str],
        targets: Vec<Option<Vec<(Size, Size)>>>,
    ) -> Vec<Result<u64, Failure>> {
        let mut lengths = vec![Err(Failure::INVALID_PARAMS); keys.len()];
        let (mut direct, mut direct_at) = (Vec::with_capacity(keys.len()), Vec::new());
        let (mut staged, mut staged_at) = (Vec::new(), Vec::new());
        let (mut device, mut device_at) = (Vec::new(), Vec::new());
        let lookup = self.buffers.lookup();
        for (at, (&key, pieces)) in keys.iter().zip(&targets).enumerate() {
            let Some(pieces) = pieces else { continue };
            if pieces.iter().all(|(_, size)| size.0 == 0) {
                continue;
            }
            match self.on_devices(&lookup, pieces) {
                Err(refused) => {
                    lengths[at] = Err(refused);
                    continue;
                }
                Ok(Some(pieces)) => {
                    device.push((key, pieces));
                    device_at.push(at);
                    continue;
                }
                Ok(None) => {}
            }
            let slices = pieces.iter().filter(|(_, size)| size.0 > 0);
            let slices = slices.map(|(address, size)| self.target(&lookup, address.0, size.0));
            match slices.collect::<Result<Option<_>, _>>() {
                Err(refused) => lengths[at] = Err(refused),
                Ok(Some(slices)) => {
                    direct.push(GetInto::scattered(key, slices));
                    direct_at.push(at);
                }
                Ok(None) => match check_all_mapped(pieces) {
                    Err(refused) => lengths[at] = Err(refused),
                    Ok(room) => {
                        staged.push((key, room));
                        staged_at.push((at, pieces));
                    }
                },
            }
        }
        drop(lookup);
        if !direct.is_empty() {
            for (at, length) in direct_at.into_iter().zip(self.backend.batch_get_into(direct)) {
                lengths[at] = length;
            }
        }
        if !staged.is_empty() {
            let values = self.backend.get_at_most(&staged);
            for ((at, pieces), value) in staged_at.into_iter().zip(values) {
                lengths[at] = value.and_then(|value| scatter(&value, pieces));
            }
        }
        if !device.is_empty() {
            for (at, length) in device_at.into_iter().zip(self.read_staged(device)) {
                lengths[at] = length;
            }
        }
        lengths
    }

    /// Returns the pieces, if all of them are memory of GPUs, as an engine's are. A value for memory of both is copied
    /// once more.
    fn on_devices(
        &self,
        lookup: &Lookup<'_>,
        pieces: &[(Size, Size)],
    ) -> Result<Option<Vec<DeviceMemory>>, Failure> {
        let used = pieces.iter().filter(|(_, size)| size.0 > 0);
        let room = used.clone().fold(0, |room: usize, (_, size)| room.saturating_add(size.0));
        // The node agent of a thin client does not reach pinned memory of this process.
        if room > LONGEST_STAGED || self.backend.is_thin() {
            return Ok(None);
        }
        used.map(|(address, size)| self.on_device(lookup, address.0, size.0)).collect()
    }

    /// Reads the value of each key into pinned memory, from where it goes to the key's pieces of GPUs' memory: as many
    /// at a time as have room there.
    fn read_staged(&self, mut gets: Vec<(&str, Vec<DeviceMemory>)>) -> Vec<Result<u64, Failure>> {
        let mut lengths = Vec::with_capacity(gets.len());
        while !gets.is_empty() {
            let mut room = 0;
            let mut fits = |(_, pieces): &(&str, Vec<DeviceMemory>)| {
                room += pieces.iter().map(DeviceMemory::len).sum::<usize>();
                room <= LONGEST_STAGED
            };
            let count = gets.iter().take_while(|get| fits(get)).count().max(1);
            let later = gets.split_off(count.min(gets.len()));
            lengths.extend(self.read_some_staged(std::mem::replace(&mut gets, later)));
        }
        lengths
    }

    fn read_some_staged(&self, gets: Vec<(&str, Vec<DeviceMemory>)>) -> Vec<Result<u64, Failure>> {
        let stage = |pieces: &[DeviceMemory]| {
            let room = pieces.iter().map(DeviceMemory::len).sum();
            let first = pieces.first().ok_or(Failure::INVALID_PARAMS)?;
            Ok(memory::stage(first, room)?.whole())
        };
        let stages: Vec<Result<MemorySlice, Failure>> =
            gets.iter().map(|(_, pieces)| stage(pieces)).collect();
        let wanted = gets.iter().zip(&stages).filter_map(|((key, _), stage)| {
            let stage = stage.as_ref().ok()?;
            Some(GetInto::scattered(key, vec![stage.clone()]))
        });
        let wanted: Vec<GetInto<'_>> = wanted.collect();
        let mut lengths = match wanted.is_empty() {
            true => Vec::new(),
            false => self.backend.batch_get_into(wanted),
        }
        .into_iter();
        let landed = |((_, pieces), stage): ((&str, Vec<DeviceMemory>), Result<MemorySlice, _>)| {
            let stage = stage?;
            let length: u64 = lengths.next().unwrap_or(Err(Failure::INTERNAL))?;
            let value = usize::try_from(length).ok().and_then(|len| stage.part(0, len));
            memory::scatter(&value.ok_or(Failure::INTERNAL)?, &pieces, None)?;
            Ok(length)
        };
        gets.into_iter().zip(stages).map(landed).collect()
    }
}

/// Rejects pieces of memory that cannot be used before anything is read for them; returns how many
/// bytes they have.
fn check_all_mapped(pieces: &[(Size, Size)]) -> Result<u64, Failure> {
    let used = pieces.iter().filter(|(_, size)| size.0 > 0);
    used.clone().try_for_each(|(address, size)| check_mapped(address.0, size.0))?;
    Ok(used.fold(0, |room: u64, (_, size)| room.saturating_add(size.0 as u64)))
}

/// Copies a value to pieces of memory, and returns the value's length.
fn scatter(value: &Bytes, pieces: &[(Size, Size)]) -> Result<u64, Failure> {
    let room = pieces.iter().fold(0, |room: usize, (_, size)| room.saturating_add(size.0));
    if value.len() > room {
        let len = value.len();
        return Err(Failure::refuse(format_args!(
            "the value has {len} bytes, the memory only {room}"
        )));
    }
    let mut rest = &value[..];
    for (address, size) in pieces {
        let (piece, behind) = rest.split_at(rest.len().min(size.0));
        copy_out(piece, address.0)?;
        rest = behind;
    }
    Ok(value.len() as u64)
}
