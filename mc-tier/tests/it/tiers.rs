//! Every tier does what the suite wants.

use mc_tier::{
    DirectIo, DirectoryTier, FaultyTier, FileBackend, FileSettings, LogSettings, LogTier,
    MemoryBackend, MemoryTier, ReadQueue, SyncPolicy, conformance,
};
use mc_types::ByteSize;

#[test]
fn a_tier_in_memory() {
    let mut tier = MemoryTier::new();
    conformance::run(&mut |is_new| {
        if is_new {
            tier = MemoryTier::new();
        }
        Box::new(tier.clone())
    });
}

#[test]
fn a_tier_without_faults_that_could_have_some() {
    let mut tier = MemoryTier::new();
    conformance::run(&mut |is_new| {
        if is_new {
            tier = MemoryTier::new();
        }
        Box::new(FaultyTier::new(tier.clone(), 1))
    });
}

#[test]
fn a_tier_in_a_directory() {
    for sync in [SyncPolicy::Auto, SyncPolicy::None, SyncPolicy::Data, SyncPolicy::DataAndDirectory]
    {
        let mut root = tempfile::tempdir().unwrap();
        conformance::run(&mut |is_new| {
            if is_new {
                root = tempfile::tempdir().unwrap();
            }
            Box::new(DirectoryTier::open(root.path(), "cluster", sync).unwrap())
        });
    }
}

/// Long enough for the suite's objects.
fn log_settings() -> LogSettings {
    let mut settings = LogSettings::default();
    settings.segment_len = ByteSize::mib(4);
    settings
}

#[test]
fn a_tier_of_segments_in_memory() {
    let mut backend = MemoryBackend::new(ByteSize::mib(33));
    conformance::run(&mut |is_new| {
        if is_new {
            backend = MemoryBackend::new(ByteSize::mib(33));
        }
        Box::new(LogTier::open(backend.clone(), log_settings()).unwrap())
    });
}

/// Past the page cache and through it, by io_uring and by threads.
#[test]
fn a_tier_of_segments_in_a_file() {
    let mut directory = tempfile::tempdir().unwrap();
    let (mut direct, mut cached) = (FileSettings::default(), FileSettings::default());
    direct.queue = ReadQueue::Auto;
    (cached.direct, cached.queue) = (DirectIo::Never, ReadQueue::Threads);
    for (file, sync_each_change) in [(direct, false), (cached, false), (direct, true)] {
        conformance::run(&mut |is_new| {
            if is_new {
                directory = tempfile::tempdir().unwrap();
            }
            let len = ByteSize::mib(33);
            let backend = FileBackend::open_with(directory.path(), len, file).unwrap();
            let mut settings = log_settings();
            settings.sync_each_change = sync_each_change;
            Box::new(LogTier::open(backend, settings).unwrap())
        });
    }
}
