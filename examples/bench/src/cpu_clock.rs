//! Time on a CPU.

use std::time::Duration;

/// Time that the calling thread has spent on a CPU since the clock was started.
/// Work that neither waits nor shares anything is measured with it, so that
/// whatever else the machine does meanwhile need not count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuClock {
    start: Duration,
}

impl CpuClock {
    pub(crate) fn start() -> Self {
        Self { start: now() }
    }

    pub(crate) fn elapsed(self) -> Duration {
        now().saturating_sub(self.start)
    }

    /// Nanoseconds since the start.
    pub(crate) fn nanos(self) -> f64 {
        self.elapsed().as_nanos() as f64
    }
}

fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("time on a CPU is never negative")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_is_no_work() {
        let clock = CpuClock::start();
        while clock.elapsed() < Duration::from_millis(1) {}
        let worked = clock.elapsed();
        std::thread::sleep(Duration::from_millis(100));
        assert!(clock.elapsed() < worked + Duration::from_millis(50));
    }
}
