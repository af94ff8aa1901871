//! A node that contributes nothing and works for the thin clients of its host.

use std::os::unix::fs::MetadataExt as _;
use std::time::Instant;

use mc_standalone::{DummyClient, DummyError};
use mc_store::{ByteSize, ObjectStore as _, ReplicateConfig};
use mc_testkit::{Signal, content, eventually_blocking};

use crate::support::{DEADLINE, Master, Node, ctl, ctl_with_input, start};

#[test]
fn an_application_puts_and_gets_by_way_of_a_node() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    let node = Node::start(at, "a", 0, "64MB");
    let flags = ["--host=127.0.0.1", "--port=0", "--global_segment_size=0"];
    let master_flag = format!("--master_server_address={at}");
    let real = start("mc-node", &[&flags[..], &[&*master_flag]].concat());
    let served = real.wait_out(|line| {
        let rest = line.strip_prefix("Mooncake client ready: no segment, thin clients at ")?;
        Some(rest.split(',').next()?.to_owned())
    });

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let value = content("value", 3_000_000);
    // By way of a node that has no memory, and of the one that has.
    for (n, server) in [&served, &node.dummies].into_iter().enumerate() {
        let (key, written) = (format!("app/{n}"), format!("ctl/{n}"));
        ctl_with_input(at, &["put", &written], &value).assert_ok();
        runtime.block_on(async {
            let app = DummyClient::connect(server).await.unwrap();
            let block = app.allocate(value.len()).unwrap();
            let len = app.get_into(&written, &block.whole()).await.unwrap();
            assert!(len == value.len() as u64 && block.whole().to_vec() == value);
            let config = ReplicateConfig::default();
            app.put_from(&key, &block.whole(), &config).await.unwrap();
        });
        assert!(ctl(at, &["get", &key]).assert_ok().out == value);
    }

    let app = runtime.block_on(DummyClient::connect(&served)).unwrap();
    let asked = Instant::now();
    assert_eq!(real.end_by(Signal::TERM).code, Some(0));
    assert!(asked.elapsed() < DEADLINE / 5, "a connected thin client holds nothing up");
    let error = runtime.block_on(app.get("app/0")).unwrap_err();
    let cause = DummyError::behind(&error);
    assert!(matches!(cause, Some(DummyError::RealClientGone { .. })), "{error}");
}

/// Bytes that the memory of this process of this length has taken.
fn taken(len: u64) -> u64 {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("Linux");
    let metadata = descriptors.filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok());
    let memory = metadata.filter(|metadata| metadata.is_file() && metadata.len() == len);
    memory.map(|memory| memory.blocks() * 512).max().expect("a thin client with such a buffer")
}

#[test]
fn what_an_application_reads_is_not_charged_to_its_node() {
    const VALUES: usize = 12;
    const LEN: usize = 8 << 20;
    // No other memory is as long.
    const BUFFER: u64 = (VALUES * LEN) as u64 + (3 << 20);
    let master = Master::start(0, &[]);
    let node = Node::start(&master.address, "a", 0, "128MB");
    let value = content("value", LEN);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let writer = runtime.block_on(DummyClient::connect(&node.dummies)).unwrap();
    for n in 0..VALUES {
        runtime.block_on(writer.put(&format!("k{n}"), value.clone().into())).unwrap();
    }
    drop(writer);
    let app = DummyClient::builder().server(&node.dummies).local_buffer(ByteSize::bytes(BUFFER));
    let app = runtime.block_on(app.connect()).unwrap();
    assert_eq!(taken(BUFFER), 0, "what is not used takes nothing");
    let before = node.program.private_memory();

    // While the node is frozen, only the application takes pages.
    node.program.freeze();
    let blocks: Vec<_> = (0..VALUES).map(|_| app.allocate(LEN).unwrap()).collect();
    let reads = blocks.iter().enumerate().map(|(n, block)| {
        let (app, target) = (app.clone(), block.whole());
        runtime.spawn(async move { app.get_into(&format!("k{n}"), &target).await })
    });
    let reads: Vec<_> = reads.collect();
    let wanted = (VALUES * LEN) as u64;
    eventually_blocking(DEADLINE, "the application takes its pages itself", || {
        (taken(BUFFER) >= wanted).then_some(())
    });
    let by_the_application = taken(BUFFER);
    node.program.resume();
    for read in reads {
        assert_eq!(runtime.block_on(read).unwrap().unwrap(), LEN as u64);
    }
    assert_eq!(taken(BUFFER), by_the_application, "the node took pages of the application");
    assert!(blocks.iter().all(|block| block.whole().to_vec() == value));
    // Nor does it buffer what it reads for others.
    let grown = node.program.private_memory().saturating_sub(before);
    assert!(grown < 16 << 20, "the node took {grown} bytes of its own");
}
