//! Three masters and an etcd, all of them programs, whose leader is killed.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_rpc::{ClientConfig, FollowerStatus, HaStatus, MasterClient};
use mc_store::{ByteSize, Client, ClientBuilder, PutOutcome};
use mc_testkit::{EtcdCluster, Input, Program};

use super::restart::{NAME, VALUE, book, read};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::pattern::Pattern;
use crate::scale::Scale;

const MASTERS: u16 = 3;
const LEASE: Duration = Duration::from_secs(2);

/// The masters have an address of this host for themselves.
const FIRST_PORT: u16 = 50051;
const FIRST_PAGES: u16 = 9003;

/// Time limit for a master to start.
const START: Duration = Duration::from_secs(60);

/// Prints the time from the end of the leader's lease, which is counted from its death, to the first
/// object that is read. Left out without etcd, and without the program `mc-master` beside this one.
pub(super) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let keys = scale.pick(1_000_000, 100_000, 0);
    let program = std::env::current_exe()?.with_file_name("mc-master");
    if keys == 0 || !EtcdCluster::is_installed() {
        return Ok(());
    }
    if !program.exists() {
        eprintln!("left out: failover_first_get_s needs {}", program.display());
        return Ok(());
    }
    let etcd = EtcdCluster::start(1);
    let directory = tempfile::tempdir()?;
    let start = |number| start(&program, &etcd, directory.path(), number);
    // The first one leads, as there is no other.
    let leader = start(0);
    let standbys = [start(1), start(2)];
    let masters = (0..MASTERS).map(|n| SocketAddr::new(ip(&etcd), FIRST_PORT + n).to_string());
    let masters = masters.collect::<Vec<_>>().join(";");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let connect = |builder: ClientBuilder| {
        let connected = runtime.block_on(builder.master(&masters).connect());
        connected.map_err(|error| BenchError::start("client")(error.into()))
    };
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let size = ByteSize::bytes(64 << 20);
    let node = connect(Client::builder().listen(here).segment_size(size))?;
    let reader = connect(Client::builder())?;
    let pattern = Pattern::new(1);
    let value = Bytes::from(pattern.bytes(VALUE));
    if runtime.block_on(node.put(NAME, value))? != PutOutcome::Stored {
        return Err(BenchError::wrong("put", "the object is there already"));
    }
    runtime.block_on(book(&masters, keys))?;
    runtime.block_on(in_sync(&masters))?;
    drop(leader);
    let killed = Instant::now();
    runtime.block_on(read(&reader, &pattern, killed))?;
    let since_kill = killed.elapsed();
    runtime.block_on(async {
        reader.shutdown().await;
        node.shutdown().await;
    });
    drop(standbys);
    let after_lease = since_kill.as_secs_f64() - LEASE.as_secs_f64();
    let figure = Figure::new("failover_first_get_s", after_lease, "s").with("keys", keys);
    let figure = figure.with("since_kill_s", since_kill.as_secs_f64());
    report.add(figure.with("lease_s", LEASE.as_secs()).with("masters", MASTERS))
}

/// Waits until both standbys have everything and are in sync.
async fn in_sync(masters: &str) -> Result<(), BenchError> {
    let client = MasterClient::connect(masters, ClientConfig::default()).await?;
    let deadline = Instant::now() + START;
    loop {
        let HaStatus { followers, in_sync, .. } = client.ha_status().await?;
        let is_ready = |it: &FollowerStatus| it.lag == 0 && in_sync.contains(&it.member);
        if followers.len() == usize::from(MASTERS) - 1 && followers.iter().all(is_ready) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(BenchError::wrong("ha_status", "the standbys do not get in sync"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn ip(etcd: &EtcdCluster) -> IpAddr {
    etcd.address(0).ip()
}

/// Starts a master and waits until it listens. Dropping it kills it.
fn start(program: &PathBuf, etcd: &EtcdCluster, directory: &Path, number: u16) -> Program {
    let address = ip(etcd);
    let mut command = Command::new(program);
    command.args([
        "--enable_ha".to_owned(),
        format!("--ha_lease_ttl={}s", LEASE.as_secs()),
        format!("--ha_member_id=m{number}"),
        format!("--etcd_endpoints={}", etcd.endpoints().join(";")),
        format!("--rpc_address={address}"),
        format!("--rpc_listen={address}"),
        format!("--rpc_port={}", FIRST_PORT + number),
        format!("--metrics_host={address}"),
        format!("--metrics_port={}", FIRST_PAGES + number),
        "--enable_metric_reporting=false".to_owned(),
        format!("--metadata_dir={}", directory.join(number.to_string()).display()),
    ]);
    let program = Program::start(START, &mut command, Input::None);
    program.wait_out(|line| line.contains("Master service listening").then_some(()));
    program
}
