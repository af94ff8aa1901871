//! The master against a slow, obvious model of it.
//!
//! Placement and the choice of victims are the master's freedom: the model takes
//! extents from the answer and learns victims from the effects, and checks that
//! each of them was allowed. Everything else the model predicts exactly.
//!
//! A failure prints the shortest script that fails, and a line `cc …` for
//! `proptest-regressions/model/mod.txt`, which replays it. `PROPTEST_CASES=100000` looks
//! longer.

mod ops;
mod oracle;
mod replay;

use core::time::Duration;

use mc_meta::{ListCursor, PutEnd, PutStart};
use mc_types::{Checksum, ClientId, KeyRef, Time};
use ops::{CLIENTS, Clock, Op, SLOTS, Script, Settings, id_of, name_of, script, settings, spec};
use oracle::Oracle;
use oracle::transfers::Route;
use proptest::prelude::ProptestConfig;
use proptest::test_runner::{TestError, TestRunner};
use replay::{Outcome, replay};

/// Plays a script from a time on.
fn play(settings: &Settings, seed: u64, start: u64, script: &Script) -> Outcome {
    replay(|step| {
        let mut oracle = Oracle::new(settings.config.clone(), seed, Time::from_millis(start));
        for slot in 0..SLOTS {
            oracle.mount(
                ClientId::from_u128(u128::from(slot) % CLIENTS),
                spec(settings, slot, 0, false),
            );
        }
        for (number, op) in script.0.iter().enumerate() {
            step(number, op);
            apply(&mut oracle, settings, op);
            oracle.check();
        }
        step(script.0.len(), &"the end");
        oracle.finish();
    })
}

fn apply(oracle: &mut Oracle, settings: &Settings, op: &Op) {
    let of = |client: &u128| ClientId::from_u128(*client);
    match op {
        Op::Mount { client, slot, epoch, elsewhere } => {
            oracle.mount(of(client), spec(settings, *slot, *epoch, *elsewhere));
        }
        Op::Remount { client, slots } => {
            let specs =
                slots.iter().map(|(slot, epoch)| spec(settings, *slot, *epoch, false)).collect();
            oracle.remount(of(client), specs);
        }
        Op::Reattach { client, slot, epoch } => {
            oracle.reattach(of(client), &spec(settings, *slot, *epoch, false));
        }
        Op::Unmount { client, slot, epoch } => oracle.unmount(of(client), id_of(*slot, *epoch)),
        Op::Leave { client, slot, epoch, grace } => {
            oracle.leave(of(client), id_of(*slot, *epoch), *grace);
        }
        Op::Ping { client } => oracle.ping(of(client)),
        Op::PutStart { client, key, slices, wish } => {
            let key = name(*key);
            let put = PutStart { key: as_key(&key), slice_lengths: slices, config: &wish.config() };
            let _ = oracle.put_start(of(client), &put);
        }
        Op::PutEnd { client, key, which, checksums } => {
            let key = name(*key);
            let checksums = vec![Checksum::from_crc32c(5); *checksums];
            let (key, handle) = (as_key(&key), oracle.put_handle(&key, *which));
            let put = PutEnd { checksums: &checksums, ..PutEnd::new(key, handle) };
            oracle.put_end(of(client), &put);
        }
        Op::PutRevoke { client, key, which, late } => {
            let key = name(*key);
            let handle = oracle.put_handle(&key, *which);
            oracle.put_revoke(of(client), as_key(&key), handle, *late);
        }
        Op::Put { client, key, slices, wish } => {
            let (client, key) = (of(client), name(*key));
            let put = PutStart { key: as_key(&key), slice_lengths: slices, config: &wish.config() };
            if let Some(handle) = oracle.put_start(client, &put) {
                let end = PutEnd::new(put.key, handle);
                oracle.put_end(client, &end);
            }
        }
        Op::UpsertStart { client, key, slices, wish } => {
            let key = name(*key);
            let put = PutStart { key: as_key(&key), slice_lengths: slices, config: &wish.config() };
            let _ = oracle.upsert_start(of(client), &put);
        }
        Op::Upsert { client, key, slices, wish } => {
            let (client, key) = (of(client), name(*key));
            let put = PutStart { key: as_key(&key), slice_lengths: slices, config: &wish.config() };
            if let Some(handle) = oracle.upsert_start(client, &put) {
                let end = PutEnd::new(put.key, handle);
                oracle.put_end(client, &end);
            }
        }
        Op::TransferStart { client, key, kind, from, to } => {
            let names: Vec<String> = to.iter().map(|slot| name_of(*slot)).collect();
            let targets: Vec<&str> = names.iter().map(String::as_str).collect();
            let source = name_of(*from);
            let route = Route { kind: *kind, source: &source, targets: &targets };
            oracle.transfer_start(of(client), as_key(&name(*key)), route);
        }
        Op::TransferEnd { client, key, kind, which } => {
            let key = name(*key);
            let id = oracle.transfer(&key, *which);
            oracle.transfer_end(of(client), as_key(&key), *kind, id);
        }
        Op::TransferRevoke { client, key, kind, which, late } => {
            let key = name(*key);
            let id = oracle.transfer(&key, *which);
            oracle.transfer_revoke(of(client), as_key(&key), *kind, id, *late);
        }
        Op::Clear { client, keys, slot } => {
            let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
            oracle.clear(of(client), &names, slot.map(name_of).as_deref());
        }
        Op::Damaged { key, replica, intact } => {
            oracle.damaged(as_key(&name(*key)), *replica, *intact);
        }
        Op::Pin { key, ttl } => {
            let ttl = ttl.map(|ttl| ttl.map(Duration::from_millis));
            oracle.pin(as_key(&name(*key)), ttl);
        }
        Op::Get { key } => oracle.get(as_key(&name(*key))),
        Op::Exist { key } => oracle.exist(as_key(&name(*key))),
        Op::Remove { key, force } => oracle.remove(as_key(&name(*key)), *force),
        Op::RemoveAll { force } => oracle.remove_all(*force),
        Op::Prefix { keys } => {
            let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
            oracle.longest_prefix(&names);
        }
        Op::List { limit } => oracle.list(ListCursor::default(), *limit),
        Op::Tick => oracle.tick(),
        Op::Pass { millis, quiet } => {
            oracle.pass(*millis);
            if !quiet {
                (0..CLIENTS).for_each(|client| oracle.ping(ClientId::from_u128(client)));
            }
        }
        Op::Back { millis } => oracle.go_back(*millis),
    }
}

fn name(key: usize) -> String {
    format!("key-{key}")
}

fn as_key(key: &str) -> KeyRef<'_> {
    KeyRef::new(key).unwrap()
}

/// Plays scripts until one fails, and prints the shortest that does.
fn look(test: &'static str, cases: u32, clock: Clock, start: u64) {
    let mut config = ProptestConfig::with_cases(cases);
    if let Some(more) = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()) {
        config.cases = more;
    }
    // A long script takes a millisecond, and a short one is worth waiting for.
    config.max_shrink_iters = 50_000;
    config.source_file = Some(file!());
    config.test_name = Some(test);
    let input = (settings(), 0u64..1_000, script(clock));
    let played = TestRunner::new(config)
        .run(&input, |(settings, seed, script)| play(&settings, seed, start, &script));
    match played {
        Ok(()) => {}
        Err(TestError::Abort(reason)) => panic!("{reason}"),
        Err(TestError::Fail(_, (settings, seed, mut script))) => {
            let reason = prune(&mut script, |script| play(&settings, seed, start, script));
            panic!("{reason}\n\nsettings: {settings:?}\nseed: {seed}\nscript: {script:?}\n");
        }
    }
}

/// Takes out every command without which a script still fails. Commands that could not
/// be done without before they were made simpler, often can be afterwards. Says why it
/// fails.
fn prune(script: &mut Script, play: impl Fn(&Script) -> Outcome) -> String {
    let mut reason = "it fails sometimes".to_owned();
    let mut at = script.0.len();
    while at > 0 {
        at -= 1;
        let mut shorter = script.clone();
        shorter.0.remove(at);
        if play(&shorter).is_err() {
            *script = shorter;
            at = script.0.len();
        }
    }
    if let Err(error) = play(script) {
        reason = error.to_string();
    }
    reason
}

#[test]
fn the_master_keeps_its_rules() {
    look("the_master_keeps_its_rules", 1_200, Clock::Runs, 1);
}

#[test]
fn the_master_keeps_its_rules_while_the_clock_stands_still() {
    look("the_master_keeps_its_rules_while_the_clock_stands_still", 150, Clock::Stands, 0);
}

#[test]
fn the_master_keeps_its_rules_to_the_end_of_time() {
    look("the_master_keeps_its_rules_to_the_end_of_time", 250, Clock::Ends, u64::MAX - 4_000);
}

#[test]
fn the_master_keeps_its_promises_when_the_clock_goes_back_and_forth() {
    let test = "the_master_keeps_its_promises_when_the_clock_goes_back_and_forth";
    look(test, 400, Clock::Jumps, 1_000);
}
