//! Losses of power: of what was not synced, any part is lost.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use mc_testkit::Random;
use mc_tier::{LogTier, MemoryBackend, ObjectId, StorageBackend, Tier, TierError, Watermarks};
use mc_types::ByteSize;

use super::common::{copy, id, medium, object, settings};

/// A medium whose writes are durable after a sync, and after a loss of power perhaps: each sector for
/// itself.
#[derive(Debug)]
struct Disk {
    current: MemoryBackend,
    durable: MemoryBackend,
    /// Offsets and bytes, each within a sector.
    pending: Mutex<Vec<(u64, Vec<u8>)>>,
    /// Sectors and syncs until the power fails.
    left: AtomicUsize,
}

const SECTOR: u64 = 512;

impl Disk {
    fn new(durable: MemoryBackend, left: usize) -> Self {
        Self {
            current: copy(&durable),
            durable,
            pending: Mutex::default(),
            left: AtomicUsize::new(left),
        }
    }

    /// Fails when the power does, and ever after.
    fn step(&self) -> io::Result<()> {
        let taken = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        taken.map(drop).map_err(|_| io::Error::other("no power"))
    }

    /// Returns what is left.
    fn lose_power(&self, random: &mut Random) -> MemoryBackend {
        for (offset, bytes) in self.pending.lock().unwrap().drain(..) {
            if random.below(2) == 0 {
                self.durable.write(offset, &bytes).unwrap();
            }
        }
        self.durable.clone()
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> u64 {
        self.current.len()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.current.read(offset, buffer)
    }

    fn write(&self, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
        let mut pending = self.pending.lock().unwrap();
        while !bytes.is_empty() {
            self.step()?;
            let left = (SECTOR - offset % SECTOR) as usize;
            let (sector, rest) = bytes.split_at(left.min(bytes.len()));
            self.current.write(offset, sector)?;
            pending.push((offset, sector.to_vec()));
            (offset, bytes) = (offset + sector.len() as u64, rest);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.step()?;
        let mut pending = self.pending.lock().unwrap();
        pending.drain(..).try_for_each(|(offset, bytes)| self.durable.write(offset, &bytes))
    }

    fn path(&self) -> &Path {
        self.current.path()
    }
}

/// Changes objects at random, evicts some if `evicts`, and loses power, again and again. `durable` is called after each change and
/// returns whether it, and all before, must survive.
fn survives(
    sync_each_change: bool,
    evicts: bool,
    mut durable: impl FnMut(&LogTier, &mut Random) -> bool,
) {
    let mut random = Random::seeded("MC_TIER_LOG_SEED");
    let mut medium = medium(8);
    let mut settings = settings();
    settings.sync_each_change = sync_each_change;
    let mut known: BTreeMap<usize, bool> = BTreeMap::new();
    for loss in 0..200 {
        // A new log needs a few for itself.
        let disk = Arc::new(Disk::new(medium, 10 + random.below(4000)));
        let tier = LogTier::open(Arc::clone(&disk), settings).unwrap();
        for number in 0..30 {
            let found = tier.get(&id(number));
            match (known.get(&number), found) {
                (None, Err(TierError::Damaged { .. }) | Ok(None)) => {}
                (None | Some(true), Ok(Some(found))) => assert_eq!(found, object(number)),
                (Some(false), Ok(None)) => {}
                (known, found) => panic!("loss {loss}: {number}: {known:?}, {:?}", found.err()),
            }
        }
        // What is open stays open, also where it was found.
        let mut changed = BTreeMap::new();
        loop {
            let number = random.below(30);
            let is_put = random.below(3) > 0;
            let result = if is_put {
                tier.put(&id(number), &object(number))
            } else {
                tier.remove(&id(number)).map(|_| ())
            };
            known.remove(&number);
            changed.remove(&number);
            match result {
                Ok(()) => drop(changed.insert(number, is_put)),
                Err(TierError::Full { .. }) => {}
                Err(_) => break,
            }
            // Evictions move what was read, and forget the others.
            if random.below(4) == 0 {
                let _ = tier.get(&id(random.below(30)));
            }
            if evicts && random.below(10) == 0 {
                let low = ByteSize::bytes(tier.usage().unwrap().bytes / 10 * 9);
                let mut forget = |id: ObjectId| {
                    let number = id.generation().as_u64() as usize;
                    known.remove(&number);
                    changed.remove(&number);
                };
                if tier.evict(Watermarks { high: low, low }, &mut forget).is_err() {
                    break;
                }
            }
            if durable(&tier, &mut random) {
                known.append(&mut changed);
            }
        }
        medium = disk.lose_power(&mut random);
    }
}

#[test]
fn synced_changes_survive_losses_of_power() {
    [false, true].into_iter().for_each(|evicts| survives(true, evicts, |_, _| true));
}

#[test]
fn what_was_synced_last_survives_losses_of_power() {
    for evicts in [false, true] {
        survives(false, evicts, |tier, random| random.below(10) == 0 && tier.sync().is_ok());
    }
}
