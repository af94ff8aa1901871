//! Programs find the leader of several masters, in etcd or in a list.

use mc_testkit::{EtcdCluster, eventually_blocking};

use crate::support::{DEADLINE, Master, Node, ctl, run, start};

/// Records a master as a cluster's leader, as `mc_ha::election::etcd` documents the keys.
fn record_leader(etcd: &EtcdCluster, cluster: &str, epoch: u64, master: &Master) {
    let key = |name: &str| format!("/mc-store/{cluster}/{name}");
    let address = &master.address;
    let leader = format!(
        r#"{{"epoch":{epoch},"id":"m","rpc_address":"{address}","lease_ms":2000,"nonce":1}}"#
    );
    let member = format!(r#"{{"rpc_address":"{address}","epoch":{epoch},"sequence":0}}"#);
    etcd.ctl(&["put", &key("members/m"), &member]);
    etcd.ctl(&["put", &key("leader"), &leader]);
}

#[test]
fn a_cluster_in_etcd() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let etcd = EtcdCluster::start(1);
    let at = format!("etcd://{}/blue", etcd.endpoints()[0]);
    ctl(&at, &["stat"]).assert_refused(1, "no master leads the cluster \"blue\"");

    // A node waits for the first leader, and tells peers the address towards it.
    let flags = ["--port=0", "--global_segment_size=1MB", &format!("--master={at}")];
    let node = start("mc-node", &flags);
    node.wait_err(|line| line.contains("waiting for the master").then_some(()));
    let first = Master::start(0, &[]);
    record_leader(&etcd, "blue", 1, &first);
    node.wait_out(|line| line.contains(" at tcp://127.0.0.1:").then_some(()));
    ctl(&at, &["put", "k", "value"]).assert_ok();
    assert_eq!(ctl(&first.address, &["get", "k"]).assert_ok().out, b"value");

    // The node follows to the next leader.
    let second = Master::start(0, &[]);
    record_leader(&etcd, "blue", 2, &second);
    drop(first);
    let follows = || ctl(&second.address, &["put", "l", "another"]).code == Some(0);
    eventually_blocking(DEADLINE, "the node follows the leader", follows);
    assert_eq!(ctl(&at, &["get", "l"]).assert_ok().out, b"another");
}

#[test]
fn a_list_of_masters() {
    let master = Master::start(0, &[]);
    for (separator, name) in [(";", "a"), (",", "b")] {
        let list = format!("127.0.0.1:1{separator}{}", master.address);
        let _node = Node::start(&list, name, 0, "1MB");
        ctl(&list, &["put", name, "value"]).assert_ok();
    }
}

#[test]
fn misspelt_masters_and_an_etcd_that_is_down() {
    for (master, reason) in [
        ("etcd://", "the list of etcd endpoints is empty"),
        ("etcd:///x", "the list of etcd endpoints is empty"),
        ("etcd://host:port:1", "its host is neither a name nor an address"),
        ("http://127.0.0.1:1", "begins with http://"),
        ("127.0.0.1:1;;127.0.0.1:2", "names no master"),
        ("etcd://127.0.0.1:1;127.0.0.1:2", "127.0.0.1:1: "),
    ] {
        ctl(master, &["stat"]).assert_refused(1, reason);
        // A node waits for what may come up.
        if !master.starts_with("etcd://127") {
            let master = format!("--master_server_address={master}");
            run("mc-node", &["--port=0", &master]).assert_refused(1, reason);
        }
    }
}
