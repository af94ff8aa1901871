//! USRBIO with a stand-in for its library. There is no 3FS here: what is tested is that the library
//! is loaded and called as its header says, and what results and errors lead to.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use mc_testkit::{Random, content};
use mc_tier::{
    LogSettings, LogTier, StorageBackend, TierError, UsrbioBackend, UsrbioSettings, conformance,
};
use mc_types::ByteSize;
use tempfile::TempDir;

const LEN: ByteSize = ByteSize::mib(1);

/// A directory that the stand-in takes for the mount point of a 3FS, with a library of its own.
struct Mount(TempDir);

impl Mount {
    fn new() -> Self {
        static STAND_IN: LazyLock<Vec<u8>> = LazyLock::new(|| {
            compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/usrbio/standin.c"))
        });
        Self::with_library(&STAND_IN)
    }

    /// Each mount has a file of its own: libraries from different files share no variables.
    fn with_library(library: &[u8]) -> Self {
        let mount = Self(tempfile::tempdir().unwrap());
        fs::create_dir(mount.0.path().join("3fs-virt")).unwrap();
        fs::write(mount.library(), library).unwrap();
        mount
    }

    fn library(&self) -> PathBuf {
        self.0.path().join("3fs-virt/libhf3fs_api_shared.so")
    }

    /// Has the stand-in fail in the ways of these words.
    fn fail(&self, words: &str) {
        // In one piece: the stand-in reads it at any time.
        let (new, mode) = (self.0.path().join("mode"), self.0.path().join("3fs-virt/mode"));
        fs::write(&new, words).unwrap();
        fs::rename(new, mode).unwrap();
    }

    fn settings(&self) -> UsrbioSettings {
        let mut settings = UsrbioSettings::default();
        settings.library = self.library();
        settings.block_len = ByteSize::kib(4);
        settings
    }

    fn open_with(&self, settings: &UsrbioSettings) -> Result<UsrbioBackend, TierError> {
        UsrbioBackend::open(self.0.path().join("data"), LEN, settings)
    }

    fn open(&self) -> UsrbioBackend {
        let backend = self.open_with(&self.settings()).unwrap();
        assert!(backend.uses_usrbio());
        backend
    }

    fn file(&self) -> Vec<u8> {
        fs::read(self.0.path().join("data/objects.log")).unwrap()
    }
}

/// Makes a library of a file of C.
fn compile(source: &Path) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("library.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
    assert!(cc.status().expect("these tests need a C compiler").success());
    fs::read(library).unwrap()
}

#[test]
fn a_log_by_the_stand_in_library_does_what_the_suite_wants() {
    for words in ["", "short reverse", "one"] {
        let mut mount = Mount::new();
        mount.fail(words);
        conformance::run(&mut |is_new| {
            if is_new {
                mount = Mount::new();
                mount.fail(words);
            }
            let mut settings = mount.settings();
            settings.block_len = ByteSize::kib(64);
            let backend =
                UsrbioBackend::open(mount.0.path().join("data"), ByteSize::mib(33), &settings);
            let mut settings = LogSettings::default();
            settings.segment_len = ByteSize::mib(4);
            Box::new(LogTier::open(backend.unwrap(), settings).unwrap())
        });
    }
}

/// Lengths around those of a block and of all blocks, at any offset.
#[test]
fn the_stand_in_library_reads_and_writes_what_a_file_would() {
    for words in ["", "short", "reverse", "one", "short reverse one"] {
        let mount = Mount::new();
        mount.fail(words);
        let backend = mount.open();
        let mut random = Random::seeded("MC_USRBIO_SEED");
        let mut expected = vec![0; LEN.as_u64() as usize];
        for round in 0..40 {
            let len = [0, 1, 999, 4095, 4096, 4097, 32_768, 32_769, 100_000][round % 9];
            let offset = random.below(expected.len() - len);
            let bytes = content(&format!("{round}"), len);
            backend.write(offset as u64, &bytes).unwrap();
            expected[offset..offset + len].copy_from_slice(&bytes);
            let offset = random.below(expected.len() - len);
            let mut read = vec![1; len];
            backend.read(offset as u64, &mut read).unwrap();
            assert!(read == expected[offset..offset + len], "{words}: {len} bytes at {offset}");
        }
        backend.sync().unwrap();
        assert!(mount.file() == expected, "{words}");
    }
}

#[test]
fn threads_share_a_backend_with_the_stand_in_library() {
    let mount = Mount::new();
    let backend = mount.open();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let backend = &backend;
            scope.spawn(move || {
                let bytes = content(&format!("{thread}"), 50_000);
                for _ in 0..20 {
                    backend.write(thread * 60_000, &bytes).unwrap();
                    let mut read = vec![0; 50_000];
                    backend.read(thread * 60_000, &mut read).unwrap();
                    assert!(read == bytes);
                }
            });
        }
    });
}

/// Where 3FS has nothing, the file system is asked: it has zeros in holes, and an end.
#[test]
fn a_hole_of_the_stand_in_library_has_zeros() {
    let mount = Mount::new();
    let backend = mount.open();
    backend.write(5000, b"there").unwrap();
    mount.fail("nothing");
    let mut read = [1; 10_000];
    backend.read(0, &mut read).unwrap();
    assert!(read[5000..5005] == *b"there" && read[..5000] == [0; 5000]);
    assert_eq!(backend.write(0, b"lost").unwrap_err().kind(), ErrorKind::WriteZero);
    let past_the_end = backend.read(LEN.as_u64() - 1, &mut [0; 2]);
    assert_eq!(past_the_end.unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn errors_of_the_stand_in_library_are_told_and_pass() {
    let mount = Mount::new();
    let backend = mount.open();
    let bytes = content("bytes", 20_000);
    backend.write(100, &bytes).unwrap();
    for (words, expected) in [("error", Some(5)), ("toomuch", None)] {
        mount.fail(words);
        let read = backend.read(100, &mut [0; 20_000]).unwrap_err();
        let write = backend.write(100, &bytes).unwrap_err();
        for error in [read, write] {
            assert_eq!(error.raw_os_error(), expected, "{words}: {error:?}");
            assert!(expected.is_some() || error.kind() == ErrorKind::InvalidData, "{error:?}");
        }
        mount.fail("");
        let mut read = vec![0; 20_000];
        backend.read(100, &mut read).unwrap();
        assert!(read == bytes, "after {words}");
    }
}

#[test]
fn results_of_other_requests_of_the_stand_in_library_are_told() {
    let mount = Mount::new();
    let mut settings = mount.settings();
    settings.timeout = Duration::from_millis(50);
    let backend = mount.open_with(&settings).unwrap();
    mount.fail("foreign");
    let error = backend.read(0, &mut [0; 100]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error:?}");
}

#[test]
fn a_write_that_the_stand_in_library_does_late_overwrites_no_later_one() {
    let mount = Mount::new();
    let mut settings = mount.settings();
    settings.timeout = Duration::from_millis(50);
    let backend = mount.open_with(&settings).unwrap();
    mount.fail("silent");
    let timed_out = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
    };
    timed_out(backend.write(0, &[1; 100_000]));
    timed_out(backend.write(0, &[2; 100]));
    timed_out(backend.read(0, &mut [0; 100]));
    mount.fail("");
    backend.write(0, &[3; 100_000]).unwrap();
    let mut read = vec![0; 100_000];
    backend.read(0, &mut read).unwrap();
    assert!(read == [3; 100_000]);
}

#[test]
fn what_is_missing_is_named() {
    let mount = Mount::new();
    let mut settings = mount.settings();
    settings.library = "libhf3fs-that-nobody-has.so".into();
    let error = mount.open_with(&settings).unwrap_err();
    assert!(matches!(error, TierError::NoLibrary { .. }), "{error:?}");
    assert!(error.to_string().contains("libhf3fs-that-nobody-has.so"), "{error}");
    assert!(error.to_string().contains("No such file"), "{error}");
    // The directory is on no 3FS.
    let other = tempfile::tempdir().unwrap();
    let error = UsrbioBackend::open(other.path(), LEN, &mount.settings()).unwrap_err();
    assert!(matches!(&error, TierError::No3fs { path } if path == other.path()), "{error:?}");
    for (words, expected) in [
        ("noring", "hf3fs_iorcreate4"),
        ("nobuffer", "hf3fs_iovcreate"),
        ("nofile", "hf3fs_reg_fd"),
    ] {
        mount.fail(words);
        // The mount point is known to the stand-in from here on.
        let error = mount.open_with(&mount.settings()).unwrap_err();
        assert!(matches!(error, TierError::Usrbio { call, .. } if call == expected), "{error:?}");
    }
    // A library of something else.
    let source = mount.0.path().join("other.c");
    fs::write(&source, "int hf3fs_extract_mount_point(void) { return -1; }").unwrap();
    let mount = Mount::with_library(&compile(&source));
    let error = mount.open_with(&mount.settings()).unwrap_err();
    assert!(error.to_string().contains("hf3fs_iovcreate"), "{error}");
}

#[test]
fn buffers_that_cannot_be_are_rejected() {
    let mount = Mount::new();
    for (blocks, block_len) in [(1, 0), (2000, 1), (1024, u64::MAX), (1000, 1 << 30)] {
        let mut settings = mount.settings();
        settings.blocks = blocks.try_into().unwrap();
        settings.block_len = ByteSize::bytes(block_len);
        let error = mount.open_with(&settings).unwrap_err();
        assert!(matches!(error, TierError::InvalidBuffer { .. }), "{error:?}");
    }
}

#[test]
fn the_fallback_to_the_file_system_does_what_the_suite_wants() {
    let mut directory = tempfile::tempdir().unwrap();
    let mut settings = UsrbioSettings::default();
    settings.falls_back = true;
    conformance::run(&mut |is_new| {
        if is_new {
            directory = tempfile::tempdir().unwrap();
        }
        let backend = UsrbioBackend::open(directory.path(), ByteSize::mib(33), &settings).unwrap();
        assert!(!backend.uses_usrbio());
        let mut settings = LogSettings::default();
        settings.segment_len = ByteSize::mib(4);
        Box::new(LogTier::open(backend, settings).unwrap())
    });
}
