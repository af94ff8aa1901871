//! Faults that are planted in real clusters: `doctor` names each, and says what to do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mc_meta::MasterConfig;
use mc_rpc::{MasterService, Server, ServerConfig, SystemClock};
use mc_testkit::{EtcdCluster, Finished, Input, Program, binary, eventually_blocking, preload};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::hung_disk::SHIM;
use crate::support::{Cluster, DEADLINE, Master, Node, ctl};

/// Has the wall clock of a process that loads it go an hour ahead, and no other clock.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, time);
    if (clock == CLOCK_REALTIME) time->tv_sec += 3600;
    return result;
}
"#;

/// The findings about a host and not about the cluster.
const HOST: [&str; 10] = [
    "memory",
    "container's memory",
    "/dev/shm",
    "open files",
    "threads",
    "locked memory",
    "waiting connections",
    "huge pages",
    "RDMA",
    "GPU",
];

/// One run of the doctor.
struct Visit {
    findings: Vec<[String; 4]>,
    code: Option<i32>,
}

impl Visit {
    fn of(ended: &Finished) -> Self {
        let finding = |line: &str| {
            let line: Value = serde_json::from_str(line).expect(line);
            ["level", "about", "found", "advice"].map(|it| line[it].as_str().unwrap().to_owned())
        };
        let findings: Vec<_> = ended.text().lines().map(finding).collect();
        assert!(!findings.is_empty(), "{}", ended.err);
        Self { findings, code: ended.code }
    }

    fn at(master: &str, flags: &[&str]) -> Self {
        Self::of(&ctl(master, &[&["doctor", "--json"], flags].concat()))
    }

    /// Has a finding of this level about this, with these words in it and in its advice.
    #[track_caller]
    fn tells(&self, level: &str, about: &str, found: &str, advice: &str) -> &Self {
        let is_it = |[its_level, its_about, its_found, its_advice]: &&[String; 4]| {
            (&**its_level, &**its_about) == (level, about)
                && its_found.contains(found)
                && its_advice.contains(advice)
        };
        let is_told = self.findings.iter().any(|finding| is_it(&finding));
        assert!(is_told, "no {level} {about}: {found} / {advice} in {:#?}", self.findings);
        assert_eq!(self.code == Some(1), self.findings.iter().any(|it| it[0] == "fault"));
        self
    }

    /// Has nothing to say against the cluster.
    #[track_caller]
    fn is_well(&self) {
        let ill = |it: &&[String; 4]| it[0] != "ok" && !HOST.contains(&&*it[1]);
        let ill: Vec<_> = self.findings.iter().filter(ill).collect();
        assert!(ill.is_empty(), "{ill:#?}");
    }
}

#[test]
fn three_well_nodes_and_faults_of_nodes() {
    let master = Master::start(0, &["--client_ttl=2s"]);
    let at = &*master.address;
    Visit::at(at, &[]).tells("fault", "pool", "no segment takes objects", "start a node");
    let nodes = ["a", "b", "c"].map(|name| Node::start(at, name, 0, "16MB"));
    let well = Visit::at(at, &[]);
    well.is_well();
    well.tells("ok", "transfer", "3 of 3 segments took and gave back 1.00 MB", "")
        .tells("ok", "version", env!("CARGO_PKG_VERSION"), "")
        .tells("ok", "clock", "from this host's at the most", "");
    assert!(ctl(at, &["ls"]).text().starts_with("SIZE"), "it leaves nothing behind");

    // At first its port alone is closed; then the master misses the node.
    let [mut dead, _second, hangs] = nodes;
    dead.program.kill();
    Visit::at(at, &[]).tells("fault", "port", "a at 127.0.0.1:", "start mc-node there");
    eventually_blocking(DEADLINE, "the node is missed", || {
        (ctl(at, &["nodes"]).code == Some(1)).then_some(())
    });
    Visit::at(at, &["--no_transfers"]).tells("fault", "node", "is silent", "start it");
    hangs.program.freeze();
    Visit::at(at, &[]).tells("fault", "transfer", "no end within", "it is stopped");
    hangs.program.resume();
}

#[test]
fn a_full_pool_and_a_wrong_address() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    let _node = Node::start(at, "a", 0, "16MB");
    let value = tempfile::NamedTempFile::new().unwrap();
    value.as_file().set_len(12 << 20).unwrap();
    let file = format!("--file={}", value.path().display());
    ctl(at, &["put", "k", &file]).assert_ok();
    ctl(at, &["get", "k"]).assert_ok();
    ctl(at, &["put", "l", &file]).assert_refused(1, "l");
    Visit::at(at, &[]).tells("warn", "pool", "puts found no room", "add nodes");
    // An address for documentation, which no host has.
    let _wrong = Node::start_with(at, "wrong", 0, "16MB", &["--host=192.0.2.7"]);
    Visit::at(at, &[]).tells("fault", "port", "wrong at 192.0.2.7:", "--host");
}

#[test]
fn disks_that_are_full_fail_and_hang() {
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("hang.so");
    preload(&library, SHIM);
    let master = Master::start(0, &["--enable_offload"]);
    let at = &*master.address;
    let node = |name: &str| {
        let path = directory.path().join(name);
        fs::create_dir(&path).unwrap();
        let shim = [
            ("LD_PRELOAD", library.clone().into_os_string()),
            ("MC_HANG_UNDER", path.clone().into_os_string()),
            ("MC_HANG_WHILE", directory.path().join(format!("{name}.breaks")).into_os_string()),
        ];
        let path = format!("--ssd_offload_path={}", path.display());
        let flags = ["--enable_offload", &path, "--ssd_offload_size=64MB"];
        Node::start_in(at, name, 0, "16MB", &flags, &shim)
    };
    let names = ["full", "broken", "hung"];
    let _nodes = names.map(node);
    let breaks = |name: &str| directory.path().join(format!("{name}.breaks"));
    // ENOSPC, EIO, and a call that does not return.
    for (name, error) in names.into_iter().zip(["28", "5", ""]) {
        fs::write(breaks(name), error).unwrap();
    }
    let mut number = 0;
    let visit = eventually_blocking(DEADLINE, "each disk is found out", || {
        number += 1;
        // A node leaves a broken disk alone for a while, and tries again when there is something to write.
        for name in names {
            let segment = format!("--preferred_segment={name}");
            ctl(at, &["put", &format!("{name} {number}"), "value", &segment]).assert_ok();
        }
        let visit = Visit::at(at, &["--no_transfers"]);
        let found = visit.findings.iter().filter(|it| it[..2] == ["fault", "disk"]).count();
        (found == names.len()).then_some(visit)
    });
    visit
        .tells("fault", "disk", "its file system is full", "make room there (`df`)")
        .tells("fault", "disk", "it takes no objects", "read-only, or the device is broken")
        .tells("fault", "disk", "it has written nothing for", "the device hangs");
    names.iter().for_each(|name| fs::remove_file(breaks(name)).unwrap());
}

#[test]
fn clocks_that_are_apart_and_an_older_master() {
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("clock.so");
    preload(&library, CLOCK);
    let ahead = Master::start_in(0, &[], &[("LD_PRELOAD", library.into_os_string())]);
    let flags = ["--no_transfers"];
    Visit::at(&ahead.address, &flags).tells(
        "warn",
        "clock",
        "ahead of this host's",
        "set both by NTP",
    );
    let shown = ctl(&ahead.address, &["ha", "status"]);
    assert!(shown.text().contains("VERSION") && shown.text().contains(env!("CARGO_PKG_VERSION")));

    // A master of before says neither its version nor the time.
    let runtime = Runtime::new().unwrap();
    let state = Arc::new(mc_meta::Master::new(MasterConfig::default(), 1).unwrap());
    let service = MasterService::new(state, SystemClock::new());
    let server = Server::bind("127.0.0.1:0", service, ServerConfig::default());
    let server = runtime.block_on(server).unwrap();
    let old = server.local_addr().to_string();
    let _in = runtime.enter();
    let _serves = server.spawn();
    let visit = Visit::at(&old, &flags);
    visit.tells("warn", "version", "runs an older version", "standbys first");
    assert!(visit.findings.iter().all(|it| it[1] != "clock"), "{:#?}", visit.findings);
}

/// An authority, and a certificate for `127.0.0.1` that ends so many days from now.
fn certify(dir: &Path, name: &str, days: i64) {
    let write = |name: &str, text: String| fs::write(dir.join(name), text).unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    write(&format!("{name}.ca"), params.self_signed(&key).unwrap().pem());
    let authority = Issuer::new(params, key);
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    // In the middle of a day, so that whole days are left.
    let apart = Duration::from_secs((days.unsigned_abs() * 24 + 12) * 60 * 60);
    let now = SystemTime::now();
    params.not_after = if days < 0 { now - apart } else { now + apart }.into();
    let key = KeyPair::generate().unwrap();
    write(&format!("{name}.pem"), params.signed_by(&key, &authority).unwrap().pem());
    write(&format!("{name}.key"), key.serialize_pem());
}

#[test]
fn a_token_and_certificates_that_are_wrong() {
    let dir = tempfile::tempdir().unwrap();
    for (name, days) in [("well", 300), ("soon", 10), ("over", -3)] {
        certify(dir.path(), name, days);
    }
    let flag = |flag: &str, file: &str| format!("--{flag}={}", dir.path().join(file).display());
    let file = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    file("access.list", "token:the-token-of-an-admin admin\n");
    file("good.token", "the-token-of-an-admin\n");
    file("wrong.token", "the-token-of-nobody\n");
    let tls = |name: &str| {
        let flags =
            [flag("tls_cert", &format!("{name}.pem")), flag("tls_key", &format!("{name}.key"))];
        Master::start(0, &[&flags[0], &flags[1], &flag("access_file", "access.list")])
    };
    let (soon, over) = (tls("soon"), tls("over"));
    let (good, none) = (flag("token_file", "good.token"), "--no_transfers");
    let ca = |name: &str| flag("tls_ca", &format!("{name}.ca"));
    let own = [flag("tls_cert", "over.pem"), flag("tls_key", "over.key")];
    let (soon, over) = (&*soon.address, &*over.address);
    Visit::at(soon, &[none, &good, &ca("soon")])
        .tells("warn", "certificate", &format!("that of {soon} expires in 10 days"), "renew it")
        .tells("ok", "certificate", "soon.ca is valid for", "");
    for (at, flags, about, found, advice) in [
        (
            soon,
            vec![flag("token_file", "wrong.token"), ca("soon")],
            "token",
            "does not know the token",
            "wrong.token",
        ),
        (soon, vec![ca("soon")], "token", "a token or a client certificate", "--token_file"),
        (soon, vec![flag("token_file", "missing"), ca("soon")], "token", "missing", "--token_file"),
        (soon, vec![good.clone()], "certificate", "speaks TLS only", "--tls_ca"),
        (soon, vec![good.clone(), ca("well")], "certificate", "does not trust", "--tls_ca"),
        (
            soon,
            vec![good.clone(), ca("soon"), "--tls_server_name=other.test".into()],
            "certificate",
            "is for another name",
            "--tls_server_name",
        ),
        (
            over,
            vec![good.clone(), ca("over")],
            "certificate",
            "the master's certificate expired 3 days ago",
            "renew the master's",
        ),
        (
            soon,
            [vec![good.clone(), ca("soon")], own.to_vec()].concat(),
            "certificate",
            "over.pem expired 3 days ago",
            "renew it",
        ),
    ] {
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain([none]).collect();
        Visit::at(at, &flags).tells("fault", about, found, advice);
    }
    let plain = Master::start(0, &[]);
    Visit::at(&plain.address, &[none, &ca("well")]).tells(
        "fault",
        "certificate",
        "no TLS is spoken",
        "leave --tls_ca out",
    );
}

#[test]
fn each_way_in_which_a_port_does_not_answer() {
    let master = Master::start(0, &[]);
    let pages = master.metrics.trim_start_matches("http://");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let takes_and_says_nothing = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = takes_and_says_nothing.local_addr().unwrap().to_string();
    for (at, found, advice) in [
        (&*closed, "nothing listens at this port", "start the master there"),
        ("no-such-host.invalid:1", "the name does not resolve", "DNS"),
        (&*mute, "takes connections and does not answer", "hangs, is stopped, or is no master"),
        (pages, "the first bytes are HTTP/1", "--rpc_port"),
    ] {
        Visit::at(at, &["--no_transfers"]).tells("fault", "master", found, advice);
    }
    // Of several, each by itself.
    let both = format!("{};{closed}", master.address);
    Visit::at(&both, &["--no_transfers"]).tells(
        "fault",
        "master",
        &closed,
        "start the master there",
    );
}

/// Prints past the harness, which shows the output of failing tests alone.
fn leave_out(reason: &str) {
    let _ = writeln!(std::io::stderr(), "left out: {reason}");
}

/// Runs the doctor of a host without a master, by a shell that plants a fault of that host before.
fn on_host(plant: &str, flags: &str) -> Finished {
    let script = format!("{plant} && exec \"$0\" --master=127.0.0.1:1 doctor --json {flags}");
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-c", &script]).arg(binary("mc-ctl"));
    Program::start(DEADLINE, &mut shell, Input::None).finish()
}

#[test]
fn limits_of_a_host() {
    if on_host("true", "").text().is_empty() {
        return leave_out("this user may not mount");
    }
    for (plant, flags, level, about, found, advice) in [
        (
            "ulimit -l 64",
            "--protocol=rdma",
            "warn",
            "locked memory",
            "the limit is 64.00 KB",
            "ulimit -l unlimited",
        ),
        ("ulimit -n 1000", "", "warn", "open files", "the limit is 1000", "LimitNOFILE="),
        (
            "mount -t tmpfs -o size=32m none /dev/shm",
            "",
            "warn",
            "/dev/shm",
            "of 32.00 MB",
            "--shm-size",
        ),
        (
            "mount -t tmpfs -o size=99m none /dev/shm && export MC_STORE_SEGMENT_FILE=/dev/shm/s MOONCAKE_GLOBAL_SEGMENT_SIZE=1GB",
            "",
            "fault",
            "/dev/shm",
            "/dev/shm/s wants 1.00 GB",
            "the node will not start",
        ),
    ] {
        Visit::of(&on_host(plant, flags)).tells(level, about, found, advice);
    }
}

#[test]
fn an_etcd_without_quorum() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let mut etcd = EtcdCluster::start(3);
    let endpoints = etcd.endpoints();
    let flag = format!("--etcd_endpoints={}", endpoints.join(";"));
    let master =
        Master::start(mc_testkit::free_port(), &["--enable_ha", &flag, "--ha_lease_ttl=2s"]);
    let at = format!("etcd://{}", endpoints.join(";"));
    eventually_blocking(DEADLINE, "it leads", || {
        (ctl(&at, &["ha", "status"]).code == Some(0)).then_some(())
    });
    etcd.kill(0);
    Visit::at(&at, &["--no_transfers"]).tells(
        "fault",
        "etcd",
        &format!("{}: nothing listens at this port", endpoints[0]),
        "start this member of etcd",
    );
    etcd.kill(1);
    Visit::at(&at, &["--no_transfers"]).tells(
        "fault",
        "etcd",
        "etcd has no quorum: 1 of 3 members",
        "start the members that are missing",
    );
    eventually_blocking(DEADLINE, "the master notices", || {
        ctl(&master.address, &["ha", "status"])
            .text()
            .contains("etcd has not answered")
            .then_some(())
    });
    Visit::at(&master.address, &["--no_transfers"]).tells(
        "fault",
        "etcd",
        "has no answer from etcd",
        "start the members that are missing",
    );
}

#[test]
fn a_standby_that_is_stopped() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let mut cluster = Cluster::new(2);
    cluster.flags.clear();
    let _leader = cluster.start(0);
    cluster.wait_until_leads(0);
    let standby = cluster.start(1);
    cluster.wait_until_in_sync(1, 0);
    let _node = Node::start(&cluster.all(), "a", 0, "16MB");
    let leader = cluster.address(0);
    Visit::at(&cluster.all(), &[]).is_well();
    Visit::at(&leader, &[]).tells("ok", "standby", &cluster.address(1), "");
    standby.freeze();
    ctl(&leader, &["put", "k", "value"]).assert_ok();
    Visit::at(&cluster.all(), &["--no_transfers"]).tells(
        "fault",
        "master",
        &format!("{}: takes connections and does not answer", cluster.address(1)),
        "is stopped",
    );
    let told = eventually_blocking(DEADLINE, "the leader misses it", || {
        let status = cluster.status(0).unwrap_or_default();
        (status["followers"][0]["address"] == "").then(|| Visit::at(&leader, &["--no_transfers"]))
    });
    told.tells("fault", "standby", "m1 has let its lease in etcd end", "is stopped or hangs");
    standby.resume();
}

/// A network namespace with one cable to this host, gone when dropped.
struct Cable {
    space: String,
    near: String,
    net: String,
}

impl Cable {
    fn lay() -> Result<Self, String> {
        let id = std::process::id();
        let net = format!("10.79.{}", id % 250);
        let cable = Self { space: format!("mc-doctor-{id}"), near: format!("mcd{id}"), net };
        let (space, near, net) = (&cable.space, &cable.near, &cable.net);
        run(&format!("ip netns add {space}"))?;
        run(&format!("ip link add {near} type veth peer name eth0 netns {space}"))?;
        for host in [1, 3] {
            run(&format!("ip address add {net}.{host}/24 dev {near}"))?;
        }
        run(&format!("ip link set {near} up"))?;
        run(&format!("ip -n {space} address add {net}.2/24 dev eth0"))?;
        run(&format!("ip -n {space} link set eth0 up"))?;
        run(&format!("ip -n {space} link set lo up"))?;
        run(&format!(
            "tc -n {space} qdisc add dev eth0 root tbf rate 24mbit burst 32k latency 400ms"
        ))?;
        Ok(cable)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = run(&format!("ip netns delete {}", self.space));
        let _ = run(&format!("ip link delete {}", self.near));
    }
}

fn run(command: &str) -> Result<(), String> {
    let mut words = command.split(' ');
    let mut program = Command::new(words.next().unwrap());
    let output = program.args(words).output().map_err(|error| format!("{command}: {error}"))?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success().then_some(()).ok_or(format!("{command}: {told}"))
}

#[test]
fn a_slow_link_and_a_blocked_port() {
    let cable = match Cable::lay() {
        Ok(cable) => cable,
        Err(reason) => return leave_out(&reason),
    };
    let (net, space) = (&cable.net, &cable.space);
    let master = Master::start(0, &[&format!("--rpc_address={net}.3")]);
    let at = format!("{net}.3:{}", master.port());
    let _near = ["a", "b"].map(|name| Node::start(&at, name, 0, "16MB"));
    let mut far = Command::new("ip");
    far.args(["netns", "exec", space]).arg(binary("mc-node")).args([
        &format!("--host={net}.2"),
        "--port=0",
        &format!("--master_server_address={at}"),
        "--segment_name=far",
        "--global_segment_size=16MB",
    ]);
    let far = Program::start(DEADLINE, &mut far, Input::None);
    far.wait_out(|line| line.contains("Mooncake client ready").then_some(()));
    Visit::at(&at, &[]).tells("warn", "slow link", "far at", "look at this link").tells(
        "fault",
        "address",
        "a at tcp://127.0.0.1:",
        "--host=ADDRESS",
    );
    // Its answers to the address that this host has for its neighbours are lost.
    run(&format!("ip -n {space} route add blackhole {net}.1/32")).unwrap();
    Visit::at(&at, &[]).tells("fault", "port", &format!("far at {net}.2:"), "firewalls");
}
