//! How much memory work in the background may take.

/// Whether less than an eighth of the memory is available, of the host's or of the process's
/// control group. `false` where the system does not say.
pub(super) fn is_short() -> bool {
    let host = std::fs::read_to_string("/proc/meminfo").ok();
    let host =
        host.and_then(|text| Some((field(&text, "MemTotal:")?, field(&text, "MemAvailable:")?)));
    host.is_some_and(|(total, available)| available < total / 8) || group_is_short()
}

/// The number of a line of `/proc/meminfo`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The same for the control group that the process sees as its root, as in a container. Its pages
/// of files, which the system would take back, count as used.
fn group_is_short() -> bool {
    let files = [
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ];
    // A limit that is no number is none.
    let number = |path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    files.into_iter().any(|(limit, used)| match (number(limit), number(used)) {
        (Some(limit), Some(used)) => limit.saturating_sub(used) < limit / 8,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let text =
            "MemTotal:       24605480 kB\nMemFree:  7 kB\nMemAvailable:   22 kB\nBad: x kB\n";
        assert_eq!(field(text, "MemTotal:"), Some(24_605_480));
        assert_eq!(field(text, "MemAvailable:"), Some(22));
        assert_eq!((field(text, "Bad:"), field(text, "Nothing:")), (None, None));
    }
}
