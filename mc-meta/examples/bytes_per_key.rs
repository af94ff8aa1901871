//! Resident bytes per object with 40-byte keys and one replica:
//! `cargo run --release -p mc-meta --example bytes_per_key [OBJECTS [LENGTH]]` (Linux). The
//! writers know the checksums of the prefixes of their objects.

use core::time::Duration;
use std::error::Error;

use mc_meta::{CHECKPOINT, Master, MasterConfig, PutEnd, PutStart, ReplicateConfig, SegmentSpec};
use mc_types::{Checksum, ClientId, KeyRef, RemoteKey, SegmentId, Time};

const CLIENT: ClientId = ClientId::from_u128(1);

fn main() -> Result<(), Box<dyn Error>> {
    let objects: u64 = match std::env::args().nth(1) {
        Some(count) => count.parse()?,
        None => 1_000_000,
    };
    let len: u64 = match std::env::args().nth(2) {
        Some(len) => len.parse()?,
        None => 64 * 1024,
    };
    let mut config = MasterConfig::default();
    config.client_ttl = Duration::from_secs(1 << 40);
    let before = resident_bytes()?;
    let master = Master::new(config, 1)?;
    for number in 0..16 {
        master.mount_segment(
            Time::ORIGIN,
            CLIENT,
            SegmentSpec {
                id: SegmentId::from_u128(number),
                name: format!("segment-{number}").into(),
                base: 0,
                size: objects * len / 8,
                endpoint: format!("mem://node-{number}").parse()?,
                remote_key: RemoteKey::from_bytes([1; 16]),
                ticket_key: None,
                medium: mc_types::MediaType::Dram,
            },
        )?;
    }
    let count = (len.max(1) - 1) / CHECKPOINT;
    let prefixes = vec![Checksum::from_crc32c(1); count as usize];
    for number in 0..objects {
        let name = format!("{number:040x}");
        let key = KeyRef::new(&name)?;
        let config = ReplicateConfig::default();
        let start = PutStart { key, slice_lengths: &[len], config: &config };
        let grant = master.put_start(Time::ORIGIN, CLIENT, &start)?;
        let (handle, checksums) = (grant.handle, &[Checksum::from_crc32c(1)]);
        let end = PutEnd { checksums, prefixes: &prefixes, ..PutEnd::new(key, handle) };
        master.put_end(Time::ORIGIN, CLIENT, &end)?;
    }
    let bytes = resident_bytes()? - before;
    println!("{objects} objects: {:.1} resident bytes each", bytes as f64 / objects as f64);
    Ok(())
}

/// `VmRSS` of this process.
fn resident_bytes() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no VmRSS line")?;
    Ok(kib.parse::<u64>()? * 1024)
}
