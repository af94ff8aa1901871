//! The master's state machine, without a socket.

use std::hint::black_box;

use mc_alloc::OffsetAllocator;
use mc_meta::{Master, MasterConfig, PutEnd, PutStart, ReplicateConfig, SegmentSpec};
use mc_types::{ClientId, Endpoint, KeyRef, MediaType, RemoteKey, SegmentId, Time};

use crate::keys::Keys;
use crate::{Done, profiled_path};

/// Bytes of an object.
pub(crate) const OBJECT: u64 = 4096;

/// Objects that are there already: the tables have the sizes and the depths of a busy master.
pub(crate) const LIVE: u64 = 50_000;

const SEGMENTS: u32 = 16;

pub(crate) const WRITER: ClientId = ClientId::from_u128(1);

/// A moment after the leases of puts and reads.
const LATER: Time = Time::from_millis(1 << 30);

pub(crate) fn alloc_pair(operations: u64) -> Done {
    let mut allocator = OffsetAllocator::new(1 << 34);
    let mut random = fastrand::Rng::with_seed(1);
    let mut live = Vec::new();
    for _ in 0..LIVE {
        live.push(allocator.allocate(random.u64(1..65_536))?);
    }
    profiled_path(&mut || {
        for _ in 0..operations {
            let old = live.swap_remove(random.usize(..live.len()));
            allocator.free(old)?;
            live.push(allocator.allocate(random.u64(1..65_536))?);
        }
        Ok(())
    })
}

/// A master with room for `objects` objects.
pub(crate) fn master(
    config: MasterConfig,
    objects: u64,
) -> Result<Master, Box<dyn std::error::Error>> {
    let master = Master::new(config, 42)?;
    for number in 0..SEGMENTS {
        let spec = SegmentSpec {
            id: SegmentId::from_u128(u128::from(number) + 1),
            name: format!("segment-{number}").into(),
            base: 0,
            size: objects.div_ceil(SEGMENTS.into()) * OBJECT,
            endpoint: Endpoint::new("tcp", &format!("192.0.2.1:{}", 1024 + number))?,
            remote_key: RemoteKey::from_bytes([number as u8; 16]),
            ticket_key: None,
            medium: MediaType::Dram,
        };
        master.mount_segment(Time::ORIGIN, ClientId::from_u128(2), spec)?;
    }
    Ok(master)
}

fn put(master: &Master, key: KeyRef<'_>) -> Done {
    let put = PutStart { key, slice_lengths: &[OBJECT], config: &ReplicateConfig::default() };
    let grant = master.put_start(Time::ORIGIN, WRITER, &put)?;
    Ok(master.put_end(Time::ORIGIN, WRITER, &PutEnd::new(key, grant.handle))?)
}

/// A master with [`LIVE`] objects and room for `more`, and their keys.
pub(crate) fn filled(more: u64) -> Result<(Master, Keys), Box<dyn std::error::Error>> {
    let (master, keys) = (master(MasterConfig::default(), 2 * (LIVE + more))?, Keys::new(0, LIVE));
    for number in 0..LIVE {
        put(&master, keys.at(number)?)?;
    }
    Ok((master, keys))
}

pub(crate) fn put_pair(operations: u64) -> Done {
    let (master, _) = filled(operations)?;
    let keys = Keys::new(1, operations);
    profiled_path(&mut || (0..operations).try_for_each(|number| put(&master, keys.at(number)?)))
}

pub(crate) fn batch_put(operations: u64, len: usize) -> Done {
    let (master, _) = filled(operations)?;
    let keys = Keys::new(1, operations);
    let config = ReplicateConfig::default();
    let batches = keys.batches(len)?;
    profiled_path(&mut || {
        for batch in &batches {
            let puts: Vec<_> = batch
                .iter()
                .map(|key| PutStart { key: *key, slice_lengths: &[OBJECT], config: &config })
                .collect();
            let grants = master.batch_put_start(Time::ORIGIN, WRITER, &puts);
            let mut ends = Vec::with_capacity(batch.len());
            for (key, grant) in batch.iter().zip(grants) {
                ends.push(PutEnd::new(*key, grant?.handle));
            }
            for ended in master.batch_put_end(Time::ORIGIN, WRITER, &ends) {
                ended?;
            }
        }
        Ok(())
    })
}

pub(crate) fn get(operations: u64) -> Done {
    let (master, keys) = filled(0)?;
    let mut random = fastrand::Rng::with_seed(1);
    profiled_path(&mut || {
        for _ in 0..operations {
            black_box(master.get_replica_list(Time::ORIGIN, keys.at(random.u64(..LIVE))?)?);
        }
        Ok(())
    })
}

/// Keys drawn at random, in batches.
pub(crate) fn drawn<'a>(
    keys: &'a Keys,
    operations: u64,
    len: usize,
) -> Result<Vec<Vec<KeyRef<'a>>>, mc_types::KeyError> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut batch = |_| (0..len).map(|_| keys.at(random.u64(..LIVE))).collect();
    (0..operations / len as u64).map(&mut batch).collect()
}

pub(crate) fn batch_get(operations: u64, len: usize) -> Done {
    let (master, keys) = filled(0)?;
    let batches = drawn(&keys, operations, len)?;
    profiled_path(&mut || {
        for batch in &batches {
            for list in master.batch_get_replica_list(Time::ORIGIN, batch) {
                black_box(list?);
            }
        }
        Ok(())
    })
}

pub(crate) fn exist(operations: u64) -> Done {
    let (master, keys) = filled(0)?;
    let mut random = fastrand::Rng::with_seed(1);
    profiled_path(&mut || {
        for _ in 0..operations {
            black_box(master.exist(Time::ORIGIN, keys.at(random.u64(..LIVE))?));
        }
        Ok(())
    })
}

pub(crate) fn batch_exist(operations: u64, len: usize) -> Done {
    let (master, keys) = filled(0)?;
    let batches = drawn(&keys, operations, len)?;
    profiled_path(&mut || {
        for batch in &batches {
            black_box(master.batch_exist(Time::ORIGIN, batch));
        }
        Ok(())
    })
}

pub(crate) fn remove(operations: u64) -> Done {
    let (master, keys) = filled(0)?;
    profiled_path(&mut || {
        (0..operations).try_for_each(|number| Ok(master.remove(LATER, keys.at(number)?, false)?))
    })
}

pub(crate) fn evict(operations: u64) -> Done {
    let mut config = MasterConfig::default();
    // Full, the master is just that many objects above its watermark.
    config.eviction_high_watermark_ratio = 1.0 - operations as f64 / LIVE as f64;
    config.eviction_ratio = 0.0;
    let master = master(config, LIVE)?;
    let keys = Keys::new(0, LIVE);
    for number in 0..LIVE {
        put(&master, keys.at(number)?)?;
    }
    profiled_path(&mut || {
        while master.tick(Time::from_millis(1)) {}
        Ok(())
    })?;
    let evicted = master.report().totals.evicted_objects;
    if evicted.abs_diff(operations) > operations / 50 {
        return Err(format!("{evicted} objects were evicted instead of {operations}").into());
    }
    Ok(())
}
