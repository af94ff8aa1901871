//! Errors that callers see when the other process is killed, stopped, or slow: the same for every
//! implementation. `docs/faults.md` is the table.
//!
//! Each test has the process to itself, because it counts descriptors and mappings.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

#[cfg(feature = "tls")]
#[path = "../it/certificates.rs"]
mod certificates;
mod node;
mod process;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_testkit::{eventually, eventually_async};
use mc_transport::{Access, ConnectError, Link, Memory, Operation, Outcome, checksum};
use mc_types::{Checksum, Endpoint};
use node::{Kind, Node, Open, STALL};
use process::{Owner, place, play};

/// Long enough for a loaded machine; nothing waits for it when all is well.
const DEADLINE: Duration = Duration::from_secs(30);

/// How much later than promised something may happen on a loaded machine.
const SLACK: Duration = Duration::from_secs(4);

const MIB: usize = 1 << 20;

/// Bytes of the region of an owner in another process.
const REGION: usize = 64 * MIB;

fn pattern(len: usize) -> Vec<u8> {
    let word = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
    (0..len.div_ceil(8) as u64).flat_map(|at| word(at).to_le_bytes()).take(len).collect()
}

/// Runs a scenario while no other runs.
fn alone(kind: Kind, scenario: impl AsyncFnOnce(Kind, &Path)) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    #[cfg(feature = "tls")]
    let authority = certificates::Authority::new();
    #[cfg(feature = "tls")]
    let files = {
        authority.issue("server", &["127.0.0.1"]);
        authority.issue("client", &["node.example"]);
        authority.ca().parent().unwrap().to_owned()
    };
    #[cfg(not(feature = "tls"))]
    let files = std::path::PathBuf::from("/");
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(scenario(kind, &files));
}

macro_rules! matrix {
    ($($(#[$attribute:meta])* $name:ident: $kind:expr;)*) => { $(
        $(#[$attribute])*
        mod $name {
            use super::*;

            #[test]
            fn an_owner_killed_mid_transfer() {
                alone($kind, super::an_owner_killed_mid_transfer);
            }

            #[test]
            fn an_owner_killed_with_ten_thousand_operations_queued() {
                alone($kind, super::an_owner_killed_with_ten_thousand_operations_queued);
            }

            #[test]
            fn a_peer_killed_mid_write() {
                alone($kind, super::a_peer_killed_mid_write);
            }

            #[test]
            fn a_stopped_owner() {
                alone($kind, super::a_stopped_owner);
            }

            #[test]
            fn no_write_of_before_a_stop_lands_after_it() {
                alone($kind, super::no_write_of_before_a_stop_lands_after_it);
            }

            #[test]
            fn a_peer_that_takes_nothing() {
                alone($kind, super::a_peer_that_takes_nothing);
            }
        }
    )* };
}

matrix! {
    tcp: Kind::Tcp;
    #[cfg(feature = "tls")]
    tcp_with_tls: Kind::Tls;
    #[cfg(feature = "tls")]
    quic: Kind::Quic;
    shm: Kind::Shm;
    shm_without_sharing: Kind::ShmStreams;
}

/// Descriptors and shared mappings of this process, and what a node has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    shared: usize,
    open: Open,
}

fn held(node: &Node) -> Held {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    Held {
        descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
        shared: maps.lines().filter(|line| line.contains("memfd:")).count(),
        open: node.open(),
    }
}

impl Held {
    /// Whether no more is open than before. Less is right, too: a task that was about to end
    /// may still have held something when the test began.
    fn is_within(self, before: Self) -> bool {
        let (now, then) = (self.open, before.open);
        self.descriptors <= before.descriptors
            && self.shared <= before.shared
            && now.connections <= then.connections
            && now.links <= then.links
            && now.tasks <= then.tasks
    }
}

async fn nothing_more_is_held(node: &Node, before: Held) {
    let what = format!("no more than {before:?} is held");
    eventually(DEADLINE, what, || {
        let now = held(node);
        if now.is_within(before) { Ok(()) } else { Err(now) }
    })
    .await;
}

/// Waits until nothing but `memory` names its block any more.
async fn released(memory: Memory) {
    let mut memory = Some(memory);
    eventually(DEADLINE, "the memory of failed operations is released", || {
        memory = memory.take().and_then(|memory| memory.try_into_bytes(1).err());
        memory.is_none()
    })
    .await;
}

/// Done with the right bytes, or failed in a way that says that another link may help.
fn is_done_or_lost(outcome: &Outcome, expected: Checksum) -> bool {
    match outcome {
        Ok(done) => done.checksum == Some(expected),
        Err(error) => error.is_retryable(),
    }
}

/// A link, as soon as there is one.
async fn connected(node: &Node, endpoint: &Endpoint) -> Arc<dyn Link> {
    eventually_async(DEADLINE, "there is a link", async || {
        let link = node.transport.connect(endpoint).await;
        link.inspect_err(|error| assert!(error.is_retryable(), "{error:?}"))
    })
    .await
}

async fn nobody_is_there(node: &Node, endpoint: &Endpoint) {
    let error = node.transport.connect(endpoint).await.err().unwrap();
    let typed = matches!(error, ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. });
    assert!(typed && error.is_retryable(), "{error:?}");
}

/// A node that has all that it keeps for its links: over shared memory that is a thread that notices
/// owners that go, from the first link on.
async fn a_peer_that_had_a_link(kind: Kind, files: &Path) -> Node {
    let node = kind.peer(files).await;
    if !matches!(kind, Kind::Shm | Kind::ShmStreams) {
        return node;
    }
    let mut owner = Owner::start(kind, files);
    let link = connected(&node, &owner.endpoint).await;
    owner.player.kill();
    eventually(DEADLINE, "the link is lost", || !link.is_healthy()).await;
    drop(link);
    eventually(DEADLINE, "nothing is left of it", || {
        let open = node.open();
        if open.links == 0 && open.connections == 0 { Ok(()) } else { Err(open) }
    })
    .await;
    node
}

async fn an_owner_killed_mid_transfer(kind: Kind, files: &Path) {
    let node = a_peer_that_had_a_link(kind, files).await;
    type Sizes = &'static [(usize, usize)];
    // Sizes and their number, and whether they are read and written.
    let loads: [(Sizes, bool, bool); 4] = [
        (&[(16 * MIB, 8)], true, false),
        (&[(16 * MIB, 8)], false, true),
        (&[(4096, 4000)], true, true),
        (&[(8 * MIB, 4), (4096, 2000)], true, true),
    ];
    for (sizes, reads, writes) in loads {
        let before = held(&node);
        let mut owner = Owner::start(kind, files);
        let link = connected(&node, &owner.endpoint).await;
        let bytes = Bytes::from(pattern(16 * MIB));
        let into = Memory::allocate(16 * MIB).unwrap();
        let mut batch = Vec::new();
        for &(len, count) in sizes {
            let (place, sum) = (owner.span(0, len), checksum(&bytes[..len]));
            let read = Operation::read(place, into.slice(0, len).unwrap()).checksummed();
            // The bytes that are there already, so that reads see them in any case.
            let write = Operation::write(bytes.slice(..len), place).checksummed();
            for index in 0..count {
                let operation = if reads && (index % 2 == 0 || !writes) { &read } else { &write };
                batch.push((operation.clone(), sum));
            }
        }
        let done = Arc::new(AtomicUsize::new(0));
        let (counted, carrier) = (Arc::clone(&done), Arc::clone(&link));
        let pump = tokio::spawn(async move {
            loop {
                let mut results =
                    carrier.submit(batch.iter().map(|(one, _)| one.clone()).collect());
                let (mut failed, mut came) = (0, 0);
                while let Some((index, outcome)) = results.next().await {
                    assert!(is_done_or_lost(&outcome, batch[index].1), "{outcome:?}");
                    failed += usize::from(outcome.is_err());
                    came += 1;
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                assert_eq!(came, batch.len(), "one result per operation");
                if failed > 0 {
                    return;
                }
            }
        });
        eventually(DEADLINE, "it is in the middle", || done.load(Ordering::Relaxed) >= 3).await;
        owner.player.kill();
        let killed = Instant::now();
        tokio::time::timeout(DEADLINE, pump).await.expect("every operation ends").unwrap();
        assert!(killed.elapsed() < STALL + SLACK, "{:?}", killed.elapsed());
        eventually(DEADLINE, "the link is lost", || !link.is_healthy()).await;
        nobody_is_there(&node, &owner.endpoint).await;
        drop((link, owner));
        released(into).await;
        nothing_more_is_held(&node, before).await;
    }
}

async fn an_owner_killed_with_ten_thousand_operations_queued(kind: Kind, files: &Path) {
    const COUNT: usize = 10_000;
    let node = a_peer_that_had_a_link(kind, files).await;
    let before = held(&node);
    let mut owner = Owner::start(kind, files);
    let link = connected(&node, &owner.endpoint).await;
    let bytes = Bytes::from(pattern(4096));
    let into = Memory::allocate(4096).unwrap();
    let expected = checksum(&bytes);
    let batch = |count: usize| {
        let operations = (0..count).map(|index| match index % 2 {
            0 => Operation::read(owner.span(0, 4096), into.whole()).checksummed(),
            _ => Operation::write(bytes.clone(), owner.span(0, 4096)).checksummed(),
        });
        link.submit(operations.collect())
    };
    assert!(batch(2).await.iter().all(Result::is_ok));
    owner.player.freeze();
    let queued = batch(COUNT);
    owner.player.kill();
    let results = tokio::time::timeout(STALL + SLACK, queued).await.expect("all end in time");
    assert_eq!(results.len(), COUNT);
    for outcome in &results {
        assert!(is_done_or_lost(outcome, expected), "{outcome:?}");
        assert!(outcome.is_err() || !kind.needs_the_owner(), "nobody was there to carry it out");
    }
    eventually(DEADLINE, "the link is lost", || !link.is_healthy()).await;
    nobody_is_there(&node, &owner.endpoint).await;
    drop((link, owner));
    released(into).await;
    nothing_more_is_held(&node, before).await;
}

async fn a_peer_killed_mid_write(kind: Kind, files: &Path) {
    let owner = kind.owner(files).await;
    let memory = kind.memory(&owner, 16 * MIB);
    let region = owner.transport.register(&memory, Access::ReadWrite).unwrap();
    let other = kind.peer(files).await;
    let link = connected(&other, owner.transport.endpoint().unwrap()).await;
    // Where the other one does not write.
    let to = process::span(region.key(), 8 * MIB, 4096);
    let serves_on = async |seed: u8| {
        let write = Operation::write(Bytes::from(vec![seed; 4096]), to);
        link.submit(vec![write]).await.remove(0).unwrap();
        assert_eq!(memory.slice(8 * MIB, 4096).unwrap().to_vec(), vec![seed; 4096]);
    };
    serves_on(1).await;
    let before = held(&owner);
    for round in 0..3 {
        let words = place(&owner, region.key());
        let mut writer = play(&format!("write {kind:?} {} {words}", files.display()));
        assert_eq!(writer.hear(), "writing");
        serves_on(2 + round).await;
        writer.kill();
        serves_on(10 + round).await;
        drop(writer);
        nothing_more_is_held(&owner, before).await;
    }
    let written = memory.slice(0, 8 * MIB).unwrap().checksum();
    assert_eq!(written, checksum(&vec![7; 8 * MIB]), "blocks of the same bytes, whole or not");
    assert!(link.is_healthy());
}

async fn a_stopped_owner(kind: Kind, files: &Path) {
    let node = a_peer_that_had_a_link(kind, files).await;
    let before = held(&node);
    let owner = Owner::start(kind, files);
    let link = connected(&node, &owner.endpoint).await;
    let (bytes, into) = (Bytes::from(pattern(MIB)), Memory::allocate(MIB).unwrap());
    let expected = checksum(&bytes);
    let batch = |link: &Arc<dyn Link>| {
        link.submit(vec![
            Operation::read(owner.span(0, MIB), into.whole()).checksummed(),
            Operation::write(bytes.clone(), owner.span(0, MIB)).checksummed(),
        ])
    };
    assert!(batch(&link).await.iter().all(Result::is_ok));
    owner.player.freeze();
    let began = Instant::now();
    let results = tokio::time::timeout(DEADLINE, batch(&link)).await.expect("nothing hangs");
    let took = began.elapsed();
    for outcome in &results {
        assert!(is_done_or_lost(outcome, expected), "{outcome:?}");
        assert!(outcome.is_err() || !kind.needs_the_owner(), "nobody was there to carry it out");
    }
    assert!(took < STALL + SLACK, "{took:?}");
    if kind.needs_the_owner() {
        assert!(took >= STALL / 2, "the owner had time: {took:?}");
        let again = node.transport.connect(&owner.endpoint).await.map(|link| link.is_healthy());
        assert!(!matches!(again, Ok(false)), "a link that is given out is healthy");
        assert!(again.err().is_none_or(|error| error.is_retryable()));
    }
    owner.player.resume();
    eventually_async(DEADLINE, "it works again", async || {
        let link = connected(&node, &owner.endpoint).await;
        batch(&link).await.into_iter().collect::<Result<Vec<_>, _>>()
    })
    .await;
    drop((link, owner));
    released(into).await;
    // The dead owner is noticed without a call.
    nothing_more_is_held(&node, before).await;
}

async fn no_write_of_before_a_stop_lands_after_it(kind: Kind, files: &Path) {
    let node = kind.peer(files).await;
    let owner = Owner::start(kind, files);
    let sizes = [1, 100_003, MIB, 16 * MIB, REGION];
    // Stopped before the first write is submitted, or while it is on its way.
    let rounds = sizes.map(|size| (size, true)).into_iter();
    for (round, (size, before)) in rounds.chain([(16 * MIB, false), (REGION, false)]).enumerate() {
        let link = connected(&node, &owner.endpoint).await;
        let to = owner.span(0, size);
        let write = |byte: usize| Operation::write(Bytes::from(vec![byte as u8; size]), to);
        let old = write(2 * round + 1);
        let results = if before {
            owner.player.freeze();
            link.submit(vec![old]).await
        } else {
            let under_way = tokio::spawn(link.submit(vec![old]));
            owner.player.freeze();
            under_way.await.unwrap()
        };
        let lost = results[0].as_ref().is_err_and(|error| error.is_retryable());
        assert!(lost || results[0].is_ok() && !(before && kind.needs_the_owner()), "{results:?}");
        owner.player.resume();
        eventually_async(DEADLINE, "it is written again", async || {
            let link = connected(&node, &owner.endpoint).await;
            let result = link.submit(vec![write(2 * round + 2)]).await.remove(0);
            result.inspect_err(|error| assert!(error.is_retryable(), "{error:?}"))
        })
        .await;
        let newer = checksum(&vec![(2 * round + 2) as u8; size]);
        // For as long as an old write might take to turn up.
        let until = Instant::now() + STALL / 4;
        let deadline = Instant::now() + DEADLINE;
        let mut looked = 0;
        while looked < 3 || Instant::now() < until {
            let link = connected(&node, &owner.endpoint).await;
            let into = Memory::allocate(size).unwrap();
            let read = Operation::read(to, into.whole()).checksummed();
            match &link.submit(vec![read]).await[0] {
                Ok(read) => {
                    assert_eq!(read.checksum, Some(newer), "{size} bytes, round {round}");
                    looked += 1;
                }
                Err(error) => assert!(error.is_retryable() && Instant::now() < deadline),
            }
        }
    }
}

async fn a_peer_that_takes_nothing(kind: Kind, files: &Path) {
    let node = kind.peer(files).await;
    let mut owner = Owner::start(kind, files);
    let link = connected(&node, &owner.endpoint).await;
    let (into, key) = (Memory::allocate(MIB).unwrap(), owner.key);
    let others_read = async || {
        let began = Instant::now();
        for at in 0..50 {
            let read = Operation::read(process::span(key, at * MIB, MIB), into.whole());
            link.submit(vec![read]).await.remove(0).unwrap();
        }
        began.elapsed()
    };
    let usual = others_read().await;
    let (alone, resident) = (owner.connections(), owner.player.resident_memory());
    let role = format!("hoard {kind:?} {} {}", files.display(), owner.place());
    let mut hoarder = play(&role);
    assert_eq!(hoarder.hear(), "reading");
    let crowded = owner.connections();
    assert!(crowded > alone);
    hoarder.freeze();
    let stopped = Instant::now();
    let took = others_read().await;
    assert!(took < 4 * usual + STALL, "{took:?} instead of {usual:?}");
    loop {
        let grown = owner.player.resident_memory().saturating_sub(resident);
        assert!(grown < 64 << 20, "the owner holds {grown} bytes more");
        // One that maps the memory owes nothing, and may stay.
        if !kind.needs_the_owner() || owner.connections() < crowded {
            break;
        }
        assert!(stopped.elapsed() < STALL + SLACK, "the slow one is still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    others_read().await;
    hoarder.resume();
    drop(hoarder);
    let what = "the connections of the dead are closed";
    eventually(DEADLINE, what, || owner.connections() == alone).await;
    assert!(link.is_healthy());
}
