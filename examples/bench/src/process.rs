//! Processes that take part in a measurement: this program, started again with a
//! role.
//!
//! A process says that it is ready with one line of JSON on standard output and
//! serves until its standard input ends. So none outlives the run, however the
//! run ends.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

use crate::error::BenchError;
use crate::placement::Placement;

/// Time limit for a process to end once it was told to.
const PATIENCE: Duration = Duration::from_secs(10);

/// The task of a process of a suite, as the command line has it.
pub(crate) trait Task: Serialize {
    /// The role's name on the command line.
    const ROLE: &'static str;
    /// Its name in messages.
    const NAME: &'static str;
}

/// The role with this task, for the command line.
pub(crate) fn role<T: Task>(task: &T) -> Result<String, serde_json::Error> {
    serde_json::to_string(&BTreeMap::from([(T::ROLE, task)]))
}

/// A process with a role. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Peer {
    role: &'static str,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a process and waits for its line.
    pub(crate) fn start<T: Task, W: DeserializeOwned>(task: &T) -> Result<(Self, W), BenchError> {
        let name = T::NAME;
        let failed = |source| BenchError::Spawn { role: name, source };
        let task = role(task).map_err(io::Error::from)?;
        let mut child = Command::new(std::env::current_exe().map_err(failed)?)
            // The file may have other programs in it.
            .arg0("mc-bench")
            .arg(format!("--role={task}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("it was asked to be piped"));
        let mut peer = Self { role: name, child, stdin, stdout };
        let line = peer.line()?;
        let words = serde_json::from_str(&line)
            .map_err(|source| BenchError::PeerWords { role: name, source })?;
        Ok((peer, words))
    }

    fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            let status = self.child.wait()?.to_string();
            return Err(BenchError::PeerGone { role: self.role, status });
        }
        Ok(line)
    }

    /// Ends it at once (SIGKILL), and returns when it is gone.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(|_| ())
    }

    /// Bytes of its memory that are in RAM.
    pub(crate) fn resident_bytes(&self) -> io::Result<u64> {
        resident_bytes(&self.child.id().to_string())
    }

    /// CPU time that it has used, in seconds.
    pub(crate) fn cpu_seconds(&self) -> io::Result<f64> {
        cpu_seconds(&self.child.id().to_string())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        // It may have ended just now; either way it is waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tells the process that started this one what it waits for.
pub(crate) fn say(words: &impl Serialize) -> Result<(), BenchError> {
    let line = serde_json::to_string(words).map_err(io::Error::from)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

/// Returns when the process that started this one wants it to end, or is gone.
pub(crate) fn wait_for_end() {
    // Nothing is ever written there; an error is an end, too.
    let _ = io::stdin().lock().read_to_end(&mut Vec::new());
}

/// A runtime as a server's `main` has it: one worker for each CPU that
/// `placement` allows.
pub(crate) fn server_runtime(placement: Placement) -> io::Result<Runtime> {
    crate::placement::pin_server(placement)?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// The way in which an application runs its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientRuntime {
    /// Everything on one thread.
    Single,
    /// One worker for each CPU that the thread that starts it may use.
    Multi,
}

impl ClientRuntime {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Multi => "multi",
        }
    }

    pub(crate) fn start(self) -> io::Result<Runtime> {
        let mut builder = match self {
            Self::Single => tokio::runtime::Builder::new_current_thread(),
            Self::Multi => tokio::runtime::Builder::new_multi_thread(),
        };
        builder.enable_all().build()
    }
}

/// Bytes of this process's memory that are in RAM.
pub(crate) fn own_resident_bytes() -> io::Result<u64> {
    resident_bytes("self")
}

/// CPU time that this process has used, in seconds.
pub(crate) fn own_cpu_seconds() -> io::Result<f64> {
    cpu_seconds("self")
}

fn resident_bytes(process: &str) -> io::Result<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm"))?;
    let pages: Option<u64> = statm.split_whitespace().nth(1).and_then(|field| field.parse().ok());
    let pages = pages.ok_or_else(|| io::Error::other("/proc/…/statm has no second field"))?;
    Ok(pages * rustix::param::page_size() as u64)
}

fn cpu_seconds(process: &str) -> io::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The second field is the program's name in parentheses and may hold
    // anything; user and system time are the 12th and 13th after it.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let mut ticks = after.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    match (ticks.next(), ticks.next()) {
        (Some(Ok(user)), Some(Ok(system))) => {
            Ok((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64)
        }
        _ => Err(io::Error::other("/proc/…/stat has no times")),
    }
}

/// Lets this process, and those that it starts, open as many files as the system
/// allows.
pub(crate) fn raise_file_limit() -> io::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_time() {
        assert!(own_resident_bytes().unwrap() > 100_000);
        let before = own_cpu_seconds().unwrap();
        let mut sum = 0_u64;
        while own_cpu_seconds().unwrap() <= before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }
}
