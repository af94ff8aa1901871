//! The state that nodes keep: their memory while a master refuses them, and that they were drained.

use std::fs;

use mc_store::{Client, ReplicateConfig};
use mc_testkit::{EtcdCluster, content, eventually_blocking};
use tokio::runtime::Runtime;

use crate::end_to_end::library_client;
use crate::support::{DEADLINE, Master, Node, ctl, free_port};

/// A client, and the names of two nodes' segments: `a`, which is drained, and `b`.
struct Observer {
    runtime: Runtime,
    client: Client,
}

impl Observer {
    fn connect(master: &str) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let client = library_client(&runtime, master);
        Self { runtime, client }
    }

    /// The segments with their states, once those are so.
    fn await_states(&self, expected: &str) {
        eventually_blocking(DEADLINE, expected, || {
            let report = self.runtime.block_on(self.client.cluster_report());
            let report = report.map_err(|error| error.to_string())?;
            let mut states: Vec<_> =
                report.segments.iter().map(|it| format!("{} {}", it.name, it.status)).collect();
            states.sort();
            let states = states.join(", ");
            if states == expected { Ok(()) } else { Err(states) }
        });
    }

    fn drain_a(&self) {
        let job = self.client.master().create_drain_job(&["a"], &[], 4);
        self.runtime.block_on(job).expect("a drain");
        self.await_states("a drained, b ok");
    }

    /// Puts an object that is to be on `a` if it can, and returns where it is.
    fn put_near_a(&self, key: &str) -> String {
        let near = ReplicateConfig::default().prefer("a");
        eventually_blocking(DEADLINE, "a put", || {
            self.runtime.block_on(self.client.put_with(key, "value", &near))
        });
        let info = self.runtime.block_on(self.client.describe(key)).expect("it was put");
        info.replicas[0].segment_name.to_string()
    }

    fn assert_nothing_new_on_a(&self, after: &str) {
        for n in 0..20 {
            assert_eq!(self.put_near_a(&format!("{after}/{n}")), "b", "{n} after {after}");
        }
        self.await_states("a drained, b ok");
    }
}

#[test]
fn a_drained_segment_takes_nothing_new_after_a_restart_and_a_pause() {
    let directory = tempfile::tempdir().unwrap();
    let metadata = format!("--metadata_dir={}", directory.path().join("metadata").display());
    let flags = [&*metadata, "--durability=sync", "--client_ttl=4", "--client_return_timeout=1h"];
    let mut master = Master::start(free_port(), &flags);
    let (at, port) = (master.address.clone(), master.port());
    let a = Node::start(&at, "a", 0, "16MB");
    let _b = Node::start(&at, "b", 0, "16MB");
    let observer = Observer::connect(&at);
    assert_eq!(observer.put_near_a("before"), "a");
    observer.drain_a();
    observer.assert_nothing_new_on_a("the drain");

    master.program.kill();
    master = Master::start(port, &flags);
    observer.await_states("a drained, b ok");
    observer.assert_nothing_new_on_a("a restart");

    a.program.freeze();
    master.program.wait_err(|line| line.contains("segment suspended").then_some(()));
    a.program.resume();
    observer.await_states("a drained, b ok");
    observer.assert_nothing_new_on_a("a pause");

    // Who wants it back gets it back, for good.
    let reopened = observer.client.master().reopen_segment("a");
    observer.runtime.block_on(reopened).unwrap();
    assert_eq!(observer.put_near_a("reopened"), "a");
    master.program.kill();
    let _master = Master::start(port, &flags);
    observer.await_states("a ok, b ok");
    assert_eq!(observer.put_near_a("reopened and restarted"), "a");
    observer.runtime.block_on(observer.client.shutdown());
}

#[test]
fn a_drained_segment_takes_nothing_new_after_a_failover() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let (etcd, directory) = (EtcdCluster::start(1), tempfile::tempdir().unwrap());
    let etcd_flag = format!("--etcd_endpoints={}", etcd.endpoints()[0]);
    let member = |port: u16| {
        let metadata = directory.path().join(port.to_string());
        let metadata = format!("--metadata_dir={}", metadata.display());
        let modes = ["--durability=sync", "--replication=semi_sync", "--ha_lease_ttl=2s"];
        let flags = ["--enable_ha", &etcd_flag, &metadata, "--client_return_timeout=1h"];
        Master::start(port, &[&flags[..], &modes].concat())
    };
    let ports = [free_port(), free_port()];
    let at = ports.map(|port| format!("127.0.0.1:{port}")).join(";");
    let mut first = member(ports[0]);
    // The first one leads before there is another.
    let leads = || ctl(&at, &["stat"]).code == Some(0);
    eventually_blocking(DEADLINE, "the first master leads", leads);
    let _a = Node::start(&at, "a", 0, "16MB");
    let _second = member(ports[1]);
    let _b = Node::start(&at, "b", 0, "16MB");
    let observer = Observer::connect(&at);
    observer.await_states("a ok, b ok");
    observer.drain_a();
    eventually_blocking(DEADLINE, "the standby is in sync", || {
        let status = observer.runtime.block_on(observer.client.master().ha_status());
        let standby = format!("127.0.0.1:{}", ports[1]);
        status.is_ok_and(|status| status.in_sync.iter().any(|id| **id == *standby))
    });
    first.program.kill();
    observer.await_states("a drained, b ok");
    observer.assert_nothing_new_on_a("a failover");
    observer.runtime.block_on(observer.client.shutdown());
}

#[test]
fn a_node_whose_role_was_wrong_for_a_while_has_lost_nothing() {
    const NODE: &str = "the-token-of-the-node";
    const ADMIN: &str = "the-token-of-the-admin";
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let give = |role: &str| {
        let list = format!("token:{NODE} {role}\ntoken:{ADMIN} admin\n");
        fs::write(path("access.list"), list).unwrap();
    };
    give("node");
    for (name, token) in [("node", NODE), ("admin", ADMIN)] {
        fs::write(path(name), token).unwrap();
    }
    let shows = |name: &str| format!("--token_file={}", path(name));
    let metadata = format!("--metadata_dir={}", path("metadata"));
    let access = format!("--access_file={}", path("access.list"));
    let flags = [&*metadata, &access, "--durability=sync", "--client_return_timeout=1h"];
    let mut master = Master::start(free_port(), &flags);
    let (at, port) = (master.address.clone(), master.port());
    let node = Node::start_with(&at, "a", 0, "16MB", &[&shows("node")]);
    let value = content("k", 1000);
    let file = path("value");
    fs::write(&file, &value).unwrap();
    let admin = shows("admin");
    ctl(&at, &["put", &admin, "k", &format!("--file={file}")]).assert_ok();

    give("writer");
    master.program.kill();
    master = Master::start(port, &flags);
    let refused = "the master refuses to mount the segment again";
    let line = node.program.wait_err(|line| line.contains(refused).then(|| line.to_owned()));
    assert!(line.contains("with all objects"), "{line}");
    assert!(line.contains("access list"), "{line}");
    let unreadable = ctl(&at, &["get", &admin, "k"]);
    assert_eq!(unreadable.code, Some(1), "its holder is away");

    give("node");
    let found = eventually_blocking(DEADLINE, "the object is back", || {
        let got = ctl(&at, &["get", &admin, "k"]);
        if got.code == Some(0) { Ok(got.out) } else { Err(got.err) }
    });
    assert!(found == value);
    drop(master);
}
