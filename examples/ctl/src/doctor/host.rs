//! The needs of a node or a client on its host.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use mc_store::{ClientConfig, Protocol};
use mc_types::ByteSize;
use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};

use super::findings::Findings;

/// Open files that a node or master with thousands of clients needs.
const FILES: u64 = 65_536;

/// Threads and processes of one user: a node or an engine has some hundreds.
const THREADS: u64 = 4096;

/// Connections that wait to be taken.
const BACKLOG: u64 = 1024;

/// Where files of shared memory are, and the size that container runtimes give it by default.
const SHM: &str = "/dev/shm";
const SHM_DEFAULT: u64 = 64 << 20;

pub(super) fn look(findings: &mut Findings, settings: &ClientConfig) {
    memory(findings);
    shared_memory(findings, settings);
    limits(findings, settings);
    hugepages(findings);
    devices(findings);
    gpu(findings);
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

/// Segments and buffers that processes share are unnamed files, which need no room there. Segments in
/// files there do, and so do engines of several workers.
fn shared_memory(findings: &mut Findings, settings: &ClientConfig) {
    let Ok(system) = statvfs(SHM) else { return };
    let (total, free) = (
        system.f_blocks.saturating_mul(system.f_frsize),
        system.f_bavail.saturating_mul(system.f_frsize),
    );
    let told = format!("{} of {} are free", ByteSize::bytes(free), ByteSize::bytes(total));
    let segment = settings.segment_file.as_ref().filter(|file| file.starts_with(SHM));
    let wanted = settings.global_segment_size.map_or(0, ByteSize::as_u64);
    let grow = "mount -o remount,size=SIZE /dev/shm, docker --shm-size=SIZE, or an emptyDir with medium: \
                Memory in Kubernetes";
    match segment.map(|file| (file, fs::metadata(file).map_or(0, |it| it.len()))) {
        // What is there of the file is not free, and the file's own.
        Some((file, has)) if wanted.saturating_sub(has) > free => {
            let wanted = ByteSize::bytes(wanted);
            let told = format!("{told}, and {} wants {wanted}", file.display());
            findings.fault("/dev/shm", told, format!("the node will not start: {grow}"));
        }
        _ if total <= SHM_DEFAULT || free < total / 20 => {
            let advice = format!(
                "no node needs it but for a --segment_file there; PyTorch and vLLM of several workers \
                 need gigabytes: {grow}"
            );
            findings.warn("/dev/shm", told, advice);
        }
        _ => findings.ok("/dev/shm", told),
    }
}

fn limits(findings: &mut Findings, settings: &ClientConfig) {
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
    match getrlimit(Resource::Nproc).current {
        Some(threads) if threads < THREADS => findings.warn(
            "threads",
            format!("the limit of this user is {threads}"),
            format!("raise it to {THREADS} (`ulimit -u`, TasksMax= of systemd), or programs do not start"),
        ),
        Some(threads) => findings.ok("threads", format!("the limit of this user is {threads}")),
        None => findings.ok("threads", "without limit"),
    }
    let wants_rdma = settings.protocol == Some(Protocol::Rdma);
    let has_rdma = !entries("/sys/class/infiniband").is_empty();
    match getrlimit(Resource::Memlock).current {
        Some(locked) if (has_rdma || wants_rdma) && locked < 1 << 30 => {
            let told = format!("the limit is {}", ByteSize::bytes(locked));
            let advice = "RDMA locks all that is registered: `ulimit -l unlimited`, \
                          LimitMEMLOCK=infinity, IPC_LOCK in a Pod; without, bytes go over TCP";
            if has_rdma {
                findings.fault("locked memory", told, advice);
            } else {
                findings.warn("locked memory", told, advice);
            }
        }
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
}

/// NVIDIA's driver, as far as its files tell.
fn gpu(findings: &mut Findings) {
    let Ok(text) = fs::read_to_string("/proc/driver/nvidia/version") else { return };
    let version = text.lines().next().unwrap_or("a driver without a version");
    let is_there = |device: &str| Path::new("/dev").join(device).exists();
    let opened = |device: &str| File::open(Path::new("/dev").join(device));
    if !is_there("nvidiactl") || !is_there("nvidia0") {
        let advice = "the kernel has the driver, and this process no device: docker --gpus=all, or \
                      nvidia.com/gpu in the Pod; it matters for --segment_medium=vram and engines";
        findings.warn("GPU", version, advice);
    } else if let Err(error) = opened("nvidiactl") {
        let advice = "this user may not open the device: add it to the device's group";
        findings.warn("GPU", format!("{version}: /dev/nvidiactl: {error}"), advice);
    } else if libraries().iter().all(|directory| !directory.join("libcuda.so.1").exists()) {
        let advice = "libcuda.so.1 is in no usual place: install the driver's libraries of the same \
                      version (NVIDIA_DRIVER_CAPABILITIES=compute in a container)";
        findings.warn("GPU", version, advice);
    } else if driver(version).is_some_and(|major| major < OLDEST_DRIVER) {
        let advice = "engines of today need CUDA 12: install a newer driver";
        findings.warn("GPU", version, advice);
    } else {
        findings.ok("GPU", version);
    }
}

/// The first driver with CUDA 12.
const OLDEST_DRIVER: u32 = 525;

/// The release of the driver in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  …`.
fn driver(version: &str) -> Option<u32> {
    let is_release =
        |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    version.split_whitespace().find(is_release)?.split('.').next()?.parse().ok()
}

/// Where libraries are looked for.
fn libraries() -> Vec<PathBuf> {
    let set = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let usual = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/nvidia/lib64",
        "/usr/local/cuda/compat",
    ];
    std::env::split_paths(&set).chain(usual.map(PathBuf::from)).collect()
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
    fn the_release_of_a_driver_is_read() {
        let line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023";
        assert_eq!(driver(line), Some(535));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release";
        assert_eq!((driver(open), driver("a driver")), (Some(570), None));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_host_is_looked_at() {
        let mut findings = Findings::default();
        look(&mut findings, &ClientConfig::default());
        for about in ["memory", "open files", "locked memory"] {
            assert!(findings.0.iter().any(|finding| finding.about == about), "{findings:?}");
        }
        for finding in &findings.0 {
            assert_eq!(finding.level == Level::Ok, finding.advice.is_empty(), "{finding:?}");
        }
    }
}
