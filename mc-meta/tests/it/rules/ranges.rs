//! Parts of objects that can be verified.

use core::ops::Range;

use mc_meta::{CHECKPOINT, RangeRead, RangedList, Slice, VerifiedSpan};
use mc_types::Checksum;
use proptest::prelude::*;

use super::recovery::{Journal, export, rebuild_with};
use super::*;

/// Longest slice that is read whole when no checkpoint inside it is known.
const MAX_WHOLE: u64 = 4 << 20;

fn sum(number: u64) -> Checksum {
    Checksum::from_crc32c(number as u32)
}

/// The checksum of the first `len` bytes of a slice: any number that says both.
fn sum_of(slice: usize, len: u64) -> Checksum {
    match len {
        0 => sum(0),
        len => sum(slice as u64 * 1_000_003 + len * 7 + 1),
    }
}

fn checksums(lens: &[u64]) -> Vec<Checksum> {
    lens.iter().enumerate().map(|(slice, len)| sum_of(slice, *len)).collect()
}

fn prefixes(lens: &[u64]) -> Vec<Checksum> {
    let inside = |(slice, len): (usize, &u64)| {
        let count = (len - 1) / CHECKPOINT;
        (1..=count).map(move |number| sum_of(slice, number * CHECKPOINT))
    };
    lens.iter().enumerate().flat_map(inside).collect()
}

fn begin(master: &Master, name: &str, lens: &[u64]) -> PutHandle {
    let config = ReplicateConfig::default();
    let put = PutStart { key: key(name), slice_lengths: lens, config: &config };
    master.put_start(at(0), WRITER, &put).unwrap().handle
}

fn finish(
    master: &Master,
    name: &str,
    handle: PutHandle,
    checksums: &[Checksum],
    prefixes: &[Checksum],
) -> Result<(), PutFinishError> {
    master.put_end(at(0), WRITER, &PutEnd { checksums, prefixes, ..PutEnd::new(key(name), handle) })
}

/// Puts an object with all that can be known of it.
fn put_summed(master: &Master, name: &str, lens: &[u64]) {
    let handle = begin(master, name, lens);
    finish(master, name, handle, &checksums(lens), &prefixes(lens)).unwrap();
}

fn read(master: &Master, now: Time, name: &str, ranges: &[Range<u64>]) -> RangedList {
    let read = RangeRead { key: key(name), ranges };
    master.batch_get_ranges(now, &[read]).remove(0).unwrap()
}

fn spans(master: &Master, now: Time, name: &str, range: Range<u64>) -> Option<VerifiedSpan> {
    let spans = read(master, now, name, &[range]).spans;
    assert_eq!(spans.len(), 1);
    spans[0]
}

fn big_master() -> Master {
    master(&[1 << 40, 1 << 40])
}

#[test]
fn a_range_is_widened_to_the_checkpoints_around_it() {
    let master = big_master();
    let lens = [3 * CHECKPOINT + 5, 10];
    put_summed(&master, "a", &lens);
    let middle = spans(&master, at(0), "a", CHECKPOINT + 1..2 * CHECKPOINT).unwrap();
    assert_eq!((middle.start, middle.end), (CHECKPOINT, 2 * CHECKPOINT));
    let (head, tail) = (sum_of(0, CHECKPOINT), sum_of(0, 2 * CHECKPOINT));
    assert_eq!((middle.head, middle.tail), (head, tail));
    // Across slices: from a checkpoint of the first one to the end of the second.
    let both = spans(&master, at(0), "a", 3 * CHECKPOINT + 1..3 * CHECKPOINT + 6).unwrap();
    assert_eq!((both.start, both.end), (3 * CHECKPOINT, 3 * CHECKPOINT + 15));
    assert_eq!((both.head, both.tail), (sum_of(0, 3 * CHECKPOINT), sum_of(1, 10)));
    // What begins a slice has nothing before it.
    assert_eq!(spans(&master, at(0), "a", 0..1).unwrap().head, sum(0));
}

#[test]
fn ranges_end_with_the_object_and_those_without_a_byte_have_no_span() {
    let master = big_master();
    put_summed(&master, "a", &[100]);
    let all = VerifiedSpan { start: 0, end: 100, head: sum(0), tail: sum_of(0, 100) };
    #[expect(clippy::reversed_empty_ranges, reason = "whatever a client asks for")]
    let ranges = [0..u64::MAX, 99..100, 100..101, 50..50, 60..40, u64::MAX..u64::MAX];
    let RangedList { list, spans } = read(&master, at(0), "a", &ranges);
    assert_eq!(spans, [Some(all), Some(all), None, None, None, None]);
    assert!(list.lease > Duration::ZERO && list.placements.len() == 1);
    assert!(read(&master, at(0), "a", &[]).spans.is_empty());
    let reads = ["b", "a"].map(|name| RangeRead { key: key(name), ranges: &ranges[..1] });
    let lists = master.batch_get_ranges(at(0), &reads);
    assert!(lists[0].is_err() && lists[1].as_ref().unwrap().spans == [Some(all)]);
}

#[test]
fn without_prefixes_short_slices_are_read_whole_and_long_ones_are_unverifiable() {
    let master = big_master();
    let lens = [MAX_WHOLE, MAX_WHOLE + 1];
    let handle = begin(&master, "a", &lens);
    finish(&master, "a", handle, &checksums(&lens), &[]).unwrap();
    let first = spans(&master, at(0), "a", 1..2).unwrap();
    assert_eq!((first.start, first.end, first.tail), (0, MAX_WHOLE, sum_of(0, MAX_WHOLE)));
    assert_eq!(spans(&master, at(0), "a", MAX_WHOLE + 1..MAX_WHOLE + 2), None);
    assert_eq!(spans(&master, at(0), "a", 1..MAX_WHOLE + 2), None);
    // The ends of slices need no prefixes.
    let all = spans(&master, at(0), "a", 1..2 * MAX_WHOLE + 1).unwrap();
    assert_eq!((all.start, all.end, all.tail), (0, 2 * MAX_WHOLE + 1, sum_of(1, MAX_WHOLE + 1)));
}

#[test]
fn without_checksums_nothing_is_verified() {
    let master = big_master();
    let handle = begin(&master, "a", &[100, 200]);
    finish(&master, "a", handle, &[], &[]).unwrap();
    for range in [0..100, 5..6, 50..150, 0..300] {
        assert_eq!(spans(&master, at(0), "a", range), None);
    }
}

#[test]
fn a_wrong_number_of_prefixes_is_refused() {
    let master = big_master();
    let lens = [2 * CHECKPOINT + 1, CHECKPOINT, CHECKPOINT + 1];
    let handle = begin(&master, "a", &lens);
    let (sums, inside) = (checksums(&lens), prefixes(&lens));
    assert_eq!(inside.len(), 3);
    for given in [1, 2, 4, 100] {
        let wrong = finish(&master, "a", handle, &sums, &vec![sum(1); given]);
        assert_eq!(wrong, Err(PutFinishError::PrefixCount { given, checkpoints: 3 }));
    }
    let alone = finish(&master, "a", handle, &[], &inside);
    assert_eq!(alone, Err(PutFinishError::PrefixCount { given: 3, checkpoints: 0 }));
    assert!(!has(&master, "a"));
    finish(&master, "a", handle, &sums, &inside).unwrap();
}

#[test]
fn prefixes_stay_with_the_bytes_and_go_with_the_object() {
    let journal = Journal::default();
    let master = big_master().with_sink(journal.clone());
    let lens = [CHECKPOINT * 5];
    put_summed(&master, "a", &lens);
    let range = CHECKPOINT + 1..CHECKPOINT + 2;
    let span = spans(&master, at(0), "a", range.clone());
    assert_eq!(span.unwrap().head, sum_of(0, CHECKPOINT));
    let from = master.describe(at(0), key("a")).unwrap().replicas[0].placement.segment.clone();
    let from = &*from.spec().name;
    let to = if from == "segment-0" { "segment-1" } else { "segment-0" };
    let moved = master.move_start(at(0), WRITER, key("a"), from, to).unwrap().handle;
    assert_eq!(spans(&master, at(0), "a", range.clone()), span);
    master.move_end(at(0), WRITER, key("a"), moved).unwrap();
    assert_eq!(spans(&master, at(0), "a", range.clone()), span);
    let copy = master.copy_start(at(0), WRITER, key("a"), to, &[from]).unwrap().handle;
    master.copy_end(at(0), WRITER, key("a"), copy).unwrap();
    assert_eq!(spans(&master, at(0), "a", range.clone()), span);
    // An object that takes its place has its own.
    put_summed(&master, "b", &[CHECKPOINT * 2, 9]);
    for records in [export(&master, at(1)), journal.records()] {
        let mut records = records;
        if !records.iter().any(|record| matches!(record, Record::Segment { .. })) {
            let segments = export(&master, at(1)).into_iter();
            let segments = segments.filter(|record| matches!(record, Record::Segment { .. }));
            records.splice(..0, segments);
        }
        let (again, report) = rebuild_with(settings(), &records, at(1));
        assert_eq!((report.objects, report.dropped.total()), (2, 0));
        for number in 0..2 {
            let size = 1 << 40;
            again.mount_segment(at(1), NODE, segment(number, size)).unwrap();
        }
        assert_eq!(spans(&again, at(1), "a", range.clone()), span);
        let last = spans(&again, at(1), "b", 2 * CHECKPOINT - 1..2 * CHECKPOINT).unwrap();
        assert_eq!((last.start, last.head), (CHECKPOINT, sum_of(0, CHECKPOINT)));
    }
    let config = ReplicateConfig::default();
    let upsert = PutStart { key: key("a"), slice_lengths: &[CHECKPOINT * 3], config: &config };
    let new = master.upsert_start(at(2), WRITER, &upsert).unwrap().handle;
    finish(&master, "a", new, &[sum(1)], &[]).unwrap();
    let whole = spans(&master, at(2), "a", range).unwrap();
    assert_eq!((whole.start, whole.end, whole.tail), (0, CHECKPOINT * 3, sum(1)));
}

#[test]
fn a_record_with_a_wrong_number_of_prefixes_is_malformed() {
    let master = big_master();
    put_summed(&master, "a", &[CHECKPOINT * 2]);
    let mut records = export(&master, at(0));
    for record in &mut records {
        if let Record::Object(object) = record {
            object.prefixes = vec![sum(1); 2].into();
        }
    }
    let (_, report) = rebuild_with(settings(), &records, at(1));
    assert_eq!((report.objects, report.dropped.malformed), (0, 1));
}

/// The slow way: every place up to which a checksum is known, and the nearest of them.
fn slow(slices: &[Slice], prefixes: &[Checksum], range: &Range<u64>) -> Option<VerifiedSpan> {
    let total: u64 = slices.iter().map(|slice| slice.len).sum();
    let end = range.end.min(total);
    if range.start >= end {
        return None;
    }
    let mut known = prefixes.iter();
    let mut base = 0;
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    let mut unsummed = false;
    for slice in slices {
        let (from, to) = (base, base + slice.len);
        base = to;
        let inside: Vec<u64> =
            (from + 1..to).filter(|place| (place - from).is_multiple_of(CHECKPOINT)).collect();
        let mut places = vec![(from, sum(0))];
        let mut stops = Vec::new();
        if !prefixes.is_empty() {
            for place in inside {
                let checksum = *known.next().unwrap();
                places.push((place, checksum));
                stops.push((place, checksum));
            }
        }
        stops.extend(slice.checksum.map(|checksum| (to, checksum)));
        let is_long = slice.len > MAX_WHOLE && prefixes.is_empty();
        if (from..to).contains(&range.start) {
            starts = places;
            starts.retain(|(place, _)| *place <= range.start);
            starts.retain(|(place, _)| !is_long || *place == range.start);
        }
        if (from..to).contains(&(end - 1)) {
            ends = stops;
            ends.retain(|(place, _)| *place >= end);
            ends.retain(|(place, _)| !is_long || *place == end);
        } else if to > range.start && from < end {
            unsummed |= slice.checksum.is_none();
        }
    }
    let (start, head) = starts.into_iter().next_back()?;
    let (end, tail) = ends.into_iter().next()?;
    (!unsummed).then_some(VerifiedSpan { start, end, head, tail })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn spans_are_those_of_the_slow_model(
        lens in prop::collection::vec(
            prop_oneof![
                1u64..200, CHECKPOINT - 1..CHECKPOINT + 2, 1..4 * CHECKPOINT,
                MAX_WHOLE - 1..MAX_WHOLE + 2
            ],
            1..6,
        ),
        with in 0..3,
        places in prop::collection::vec((any::<prop::sample::Index>(), 0..5i64), 2..40),
    ) {
        let master = big_master();
        let handle = begin(&master, "a", &lens);
        let (sums, inside) = (checksums(&lens), prefixes(&lens));
        let given = match with {
            0 => finish(&master, "a", handle, &sums, &inside),
            1 => finish(&master, "a", handle, &sums, &[]),
            _ => finish(&master, "a", handle, &[], &[]),
        };
        given.unwrap();
        let known = if with == 0 { &inside[..] } else { &[] };
        // Places near the ends of slices and checkpoints, and anywhere.
        let total: u64 = lens.iter().sum();
        let mut base = 0;
        let mut edges = vec![0, total, total + CHECKPOINT];
        for len in &lens {
            edges.extend((0..=len / CHECKPOINT).map(|number| base + number * CHECKPOINT));
            base += len;
            edges.push(base);
        }
        let place = |(index, near): &(prop::sample::Index, i64)| match near {
            4 => index.index(total as usize + 2) as u64,
            near => edges[index.index(edges.len())].saturating_add_signed(near - 1),
        };
        let places: Vec<u64> = places.iter().map(place).collect();
        let ranges: Vec<Range<u64>> = places.windows(2).map(|pair| pair[0]..pair[1]).collect();
        let RangedList { list, spans } = read(&master, at(0), "a", &ranges);
        for (range, span) in ranges.iter().zip(&spans) {
            prop_assert_eq!(*span, slow(list.slices.as_slice(), known, range), "{:?}", range);
            if let Some(span) = span {
                prop_assert!(span.start <= range.start && span.end >= range.end.min(total));
            }
        }
    }
}
