//! Clusters that begin with members whose journals are empty, old, or of another cluster: what was
//! acknowledged is there in the end, or was kept for an operator.

use std::path::Path;

use mc_testkit::{EtcdCluster, Signal, eventually_blocking};

use crate::support::{Cluster, DEADLINE, Master, Node, ctl};

/// Objects of a cluster.
const OBJECTS: usize = 12;

fn put_all(masters: &str, name: &str) {
    for number in 0..OBJECTS {
        ctl(masters, &["put", &format!("{name}-{number}"), name]).assert_ok();
    }
}

fn found(masters: &str, name: &str) -> usize {
    let is_there = |number: &usize| {
        let got = ctl(masters, &["get", &format!("{name}-{number}")]);
        got.code == Some(0) && got.out == name.as_bytes()
    };
    (0..OBJECTS).filter(is_there).count()
}

fn wait_until_found(masters: &str, name: &str) {
    eventually_blocking(DEADLINE, "everything is there", || found(masters, name) == OBJECTS);
}

/// A master alone, in the directory of a member, with objects on a node; the master has ended.
fn alone(cluster: &Cluster, member: usize, name: &str) -> Node {
    let directory = format!("--metadata_dir={}", cluster.path(member).display());
    let master = Master::start(cluster.ports[member], &[&directory, "--durability=sync"]);
    // It knows the other masters when they are its cluster's.
    let node = Node::start(&master.address, name, 0, "16MB");
    put_all(&master.address, name);
    assert_eq!(master.program.end_by(Signal::TERM).code, Some(0));
    node
}

#[test]
fn switching_on_high_availability_keeps_what_the_master_had() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let cluster = Cluster::new(2);
    let _node = alone(&cluster, 1, "kept");
    // In the wrong order: an empty member has time to lead.
    let _empty = cluster.start(0);
    cluster.wait_until_leads(0);
    let _full = cluster.start(1);
    cluster.wait_until_leads(1);
    wait_until_found(&cluster.all(), "kept");
    assert!(cluster.former(1).is_empty());
    // The other one follows.
    cluster.wait_until_in_sync(0, 1);
}

#[test]
fn an_empty_member_never_takes_over() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let mut cluster = Cluster::new(2);
    cluster.flags.push("--unclean_takeover_after=1s");
    let first = cluster.start(0);
    cluster.wait_until_leads(0);
    let _node = Node::start(&cluster.all(), "node", 0, "16MB");
    put_all(&cluster.all(), "kept");
    assert_eq!(first.end_by(Signal::TERM).code, Some(0));
    let empty = cluster.start(1);
    let says = |line: &str| line.contains("its journal is empty").then_some(());
    empty.wait_err(says);
    let _first = cluster.start(0);
    cluster.wait_until_leads(0);
    wait_until_found(&cluster.all(), "kept");
}

#[test]
fn an_etcd_that_was_set_up_anew_loses_nothing() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let mut cluster = Cluster::new(3);
    let masters = [cluster.start(0), cluster.start(1)];
    eventually_blocking(DEADLINE, "one leads", || cluster.leads(0) || cluster.leads(1));
    let leader = usize::from(cluster.leads(1));
    cluster.wait_until_in_sync(1 - leader, leader);
    let _node = Node::start(&cluster.all(), "node", 0, "16MB");
    put_all(&cluster.all(), "kept");
    for master in masters {
        assert_eq!(master.end_by(Signal::TERM).code, Some(0));
    }
    cluster.etcd = EtcdCluster::start(1);
    // An empty member is there first, and those with data have seconds less.
    let _empty = cluster.start(2);
    let _masters = [cluster.start(0), cluster.start(1)];
    eventually_blocking(DEADLINE, "one leads", || cluster.leads(0) || cluster.leads(1));
    wait_until_found(&cluster.all(), "kept");
}

#[test]
fn two_clusters_with_the_same_terms_are_never_mixed() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let mut cluster = Cluster::new(2);
    // Another cluster, whose only member had as many changes in the same term.
    let stranger = cluster.start(1);
    cluster.wait_until_leads(1);
    let node = Node::start(&cluster.all(), "node", 0, "16MB");
    put_all(&cluster.all(), "strange");
    assert_eq!(stranger.end_by(Signal::TERM).code, Some(0));
    drop(node);
    cluster.etcd = EtcdCluster::start(1);
    let _leader = cluster.start(0);
    cluster.wait_until_leads(0);
    let _node = Node::start(&cluster.all(), "node", 0, "16MB");
    put_all(&cluster.address(0), "kept");
    let _stranger = cluster.start(1);
    cluster.wait_until_in_sync(1, 0);
    assert_eq!(found(&cluster.address(0), "kept"), OBJECTS);
    let former = cluster.former(1);
    assert_eq!(former.len(), 1, "{former:?}");
    put_all(&cluster.address(0), "more");
    ctl(&cluster.all(), &["ha", "hand-over", "m1"]).assert_ok();
    cluster.wait_until_leads(1);
    wait_until_found(&cluster.all(), "kept");
    wait_until_found(&cluster.all(), "more");
    // An operator can look into what was set aside.
    holds(&former[0], "strange");
}

/// Whether a master that is started with this directory knows the objects.
fn holds(directory: &Path, name: &str) {
    let master = Master::start(0, &[&format!("--metadata_dir={}", directory.display())]);
    let keys = ctl(&master.address, &["stat"]).assert_ok();
    let known = |text: &str| text.contains(&OBJECTS.to_string());
    assert!(known(keys.text()), "{name}: {}", keys.text());
}

#[test]
fn an_administrator_makes_an_empty_member_lead() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let mut cluster = Cluster::new(2);
    let first = cluster.start(0);
    cluster.wait_until_leads(0);
    assert_eq!(first.end_by(Signal::TERM).code, Some(0));
    cluster.flags.push("--ha_force_takeover");
    let _empty = cluster.start(1);
    cluster.wait_until_leads(1);
}
