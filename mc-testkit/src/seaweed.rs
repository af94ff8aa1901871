//! SeaweedFS, an object store that speaks S3, from the package index of Python.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tempfile::TempDir;

use crate::{Input, Program, eventually_blocking, python};

/// How long the server may take to start.
const LIMIT: Duration = Duration::from_secs(60);

const WRITES: &str = "the server's directory can be written to";

const USERS: &str = r#"{"identities": [
    {"name": "admin", "actions": ["Admin"],
     "credentials": [{"accessKey": "admin", "secretKey": "the-secret-of-the-administrator"}]},
    {"name": "reader", "actions": ["Read", "List"],
     "credentials": [{"accessKey": "reader", "secretKey": "the-secret-of-the-reader"}]}]}"#;

/// The server's program, installed below `dir`. Says once that it is not there.
fn weed(dir: &str) -> Option<PathBuf> {
    static WEED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let install = || {
        let requirements = concat!(env!("CARGO_MANIFEST_DIR"), "/src/seaweed.txt");
        let environment = || python::environment(dir, "s3-python", requirements);
        let installed = catch_unwind(environment).map_err(|panic| {
            let reason = panic.downcast_ref::<String>().map_or("", String::as_str);
            // Past the harness, which shows what is printed by failing tests alone.
            let line = format!("left out: SeaweedFS cannot be installed: {reason}");
            let _ = writeln!(std::io::stderr(), "{line}");
        });
        Some(installed.ok()?.with_file_name("weed"))
    };
    WEED.get_or_init(install).clone()
}

/// A server with its data, on loopback addresses of its own. Dropping it kills it and removes its data.
#[derive(Debug)]
pub struct SeaweedFs {
    weed: PathBuf,
    address: Ipv4Addr,
    /// Ports of the metadata, the volumes, the files and S3, two each, and of S3 over TLS.
    ports: [u16; 9],
    program: Option<Program>,
    dir: TempDir,
    /// Holds these ports, on all addresses.
    _reserved: [UdpSocket; 9],
}

/// Returns a port that is free at `address`, and what keeps it from the other servers of this machine. They
/// must not share one even at two addresses: the parts of a server find each other by sockets in `/tmp` that
/// are named by the port alone.
fn reserve(address: Ipv4Addr) -> (u16, UdpSocket) {
    loop {
        let reserved = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
        let port = reserved.local_addr().expect("it is bound").port();
        if TcpListener::bind((address, port)).is_ok() {
            return (port, reserved);
        }
    }
}

impl SeaweedFs {
    /// The key of the user who may do everything.
    pub const USER: &str = "admin";

    /// This user's secret.
    pub const SECRET: &str = "the-secret-of-the-administrator";

    /// The key and the secret of a user who may read and list.
    pub const READER: (&str, &str) = ("reader", "the-secret-of-the-reader");

    /// The server of all tests that leave it as it is; `None` when it cannot be installed, which is
    /// printed. The program is installed below `dir`, the tests' `CARGO_TARGET_TMPDIR`, from the network.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn shared(dir: &str) -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<SeaweedFs>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return Some(server);
        }
        let server = Arc::new(Self::start(dir)?);
        *shared = Arc::downgrade(&server);
        Some(server)
    }

    /// Starts a server of a test's own; otherwise as [`shared`](Self::shared).
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(dir: &str) -> Option<Self> {
        // An address of its own: no other program takes a port of it while the server is down.
        static SERVERS: AtomicU8 = AtomicU8::new(0);
        let weed = weed(dir)?;
        let [.., high, low] = std::process::id().to_be_bytes();
        let number = SERVERS.fetch_add(1, Ordering::Relaxed) % 50;
        let address = Ipv4Addr::new(127, 50 + number, high, low);
        let ports = [(); 9].map(|()| reserve(address));
        let dir = tempfile::Builder::new().prefix("mc-s3-").tempdir().expect("a directory");
        std::fs::write(dir.path().join("users.json"), USERS).expect(WRITES);
        let identity =
            rcgen::generate_simple_self_signed([address.to_string()]).expect("a certificate");
        std::fs::write(dir.path().join("cert.pem"), identity.cert.pem()).expect(WRITES);
        std::fs::write(dir.path().join("key.pem"), identity.signing_key.serialize_pem())
            .expect(WRITES);
        let mut server = Self {
            weed,
            address,
            ports: std::array::from_fn(|port| ports[port].0),
            program: None,
            dir,
            _reserved: ports.map(|(_, reserved)| reserved),
        };
        server.launch();
        Some(server)
    }

    fn launch(&mut self) {
        let mut weed = Command::new(&self.weed);
        let path =
            |name: &str| self.dir.path().join(name).into_os_string().into_string().expect("UTF-8");
        weed.arg("server");
        let mut flag = |name: &str, value: &str| {
            weed.arg(format!("-{name}={value}"));
        };
        std::fs::create_dir_all(path("data")).expect(WRITES);
        flag("dir", &path("data"));
        flag("ip", &self.address.to_string());
        flag("ip.bind", &self.address.to_string());
        let names = [
            "master.port",
            "master.port.grpc",
            "volume.port",
            "volume.port.grpc",
            "filer.port",
            "filer.port.grpc",
            "s3.port",
            "s3.port.grpc",
            "s3.port.https",
        ];
        for (name, port) in names.iter().zip(self.ports) {
            flag(name, &port.to_string());
        }
        // Nothing that listens elsewhere, and nothing that talks to others.
        for name in ["s3.port.iceberg", "s3.port.lance"] {
            flag(name, "0");
        }
        for name in ["master.telemetry", "s3.iam", "s3.autoCreateBucket"] {
            flag(name, "false");
        }
        flag("filer", "true");
        flag("filer.localSocket", &path("filer.sock"));
        flag("s3", "true");
        flag("s3.localSocket", &path("s3.sock"));
        flag("s3.config", &path("users.json"));
        flag("s3.cert.file", &path("cert.pem"));
        flag("s3.key.file", &path("key.pem"));
        flag("master.electionTimeout", "500ms");
        flag("master.volumeSizeLimitMB", "64");
        flag("volume.max", "1000");
        // Otherwise it takes nothing once a hundredth of the disk is left, however large that is.
        flag("volume.minFreeSpace", "64MiB");
        weed.current_dir(self.dir.path());
        self.program = Some(Program::start(LIMIT, &mut weed, Input::None));
        eventually_blocking(LIMIT, "the server answers", || {
            matches!(request(self.s3(), "GET", "/status"), Ok((200, _)))
                && matches!(request(self.files(), "GET", "/"), Ok((200, _)))
                // There is a place for bytes.
                && request(self.master(), "GET", "/dir/assign").is_ok_and(|(_, place)| place.contains("\"fid\""))
        });
    }

    /// Where S3 is.
    #[must_use]
    pub fn s3(&self) -> SocketAddr {
        (self.address, self.ports[6]).into()
    }

    /// Where S3 is over TLS, and the file of the authority.
    #[must_use]
    pub fn s3_over_tls(&self) -> (SocketAddr, PathBuf) {
        ((self.address, self.ports[8]).into(), self.dir.path().join("cert.pem"))
    }

    fn master(&self) -> SocketAddr {
        (self.address, self.ports[0]).into()
    }

    fn files(&self) -> SocketAddr {
        (self.address, self.ports[4]).into()
    }

    /// Kills it; its data stay.
    pub fn kill(&mut self) {
        // Dropping it kills it.
        self.program = None;
    }

    /// Starts the server that was killed, with the data that it had.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        self.launch();
    }

    /// Makes a bucket, and waits until it takes objects.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn make_bucket(&self, bucket: &str) {
        let made = request(self.files(), "POST", &format!("/buckets/{bucket}/"));
        assert!(matches!(made, Ok((200..=299, _))), "{made:?}");
        // It has a place of its own, without which the server refuses an object on a busy machine.
        let place = format!("/dir/assign?collection={bucket}");
        eventually_blocking(LIMIT, "there is a place for the bucket's bytes", || {
            request(self.master(), "GET", &place).is_ok_and(|(_, place)| place.contains("\"fid\""))
        });
    }

    /// Removes a bucket with its objects.
    ///
    /// # Panics
    /// When it cannot be removed.
    pub fn remove_bucket(&self, bucket: &str) {
        let path = format!("/buckets/{bucket}?recursive=true");
        let removed = request(self.files(), "DELETE", &path);
        assert!(matches!(removed, Ok((200..=299, _))), "{removed:?}");
    }

    /// Returns the number of multipart uploads of a bucket that are neither complete nor aborted.
    ///
    /// # Panics
    /// When the server does not answer.
    #[must_use]
    pub fn incomplete_uploads(&self, bucket: &str) -> usize {
        let (status, body) =
            request(self.files(), "GET", &format!("/buckets/{bucket}/.uploads/?limit=1000"))
                .expect("an answer");
        assert!(status == 200 || status == 404, "{status}: {body}");
        body.matches("\"FullPath\"").count()
    }
}

impl Drop for SeaweedFs {
    fn drop(&mut self) {
        self.kill();
        // It has sockets there that only a server which ends by itself removes.
        let grpc = self.ports.iter().skip(1).step_by(2);
        for (name, port) in ["master", "volume", "filer", "s3"].iter().zip(grpc) {
            let _ = std::fs::remove_file(format!("/tmp/seaweedfs-{name}-grpc-{port}.sock"));
        }
    }
}

/// Sends a request without a body, and returns the status and the answer.
fn request(address: SocketAddr, method: &str, path: &str) -> std::io::Result<(u16, String)> {
    let mut server = TcpStream::connect(address)?;
    server.set_read_timeout(Some(LIMIT))?;
    write!(
        server,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\n\
         Content-Length: 0\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.get(9..12).and_then(|status| status.parse().ok());
    Ok((status.ok_or(std::io::ErrorKind::InvalidData)?, answer))
}
