//! The order of effects, and the receipts that name the last effect that a reply depends on.

use core::time::Duration;
use std::collections::HashMap;
use std::thread;

use mc_meta::{FileSystemState, ListCursor, Pattern, RangeRead, SharedTierConfig};

use super::recovery::rebuild_with;
use super::*;

/// Keeps the records of all changes with their numbers.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<Numbered>>>);

type Numbered = (Sequence, Option<Record>);

impl Journal {
    fn last(&self) -> Option<Sequence> {
        self.0.lock().unwrap().last().map(|(sequence, _)| *sequence)
    }

    /// The records that are durable when everything up to `sequence` is.
    fn up_to(&self, sequence: Sequence) -> Vec<Record> {
        let all = self.0.lock().unwrap();
        let durable = all.iter().take_while(|(at, _)| *at <= sequence);
        durable.filter_map(|(_, record)| record.clone()).collect()
    }
}

impl EffectSink for Journal {
    fn emit(&self, sequence: Sequence, _: Time, effect: &Effect<'_>) {
        self.0.lock().unwrap().push((sequence, Record::from_effect(effect)));
    }
}

/// Keeps the numbers of what it is told, without those of objects.
#[derive(Clone, Default)]
struct OfCluster(Arc<Mutex<Vec<u64>>>);

impl EffectSink for OfCluster {
    fn emit(&self, sequence: Sequence, _: Time, _: &Effect<'_>) {
        self.0.lock().unwrap().push(sequence.as_u64());
    }

    fn wants_objects(&self) -> bool {
        false
    }
}

fn journaled(config: MasterConfig) -> (Master, Journal) {
    let journal = Journal::default();
    let master = Master::new(config, 1).unwrap().with_secret(SECRET).with_sink(journal.clone());
    (master, journal)
}

#[test]
fn a_receipt_names_the_last_effect_of_a_command() {
    let (master, journal) = journaled(settings());
    assert_eq!(master.last_sequence(), Sequence::new(0));
    let mounted = master.receipt(|m| m.mount_segment(at(0), NODE, segment(1, 4096)).is_ok());
    assert_eq!((mounted.value, mounted.sequence), (true, Some(Sequence::new(1))));
    let begun = master.receipt(|m| start(m, at(1), "a", 10).unwrap());
    assert!(begun.sequence > mounted.sequence);
    assert_eq!(begun.sequence, journal.last());
    let ended = master.receipt(|m| end(m, at(2), "a", begun.value.handle.generation));
    assert_eq!(ended.value, Ok(()));
    assert!(ended.sequence > begun.sequence);
    // A read changes nothing that outlasts a master. It shows what the put's end has changed.
    let read = master.receipt(|m| m.get_replica_list(at(3), key("a")).is_ok());
    assert_eq!((read.value, read.sequence), (true, ended.sequence));
    assert_eq!(master.last_sequence(), ended.sequence.unwrap());
    let refused = master.receipt(|m| m.remove(at(3), key("none"), false).is_err());
    assert_eq!((refused.value, refused.sequence), (true, None));
    // One receipt for several commands: the last effect of all; the inner one's is its own.
    let both = master.receipt(|m| {
        let inner = m.receipt(|m| put(m, at(3), "b", 10).map(drop));
        assert!(inner.sequence > ended.sequence);
        has(m, "b") && has(m, "a")
    });
    assert_eq!((both.value, both.sequence), (true, journal.last()));
    assert_eq!(both.sequence, Some(master.last_sequence()));
}

#[test]
fn without_a_sink_that_wants_objects_their_effects_have_no_numbers() {
    let master = master(&[4096]);
    let ended = master.receipt(|m| put(m, at(0), "a", 10).is_ok());
    assert_eq!(
        (ended.value, ended.sequence, master.last_sequence()),
        (true, None, Sequence::new(0))
    );
    let told = OfCluster::default();
    let master = Master::new(settings(), 1).unwrap().with_sink(told.clone());
    master.mount_segment(at(0), NODE, segment(1, 4096)).unwrap();
    let ended = master.receipt(|m| start(m, at(0), "a", 10).is_ok());
    assert_eq!((ended.value, ended.sequence), (true, None));
    assert_eq!(*told.0.lock().unwrap(), [1]);
}

#[test]
fn sinks_that_want_less_see_the_numbers_of_the_others() {
    let (master, journal) = journaled(settings());
    let told = OfCluster::default();
    let master = master.with_sink(told.clone());
    for number in 1..=3 {
        master.mount_segment(at(0), NODE, segment(number, 4096)).unwrap();
        put(&master, at(0), &format!("k{number}"), 10).unwrap();
    }
    let numbers = journal.0.lock().unwrap().iter().map(|(at, _)| at.as_u64()).collect::<Vec<_>>();
    assert_eq!(numbers, (1..=9).collect::<Vec<_>>());
    assert_eq!(*told.0.lock().unwrap(), [1, 4, 7]);
}

/// A reply is true in a master that is rebuilt from no more than what its receipt names.
#[test]
fn a_master_rebuilt_up_to_a_receipt_keeps_what_the_reply_says() {
    let (master, journal) = journaled(settings());
    master.mount_segment(at(0), NODE, segment(1, 1000)).unwrap();
    let (again, late) = (settings(), at(0));
    let rebuilt = |receipt: Option<Sequence>| {
        let (master, report) =
            rebuild_with(again.clone(), &journal.up_to(receipt.expect("an effect")), late);
        assert_eq!(report.dropped.total(), 0, "{report:?}");
        // Its node comes back.
        master.mount_segment(late, NODE, segment(1, 1000)).unwrap();
        master
    };
    // The space of a granted put is not granted again.
    let begun = master.receipt(|m| start(m, at(1), "a", 600).unwrap());
    assert!(start(&rebuilt(begun.sequence), at(1), "b", 600).is_err());
    // What was put is there.
    let generation = begun.value.handle.generation;
    let ended = master.receipt(|m| end(m, at(2), "a", generation).unwrap());
    assert!(!has(&rebuilt(begun.sequence), "a"));
    assert!(has(&rebuilt(ended.sequence), "a"));
    // What made room for another is gone before its space is granted again.
    let later = secs(3600);
    let instead = master.receipt(|m| put(m, later, "b", 600).unwrap());
    let back = rebuilt(instead.sequence);
    assert!(has(&back, "b") && !has(&back, "a"));
    // What was removed stays removed.
    let removed = master.receipt(|m| m.remove(later + Duration::from_secs(60), key("b"), true));
    assert_eq!(removed.value, Ok(()));
    assert!(!has(&rebuilt(removed.sequence), "b"));
}

/// Names the effect that a command saw, asserting that it had none of its own.
fn seen<T>(master: &Master, command: impl FnOnce(&Master) -> T) -> Option<Sequence> {
    let before = master.last_sequence();
    let receipt = master.receipt(command);
    assert_eq!(master.last_sequence(), before, "it changes nothing");
    receipt.sequence
}

/// Questions about one key that change nothing that a journal keeps.
fn questions(master: &Master, now: Time, name: &str) -> Vec<Option<Sequence>> {
    let (name, keys) = (key(name), [key(name)]);
    let reads = [RangeRead { key: name, ranges: &[] }];
    vec![
        seen(master, |m| m.get_replica_list(now, name).is_ok()),
        seen(master, |m| m.batch_get_replica_list(now, &keys)),
        seen(master, |m| m.batch_get_ranges(now, &reads)),
        seen(master, |m| m.exist(now, name)),
        seen(master, |m| m.batch_exist(now, &keys)),
        seen(master, |m| m.longest_prefix(now, keys)),
        seen(master, |m| m.describe(now, name).is_ok()),
        seen(master, |m| m.explain(now, name)),
        seen(master, |m| m.renew_lease(now, name, Generation::new(0)).is_ok()),
        seen(master, |m| m.batch_replica_clear(now, STRANGER, &keys, None)),
    ]
}

#[test]
fn a_reply_names_the_change_that_it_shows() {
    let (master, _journal) = journaled(settings());
    master.mount_segment(at(0), NODE, segment(1, 4096)).unwrap();
    let all = |sequence: Option<Sequence>, answers: Vec<Option<Sequence>>| {
        assert_eq!(answers, vec![sequence; answers.len()]);
    };
    all(None, questions(&master, at(1), "a"));
    // A put that has begun is nothing that can be read; another one is to be made again.
    let begun = master.receipt(|m| start(m, at(1), "a", 10).unwrap());
    all(None, questions(&master, at(1), "a"));
    assert_eq!(seen(&master, |m| start(m, at(1), "a", 10).unwrap_err()), None);
    let generation = begun.value.handle.generation;
    let ended = master.receipt(|m| end(m, at(1), "a", generation).unwrap());
    assert!(ended.sequence > begun.sequence);
    all(ended.sequence, questions(&master, at(1), "a"));
    assert_eq!(seen(&master, |m| start(m, at(1), "a", 10).unwrap_err()), ended.sequence);
    // A lease is in the way of a removal: the object is there.
    assert_eq!(seen(&master, |m| m.remove(at(2), key("a"), false).unwrap_err()), ended.sequence);
    // What is to replace it is not there before its end.
    let config = ReplicateConfig::default();
    let upsert = PutStart { key: key("a"), slice_lengths: &[20], config: &config };
    let upsert = master.receipt(|m| m.upsert_start(at(2), WRITER, &upsert).unwrap());
    assert!(upsert.sequence > ended.sequence);
    all(ended.sequence, questions(&master, at(2), "a"));
    // Effects of other keys change nothing about it.
    let other = master.receipt(|m| put(m, at(2), "b", 10).map(drop)).sequence;
    assert!(other > ended.sequence);
    all(ended.sequence, questions(&master, at(2), "a"));
    all(None, questions(&master, at(2), "none"));
    assert_eq!(seen(&master, |m| m.remove(at(2), key("none"), true).unwrap_err()), None);
    // A batch shows the latest of what its keys show, in whatever order.
    for keys in [["a", "b", "none"], ["b", "none", "a"]] {
        let keys = keys.map(key);
        assert_eq!(seen(&master, |m| m.batch_exist(at(2), &keys)), other);
        assert_eq!(seen(&master, |m| m.batch_get_replica_list(at(2), &keys)), other);
    }
    // A prefix ends with the first key that cannot be read, and shows nothing of those behind it.
    let prefix =
        |keys: [&'static str; 2]| seen(&master, |m| m.longest_prefix(at(2), keys.map(key)));
    assert_eq!((prefix(["a", "b"]), prefix(["none", "b"])), (other, None));
    // That an object is gone shows as well: to reads, to removals, and to puts that end.
    let removed = master.receipt(|m| m.remove(at(3), key("a"), true).unwrap());
    assert!(removed.sequence > other);
    all(removed.sequence, questions(&master, at(3), "a"));
    let again = |m: &Master| m.remove(at(3), key("a"), true).unwrap_err();
    assert_eq!(seen(&master, again), removed.sequence);
    let late = |m: &Master| end(m, at(3), "a", generation).unwrap_err();
    assert_eq!(seen(&master, late), removed.sequence);
    // The latest of all, for commands that look at all.
    let last = master.receipt(|m| put(m, at(3), "c", 10).map(drop)).sequence;
    let any = Pattern::new("x.*").unwrap();
    let (first, limit) = (ListCursor::default(), 10);
    assert_eq!(seen(&master, |m| m.list_keys("x", first, limit)), last);
    let by_regex = |m: &Master| m.get_replica_list_by_regex(at(3), &any, first, limit);
    assert_eq!(seen(&master, by_regex), last);
    assert_eq!(seen(&master, |m| m.remove_by_regex(at(3), &any, true)), last);
}

#[test]
fn a_command_without_keys_waits_for_no_object() {
    let (master, _journal) = journaled(settings());
    let mount =
        |id, client| master.receipt(|m| m.mount_segment(at(0), client, segment(id, 4096)).unwrap());
    let mounted = mount(1, NODE);
    put(&master, at(0), "a", 10).unwrap();
    master.remove(at(0), key("a"), true).unwrap();
    assert_eq!(seen(&master, |m| m.ping(at(1), NODE)), None);
    assert_eq!(seen(&master, |m| m.report()), None);
    assert_eq!(seen(&master, |m| m.tick(at(1))), None);
    assert_eq!(seen(&master, |m| m.batch_query_ip(&[NODE])), None);
    assert_eq!(seen(&master, |m| m.fetch_tasks(at(1), NODE, 10)), None);
    // A segment that is there already was mounted by an effect, and causes no other.
    let other = mount(2, STRANGER);
    assert!(other.sequence > mounted.sequence);
    assert_eq!(mount(1, NODE).sequence, mounted.sequence);
    let attached = |m: &Master| m.reattach_segment(at(1), NODE, &segment(1, 4096)).unwrap();
    assert_eq!(seen(&master, attached), mounted.sequence);
}

/// Otherwise the file would be missing when another master takes over without the removal.
#[test]
fn files_are_handed_out_for_deletion_with_the_number_of_the_removal() {
    let mut config = settings();
    config.shared_tier = Some(SharedTierConfig::default());
    let (master, _journal) = journaled(config);
    master.mount_segment(at(0), NODE, segment(1, 4096)).unwrap();
    let grant = put(&master, at(0), "a", 10).unwrap();
    master.file_put_end(at(0), WRITER, key("a"), grant.handle).unwrap();
    let jobs = |m: &Master| m.file_jobs(at(1), NODE, FileSystemState::default(), 10).delete.len();
    assert_eq!(seen(&master, jobs), None);
    let removed = master.receipt(|m| m.remove(at(1), key("a"), true).unwrap());
    let handed = master.receipt(jobs);
    assert_eq!((handed.value, handed.sequence), (1, removed.sequence));
    assert_eq!(seen(&master, jobs), None);
}

/// Keys share the numbers of which a master keeps a few thousand. Of those that share one the reply
/// waits for the latest.
#[test]
fn keys_that_share_a_number_wait_longer_and_never_less() {
    let (master, _journal) = journaled(settings());
    master.mount_segment(at(0), NODE, segment(1, 1 << 20)).unwrap();
    let names: Vec<String> = (0..12_000).map(|number| format!("k{number}")).collect();
    let ends: Vec<Option<Sequence>> = names
        .iter()
        .map(|name| master.receipt(|m| put(m, at(0), name, 1).map(drop).unwrap()).sequence)
        .collect();
    let mut later = 0;
    for (name, end) in names.iter().zip(&ends) {
        let shown = seen(&master, |m| m.exist(at(0), key(name)));
        assert!(shown >= *end, "{name}: {shown:?} before {end:?}");
        assert!(ends.contains(&shown), "{name}: the end of some put");
        later += u32::from(shown > *end);
    }
    assert!((4_000..11_000).contains(&later), "{later} of 12,000 keys share a number");
}

/// Readers beside writers: a reply never shows a value whose end its receipt does not name.
#[test]
fn no_thread_sees_a_change_before_its_number() {
    let mut config = settings();
    config.shards = 2;
    let (master, journal) = journaled(config);
    master.mount_segment(at(0), NODE, segment(1, 1 << 20)).unwrap();
    let (master, journal) = (&master, &journal);
    thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for _ in 0..300 {
                put(master, at(0), "a", 8).unwrap();
                master.remove(at(0), key("a"), true).unwrap();
            }
        });
        scope.spawn(move || {
            let mut shown = Vec::new();
            while !writer.is_finished() {
                let keys = [key("none"), key("a")];
                let read = master.receipt(|m| m.batch_get_replica_list(at(0), &keys));
                let generation = read.value[1].as_ref().ok().map(|list| list.generation);
                shown.push((generation, read.sequence));
            }
            let records = journal.0.lock().unwrap();
            for (generation, sequence) in shown {
                let Some(sequence) = sequence else { continue };
                // The last thing that happened to the key up to this effect.
                let before = records.iter().rev().filter(|(at, _)| *at <= sequence);
                let is = before.filter_map(|(_, record)| record.as_ref()).find_map(|it| match it {
                    Record::Object(object) => Some(object.complete.then_some(object.generation)),
                    Record::Removed { .. } => Some(None),
                    _ => None,
                });
                assert_eq!(is.flatten(), generation, "at {sequence:?}");
            }
        });
    });
}

/// Remembers of which key each effect was, and that they come in order.
#[derive(Clone, Default)]
struct Ordered(Arc<Mutex<HashMap<Sequence, String>>>);

impl EffectSink for Ordered {
    fn emit(&self, sequence: Sequence, _: Time, effect: &Effect<'_>) {
        let mut seen = self.0.lock().unwrap();
        assert_eq!(sequence.as_u64(), seen.len() as u64 + 1, "handed over in the order of numbers");
        let key = match effect {
            Effect::Began { object } | Effect::Stored { object, .. } => {
                object.key().as_str().to_owned()
            }
            Effect::Removed { key, .. } => key.as_str().to_owned(),
            _ => String::new(),
        };
        seen.insert(sequence, key);
    }
}

#[test]
fn threads_get_receipts_for_their_own_effects() {
    let (first, second) = (Ordered::default(), Ordered::default());
    let mut config = settings();
    config.shards = 4;
    let master = Master::new(config, 1).unwrap().with_secret(SECRET);
    let master = master.with_sink(first.clone()).with_sink(second.clone());
    master.mount_segment(at(0), NODE, segment(1, 1 << 20)).unwrap();
    let (master, first) = (&master, &first);
    thread::scope(|scope| {
        for worker in 0..4 {
            scope.spawn(move || {
                let mut last = None;
                for number in 0..200 {
                    let name = format!("{worker}-{number}");
                    let begun = master.receipt(|m| start(m, at(0), &name, 8).unwrap());
                    let generation = begun.value.handle.generation;
                    let ended = master.receipt(|m| end(m, at(0), &name, generation).unwrap());
                    let removed = master.receipt(|m| m.remove(at(0), key(&name), true).unwrap());
                    for receipt in [begun.sequence, ended.sequence, removed.sequence] {
                        assert!(receipt > last, "{receipt:?} after {last:?}");
                        last = receipt;
                        let seen = first.0.lock().unwrap();
                        assert_eq!(seen.get(&receipt.unwrap()), Some(&name));
                    }
                }
            });
        }
    });
    assert_eq!(*first.0.lock().unwrap(), *second.0.lock().unwrap());
    assert_eq!(master.last_sequence().as_u64() as usize, first.0.lock().unwrap().len());
}
