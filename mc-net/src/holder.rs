//! The process that has a port.

use std::fmt;

/// The process that has a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Whether it listens; otherwise the port is that of a connection.
    pub listens: bool,
    /// The process and its name; `None` when it is another user's, or gone.
    pub process: Option<(u32, String)>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = "; the system gives ports from net.ipv4.ip_local_port_range to connections";
        match (&self.process, self.listens) {
            (Some((id, name)), true) => write!(f, "{name} (process {id})"),
            (Some((id, name)), false) => write!(f, "a connection of {name} (process {id}){range}"),
            (None, true) => f.write_str("a process of another user or container"),
            (None, false) => write!(f, "a connection that is open or has just ended{range}"),
        }
    }
}

impl Holder {
    /// Returns what has this TCP port of this host, as far as the system tells. Reads files.
    #[must_use]
    pub fn of(port: u16) -> Option<Self> {
        system::holder(port)
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;
    use std::path::Path;

    use super::Holder;

    /// The state of a socket that listens, in `/proc/net/tcp`.
    const LISTENS: &str = "0A";

    /// The inode of a connection that has ended.
    const ENDED: &str = "0";

    pub(super) fn holder(port: u16) -> Option<Holder> {
        let sockets = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
        let lines = sockets.iter().flatten().flat_map(|text| text.lines().skip(1));
        let mut found: Vec<_> = lines.filter_map(parse).filter(|of| of.port == port).collect();
        // A port may be that of several connections, some of which have ended.
        found.sort_by_key(|socket| (!socket.listens, socket.inode == ENDED));
        let socket = found.first()?;
        let process = (socket.inode != ENDED).then(|| owner(socket.inode)).flatten();
        Some(Holder { listens: socket.listens, process })
    }

    struct Socket<'a> {
        port: u16,
        listens: bool,
        inode: &'a str,
    }

    /// Parses a line: number, local address, remote address, state, six more, the inode.
    fn parse(line: &str) -> Option<Socket<'_>> {
        let mut fields = line.split_whitespace();
        let (_, port) = fields.nth(1)?.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let listens = fields.nth(1)? == LISTENS;
        Some(Socket { port, listens, inode: fields.nth(5)? })
    }

    /// The process that has a descriptor of this socket.
    fn owner(inode: &str) -> Option<(u32, String)> {
        let socket = format!("socket:[{inode}]");
        let has_it = |process: &Path| {
            let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            descriptors
                .filter_map(|descriptor| fs::read_link(descriptor.path()).ok())
                .any(|target| target.as_os_str() == socket.as_str())
        };
        for process in fs::read_dir("/proc").ok()?.flatten() {
            let Some(id) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if has_it(&process.path()) {
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                return Some((id, name.trim().to_owned()));
            }
        }
        None
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::Holder;

    pub(super) fn holder(_: u16) -> Option<Holder> {
        None
    }
}
