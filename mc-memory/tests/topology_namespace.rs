//! Interfaces as the kernel reports them, in a network namespace made for the test.
//!
//! The test starts itself again inside the namespace. It needs the programs
//! `unshare` and `ip` and the right to make namespaces; where one is missing it
//! says so and checks that this is the reason.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

use std::io::Read;
use std::net::IpAddr;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use mc_memory::topology::{Discovery, Interface, Topology, TopologyError};
use mc_testkit::eventually_blocking;

/// Set in the process that runs inside the namespace.
const INSIDE: &str = "MC_TRANSPORT_TEST_INSIDE_NAMESPACE";

/// Long enough for a loaded machine; a step that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(30);

/// A namespace of networks and one of mounts, which end with the process. Who is
/// not root becomes it in a namespace of users.
fn unshare() -> Command {
    let mut unshare = Command::new("unshare");
    // SAFETY: `geteuid` only reads a number of this process.
    if unsafe { libc::geteuid() } != 0 {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare.args(["--net", "--mount", "--"]);
    unshare
}

/// Runs `command` to its end, or kills it at the deadline.
fn run(command: &mut Command) -> std::io::Result<Output> {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn()?;
    let end = Instant::now() + 2 * DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > end {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.stdout.take().unwrap().read_to_end(&mut stdout)?;
    child.stderr.take().unwrap().read_to_end(&mut stderr)?;
    Ok(Output { status, stdout, stderr })
}

/// Why the test cannot run here, if it cannot.
fn obstacle() -> Option<String> {
    if let Err(error) = run(Command::new("ip").arg("-V")) {
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        return Some("the program ip is not installed".to_owned());
    }
    let needed = "mount -t sysfs sysfs /sys && ip link add mcx type veth peer name mcy";
    match run(unshare().args(["sh", "-c", needed])) {
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
            Some("the program unshare is not installed".to_owned())
        }
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr).into_owned();
            let known = ["not permitted", "denied", "No space left", "Unknown device type"];
            assert!(known.iter().any(|known| reason.contains(known)), "{reason}");
            Some(reason)
        }
    }
}

#[test]
fn both_ends_of_a_cable_are_found() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    if let Some(obstacle) = obstacle() {
        eprintln!("not run in a namespace: {obstacle}");
        return;
    }
    let mut again = unshare();
    again.arg(std::env::current_exe().unwrap());
    again.args(["--exact", "both_ends_of_a_cable_are_found", "--nocapture"]).env(INSIDE, "1");
    let output = run(&mut again).unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("saw both ends"), "it ran: {text}");
}

fn command(line: &str) {
    let mut words = line.split(' ');
    let output = run(Command::new(words.next().unwrap()).args(words)).unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The topology as soon as it is as `expected`.
fn seen(expected: impl Fn(&Topology) -> bool) -> Topology {
    eventually_blocking(DEADLINE, "the interfaces are as expected", || {
        let topology = Topology::read().unwrap();
        if expected(&topology) { Ok(topology) } else { Err(topology) }
    })
}

fn named<'a>(topology: &'a Topology, name: &str) -> Option<&'a Interface> {
    topology.interfaces.iter().find(|interface| interface.name == name)
}

fn is_up(topology: &Topology, name: &str) -> bool {
    named(topology, name).is_some_and(|interface| interface.is_up)
}

fn inside() {
    // The mount that is there shows the interfaces of the old namespace.
    command("mount -t sysfs sysfs /sys");
    let before = Topology::read().unwrap();
    assert!(named(&before, "mc0").is_none());
    command("ip link add mc0 type veth peer name mc1");
    command("ip addr add 192.0.2.1/24 dev mc0");
    command("ip addr add 2001:db8::1/64 dev mc0 nodad");
    command("ip addr add 198.51.100.7/32 dev mc0");
    command("ip addr add 192.0.2.2/24 dev mc1");
    command("ip link set mc0 mtu 9000 up");
    let half = Topology::read().unwrap();
    assert!(!is_up(&half, "mc1"), "it is not switched on");
    command("ip link set mc1 up");

    let topology = seen(|now| is_up(now, "mc0") && is_up(now, "mc1"));
    let first = named(&topology, "mc0").unwrap();
    let addresses: Vec<IpAddr> = ["192.0.2.1", "198.51.100.7", "2001:db8::1"]
        .map(|address| address.parse().unwrap())
        .to_vec();
    assert_eq!(first.addresses, addresses, "without that of the link");
    assert_eq!((first.mtu, first.is_loopback, first.numa_node), (Some(9000), false, None));
    let second = named(&topology, "mc1").unwrap();
    assert_eq!((second.mtu, second.addresses.len()), (Some(1500), 1));
    assert!(!is_up(&topology, "lo"), "nobody switched it on");

    let mut discovery = Discovery::default();
    discovery.auto = true;
    let names = |selected: Vec<Interface>| -> Vec<String> {
        selected.into_iter().map(|interface| interface.name).collect()
    };
    assert_eq!(names(discovery.select(&topology).unwrap()), ["mc0", "mc1"]);
    discovery.filters = vec!["mc1".to_owned()];
    assert_eq!(names(discovery.select(&topology).unwrap()), ["mc1"]);
    command("ip link set mc0 down");
    let unplugged = seen(|now| !is_up(now, "mc0") && !is_up(now, "mc1"));
    let refused = discovery.select(&unplugged);
    assert!(matches!(refused, Err(TopologyError::NoneUsable { .. })), "{refused:?}");
    command("ip link del mc0");
    seen(|now| named(now, "mc0").is_none() && named(now, "mc1").is_none());
    let refused = discovery.select(&Topology::read().unwrap());
    assert!(matches!(refused, Err(TopologyError::NoSuchDevice { .. })), "{refused:?}");
    println!("saw both ends");
}
