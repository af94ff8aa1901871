//! A node on a host whose name has an IPv6 and an IPv4 address, both of which change: in network and
//! mount namespaces of the test's own.

use std::process::Command;

use mc_testkit::{Input, Program, role};

use crate::support::{DEADLINE, Master, ctl, start};

const PLAYER: &str = "two_families::a_node_is_reached_at_whatever_addresses_its_name_has";

/// Gives the loopback interface two addresses, and a name both of them.
const INSIDE: &str = "set -e; ip link set lo up; ip addr add 10.77.0.9/32 dev lo; \
    ip addr add 2001:db8::9/128 dev lo nodad; hosts=$(mktemp); \
    printf '2001:db8::9 node.test\\n10.77.0.9 node.test\\n127.0.0.1 localhost\\n' > \"$hosts\"; \
    mount --bind \"$hosts\" /etc/hosts; rm \"$hosts\"; exec \"$@\"";

fn inside(as_user: bool) -> Command {
    let mut command = Command::new("unshare");
    if as_user {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--mount", "--", "sh", "-c", INSIDE, "sh"]);
    command
}

fn shell(words: &str) {
    let status = Command::new("sh").args(["-c", words]).status().expect("a shell");
    assert!(status.success(), "{words}: {status}");
}

#[test]
fn a_node_is_reached_at_whatever_addresses_its_name_has() {
    if role::role().is_some() {
        serve_and_move();
        return role::say("reached");
    }
    let works = |as_user: &bool| {
        let output = inside(*as_user).arg("true").output();
        output.is_ok_and(|output| output.status.success())
    };
    let Some(as_user) = [false, true].into_iter().find(works) else {
        eprintln!("NOT RUN: a name with two addresses, because no namespace can be made here");
        return;
    };
    let mut command = role::launched_by(inside(as_user), PLAYER, "host");
    // The host's programs would read each other's memory.
    command.env("MC_STORE_SHARED_MEMORY", "false");
    let mut host = Program::start(2 * DEADLINE, &mut command, Input::None);
    assert_eq!(host.hear(), "reached");
}

fn serve_and_move() {
    let master = Master::start(0, &[]);
    let node = start(
        "mc-node",
        &[
            "--host=node.test",
            "--port=0",
            "--global_segment_size=16MB",
            &format!("--master_server_address={}", master.address),
        ],
    );
    let told = node.wait_out(|line| Some(line[line.find("tcp://")?..].to_owned()));
    assert!(told.starts_with("tcp://[2001:db8::9]:"), "{told}");
    let get = || {
        let got = ctl(&master.address, &["get", "k"]).assert_ok();
        assert_eq!(got.out, b"value");
    };
    ctl(&master.address, &["put", "k", "value"]).assert_ok();
    get();
    shell("ip addr del 2001:db8::9/128 dev lo");
    get();
    ctl(&master.address, &["put", "l", "value"]).assert_ok();
    shell(
        "ip addr del 10.77.0.9/32 dev lo && ip addr add 10.77.0.10/32 dev lo \
         && printf '10.77.0.10 node.test\\n' > /etc/hosts",
    );
    get();
}
