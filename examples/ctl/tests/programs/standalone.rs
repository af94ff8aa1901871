//! A node that contributes nothing and works for the dummy clients of its host.

use std::time::Instant;

use mc_store::ReplicateConfig;
use mc_store::standalone::{DummyClient, DummyError};

use crate::support::{DEADLINE, Master, Node, Program, bytes_of, ctl, ctl_with_input};

#[test]
fn an_application_puts_and_gets_by_way_of_a_node() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    let node = Node::start(at, "a", 0, "64MB");
    let flags = ["--host=127.0.0.1", "--port=0", "--global_segment_size=0"];
    let master_flag = format!("--master_server_address={at}");
    let real = Program::start("mc-client", &[&flags[..], &[&*master_flag]].concat(), None);
    let served = real.wait_out(|line| {
        let rest = line.strip_prefix("Mooncake client ready: no segment, dummy clients at ")?;
        Some(rest.split(',').next()?.to_owned())
    });

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let value = bytes_of("value", 3_000_000);
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
    assert_eq!(real.end_by("TERM").code, Some(0));
    assert!(asked.elapsed() < DEADLINE / 5, "a connected dummy client holds nothing up");
    let error = runtime.block_on(app.get("app/0")).unwrap_err();
    assert!(matches!(error, DummyError::RealClientGone { .. }), "{error}");
}
