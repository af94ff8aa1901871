//! Masters whose etcd is away: what they say of it, and clients in the meantime.

use std::process::Command;

use mc_testkit::{EtcdCluster, Input, Program, Signal, binary, eventually_blocking};

use crate::support::{DEADLINE, Master, ctl, free_port, page};

#[test]
fn a_master_waits_for_an_etcd_that_is_not_up_yet_and_clients_for_the_master() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let mut etcd = EtcdCluster::start(1);
    let endpoint = etcd.endpoints().remove(0);
    etcd.kill(0);
    let at = format!("--etcd_endpoints={endpoint}");
    let master = Master::start(free_port(), &["--enable_ha", &at, "--ha_lease_ttl=2s"]);
    let cause = format!("cannot be reached: {endpoint}");
    let waits = "waiting for the election service";
    master.program.wait_err(|line| (line.contains(waits) && line.contains(&cause)).then_some(()));
    let short = "--ha_lease_ttl=2s may be over before etcd";
    master.program.wait_err(|line| line.contains(short).then_some(()));

    for at in ["/health", "/ha_status"] {
        let shown = page(&master.metrics, at);
        assert!(shown.contains("election_outage") && shown.contains(&cause), "{shown}");
    }
    let metrics = page(&master.metrics, "/metrics");
    let lasts = metrics.lines().find_map(|line| {
        line.strip_prefix("master_ha_election_outage_seconds ")?.parse::<f64>().ok()
    });
    assert!(lasts.is_some_and(|seconds| seconds > 0.0), "{metrics}");
    let shown = ctl(&master.address, &["ha", "status"]);
    let text = shown.text();
    assert!(text.contains("etcd has not answered for") && text.contains(&cause), "{text}");
    assert!(ctl(&master.address, &["ha", "status", "--json"]).text().contains(&cause));

    let mut stat = Command::new(binary("mc-ctl"));
    stat.env("MC_RPC_TIMEOUT_MS", "25000").arg("--master_server_address").arg(&master.address);
    let stat = Program::start(DEADLINE, stat.arg("stat"), Input::None);
    stat.wait_err(|line| line.contains("waiting for the master").then_some(()));
    etcd.restart(0);
    eventually_blocking(DEADLINE, "it leads", || {
        page(&master.metrics, "/role").ends_with("leader").then_some(())
    });
    let stat = stat.finish();
    assert_eq!(stat.code, Some(0), "{}", stat.err);
    assert_eq!(stat.err.matches("waiting for the master").count(), 1, "{}", stat.err);
    let shown = page(&master.metrics, "/health");
    assert!(shown.contains(r#""election_outage":null"#), "{shown}");
    let ended = master.program.end_by(Signal::TERM);
    assert_eq!(ended.err.matches(waits).count(), 1, "{}", ended.err);
}

#[test]
fn a_standby_says_why_no_master_leads() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let etcd = EtcdCluster::start(1);
    let in_sync = r#"{"epoch":1,"members":["gone"]}"#;
    etcd.ctl(&["put", "/mc-store/default/in-sync", in_sync]);
    let at = format!("--etcd_endpoints={}", etcd.endpoints()[0]);
    let flags = ["--enable_ha", &at, "--unclean_takeover_after=never"];
    let master = Master::start(free_port(), &flags);
    let why = "its journal is empty";
    eventually_blocking(DEADLINE, "it says why", || {
        page(&master.metrics, "/health").contains(why).then_some(())
    });
    let shown = ctl(&master.address, &["ha", "status"]);
    let text = shown.text();
    assert!(text.contains(&format!("{}: does not lead: {why}", master.address)), "{text}");
}
