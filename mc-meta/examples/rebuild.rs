//! How fast a master is rebuilt, and with how much memory at most:
//! `cargo run --release -p mc-meta --example rebuild [OBJECTS] [SEGMENTS] [THREADS] [scattered|settled]`
//! (Linux). Objects lie in their segments in the order of their records, as in a new cache, or
//! `scattered`, as in one that evicts. `settled`: a standby of that, which settles before a tenth of
//! the objects are removed and put again.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mc_meta::{
    ExportCursor, Location, MasterConfig, ObjectRecordRef, Rebuild, RebuildPart, Rebuilt, Record,
    RecordRef, SegmentSpec, SegmentStatus, Slice, Slices,
};
use mc_types::{Checksum, ClientId, Extent, Generation, KeyRef, RemoteKey, SegmentId, Time};

const OBJECT: u64 = 64 * 1024;
const CLIENT: ClientId = ClientId::from_u128(1);

/// The size of the cluster that the records describe.
#[derive(Clone, Copy)]
struct Cluster {
    objects: u64,
    segments: u64,
    scattered: bool,
}

impl Cluster {
    /// The objects of one segment.
    const fn share(self) -> u64 {
        self.objects.div_ceil(self.segments)
    }

    fn segment(self, number: u64) -> Result<Record, Box<dyn Error + Send + Sync>> {
        Ok(Record::Segment {
            spec: SegmentSpec {
                id: SegmentId::from_u128(number.into()),
                name: format!("segment-{number}").into(),
                base: 0,
                size: (self.share() + 1) * OBJECT,
                endpoint: format!("mem://node-{number}").parse()?,
                remote_key: RemoteKey::from_bytes([1; 16]),
                ticket_key: None,
                medium: mc_types::MediaType::Dram,
            },
            client: CLIENT,
            status: SegmentStatus::Ok,
            grace: None,
        })
    }

    fn object(self, number: u64, key: KeyRef<'_>) -> ObjectRecordRef<'_> {
        let slices = Slices::One(Slice { len: OBJECT, checksum: Some(Checksum::from_crc32c(1)) });
        let mut object = ObjectRecordRef::new(key, Generation::new(number), CLIENT, slices);
        object.complete = true;
        // The size of a share and this prime have no common divisor but for shares of billions.
        let place = number / self.segments;
        let place = if self.scattered { place * 2_654_435_761 % self.share() } else { place };
        object.replicas.extend(Extent::new(place * OBJECT, OBJECT).map(|extent| Location {
            segment: SegmentId::from_u128((number % self.segments).into()),
            extent,
        }));
        // Neighbours in a segment were used at different times.
        object.idle = Duration::from_millis(number.wrapping_mul(0x9e37_79b1) % self.objects);
        object
    }

    /// Removes the first objects and puts each of them again where it was, in two records as puts have.
    /// Returns the number of records.
    fn churn(
        self,
        rebuild: &mut Rebuild,
        objects: u64,
    ) -> Result<u64, Box<dyn Error + Send + Sync>> {
        for number in 0..objects {
            let text = format!("{number:0>40x}");
            let key = KeyRef::new(&text)?;
            let mut object = self.object(number, key);
            object.idle = Duration::ZERO;
            let [removed, next] = [number, self.objects + number].map(Generation::new);
            rebuild.apply(RecordRef::Removed { key, generation: removed });
            object.generation = next;
            object.complete = false;
            rebuild.apply(RecordRef::Object(object.clone()));
            object.complete = true;
            rebuild.apply(RecordRef::Object(object));
        }
        Ok(3 * objects)
    }

    /// Gives a part its records, as a decoder does that reads all of them.
    fn fill(self, part: &mut RebuildPart<'_>) -> Result<(), Box<dyn Error + Send + Sync>> {
        for number in 0..self.segments {
            part.apply(&self.segment(number)?);
        }
        let mut next = 0;
        while next < self.objects {
            let mut texts = [[b'0'; 40]; 32];
            let mut records = Vec::with_capacity(texts.len());
            for text in &mut texts {
                while next < self.objects {
                    let number = next;
                    next += 1;
                    for (digit, at) in text[24..].iter_mut().rev().zip(0..) {
                        *digit = b"0123456789abcdef"[(number >> (4 * at) & 15) as usize];
                    }
                    if part.owns(KeyRef::new(core::str::from_utf8(text)?)?) {
                        let key = KeyRef::new(core::str::from_utf8(text)?)?;
                        records.push(RecordRef::Object(self.object(number, key)));
                        break;
                    }
                }
            }
            part.apply_all(&records);
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    let (objects, segments) = (number(0, 1_000_000)?.max(1), number(1, 16)?.max(1));
    let threads = number(2, 1)?.max(1) as usize;
    let is_settled = arguments.get(3).is_some_and(|word| word == "settled");
    let scattered = is_settled || arguments.get(3).is_some_and(|word| word == "scattered");
    let cluster = Cluster { objects, segments, scattered };
    let before = resident_bytes("VmRSS:")?;
    let mut rebuild = Rebuild::in_parts(MasterConfig::default(), 1, threads)?;
    let begun = Instant::now();
    rebuild.expect_objects(objects as usize);
    std::thread::scope(|scope| {
        let mut filling = Vec::new();
        for mut part in rebuild.parts() {
            filling.push(scope.spawn(move || cluster.fill(&mut part)));
        }
        filling.into_iter().try_for_each(|part| part.join().unwrap_or(Err("a panic".into())))
    })?;
    let on_threads = |count: usize, task: &(dyn Fn(usize) + Sync)| {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(count) {
                scope.spawn(|| {
                    while let number = next.fetch_add(1, Ordering::Relaxed)
                        && number < count
                    {
                        task(number);
                    }
                });
            }
        });
    };
    if is_settled {
        let (first, cpu) = (Instant::now(), processor_seconds()?);
        assert!(rebuild.settle_on(&on_threads)?, "the records do not contradict each other");
        let settled = (first.elapsed(), processor_seconds()? - cpu);
        let first = Instant::now();
        let records = cluster.churn(&mut rebuild, objects / 10)?;
        println!(
            "settled in {:.2?} ({:.2} s of processors); {records} records applied in {:.2?}",
            settled.0,
            settled.1,
            first.elapsed(),
        );
        assert!(rebuild.is_settled(), "nor do these");
    }
    let applied = begun.elapsed();
    let before_end = processor_seconds()?;
    let rebuilt = rebuild.finish_on(Time::from_millis(1), &on_threads)?;
    let at_end = processor_seconds()? - before_end;
    let Rebuilt { master, report, .. } = rebuilt;
    let all = begun.elapsed();
    let processor = processor_seconds()?;
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
        "{} objects on {threads} threads in {all:.2?} ({:.0} a second; {applied:.2?} for the \
         records, {:.2?} for the end, {at_end:.2} s of processors; {processor:.2} s of them in all); \
         {:.0} bytes each, at most {:.2} times that; {exported} records exported in {export:.2?}",
        report.objects,
        report.objects as f64 / all.as_secs_f64(),
        all - applied,
        held as f64 / objects as f64,
        peak as f64 / held as f64,
    );
    Ok(())
}

/// Returns the processor time of this process, which tells more than the clock where other
/// programs use the processors, too.
fn processor_seconds() -> Result<f64, Box<dyn Error + Send + Sync>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Behind the program's name, in hundredths of a second: see proc_pid_stat(5).
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks = fields.skip(11).take(2).map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks / 100.0)
}

/// A line of this process's memory status.
fn resident_bytes(name: &str) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no such line")?;
    Ok(kib.parse::<u64>()? * 1024)
}
