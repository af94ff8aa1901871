//! Names of Unix sockets: parsed from endpoints, taken, found, and given back.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mc_types::{Endpoint, EndpointError};
use rustix::fs::{FlockOperation, flock};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

/// The scheme of endpoints on the same host.
pub(super) const SCHEME: &str = "shm";

/// The interval of looking whether another process has taken a name, or accepts
/// connections again. The system sends no notice.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Permissions of a socket that has a path. The user of each process that connects is
/// checked besides.
const ONE_USER: u32 = 0o600;
const EVERY_USER: u32 = 0o666;

/// Where a socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SocketName {
    /// Without a file; gone with its socket. Known in one network namespace.
    Abstract(String),
    /// A file.
    Path(PathBuf),
}

impl SocketName {
    /// The form of endpoints that name one.
    pub(super) const FORM: &'static str = "shm://@NAME or shm:///PATH";

    /// `None` when the endpoint names none.
    pub(super) fn of(endpoint: &Endpoint) -> Option<Self> {
        let name = match endpoint.address().strip_prefix('@') {
            Some("") => return None,
            Some(name) => Self::Abstract(name.to_owned()),
            None if endpoint.address().starts_with('/') => Self::Path(endpoint.address().into()),
            None => return None,
        };
        name.address().is_ok().then_some(name)
    }

    /// The name that peers are told.
    pub(super) fn endpoint(&self) -> Result<Endpoint, EndpointError> {
        match self {
            Self::Abstract(name) => Endpoint::new(SCHEME, &format!("@{name}")),
            Self::Path(path) => {
                let text = path.to_str().filter(|text| text.starts_with('/'));
                Endpoint::new(SCHEME, text.ok_or(EndpointError::BadAddress)?)
            }
        }
    }

    fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Abstract(name) => SocketAddr::from_abstract_name(name),
            Self::Path(path) => SocketAddr::from_pathname(path),
        }
    }

    /// The form of this address that Tokio takes.
    fn os_path(&self) -> PathBuf {
        match self {
            Self::Abstract(name) => {
                OsStr::from_bytes(&[b"\0", name.as_bytes()].concat()).to_owned().into()
            }
            Self::Path(path) => path.clone(),
        }
    }

    /// Connects. An owner that accepts too slowly is tried again, for as long as the
    /// caller lets it.
    pub(super) async fn connect(&self) -> io::Result<UnixStream> {
        let path = self.os_path();
        loop {
            match UnixStream::connect(&path).await {
                // As many connections wait to be accepted as the system lets wait.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sleep(LOOK_AGAIN).await;
                }
                result => return result,
            }
        }
    }
}

/// A socket that peers connect to. Dropping it gives a path back.
pub(super) struct Bound {
    name: SocketName,
    /// Device and number of the file, so that only our own is removed.
    file: Option<(u64, u64)>,
}

impl Bound {
    /// Takes `name`. A file that a process left behind which is gone is replaced; one
    /// at which a process answers is not.
    ///
    /// # Errors
    /// `AddrInUse` when the name is taken; otherwise the system's error.
    pub(super) async fn listen(
        name: SocketName,
        every_user: bool,
        limit: Duration,
    ) -> io::Result<(UnixListener, Self)> {
        let address = name.address()?;
        let SocketName::Path(path) = &name else {
            let listener = UnixListener::bind_addr(&address)?;
            listener.set_nonblocking(true)?;
            return Ok((listener, Self { name, file: None }));
        };
        // Two that start at the same time must not both find the file stale.
        let _turn = lock_directory(path, limit).await?;
        let listener = match UnixListener::bind_addr(&address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path, &address) => {
                fs::remove_file(path)?;
                UnixListener::bind_addr(&address)?
            }
            result => result?,
        };
        listener.set_nonblocking(true)?;
        let mode = if every_user { EVERY_USER } else { ONE_USER };
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        let file = file_at(path);
        Ok((listener, Self { name, file }))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let SocketName::Path(path) = &self.name
            && self.file.is_some()
            && file_at(path) == self.file
        {
            // Nothing is lost when it stays: the next to take the name replaces it.
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns whether `path` is a socket at which no process answers.
fn is_stale(path: &Path, address: &SocketAddr) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    is_socket && probe(address).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Connects without waiting: with a full queue of connections a process is there.
fn probe(address: &SocketAddr) -> io::Result<()> {
    let kind = rustix::net::SocketType::STREAM;
    let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(rustix::net::AddressFamily::UNIX, kind, flags, None)?;
    let path = address.as_pathname().ok_or(io::ErrorKind::InvalidInput)?;
    let address = rustix::net::SocketAddrUnix::new(path)?;
    Ok(rustix::net::connect(&socket, &address)?)
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Keeps others of ours from taking names in the same directory.
async fn lock_directory(path: &Path, limit: Duration) -> io::Result<File> {
    let directory = File::open(path.parent().unwrap_or(Path::new("/")))?;
    let deadline = Instant::now() + limit;
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                sleep(LOOK_AGAIN).await;
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(address: &str) -> Option<SocketName> {
        SocketName::of(&Endpoint::new(SCHEME, address).unwrap())
    }

    #[test]
    fn endpoints_name_sockets() {
        assert_eq!(parsed("@mc"), Some(SocketName::Abstract("mc".to_owned())));
        assert_eq!(parsed("/run/mc"), Some(SocketName::Path("/run/mc".into())));
        let longest = "x".repeat(107);
        for wrong in ["@", "run/mc", &format!("@{longest}x"), &format!("/{longest}")] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
        for address in [format!("@{longest}"), "/run/mc/socket".to_owned()] {
            assert_eq!(parsed(&address).unwrap().endpoint().unwrap().address(), address);
        }
        assert!(SocketName::Path("run/mc".into()).endpoint().is_err());
        assert!(SocketName::Path("/run/two words".into()).endpoint().is_err());
    }

    #[tokio::test]
    async fn a_stale_file_is_replaced_and_nothing_else() {
        let directory = std::env::temp_dir().join(format!("mc-shm-name-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("socket");
        let name = SocketName::Path(path.clone());
        let listen = || Bound::listen(name.clone(), false, Duration::from_secs(10));

        let (listener, bound) = listen().await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let error = listen().await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "somebody answers");
        // A process that crashed closes its socket and leaves the file.
        drop(listener);
        std::mem::forget(bound);
        let (second, bound) = listen().await.unwrap();
        assert!(name.connect().await.is_ok());
        // The process that replaced the file keeps it.
        fs::remove_file(&path).unwrap();
        let (third, replaced) = listen().await.unwrap();
        drop((second, bound));
        assert!(name.connect().await.is_ok());
        drop((third, replaced));
        assert!(!path.exists());

        fs::write(&path, "precious").unwrap();
        assert!(listen().await.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_dir_all(&directory).unwrap();
    }
}
