//! The usual yardstick of a network, where it is installed.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::error::BenchError;

/// How long its server may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);

/// What of iperf3's report is of interest.
#[derive(Deserialize)]
struct Answer {
    end: End,
}

#[derive(Deserialize)]
struct End {
    sum_received: Sum,
}

#[derive(Deserialize)]
struct Sum {
    bits_per_second: f64,
}

/// What iperf3 measures for one stream with cubic; `None` when there is no iperf3.
/// The server is pinned to `server_cpu`, the client to the caller's CPU.
pub(crate) fn gbps(server_cpu: usize, duration: Duration) -> Result<Option<f64>, BenchError> {
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
        let output = client.args(["--time", &seconds, "--length", "1M"]).output()?;
        match serde_json::from_slice::<Answer>(&output.stdout) {
            Ok(answer) => break Ok(answer),
            // The server may not listen yet.
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Err(source) => break Err(BenchError::PeerWords { role: "iperf3", source }),
        }
    };
    // It ends by itself after one client; when there was none it must be told.
    let _ = server.kill();
    server.wait()?;
    Ok(Some(answer?.end.sum_received.bits_per_second / 8e9))
}
