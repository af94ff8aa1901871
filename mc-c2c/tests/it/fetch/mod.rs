//! Files from servers that are right, slow, wrong and hostile, each on a real socket.

mod hub;
mod interruptions;
mod lies;
mod server;
mod surroundings;
mod transfers;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mc_c2c::fetch::{FetchError, Fetcher, Sha256Sum};
use tempfile::TempDir;

/// Long enough for a loaded machine; a step that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(30);
/// From this size on ranges are fetched in parallel.
const PARALLEL: usize = 8 << 20;

/// A cache of a test.
struct Cache(TempDir);

impl Cache {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        // It is made when it is needed.
        self.0.path().join("a/cache")
    }

    fn fetcher(&self) -> Fetcher {
        Fetcher::new(self.path()).idle_timeout(DEADLINE).connect_timeout(DEADLINE)
    }

    fn fetch(&self, url: &str) -> Result<PathBuf, FetchError> {
        self.fetcher().projector(url, None, |_, _| {})
    }

    /// The names of the files, without their hashes.
    fn files(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path()) else { return Vec::new() };
        let name = |entry: std::io::Result<fs::DirEntry>| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let (hash, name) = name.split_once('_').unwrap();
            assert_eq!(hash.len(), 16);
            name.to_owned()
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }
}

/// Returns whether the file has these bytes. Files are long and not shown.
#[track_caller]
fn assert_is(path: &Path, bytes: &[u8]) {
    let file = fs::read(path).unwrap();
    assert_eq!(file.len(), bytes.len());
    assert!(file == bytes, "{} has other bytes", path.display());
}

/// The sum of bytes, by another program.
fn sum(bytes: &[u8]) -> Sha256Sum {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    fs::write(&path, bytes).unwrap();
    let output = std::process::Command::new("sha256sum").arg(&path).output().unwrap();
    String::from_utf8(output.stdout).unwrap()[..64].parse().unwrap()
}
