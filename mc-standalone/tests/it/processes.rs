//! Real processes: applications on both sides of a key, a node agent that is killed and
//! comes back, an application that is killed in the middle of its puts.

use std::time::{Duration, Instant};

use mc_cluster_testkit::{Cluster, node};
use mc_standalone::{DummyClient, DummyError, Server};
use mc_store::{ByteSize, Memory, ObjectStore as _, PutOutcome, ReplicateConfig};
use mc_testkit::role::{self, role, say};
use mc_testkit::{Input, Program, content};

use crate::support::{DEADLINE, Host, until};

const MIB: usize = 1 << 20;
const VALUES: usize = 8;

/// Starts this program again, as another process that runs only the test `name`.
fn start(name: &str, role: &str) -> Program {
    Program::start(6 * DEADLINE, &mut role::command(name, role), Input::None)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_applications_read_what_the_other_puts() {
    const NAME: &str = "processes::two_applications_read_what_the_other_puts";
    if let Some(role) = role() {
        let (own, address) = role.split_once(' ').unwrap();
        exchange(own, address).await;
        return;
    }
    let host = Host::start().await;
    let apps = ["a", "b"].map(|own| start(NAME, &format!("{own} {}", host.address())));
    for app in apps {
        assert_eq!(app.finish().code, Some(0));
    }
    for last in ["a", "b"].map(|of| format!("{of}/{}", VALUES - 1)) {
        assert!(host.real.exist(&last).await.unwrap(), "{last}");
    }
    host.until_idle().await;
}

/// Puts values of a MiB and reads those of the other process, every byte.
async fn exchange(own: &str, address: &str) {
    let app = DummyClient::builder()
        .server(address)
        .local_buffer(ByteSize::mib(4))
        .connect()
        .await
        .unwrap();
    let key = |of: &str, n: usize| format!("{of}/{n}");
    let block = app.allocate(MIB).unwrap();
    for n in 0..VALUES {
        block.whole().copy_from(0, &content(&key(own, n), MIB)).unwrap();
        let (key, source) = (key(own, n), block.whole());
        let outcome = app.put_from(&key, &source, &ReplicateConfig::default()).await;
        assert_eq!(outcome.unwrap(), PutOutcome::Stored);
    }
    let other = if own == "a" { "b" } else { "a" };
    for n in 0..VALUES {
        let key = key(other, n);
        until(&key, async || app.exist(&key).await.unwrap().then_some(())).await;
        let value = content(&key, MIB);
        assert_eq!(app.get_into(&key, &block.whole()).await.unwrap(), MIB as u64);
        assert!(block.whole().to_vec() == value, "{key} is read as it was put");
        assert!(app.get(&key).await.unwrap() == value, "{key} is copied out as it was put");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_to_a_node_agent_that_stands_still_ends_soon() {
    const NAME: &str = "processes::a_question_to_a_node_agent_that_stands_still_ends_soon";
    if let Some(role) = role() {
        let (master, port) = role.split_once(' ').unwrap();
        return be_real(master, port.parse().unwrap()).await;
    }
    let cluster = Cluster::start(&[]).await;
    let mut real = start(NAME, &format!("{} 0", cluster.address()));
    let address = real.hear();
    let builder = DummyClient::builder().server(&address).local_buffer(ByteSize::mib(16));
    let time = Duration::from_millis(200);
    let app = builder.question_timeout(time).connect().await.unwrap();
    app.put("k", content("k", 100).into()).await.unwrap();
    real.freeze();
    let begun = Instant::now();
    for error in [
        app.exist("k").await.unwrap_err(),
        app.longest_prefix(&["k"]).await.unwrap_err(),
        app.batch_stat(&["k"]).await.unwrap_err(),
    ] {
        let cause = DummyError::behind(&error);
        assert!(
            matches!(cause, Some(DummyError::TimedOut { after, .. }) if *after == time),
            "{error}"
        );
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "a call would have a minute");
    real.resume();
    assert!(app.exist("k").await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_client_that_is_killed_comes_back() {
    const NAME: &str = "processes::a_real_client_that_is_killed_comes_back";
    if let Some(role) = role() {
        let (master, port) = role.split_once(' ').unwrap();
        return be_real(master, port.parse().unwrap()).await;
    }
    let cluster = Cluster::start(&[]).await;
    let at_master = cluster.address();
    let mut real = start(NAME, &format!("{at_master} 0"));
    let address = real.hear();
    let port = address.rsplit_once(':').unwrap().1.to_owned();
    let timeout = Duration::from_secs(10);
    let app = DummyClient::builder()
        .server(&address)
        .local_buffer(ByteSize::mib(16))
        .call_timeout(timeout)
        .connect()
        .await
        .unwrap();
    let own = Memory::options().shared().allocate(MIB).unwrap();
    app.register(&own).await.unwrap();
    own.whole().copy_from(0, &content("own", MIB)).unwrap();
    app.put_from("own", &own.whole(), &ReplicateConfig::default()).await.unwrap();
    app.put("k", content("k", MIB).into()).await.unwrap();

    // Killed under load: every call ends, with its result or in the way that it should.
    let load: Vec<_> = (0..8)
        .map(|n| {
            let app = app.clone();
            tokio::spawn(async move {
                for round in 0.. {
                    let key = format!("load/{n}/{}", round % 4);
                    let outcome = async {
                        app.put(&key, content(&key, 100_000).into()).await?;
                        assert!(app.get(&key).await? == content(&key, 100_000));
                        app.remove(&key, true).await
                    };
                    if let Err(error) = outcome.await {
                        return error;
                    }
                }
                unreachable!("rounds never end")
            })
        })
        .collect();
    until("load", async || app.exist("load/0/1").await.unwrap().then_some(())).await;
    let killed = Instant::now();
    real.kill();
    for task in load {
        let error = task.await.unwrap();
        let cause = DummyError::behind(&error);
        assert!(matches!(cause, Some(DummyError::RealClientGone { .. })), "{error}");
        assert!(error.is_retryable() && error.to_string().contains(&address), "{error}");
    }
    assert!(killed.elapsed() < timeout, "nobody waited for a time-out");
    let error = app.get("k").await.unwrap_err();
    let cause = DummyError::behind(&error);
    assert!(matches!(cause, Some(DummyError::RealClientGone { .. })), "{error}");
    let error = app.wait_until_connected(Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(error, DummyError::RealClientGone { .. }), "{error}");

    // Another process at the same port: all memory is shared with it by itself.
    let mut real = start(NAME, &format!("{at_master} {port}"));
    assert_eq!(real.hear(), address);
    app.wait_until_connected(DEADLINE).await.unwrap();
    let put =
        async || app.put_from("own again", &own.whole(), &ReplicateConfig::default()).await.ok();
    // The master may still name the segment of the dead process for a while.
    until("a put", put).await;
    let block = app.allocate(MIB).unwrap();
    assert_eq!(app.get_into("own again", &block.whole()).await.unwrap(), MIB as u64);
    assert!(block.whole().to_vec() == content("own", MIB));
    drop(block);
    // Nothing of what the lost calls held is lost.
    until("the whole local buffer", async || app.allocate(16 << 20).ok()).await;
}

/// A node agent with a segment, until it is killed.
async fn be_real(master: &str, port: u16) {
    let real = node(&master).segment_size(ByteSize::mib(64)).connect().await.unwrap();
    let server = Server::builder(real).listen(([127, 0, 0, 1], port).into());
    let server = server.start().await.unwrap();
    say(server.local_addr());
    std::future::pending::<()>().await;
}

/// Descriptors, mappings of shared memory and tasks of this process.
fn in_use() -> (usize, usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains("memfd:")).count();
    (descriptors, mapped, tokio::runtime::Handle::current().metrics().num_alive_tasks())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_that_is_killed_leaves_nothing_behind() {
    const NAME: &str = "processes::an_application_that_is_killed_leaves_nothing_behind";
    match role() {
        // Alone in a process, where no other test opens descriptors.
        None => {
            let mut alone = start(NAME, "alone");
            assert_eq!(alone.hear(), "survived");
            assert_eq!(alone.finish().code, Some(0));
        }
        Some(role) if role == "alone" => survive_applications(NAME).await,
        Some(address) => put_until_killed(&address).await,
    }
}

const WRITERS: usize = 8;

async fn survive_applications(name: &str) {
    let host = Host::start().await;
    // Whatever is opened once is opened now.
    for _ in 0..2 {
        let first = host.app().await;
        first.put("first", content("first", MIB).into()).await.unwrap();
        assert!(first.get("first").await.unwrap() == content("first", MIB));
        first.remove("first", true).await.unwrap();
    }
    host.until_idle().await;
    let mut before = in_use();
    until("a quiet process", async || {
        let now = in_use();
        (std::mem::replace(&mut before, now) == now).then_some(())
    })
    .await;

    for _ in 0..4 {
        let mut app = start(name, &host.address());
        assert_eq!(app.hear(), "putting");
        until("a running call", async || (host.server.report().calls > 0).then_some(())).await;
        assert!(host.server.report().memories == 2);
        drop(app);
        host.until_idle().await;
        until("everything to be given back", async || {
            let now = in_use();
            (now.0 <= before.0 && now.1 <= before.1 && now.2 <= before.2).then_some(())
        })
        .await;
        // No put is left unfinished: every key is readable, or free.
        for writer in 0..WRITERS {
            let key = format!("writer/{writer}");
            let outcome = host.real.put(&key, "mine").await.unwrap();
            assert!(outcome != PutOutcome::Pending, "{key} is still being put");
            host.real.get(&key).await.unwrap();
            host.real.remove(&key, true).await.unwrap();
        }
    }
    say("survived");
}

/// Puts and removes the same keys, from many tasks, from the local buffer and from memory of
/// its own.
async fn put_until_killed(address: &str) {
    let app = DummyClient::builder()
        .server(address)
        .local_buffer(ByteSize::mib(16))
        .connect()
        .await
        .unwrap();
    let own = Memory::options().shared().allocate(WRITERS * MIB).unwrap();
    app.register(&own).await.unwrap();
    say("putting");
    for writer in 0..WRITERS {
        let (app, source) = (app.clone(), own.slice(writer * MIB, MIB).unwrap());
        tokio::spawn(async move {
            let (key, config) = (format!("writer/{writer}"), ReplicateConfig::default());
            loop {
                // Refusals are as good as anything here; the end comes from outside.
                let _ = app.put_from(&key, &source, &config).await;
                let _ = app.remove(&key, true).await;
                let _ = app.put(&key, vec![1; MIB].into()).await;
                let _ = app.remove(&key, true).await;
            }
        });
    }
    std::future::pending::<()>().await;
}
