//! The order of effects, and the receipts that name the last effect of a command.

use core::time::Duration;
use std::collections::HashMap;
use std::thread;

use crate::recovery::rebuild_with;
use crate::*;

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
    // A read changes nothing that outlasts a master, and neither does a refused call.
    let read = master.receipt(|m| m.get_replica_list(at(3), key("a")).is_ok());
    assert_eq!((read.value, read.sequence), (true, None));
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

/// What a reply says is true in a master that is rebuilt from no more than what its receipt names.
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
