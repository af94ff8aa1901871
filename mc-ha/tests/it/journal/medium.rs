//! Media that fail: acknowledgements stop, nothing acknowledged is lost, and the journal recovers.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_ha::{
    DirectoryJournal, Durability, Faults, FaultyJournal, MemoryJournal, MetadataJournal,
    SnapshotError, WriterSettings, take_snapshot,
};
use mc_testkit::{Input, Program, eventually_blocking, role};
use mc_types::Sequence;

use super::life::{LONG, Life, NOW, config, keys, recover, state};

type Faulty = FaultyJournal<MemoryJournal>;

fn faulty(settings: WriterSettings) -> (Arc<Faulty>, Life) {
    let journal = Arc::new(FaultyJournal::new(MemoryJournal::new()));
    let life = Life::with_segment(Arc::clone(&journal) as Arc<dyn MetadataJournal>, settings);
    life.settle();
    (journal, life)
}

fn sync() -> WriterSettings {
    let mut settings = WriterSettings::default();
    settings.durability = Durability::Sync;
    settings
}

fn is_told(life: &Life) {
    eventually_blocking(LONG, "the failure is told", || {
        matches!(life.progress.suspensions().last(), Some(Some(_)))
    });
    assert!(life.writer.state().failure.is_some());
}

fn goes_on(life: &Life, until: Sequence) {
    eventually_blocking(LONG, "it goes on", || life.progress.acknowledged() >= until);
    assert_eq!(life.progress.suspensions().last(), Some(&None));
    assert_eq!(life.writer.state().failure, None);
}

fn stops_and_goes_on(settings: WriterSettings, faults: Faults) {
    let (journal, life) = faulty(settings);
    let before = life.put("before");
    life.settle();
    eventually_blocking(LONG, "it is acknowledged", || life.progress.acknowledged() >= before);
    journal.set(faults);
    let first = life.put("first");
    is_told(&life);
    let acknowledged = life.progress.acknowledged();
    let second = life.put("second");
    assert!(!life.writer.wait_durable(first, Duration::from_millis(200)));
    assert!(life.progress.acknowledged() <= acknowledged.max(first), "nothing new is acknowledged");
    assert!(life.progress.acknowledged() < second);
    journal.set(Faults::default());
    goes_on(&life, second);
    life.settle();
    let (rebuilt, report) = recover(&**life.writer.journal(), &config(8), 1).unwrap();
    assert_eq!(report.damaged, 0);
    assert_eq!(state(&rebuilt.master), state(&life.master));
}

fn full() -> Faults {
    let mut faults = Faults::default();
    faults.room = Some(0);
    faults
}

fn broken() -> Faults {
    let mut faults = Faults::default();
    faults.sync_fails = true;
    faults
}

#[test]
fn a_full_medium_stops_acknowledgements_until_there_is_room() {
    stops_and_goes_on(sync(), full());
    stops_and_goes_on(WriterSettings::default(), full());
}

#[test]
fn a_medium_that_does_not_sync_stops_acknowledgements() {
    stops_and_goes_on(sync(), broken());
    stops_and_goes_on(WriterSettings::default(), broken());
}

/// Acknowledged at once, as long as all that is older than the bound is durable.
#[test]
fn asynchronous_acknowledgements_wait_for_a_slow_medium() {
    let mut settings = WriterSettings::default();
    settings.durability = Durability::Async(Duration::from_secs(3600));
    let (journal, life) = faulty(settings);
    let first = life.put("first");
    assert!(life.progress.acknowledged() >= first, "at once");
    life.settle();
    journal.set(broken());
    life.put("second");
    is_told(&life);
    let third = life.put("third");
    assert!(life.progress.acknowledged() < third, "not while the medium fails");
}

#[test]
fn too_much_that_waits_ends_the_writer() {
    let mut settings = sync();
    settings.max_waiting = 10_000;
    let (journal, life) = faulty(settings);
    journal.set(full());
    let mut last = life.put("first");
    for number in 0..1000 {
        last = life.put(&format!("key-{number}"));
    }
    let state = life.writer.state();
    assert!(state.gave_up, "{state:?}");
    assert!(state.waiting <= 10_000, "{state:?}");
    let begun = Instant::now();
    assert!(!life.writer.wait_durable(last, LONG), "nobody waits for what will not come");
    journal.set(Faults::default());
    drop(life);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// A writer that gave up acknowledges nothing that it is told later.
#[test]
fn a_writer_that_gave_up_acknowledges_nothing_more() {
    let mut settings = WriterSettings::default();
    settings.durability = Durability::Async(Duration::from_secs(3600));
    settings.max_waiting = 1000;
    let (journal, life) = faulty(settings);
    journal.set(full());
    life.put_all((0..100).map(|number| format!("key-{number}")));
    assert!(life.writer.state().gave_up);
    journal.set(Faults::default());
    let acknowledged = life.progress.acknowledged();
    let late = life.put("late");
    assert!(acknowledged < late);
    assert_eq!(life.progress.acknowledged(), acknowledged);
}

#[test]
fn a_writer_of_a_broken_medium_ends_in_bounded_time() {
    let (journal, life) = faulty(sync());
    journal.set(broken());
    life.put("lost");
    is_told(&life);
    let begun = Instant::now();
    drop(life);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn a_writer_that_ends_writes_what_waits() {
    let (journal, life) = faulty(sync());
    journal.set(full());
    life.put("waiting");
    is_told(&life);
    let expected = state(&life.master);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(life));
        journal.set(Faults::default());
    });
    let (rebuilt, _) = recover(&*journal, &config(8), 1).unwrap();
    assert_eq!(state(&rebuilt.master), expected);
}

#[test]
fn snapshots_that_fail_cost_nothing() {
    let (journal, life) = faulty(sync());
    life.put("first");
    life.snapshot();
    let mut faults = Faults::default();
    faults.snapshots_fail = true;
    journal.set(faults);
    life.put("second");
    let failed = take_snapshot(&life.master, &life.writer, || NOW);
    assert!(matches!(failed, Err(SnapshotError::Journal(_))), "{failed:?}");
    life.put("third");
    life.settle();
    assert_eq!(journal.snapshots().unwrap().len(), 1);
    let (rebuilt, _) = recover(&*journal, &config(8), 1).unwrap();
    assert_eq!(state(&rebuilt.master), state(&life.master));
}

const MOUNT: [&str; 6] = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs"];

/// The command that runs another in mounts of its own, as root.
fn unshare(as_user: bool) -> Command {
    let mut unshare = Command::new("unshare");
    if as_user {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare.args(["--mount", "--"]);
    unshare
}

#[test]
fn a_full_disk_stops_acknowledgements_until_there_is_room() {
    const PLAYER: &str = "journal::medium::a_full_disk_stops_acknowledgements_until_there_is_room";
    if let Some(directory) = role::role() {
        let mount = Command::new(MOUNT[0]).args(&MOUNT[1..]).arg(&directory).status();
        assert!(mount.unwrap().success());
        on_a_small_disk(Path::new(&directory));
        return role::say("done");
    }
    let dir = tempfile::tempdir().unwrap();
    let works = |as_user: &bool| {
        let output = unshare(*as_user).args(MOUNT).arg(dir.path()).output();
        output.is_ok_and(|output| output.status.success())
    };
    let Some(as_user) = [false, true].into_iter().find(works) else {
        eprintln!("NOT RUN: a full disk, because no small one can be mounted here");
        return;
    };
    let directory = dir.path().to_str().unwrap();
    let mut command = role::launched_by(unshare(as_user), PLAYER, directory);
    let mut program = Program::start(2 * LONG, &mut command, Input::None);
    loop {
        let words = program.hear();
        println!("{words}");
        if words == "done" {
            return;
        }
    }
}

fn on_a_small_disk(directory: &Path) {
    let path = directory.join("metadata");
    let other = directory.join("other");
    let journal = Arc::new(DirectoryJournal::open(&path).unwrap());
    let life = Life::with_segment(journal, sync());
    life.put("before");
    life.settle();
    for round in 0..3 {
        // Something else takes all the room, and the journal the rest.
        fill(&other);
        let is_failing = || life.writer.state().failure.is_some();
        let mut number = 0;
        while !is_failing() {
            assert!(number < 200_000, "the disk gets full");
            let last = life.put(&format!("{round}-{number}"));
            let _ = life.writer.wait_durable(last, Duration::from_millis(5));
            number += 1;
        }
        is_told(&life);
        let last = life.put(&format!("{round}-stuck"));
        // It tries again and again without taking more and more.
        assert!(!life.writer.wait_durable(last, Duration::from_secs(3)));
        assert!(life.progress.acknowledged() < last);
        let logs = std::fs::read_dir(path.join("logs")).unwrap().count();
        assert!(logs <= 2 + round, "{logs} logs in round {round}");
        std::fs::remove_file(&other).unwrap();
        goes_on(&life, last);
        role::say(format!("round {round}: {number} puts, {:?}", life.writer.journal().usage()));
    }
    life.settle();
    let (expected, last) = (state(&life.master), life.master.last_sequence());
    assert!(life.progress.acknowledged() >= last);
    let begun = Instant::now();
    drop(life);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let journal = DirectoryJournal::open(&path).unwrap();
    let (rebuilt, report) = recover(&journal, &config(8), 2).unwrap();
    assert_eq!(report.damaged, 0, "{report:?}");
    assert!(keys(&rebuilt.master).contains("before"));
    assert_eq!(state(&rebuilt.master), expected);
    // A disk that is full from the start.
    drop(journal);
    fill(&other);
    let again = DirectoryJournal::open(&path);
    if let Ok(journal) = &again {
        let (rebuilt, report) = recover(journal, &config(8), 2).unwrap();
        assert_eq!(report.damaged, 0, "{report:?}");
        assert_eq!(state(&rebuilt.master), expected);
    }
    role::say(format!("opened on a full disk: {}", again.is_ok()));
    drop(again);
    std::fs::remove_file(&other).unwrap();
    let journal = DirectoryJournal::open(&path).unwrap();
    let (rebuilt, _) = recover(&journal, &config(8), 2).unwrap();
    assert_eq!(state(&rebuilt.master), expected);
}

/// Writes until the disk is full.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}
