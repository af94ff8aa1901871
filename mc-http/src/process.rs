//! Figures of this process, under the names that Prometheus' own libraries give them.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::metrics::MetricKind::{Counter, Gauge};
use crate::metrics::MetricsText;

/// Ticks of a second in `/proc`, on every system that has it but two that are gone (alpha and ia64).
const TICKS: f64 = 100.0;

impl MetricsText {
    /// Appends `mc_build_info` with this version, and where the system tells them (Linux) the figures of
    /// this process: CPU time, memory, threads, open files and their limit, time of its start.
    ///
    /// ```
    /// let mut page = mc_http::MetricsText::default();
    /// page.process("1.2.3");
    /// let page = page.into_string();
    /// assert!(page.contains("mc_build_info{version=\"1.2.3\"} 1\n"));
    /// # #[cfg(target_os = "linux")]
    /// assert!(page.contains("\nprocess_resident_memory_bytes "));
    /// ```
    pub fn process(&mut self, version: &str) {
        self.metric("mc_build_info", Gauge, "1 for the version that runs.");
        self.sample("mc_build_info", &[("version", version)], 1);
        for (name, kind, help, value) in [
            ("process_cpu_seconds_total", Counter, "CPU time used by the process.", cpu_seconds()),
            (
                "process_resident_memory_bytes",
                Gauge,
                "Memory of the process that is in RAM.",
                status("VmRSS:").map(|kib| kib * 1024.0),
            ),
            (
                "process_virtual_memory_bytes",
                Gauge,
                "Address space of the process.",
                status("VmSize:").map(|kib| kib * 1024.0),
            ),
            ("process_threads", Gauge, "Threads of the process.", status("Threads:")),
            ("process_open_fds", Gauge, "Open file descriptors.", open_files()),
            ("process_max_fds", Gauge, "File descriptors that may be open.", max_files()),
            (
                "process_start_time_seconds",
                Gauge,
                "Start of the process, in seconds since 1970.",
                start(),
            ),
        ] {
            if let Some(value) = value {
                self.metric(name, kind, help);
                self.sample(name, &[], value);
            }
        }
    }
}

/// A field of `/proc/self/stat`, by its number in proc(5). Fields behind the name have the numbers from 3 on.
fn stat(number: usize) -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn cpu_seconds() -> Option<f64> {
    Some((stat(14)? + stat(15)?) / TICKS)
}

fn start() -> Option<f64> {
    let since_boot = fs::read_to_string("/proc/uptime").ok()?;
    let since_boot: f64 = since_boot.split_whitespace().next()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    Some((now - (since_boot - stat(22)? / TICKS)).round())
}

/// A number of `/proc/self/status`.
fn status(name: &str) -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn open_files() -> Option<f64> {
    // Without the one that lists them.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

fn max_files() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    // None where it is unlimited.
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_those_of_this_process() {
        let memory = vec![1_u8; 64 << 20];
        let resident = status("VmRSS:").unwrap() * 1024.0;
        assert!((memory.len() as f64..1e12).contains(&resident), "{resident}");
        assert!(status("VmSize:").unwrap() * 1024.0 >= resident);
        assert!(status("Threads:").unwrap() >= 1.0);

        let before = open_files().unwrap();
        let files: Vec<_> = (0..50).map(|_| fs::File::open("/proc/self/stat").unwrap()).collect();
        assert!(open_files().unwrap() >= before + 40.0, "other tests may close some");
        assert!(max_files().unwrap() >= files.len() as f64);

        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let start = start().unwrap();
        assert!((now - 86_400.0..=now + 1.0).contains(&start), "{start} and {now}");
        let used = cpu_seconds().unwrap();
        while cpu_seconds().unwrap() < used + 0.02 {
            core::hint::black_box(memory.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        }
    }
}
