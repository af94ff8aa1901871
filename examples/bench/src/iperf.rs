//! The usual yardstick of a network, where it is installed.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::error::BenchError;

/// Time limit for its server to listen.
const PATIENCE: Duration = Duration::from_secs(5);

/// The part of iperf3's report that is used.
#[derive(Deserialize)]
struct IperfReport {
    end: End,
}

#[derive(Deserialize)]
struct End {
    sum_received: Sum,
    cpu_utilization_percent: Cpu,
}

#[derive(Deserialize)]
struct Sum {
    bits_per_second: f64,
}

/// CPU use, in percent of one CPU.
#[derive(Deserialize)]
struct Cpu {
    host_total: f64,
    remote_total: f64,
}

/// The result of iperf3.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Iperf {
    /// 10^9 bytes a second.
    pub(crate) gbps: f64,
    /// CPU time of both sides for 10^9 bytes, in seconds.
    pub(crate) cpu_s_per_gb: f64,
}

/// Returns the measurement with the middle rate; `None` if there are none.
pub(crate) fn median(mut measured: Vec<Iperf>) -> Option<Iperf> {
    measured.sort_by(|a, b| a.gbps.total_cmp(&b.gbps));
    measured.get(measured.len() / 2).copied()
}

/// Runs iperf3 for one stream with cubic; `None` when there is no iperf3.
/// The server is pinned to `server_cpu`, the client to the caller's CPU.
pub(crate) fn measure(server_cpu: usize, duration: Duration) -> Result<Option<Iperf>, BenchError> {
    // A port that was free a moment ago; iperf3 cannot tell which one it took.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let port = port.to_string();
    let mut server = Command::new("iperf3");
    server.args(["--server", "--one-off", "--bind", "127.0.0.1", "--port", &port]);
    server.args(["--affinity", &server_cpu.to_string()]);
    let mut server = match server.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        Ok(server) => server,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(BenchError::Spawn { role: "iperf3", source }),
    };
    let seconds = duration.as_secs().max(1).to_string();
    let deadline = Instant::now() + PATIENCE;
    let answer = loop {
        let mut client = Command::new("iperf3");
        client.args(["--client", "127.0.0.1", "--port", &port, "--json", "--congestion", "cubic"]);
        let output = client.args(["--time", &seconds]).output()?;
        match serde_json::from_slice::<IperfReport>(&output.stdout) {
            Ok(answer) => break Ok(answer),
            // The server may not listen yet.
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Err(source) => break Err(BenchError::PeerWords { role: "iperf3", source }),
        }
    };
    // It ends by itself after one client; when there was none it must be told.
    let _ = server.kill();
    server.wait()?;
    let end = answer?.end;
    let gbps = end.sum_received.bits_per_second / 8e9;
    let cpu = end.cpu_utilization_percent;
    Ok(Some(Iperf { gbps, cpu_s_per_gb: (cpu.host_total + cpu.remote_total) / 100.0 / gbps }))
}
