//! The needs of a node or a client on its host.

use std::fs;
use std::path::Path;

use mc_types::ByteSize;
use rustix::process::{Resource, getrlimit};

use super::findings::Findings;

/// Open files that a node or master with thousands of clients needs.
const FILES: u64 = 65_536;

/// Connections that wait to be taken.
const BACKLOG: u64 = 1024;

pub(super) fn look(findings: &mut Findings) {
    memory(findings);
    limits(findings);
    hugepages(findings);
    devices(findings);
}

/// The number behind a name in a file such as `/proc/meminfo`, in the file's unit.
fn number_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The number that is all of a file.
fn number_in(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn memory(findings: &mut Findings) {
    let Ok(text) = fs::read_to_string("/proc/meminfo") else {
        return findings.warn(
            "memory",
            "this system has no /proc/meminfo",
            "look yourself whether segments fit: they are memory that is never swapped out",
        );
    };
    let kib = |name| number_of(&text, name).unwrap_or(0).saturating_mul(1024);
    let (total, free) = (kib("MemTotal"), kib("MemAvailable"));
    let told = format!("{} of {} can be had", ByteSize::bytes(free), ByteSize::bytes(total));
    if free < total / 20 {
        let advice = "give this host's nodes smaller segments (--global_segment_size), or it may \
                      kill them";
        findings.warn("memory", told, advice);
    } else {
        findings.ok("memory", told);
    }
    let limit = number_in("/sys/fs/cgroup/memory.max");
    if let (Some(limit), Some(used)) = (limit, number_in("/sys/fs/cgroup/memory.current")) {
        let left = limit.saturating_sub(used);
        let told = format!("{} of {} left", ByteSize::bytes(left), ByteSize::bytes(limit));
        if left < limit / 20 {
            let advice = "segments count: raise the container's limit above the segments' sizes";
            findings.warn("container's memory", told, advice);
        } else {
            findings.ok("container's memory", told);
        }
    }
}

fn limits(findings: &mut Findings) {
    let files = getrlimit(Resource::Nofile).current;
    match files {
        Some(files) if files < FILES => findings.warn(
            "open files",
            format!("the limit is {files}"),
            format!(
                "each connection is one: raise it to {FILES} (`ulimit -n`, LimitNOFILE= of systemd)"
            ),
        ),
        Some(files) => findings.ok("open files", format!("the limit is {files}")),
        None => findings.ok("open files", "without limit"),
    }
    let has_rdma = !entries("/sys/class/infiniband").is_empty();
    match getrlimit(Resource::Memlock).current {
        Some(locked) if has_rdma && locked < 1 << 30 => findings.fault(
            "locked memory",
            format!("the limit is {}", ByteSize::bytes(locked)),
            "RDMA locks all that is registered: `ulimit -l unlimited`, LimitMEMLOCK=infinity",
        ),
        Some(locked) => {
            findings.ok("locked memory", format!("the limit is {}", ByteSize::bytes(locked)));
        }
        None => findings.ok("locked memory", "without limit"),
    }
    if let Some(backlog) = number_in("/proc/sys/net/core/somaxconn") {
        let told = format!("net.core.somaxconn is {backlog}");
        if backlog < BACKLOG {
            let advice =
                format!("when many clients start at once: sysctl net.core.somaxconn={BACKLOG}");
            findings.warn("waiting connections", told, advice);
        } else {
            findings.ok("waiting connections", told);
        }
    }
}

fn hugepages(findings: &mut Findings) {
    let Ok(text) = fs::read_to_string("/proc/meminfo") else { return };
    let number = |name| number_of(&text, name).unwrap_or(0);
    let (all, free) = (number("HugePages_Total"), number("HugePages_Free"));
    if all == 0 {
        return findings
            .ok("huge pages", "none are reserved; they are needed for --use_hugepage only");
    }
    let size = ByteSize::bytes(number("Hugepagesize").saturating_mul(1024));
    let told = format!("{free} of {all} are free, of {size} each");
    if free == 0 {
        findings.warn("huge pages", told, "reserve more (sysctl vm.nr_hugepages), or use none");
    } else {
        findings.ok("huge pages", told);
    }
}

/// The names in a directory, sorted.
fn entries(path: &str) -> Vec<String> {
    let found = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn devices(findings: &mut Findings) {
    for device in entries("/sys/class/infiniband") {
        let path = format!("/sys/class/infiniband/{device}/ports");
        for port in entries(&path) {
            let read = |what: &str| {
                let text = fs::read_to_string(Path::new(&path).join(&port).join(what));
                text.unwrap_or_default().trim().to_owned()
            };
            let (state, rate) = (read("state"), read("rate"));
            let told = format!("{device} port {port}: {state}, {rate}");
            // `4: ACTIVE`.
            if state.ends_with("ACTIVE") {
                findings.ok("RDMA", told);
            } else {
                findings.warn(
                    "RDMA",
                    told,
                    "its cable or its interface is down: `ip link`, `rdma link`",
                );
            }
        }
    }
    if let Ok(text) = fs::read_to_string("/proc/driver/nvidia/version") {
        findings.ok("GPU", text.lines().next().unwrap_or("a driver without a version"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::findings::Level;

    #[test]
    fn numbers_are_found_by_their_names() {
        let text = "MemTotal:       24 kB\nMem:  7\nHugePages_Free:    3\n";
        assert_eq!(number_of(text, "MemTotal"), Some(24));
        assert_eq!(number_of(text, "Mem"), Some(7));
        assert_eq!(number_of(text, "HugePages_Free"), Some(3));
        assert_eq!(number_of(text, "HugePages"), None);
        assert_eq!(number_of("MemTotal: much", "MemTotal"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_host_is_looked_at() {
        let mut findings = Findings::default();
        look(&mut findings);
        for about in ["memory", "open files", "locked memory"] {
            assert!(findings.0.iter().any(|finding| finding.about == about), "{findings:?}");
        }
        for finding in &findings.0 {
            assert_eq!(finding.level == Level::Ok, finding.advice.is_empty(), "{finding:?}");
        }
    }
}
