//! The CPUs that a measurement runs on.
//!
//! A round trip between two CPUs of a virtual machine costs several times what it
//! costs on one, because each hop wakes a halted CPU. A figure without its
//! placement is therefore worth little: the scheduler chooses, and a median jumps
//! between two values from run to run.

use std::io;
use std::thread;

use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// Where the two sides of a measurement run. The serving side is always on the
/// first CPU unless it is [`Free`](Self::Free).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Placement {
    /// Both sides on one CPU.
    Same,
    /// Each side on a CPU of its own.
    Cross,
    /// Where the scheduler puts them.
    Free,
}

impl Placement {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Cross => "cross",
            Self::Free => "free",
        }
    }

    /// The CPU of the serving side; `None` leaves it free.
    fn server_cpu(self, cpus: &[usize]) -> Option<usize> {
        match self {
            Self::Same | Self::Cross => cpus.first().copied(),
            Self::Free => None,
        }
    }

    /// The CPU of the measuring side; `None` leaves it free.
    fn client_cpu(self, cpus: &[usize]) -> Option<usize> {
        match self {
            Self::Same => cpus.first().copied(),
            Self::Cross => cpus.get(1).copied(),
            Self::Free => None,
        }
    }
}

/// The CPUs that this process may use, at most the first 1024 of the machine.
pub(crate) fn cpus() -> io::Result<Vec<usize>> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

/// The placements that this machine can have, of those asked for.
pub(crate) fn possible(wanted: &[Placement]) -> io::Result<Vec<Placement>> {
    let two = cpus()?.len() >= 2;
    Ok(wanted.iter().copied().filter(|placement| two || *placement != Placement::Cross).collect())
}

/// Keeps the calling thread, and threads that it starts, on the first CPU.
pub(crate) fn pin_server(placement: Placement) -> io::Result<()> {
    pin(placement.server_cpu(&cpus()?))
}

/// Runs `work` on a thread of its own at the measuring side's place. Processes that it
/// starts stay there.
pub(crate) fn on_client_cpu<T: Send>(
    placement: Placement,
    work: impl FnOnce() -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    on_cpu(placement.client_cpu(&cpus()?), work)
}

/// Runs `work` on a thread of its own at the serving side's place. Processes that it
/// starts stay there.
pub(crate) fn on_server_cpu<T: Send>(
    placement: Placement,
    work: impl FnOnce() -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    on_cpu(placement.server_cpu(&cpus()?), work)
}

fn on_cpu<T: Send>(
    cpu: Option<usize>,
    work: impl FnOnce() -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            pin(cpu)?;
            work()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn pin(cpu: Option<usize>) -> io::Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut only = CpuSet::new();
    only.set(cpu);
    rustix::thread::sched_setaffinity(None, &only)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_pinned_and_the_caller_is_not() {
        let before = cpus().unwrap();
        let seen = on_client_cpu(Placement::Same, || Ok(cpus()?)).unwrap();
        assert_eq!(seen, before[..1]);
        assert_eq!(cpus().unwrap(), before);
        assert_eq!(on_client_cpu(Placement::Free, || Ok(cpus()?)).unwrap(), before);
    }
}
