//! Other processes: this program again, told by a variable which part it plays.

use std::os::unix::process::CommandExt;
use std::task::{Context, Poll, Waker};

use mc_testkit::role::{self, say};
use mc_testkit::{Input, Program, eventually_async, eventually_blocking};
use mc_transport::shm::ShmListen;
use mc_transport::{
    Access, ConnectError, Link, Memory, NodeSecret, Operation, ShmConfig, ShmLink, ShmTransport,
    TransferError, Transport,
};
use mc_types::Endpoint;

use super::*;

/// Bytes of each region.
const LEN: usize = 1 << 20;

/// Memory that can be mapped, and memory that cannot.
const SHARED: usize = 4;

/// Played in other processes; nothing in a run of all tests.
#[test]
fn part() {
    let Some(part) = role::role() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match part.split_once(' ') {
        None => runtime.block_on(play_owner(&part)),
        Some((at, rest)) => runtime.block_on(play_client(at, rest)),
    }
}

/// Opens regions until told to end; each line heard opens another, or withdraws the first.
async fn play_owner(listen: &str) {
    let mut config = ShmConfig::default();
    if let Some(path) = listen.strip_prefix("at:") {
        config.listen = ShmListen::Path(path.into());
    }
    let owner = ShmTransport::start(config).await.unwrap();
    let memories: Vec<Memory> = (0..=SHARED)
        .map(|n| if n < SHARED { owner.allocate(LEN) } else { Memory::allocate(LEN) }.unwrap())
        .collect();
    let mut regions: Vec<_> = memories
        .iter()
        .map(|memory| {
            memory.whole().copy_from(0, &[9; LEN]).unwrap();
            owner.register(memory, Access::ReadWrite).unwrap()
        })
        .collect();
    let mut words = owner.endpoint().unwrap().to_string();
    for region in &regions {
        words += &format!(" {}", hex(region.key().to_bytes()));
    }
    say(format_args!("{words} {}", hex(owner.secret().to_bytes())));
    while let Some(word) = tokio::task::spawn_blocking(role::hear).await.unwrap() {
        if word.trim() == "withdraw" {
            regions.remove(0).withdraw().await;
            say("withdrawn");
            continue;
        }
        let region = owner.register(&memories[0], Access::ReadWrite).unwrap();
        say(hex(region.key().to_bytes()));
        regions.push(region);
    }
}

/// Reads the regions of `keys` until it is killed; or says why it
/// cannot.
async fn play_client(at: &str, keys: &str) {
    let client = client(ShmConfig::default()).await;
    let link = match client.connect(&at.parse().unwrap()).await {
        Ok(link) => link,
        Err(error) => {
            say(if matches!(error, ConnectError::NotAdmitted { .. }) { "refused" } else { "lost" });
            return;
        }
    };
    let keys: Vec<RemoteKey> =
        keys.split(' ').map(|key| RemoteKey::from_bytes(unhex(key))).collect();
    let mut said = false;
    loop {
        let batch = keys.iter().map(|key| read_of(*key, 4096)).collect();
        let results = link.submit(batch).await;
        if !std::mem::replace(&mut said, true) {
            say(if results.iter().all(Result::is_ok) { "reading" } else { "failing" });
        }
        tokio::task::yield_now().await;
    }
}

fn hex(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}

fn unhex(text: &str) -> [u8; 16] {
    u128::from_str_radix(text.trim(), 16).unwrap().to_be_bytes()
}

/// Starts a process that plays a part.
fn play(part: &str, user: Option<u32>) -> Program {
    let mut command = role::command("processes::part", part);
    if let Some(user) = user {
        command.uid(user).current_dir("/");
    }
    Program::start(DEADLINE, &mut command, Input::Open)
}

/// The next line that the process prints.
fn says(process: &mut Program) -> String {
    tokio::task::block_in_place(|| process.hear())
}

/// An owner in another process.
struct Owner {
    process: Program,
    endpoint: Endpoint,
    /// The last one's memory cannot be mapped.
    keys: Vec<RemoteKey>,
    secret: NodeSecret,
}

impl Owner {
    async fn start(listen: &str) -> Self {
        tokio::task::block_in_place(|| Self::start_blocking(listen))
    }

    fn start_blocking(listen: &str) -> Self {
        let mut process = play(listen, None);
        let words = process.hear();
        let mut words = words.split(' ');
        let endpoint = words.next().unwrap().parse().unwrap();
        let mut keys: Vec<[u8; 16]> = words.map(unhex).collect();
        let secret = NodeSecret::from_bytes(keys.pop().unwrap());
        let keys = keys.into_iter().map(RemoteKey::from_bytes).collect();
        Self { process, endpoint, keys, secret }
    }

    async fn opens_another(&mut self) -> RemoteKey {
        self.process.tell("another");
        RemoteKey::from_bytes(unhex(&says(&mut self.process)))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_killed_fails_what_is_under_way() {
    let _alone = alone().await;
    let client = client(ShmConfig::default()).await;
    let before = held();
    for _ in 0..3 {
        let owner = Owner::start("anywhere").await;
        let link = client.connect_proven(&owner.endpoint, owner.secret).await.unwrap();
        let (counted, mut done) = tokio::sync::mpsc::unbounded_channel();
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let (link, counted) = (Arc::clone(&link), counted.clone());
                // Half of them on one key, half of them on all kinds together.
                let keys =
                    if task % 2 == 0 { vec![owner.keys[task / 2]] } else { owner.keys.clone() };
                tokio::spawn(async move { read_and_write(&link, &keys, task, &counted).await })
            })
            .collect();
        for _ in 0..200 {
            tokio::time::timeout(DEADLINE, done.recv()).await.expect("they work").unwrap();
        }
        drop(owner);
        for task in tasks {
            let last = tokio::time::timeout(DEADLINE, task).await.expect("no task hangs").unwrap();
            assert!(last.is_retryable(), "{last:?}");
        }
        assert!(!link.is_healthy());
        let late = link.view(span(RemoteKey::from_bytes([0; 16]), 0, 1)).map(|_| ());
        assert!(matches!(late, Err(TransferError::LinkLost { .. })), "{late:?}");
        drop(link);
        eventually(DEADLINE, "nothing is left of it", || {
            let stats = client.stats();
            let left = (stats.links, stats.streams, stats.mapped_regions, stats.tasks);
            left == (0, 0, 0, 0) && held() == before
        })
        .await;
    }
}

/// As a caller that makes operations on its own thread: between them nothing runs the link's task, and
/// the memory is mapped still.
#[tokio::test]
async fn an_owner_that_is_killed_fails_operations_that_no_task_runs_between() {
    let _alone = alone().await;
    let client = client(ShmConfig::default()).await;
    let owner = Owner::start_blocking("anywhere");
    let link = client.connect_proven(&owner.endpoint, owner.secret).await.unwrap();
    let key = owner.keys[0];
    let write =
        || link.submit(vec![Operation::write(Bytes::from_static(b"bytes"), span(key, 0, 5))]);
    write().await.remove(0).unwrap();
    // Waits for its end.
    drop(owner);
    let deadline = std::time::Instant::now() + DEADLINE;
    let mut context = Context::from_waker(Waker::noop());
    // Completed here and now, without a turn for any other task.
    let last = loop {
        let Poll::Ready(Some((_, outcome))) = write().poll_next(&mut context) else {
            panic!("a copy waits for nothing");
        };
        match outcome {
            Err(error) => break error,
            Ok(_) => assert!(std::time::Instant::now() < deadline, "it is told in time"),
        }
    };
    assert!(matches!(last, TransferError::LinkLost { .. }), "{last:?}");
}

/// Memory of other processes that this one maps.
fn mapped() -> usize {
    held().1
}

/// As a caller that makes no operations any more: nothing runs the link's task, and the memory of
/// what is gone is unmapped all the same.
#[tokio::test]
async fn an_idle_client_maps_nothing_of_an_owner_that_is_killed_or_of_a_withdrawn_region() {
    let _alone = alone().await;
    let client = client(ShmConfig::default()).await;
    let before = mapped();
    let killed = Owner::start_blocking("anywhere");
    let link = client.connect_proven(&killed.endpoint, killed.secret).await.unwrap();
    for key in &killed.keys[..SHARED] {
        one(&*link, read_of(*key, LEN)).await.unwrap();
    }
    // The page of the owner, which the link's task keeps, and the regions.
    assert_eq!(mapped(), before + 1 + SHARED);
    // Waits for its end.
    drop(killed);
    // The thread that waits here is the only one of the runtime.
    eventually_blocking(DEADLINE, "what was killed is unmapped", || mapped() == before + 1);
    assert!(!link.is_healthy());
    drop(link);
    eventually(DEADLINE, "nothing is left of it", || mapped() == before).await;

    let mut alive = Owner::start_blocking("anywhere");
    let link = client.connect_proven(&alive.endpoint, alive.secret).await.unwrap();
    one(&*link, read_of(alive.keys[0], LEN)).await.unwrap();
    one(&*link, read_of(alive.keys[1], LEN)).await.unwrap();
    assert_eq!(mapped(), before + 3);
    alive.process.tell("withdraw");
    assert_eq!(alive.process.hear(), "withdrawn");
    eventually_blocking(DEADLINE, "what was withdrawn is unmapped", || mapped() == before + 2);
    assert!(link.is_healthy());
    one(&*link, read_of(alive.keys[1], LEN)).await.unwrap();
}

/// Reads and writes until something fails.
async fn read_and_write(
    link: &ShmLink,
    keys: &[RemoteKey],
    task: usize,
    counted: &tokio::sync::mpsc::UnboundedSender<()>,
) -> TransferError {
    let target = Memory::allocate(LEN).unwrap();
    loop {
        let each = keys.iter().enumerate().map(|(n, key)| {
            let whole = span(*key, 0, LEN as u64);
            match (n + task / 2) % 2 {
                0 => Operation::read(whole, target.whole()),
                _ => Operation::write(Bytes::from(vec![task as u8; LEN]), whole),
            }
        });
        let results = tokio::time::timeout(DEADLINE, link.submit(each.collect())).await;
        for result in results.expect("no batch hangs") {
            if let Err(error) = result {
                return error;
            }
        }
        let _ = counted.send(());
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_killed_leaves_nothing_at_the_owner() {
    let _alone = alone().await;
    let owner = owner().await;
    let memories = [owner.allocate(LEN).unwrap(), Memory::allocate(LEN).unwrap()];
    let regions = memories.each_ref().map(|memory| owner.register(memory, Access::Read).unwrap());
    let idle = owner.stats();
    let before = held();
    let keys = regions.each_ref().map(|region| hex(region.key().to_bytes())).join(" ");
    let part = format!("{} {keys}", owner.endpoint().unwrap());
    let mut clients: Vec<Program> = (0..3).map(|_| play(&part, None)).collect();
    for client in &mut clients {
        assert_eq!(says(client), "reading");
    }
    assert_eq!(owner.stats().connections, 6, "each has a connection and a stream");
    for client in &mut clients {
        assert!(client.is_running());
        client.kill();
    }
    drop(clients);
    eventually(DEADLINE, "they are forgotten", || owner.stats() == idle && held() == before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_stops_holds_up_only_what_needs_it() {
    let _alone = alone().await;
    let mut owner = Owner::start("anywhere").await;
    let client = client(short()).await;
    let link = client.connect(&owner.endpoint).await.unwrap();
    let mapped = owner.keys[0];
    assert!(one(&*link, read_of(mapped, LEN)).await.is_ok());
    let new = owner.opens_another().await;
    owner.process.freeze();
    let late = |outcome: &Outcome| matches!(outcome, Err(TransferError::TimedOut { after }) if *after == SHORT);
    for _ in 0..3 {
        let batch = vec![read_of(mapped, LEN), read_of(new, LEN), write_of(mapped, 5, LEN)];
        let results = tokio::time::timeout(DEADLINE, link.submit(batch)).await.unwrap();
        assert!(results[0].is_ok() && late(&results[1]) && results[2].is_ok(), "{results:?}");
    }
    // Also when very many are asked for, and by a stream.
    let unknown = |n: u32| {
        let mut key = [0; 16];
        key[..4].copy_from_slice(&n.to_le_bytes());
        read_of(RemoteKey::from_bytes(key), 1)
    };
    let crowd = link.submit((0..5000).map(unknown).collect());
    let results = tokio::time::timeout(DEADLINE, crowd).await.unwrap();
    assert!(results.iter().all(late));
    let by_stream = one(&*link, read_of(owner.keys[SHARED], LEN)).await;
    assert!(late(&by_stream), "{by_stream:?}");
    assert!(link.is_healthy() && one(&*link, read_of(mapped, 1)).await.is_ok());
    owner.process.resume();
    // Late answers are taken, and those who still ask are answered.
    eventually_async(DEADLINE, "both are read", async || {
        let results = link.submit(vec![read_of(new, LEN), read_of(owner.keys[SHARED], LEN)]).await;
        assert!(link.is_healthy(), "{results:?}");
        results.into_iter().collect::<Result<Vec<_>, _>>()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_stream_wrote_does_not_arrive_later() {
    let _alone = alone().await;
    let owner = Owner::start("anywhere").await;
    let client = client(short()).await;
    let link = client.connect(&owner.endpoint).await.unwrap();
    let heap = owner.keys[SHARED];
    for round in 0..3 {
        assert!(one(&*link, read_of(heap, LEN)).await.is_ok());
        let first = link.id();
        assert!(first.is_some());
        owner.process.freeze();
        let stalled = one(&*link, write_of(heap, 2 * round + 1, LEN)).await;
        assert!(matches!(stalled, Err(TransferError::TimedOut { .. })), "{stalled:?}");
        assert!(link.is_healthy(), "the regions that are mapped need no stream");
        owner.process.resume();
        eventually_async(DEADLINE, "it is written", async || {
            let outcome = one(&*link, write_of(heap, 2 * round + 2, LEN)).await;
            outcome.inspect_err(|error| assert!(error.is_retryable(), "{error:?}"))
        })
        .await;
        assert_ne!(link.id(), first);
        let target = Memory::allocate(LEN).unwrap();
        let read = Operation::read(span(heap, 0, LEN as u64), target.whole());
        assert!(one(&*link, read).await.is_ok());
        assert!(target.whole().to_vec().iter().all(|&byte| byte == 2 * round + 2));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_left_by_a_crash_is_replaced() {
    let _alone = alone().await;
    let path = std::env::temp_dir().join(format!("mc-shm-crash-{}", std::process::id()));
    let listen = format!("at:{}", path.display());
    let first = Owner::start(&listen).await;
    let client = client(ShmConfig::default()).await;
    let link = client.connect(&first.endpoint).await.unwrap();
    assert!(one(&*link, read_of(first.keys[0], 1)).await.is_ok());
    drop(first);
    assert!(path.exists(), "killed processes clean up nothing");
    let second = Owner::start(&listen).await;
    eventually(DEADLINE, "the old link is lost", || !link.is_healthy()).await;
    let link = client.connect(&second.endpoint).await.unwrap();
    assert!(one(&*link, read_of(second.keys[0], 1)).await.is_ok());
    drop(second);
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_users_are_admitted_only_by_name() {
    const NOBODY: u32 = 65_534;
    let _alone = alone().await;
    if !rustix::process::geteuid().is_root() {
        // Only root can start a process of another user; `ShmConfig` has a test of
        // its own for who is admitted.
        return;
    }
    for (users, expected) in [(vec![], "refused"), (vec![NOBODY], "reading")] {
        let mut config = ShmConfig::default();
        config.allow_users = users;
        let owner = ShmTransport::start(config).await.unwrap();
        let memory = owner.allocate(LEN).unwrap();
        let region = owner.register(&memory, Access::Read).unwrap();
        let key = hex(region.key().to_bytes());
        let part = format!("{} {key}", owner.endpoint().unwrap());
        assert_eq!(says(&mut play(&part, Some(NOBODY))), expected);
    }
}
