//! A disk that forgets some of what was not synced when its host loses power.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mc_tier::StorageBackend;
use mc_types::ByteSize;

use super::random::Random;

/// The disk of one host, of zeros at first. Clones are the same disk.
#[derive(Clone)]
pub struct SimulatedDisk {
    len: u64,
    sectors: Arc<Mutex<Sectors>>,
}

/// The unit that a loss of power leaves whole.
const SECTOR: u64 = 512;

type Sector = Box<[u8; SECTOR as usize]>;

/// Sectors by number; missing ones are zeros.
#[derive(Default)]
struct Sectors {
    now: BTreeMap<u64, Sector>,
    /// The content at the last sync of sectors that were written since.
    unsynced: BTreeMap<u64, Option<Sector>>,
}

impl fmt::Debug for SimulatedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedDisk").field("len", &self.len).finish_non_exhaustive()
    }
}

impl SimulatedDisk {
    /// A disk of this size. It takes memory for what is written.
    #[must_use]
    pub fn new(size: ByteSize) -> Self {
        Self { len: size.as_u64(), sectors: Arc::default() }
    }

    fn sectors(&self) -> MutexGuard<'_, Sectors> {
        self.sectors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loses any of the sectors that were written since the last sync.
    pub fn lose_power(&self, random: &Random) {
        let sectors = &mut *self.sectors();
        for (number, before) in std::mem::take(&mut sectors.unsynced) {
            match before {
                _ if random.below(2) == 0 => {}
                Some(before) => drop(sectors.now.insert(number, before)),
                None => drop(sectors.now.remove(&number)),
            }
        }
    }

    fn check(&self, offset: u64, len: usize, error: io::ErrorKind) -> io::Result<()> {
        let end = offset.checked_add(len as u64);
        if end.is_some_and(|end| end <= self.len) { Ok(()) } else { Err(error.into()) }
    }
}

/// The parts of a range that lie in one sector each: its number, where the part begins in it, and the
/// part's place in the range.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let place = offset + at as u64;
        let within = (place % SECTOR) as usize;
        let part = at..len.min(at + SECTOR as usize - within);
        at = part.end;
        (!part.is_empty()).then_some((place / SECTOR, within, part))
    })
}

impl StorageBackend for SimulatedDisk {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.check(offset, buffer.len(), io::ErrorKind::UnexpectedEof)?;
        let sectors = self.sectors();
        for (number, within, part) in parts(offset, buffer.len()) {
            let into = &mut buffer[part];
            match sectors.now.get(&number) {
                Some(sector) => into.copy_from_slice(&sector[within..][..into.len()]),
                None => into.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(offset, bytes.len(), io::ErrorKind::WriteZero)?;
        let Sectors { now, unsynced } = &mut *self.sectors();
        for (number, within, part) in parts(offset, bytes.len()) {
            unsynced.entry(number).or_insert_with(|| now.get(&number).cloned());
            let sector = now.entry(number).or_insert_with(|| Box::new([0; SECTOR as usize]));
            sector[within..][..part.len()].copy_from_slice(&bytes[part]);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.sectors().unsynced.clear();
        Ok(())
    }

    fn path(&self) -> &Path {
        Path::new("simulated disk")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_synced_outlasts_losses_of_power() {
        let disk = SimulatedDisk::new(ByteSize::kib(64));
        let random = Random::of(7, "disk");
        disk.write(500, &[1; 2000]).unwrap();
        disk.sync().unwrap();
        disk.write(0, &[2; 32 << 10]).unwrap();
        disk.lose_power(&random);
        let mut bytes = vec![0; 32 << 10];
        disk.read(0, &mut bytes).unwrap();
        let (old, new): (Vec<_>, Vec<_>) =
            bytes.chunks(512).partition(|sector| !sector.contains(&2));
        assert!(old.len() > 10 && new.len() > 10, "{} of {}", old.len(), new.len());
        assert!(new.iter().all(|sector| sector.iter().all(|byte| *byte == 2)), "sectors are whole");
        assert!(disk.write((64 << 10) - 1, &[0; 2]).is_err());
        assert!(disk.read(u64::MAX, &mut [0]).is_err());
    }
}
