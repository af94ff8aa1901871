//! Mooncake's published package, measured on this machine in the same run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tempfile::TempDir;

use crate::error::BenchError;
use crate::placement::{self, Placement};

/// The script that measures it: its interface is Python.
const SCRIPT: &str = include_str!("reference/store.py");

/// The command that installs its package.
const INSTALL: &str = "python3 -m venv VENV && VENV/bin/pip install \
     mooncake-transfer-engine-non-cuda==0.3.13.post1 (on Debian it needs \
     libibverbs1 libnuma1 liburing2 libcurl4)";

/// Time limit for one of its processes to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time limit for the measurement.
const MEASURING: Duration = Duration::from_secs(300);

/// A pause between two looks at a process.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Bytes that its storage node contributes.
const SEGMENT: u64 = 2 << 30;

/// Where Mooncake is installed, if anywhere.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReferenceOptions {
    /// Python environment with Mooncake, to be measured beside the store suite
    #[arg(long = "reference", env = "REFERENCE_VENV", value_name = "VENV")]
    venv: Option<PathBuf>,
}

impl ReferenceOptions {
    /// Mooncake, if it is to be measured.
    ///
    /// # Errors
    /// [`BenchError::Reference`] when it is not where it should be.
    pub(super) fn find(&self) -> Result<Option<Reference>, BenchError> {
        let Some(venv) = &self.venv else {
            eprintln!(
                "store: not measured beside Mooncake; name an environment that has it \
                 with --reference VENV: {INSTALL}"
            );
            return Ok(None);
        };
        let reference =
            Reference { master: venv.join("bin/mooncake_master"), python: venv.join("bin/python") };
        for program in [&reference.master, &reference.python] {
            if !program.exists() {
                let found = format!("{} is missing; make it: {INSTALL}", program.display());
                return Err(BenchError::Reference { what: "find", found });
            }
        }
        Ok(Some(reference))
    }
}

/// An installation of Mooncake.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    master: PathBuf,
    python: PathBuf,
}

/// The amount of work.
#[derive(Clone, Debug)]
pub(super) struct Amounts {
    /// Single values, by size.
    pub(super) values: BTreeMap<usize, usize>,
    /// Questions whether a key is there.
    pub(super) exist: usize,
    /// Batches.
    pub(super) rounds: usize,
}

/// One figure, by the name that it has for our store.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) size: Option<usize>,
}

impl Reference {
    /// Starts a master and a storage node, measures as ours is measured, and ends them.
    pub(super) fn measure(
        &self,
        place: Placement,
        amounts: &Amounts,
    ) -> Result<Vec<Measured>, BenchError> {
        let folder = tempfile::tempdir()?;
        let script = folder.path().join("store.py");
        std::fs::write(&script, SCRIPT)?;
        let [rpc, metrics, metadata, node, client] = free_ports()?;
        let mut master = Command::new(&self.master);
        master
            .arg(format!("--rpc_port={rpc}"))
            .arg("--metrics_host=127.0.0.1")
            .arg(format!("--metrics_port={metrics}"))
            .arg("--enable_http_metadata_server=true")
            .arg(format!("--http_metadata_server_port={metadata}"));
        let mut master =
            placement::on_server_cpu(place, || Rival::start("master", master, &folder))?;
        master.wait_for_port(rpc)?;
        master.wait_for_port(metadata)?;
        let script = |role: &str, port: u16| {
            let mut python = Command::new(&self.python);
            python
                .arg(&script)
                .arg(role)
                .arg(format!("--master=127.0.0.1:{rpc}"))
                .arg(format!("--metadata=http://127.0.0.1:{metadata}/metadata"))
                .arg(format!("--port={port}"));
            python
        };
        let mut serve = script("serve", node);
        serve.arg(format!("--segment={SEGMENT}"));
        let mut node = placement::on_server_cpu(place, || Rival::start("node", serve, &folder))?;
        node.wait_for_line("ready")?;
        let counts = serde_json::to_string(&amounts.values).map_err(io::Error::from)?;
        let mut measure = script("measure", client);
        measure
            .arg(format!("--counts={counts}"))
            .arg(format!("--exist={}", amounts.exist))
            .arg(format!("--rounds={}", amounts.rounds));
        let mut client =
            placement::on_client_cpu(place, || Rival::start("client", measure, &folder))?;
        client.wait_for_success()?;
        client.figures()
    }
}

/// Ports that are free now. Another process may take them before they are used here, as with every
/// program that has to be told its port.
fn free_ports() -> io::Result<[u16; 5]> {
    let mut listeners = Vec::new();
    let mut ports = [0; 5];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

/// A process of Mooncake. Dropping it kills it: some do not end by
/// themselves.
struct Rival {
    what: &'static str,
    child: Child,
    /// Its output and its errors.
    out: PathBuf,
    err: PathBuf,
}

impl Rival {
    fn start(
        what: &'static str,
        mut command: Command,
        folder: &TempDir,
    ) -> Result<Self, BenchError> {
        let file = |name: &str| -> PathBuf { folder.path().join(format!("{what}.{name}")) };
        let (out, err) = (file("out"), file("err"));
        let child = command
            .env("MC_LOG_LEVEL", "ERROR")
            // Ends with this process, by which the node notices its end.
            .stdin(Stdio::piped())
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?)
            .current_dir(folder.path())
            .spawn()
            .map_err(|source| BenchError::Spawn { role: what, source })?;
        Ok(Self { what, child, out, err })
    }

    /// Looks until there is what it looks for.
    fn wait(
        &mut self,
        patience: Duration,
        mut look: impl FnMut(&mut Self) -> io::Result<bool>,
    ) -> Result<(), BenchError> {
        let deadline = Instant::now() + patience;
        while !look(self)? {
            if let Some(status) = self.child.try_wait()? {
                return Err(self.failure(&format!("ended early ({status})")));
            }
            if Instant::now() >= deadline {
                return Err(self.failure(&format!("is not done after {patience:?}")));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    fn wait_for_port(&mut self, port: u16) -> Result<(), BenchError> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        self.wait(PATIENCE, |_| Ok(TcpStream::connect(address).is_ok()))
    }

    fn wait_for_line(&mut self, line: &str) -> Result<(), BenchError> {
        self.wait(PATIENCE, |rival| Ok(lines(&rival.out)?.iter().any(|said| said == line)))
    }

    fn wait_for_success(&mut self) -> Result<(), BenchError> {
        self.wait(MEASURING, |rival| {
            Ok(rival.child.try_wait()?.is_some_and(|status| status.success()))
        })
    }

    fn figures(&self) -> Result<Vec<Measured>, BenchError> {
        // Its libraries print, too.
        let said = lines(&self.out)?;
        let figures = said.iter().filter(|line| line.starts_with('{'));
        figures
            .map(|line| serde_json::from_str(line))
            .collect::<Result<_, _>>()
            .map_err(|source| BenchError::PeerWords { role: self.what, source })
    }

    fn failure(&self, how: &str) -> BenchError {
        let last = lines(&self.err).ok().and_then(|mut said| said.pop()).unwrap_or_default();
        let found = format!("its {} {how}; it said last: {last}", self.what);
        BenchError::Reference { what: "measure", found }
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(path: &Path) -> io::Result<Vec<String>> {
    let bytes = BufReader::new(File::open(path)?).split(b'\n');
    bytes
        .map(|line| line.map(|line| String::from_utf8_lossy(&line).trim_end().to_owned()))
        .collect()
}
