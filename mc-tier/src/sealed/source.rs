//! Where lists of keys come from.

use core::fmt;
use core::str::FromStr;
use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use tracing::warn;

/// Longest list, in bytes.
const MAX_LEN: u64 = 8 << 20;

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(10);

/// A file with keys, or a program that prints them. A text is a file's path, or `exec:` and the path of a
/// program, which is run without arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// A program, such as one that asks a key management service.
    Program(PathBuf),
}

/// The version of a file, by which a change is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Version {
    modified: Option<SystemTime>,
    len: u64,
    inode: u64,
}

impl FromStr for KeySource {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.strip_prefix("exec:") {
            Some(program) => Self::Program(program.into()),
            None => Self::File(text.into()),
        })
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Program(path) => write!(f, "exec:{}", path.display()),
        }
    }
}

impl KeySource {
    pub(super) const fn is_program(&self) -> bool {
        matches!(self, Self::Program(_))
    }

    pub(super) fn read(&self) -> Result<(String, Version), SourceError> {
        match self {
            Self::File(path) => {
                read_file(path).map_err(|source| SourceError::File { path: path.into(), source })
            }
            Self::Program(path) => Ok((run(path)?, Version::default())),
        }
    }

    /// The version of a file; of a program there is none.
    pub(super) fn version(&self) -> Result<Version, SourceError> {
        match self {
            Self::File(path) => {
                let metadata = fs::metadata(path);
                let metadata =
                    metadata.map_err(|source| SourceError::File { path: path.into(), source });
                Ok(version(&metadata?))
            }
            Self::Program(_) => Ok(Version::default()),
        }
    }
}

fn version(metadata: &fs::Metadata) -> Version {
    use std::os::unix::fs::MetadataExt as _;
    Version { modified: metadata.modified().ok(), len: metadata.len(), inode: metadata.ino() }
}

fn read_file(path: &Path) -> io::Result<(String, Version)> {
    use std::os::unix::fs::PermissionsExt as _;
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.permissions().mode() & 0o007 != 0 {
        warn!(file = %path.display(), "every user of this host may read or change the keys of tenants");
    }
    Ok((bounded(file)?, version(&metadata)))
}

fn bounded(from: impl io::Read) -> io::Result<String> {
    let mut text = String::new();
    if from.take(MAX_LEN + 1).read_to_string(&mut text)? as u64 > MAX_LEN {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "a list of keys has at most 8 MiB",
        ));
    }
    Ok(text)
}

/// Runs a program, and returns what it prints.
fn run(path: &Path) -> Result<String, SourceError> {
    let failed = |source| SourceError::Program { path: path.into(), source };
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = KeyCommand(command.spawn().map_err(failed)?);
    let output = child.0.stdout.take().expect("it is piped");
    let (done, printed) = mpsc::channel();
    // It ends when the program does, which is killed where it takes too long.
    std::thread::spawn(move || done.send(bounded(output)));
    let text = match printed.recv_timeout(LIMIT) {
        Ok(text) => text.map_err(failed)?,
        Err(_) => return Err(SourceError::TooLong { path: path.into() }),
    };
    let status = child.0.wait().map_err(failed)?;
    if !status.success() {
        return Err(SourceError::Failed { path: path.into(), status });
    }
    Ok(text)
}

/// Is killed when it is not needed any more.
struct KeyCommand(Child);

impl Drop for KeyCommand {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Why a list of keys cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum SourceError {
    /// The file cannot be read.
    #[error("cannot read the file of keys {}: {source}; make it, and let this user read it", path.display())]
    File { path: PathBuf, source: io::Error },
    /// The program cannot be run, or what it prints cannot be read.
    #[error("cannot run {} for keys: {source}; give the path of a program that prints them", path.display())]
    Program { path: PathBuf, source: io::Error },
    /// The program does not end.
    #[error("{} has not printed the keys after {LIMIT:?}", path.display())]
    TooLong { path: PathBuf },
    /// The program ends with a failure.
    #[error("{} has printed no keys: {status}; see what it says", path.display())]
    Failed {
        path: PathBuf,
        /// How it ended.
        status: ExitStatus,
    },
}
