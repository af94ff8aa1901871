//! How fast a master is rebuilt, and with how much memory at most:
//! `cargo run --release -p mc-meta --example rebuild [OBJECTS] [SEGMENTS]` (Linux).

use std::error::Error;
use std::time::Instant;

use mc_meta::{
    ExportCursor, Location, MasterConfig, ObjectRecord, Rebuild, Record, SegmentSpec,
    SegmentStatus, Slice, Slices,
};
use mc_types::{Checksum, ClientId, Extent, Generation, ObjectKey, RemoteKey, SegmentId, Time};

const OBJECT: u64 = 64 * 1024;
const CLIENT: ClientId = ClientId::from_u128(1);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (objects, segments) = (number(1_000_000)?, number(16)?);
    let before = resident_bytes("VmRSS:")?;
    let mut rebuild = Rebuild::new(MasterConfig::default(), 1)?;
    let begun = Instant::now();
    for number in 0..segments {
        rebuild.apply(&Record::Segment {
            spec: SegmentSpec {
                id: SegmentId::from_u128(number.into()),
                name: format!("segment-{number}").into(),
                base: 0,
                size: (objects / segments + 1) * OBJECT,
                endpoint: format!("mem://node-{number}").parse()?,
                remote_key: RemoteKey::from_bytes([1; 16]),
                ticket_key: None,
                medium: mc_types::MediaType::Dram,
            },
            client: CLIENT,
            status: SegmentStatus::Ok,
        });
    }
    for number in 0..objects {
        let slices = Slices::One(Slice { len: OBJECT, checksum: Some(Checksum::from_crc32c(1)) });
        let (key, generation) =
            (ObjectKey::new(format!("{number:040x}"))?, Generation::new(number));
        let mut object = ObjectRecord::new(key, generation, CLIENT, slices);
        object.complete = true;
        // Neighbours in a segment are far apart in the order of records, as in a journal.
        let place = number.wrapping_mul(0x9e37_79b1) % objects;
        object.replicas.push(Location {
            segment: SegmentId::from_u128((number % segments).into()),
            extent: Extent::new(number / segments * OBJECT, OBJECT).ok_or("too many objects")?,
        });
        object.idle = std::time::Duration::from_millis(place);
        rebuild.apply(&Record::Object(object));
    }
    let applied = begun.elapsed();
    let mc_meta::Rebuilt { master, report, .. } = rebuild.finish(Time::from_millis(1))?;
    let all = begun.elapsed();
    let held = resident_bytes("VmRSS:")?.saturating_sub(before);
    let peak = resident_bytes("VmHWM:")?.saturating_sub(before);
    let begun = Instant::now();
    let mut next = Some(ExportCursor::default());
    let mut exported = 0;
    while let Some(cursor) = next {
        let page = master.export(Time::from_millis(1), cursor);
        exported += page.records.len();
        next = page.next;
    }
    let export = begun.elapsed();
    println!(
        "{} objects in {all:.2?} ({:.0} a second; {applied:.2?} for the records, {:.2?} for the \
         end); {:.0} bytes each, at most {:.2} times that; {exported} records exported in {export:.2?}",
        report.objects,
        report.objects as f64 / all.as_secs_f64(),
        all - applied,
        held as f64 / objects as f64,
        peak as f64 / held as f64,
    );
    Ok(())
}

/// A line of this process's memory status.
fn resident_bytes(name: &str) -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no such line")?;
    Ok(kib.parse::<u64>()? * 1024)
}
