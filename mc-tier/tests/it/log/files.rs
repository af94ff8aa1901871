//! Files on a real disk, by each way to read them.

use std::fs::OpenOptions;
use std::path::Path;

use mc_testkit::Random;
use mc_tier::{
    DirectIo, FileBackend, FileSettings, IoBuffer, LogTier, ReadQueue, StorageBackend, Tier,
    TierError,
};
use mc_types::ByteSize;

use super::common::{BLOCK, id, is_there, object, open, put};

const LEN: ByteSize = ByteSize::mib(4);

/// Past the page cache and through it, by io_uring and by threads.
fn each(mut test: impl FnMut(&dyn Fn(&Path) -> FileBackend)) {
    for direct in [DirectIo::Auto, DirectIo::Never] {
        for queue in [ReadQueue::Auto, ReadQueue::Threads] {
            let mut settings = FileSettings::default();
            (settings.direct, settings.queue, settings.queue_depth) = (direct, queue, 8);
            test(&|path| {
                let backend = FileBackend::open_with(path, LEN, settings).unwrap();
                assert!(!(backend.is_direct() && direct == DirectIo::Never));
                assert!(!(backend.uses_io_uring() && queue == ReadQueue::Threads));
                backend
            });
        }
    }
}

/// A directory on a disk: temporary ones may be in memory.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn the_fast_way_is_taken_where_it_is_there() {
    let directory = directory();
    let backend = FileBackend::open(directory.path(), LEN).unwrap();
    if !backend.is_direct() || !backend.uses_io_uring() {
        eprintln!(
            "NOT RUN: this file system or kernel has no O_DIRECT or no io_uring: {backend:?}"
        );
    }
    assert!(backend.alignment() == 1 || [512, 4096].contains(&backend.alignment()));
}

#[test]
fn many_reads_at_once_return_what_was_written() {
    let mut random = Random::seeded("MC_TIER_LOG_SEED");
    each(|open| {
        let directory = directory();
        let backend = open(directory.path());
        let mut all = IoBuffer::new(LEN.as_u64() as usize);
        for (place, byte) in all.iter_mut().enumerate() {
            *byte = (place / 512 * 7 + place) as u8;
        }
        backend.write(0, &all).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (backend, all, mut random) = (&backend, &all, Random::new(random.next_u64()));
                scope.spawn(move || {
                    for _ in 0..20 {
                        let mut places = Vec::new();
                        let mut reads = Vec::new();
                        for _ in 0..random.below(100) {
                            let len = 512 * (1 + random.below(300));
                            let offset = 512 * random.below((all.len() - len) / 512);
                            places.push(offset..offset + len);
                            reads.push((offset as u64, IoBuffer::new(len)));
                        }
                        let mut left = vec![1; places.len()];
                        backend.read_many(reads, &mut |place, read| {
                            left[place] -= 1;
                            assert!(read.unwrap()[..] == all[places[place].clone()]);
                        });
                        assert!(left.iter().all(|left| *left == 0));
                    }
                });
            }
        });
    });
}

/// Bytes at any place are read: those that are not aligned are copied.
#[test]
fn any_bytes_can_be_read() {
    each(|open| {
        let directory = directory();
        let backend = open(directory.path());
        let bytes: Vec<u8> = (0..3 * BLOCK).map(|place| (place % 251) as u8).collect();
        backend.write(BLOCK, &bytes).unwrap();
        for (from, len) in [(0, 1), (1, 4095), (511, 2), (4000, 5000)] {
            let mut found = vec![0; len];
            backend.read(BLOCK + from as u64, &mut found).unwrap();
            assert!(found == bytes[from..from + len], "{from} {len}");
        }
    });
}

#[test]
fn a_file_that_is_cut_while_it_is_used_costs_the_objects_behind() {
    each(|open_backend| {
        let directory = directory();
        let tier = open(open_backend(directory.path()));
        (0..40).for_each(|number| put(&tier, number));
        let file = OpenOptions::new().write(true).open(directory.path().join("objects.log"));
        file.unwrap().set_len(200_000).unwrap();
        let ids: Vec<_> = (0..40).map(id).collect();
        let (mut whole, mut cut) = (0, 0);
        for (number, many) in tier.get_many(&ids).into_iter().enumerate() {
            let results = [many, tier.get(&id(number))];
            for result in results {
                match result {
                    Ok(Some(found)) => {
                        assert_eq!(found, object(number));
                        whole += 1;
                    }
                    Err(error @ TierError::Truncated { .. }) => {
                        assert!(!error.is_retryable() && error.to_string().contains("objects.log"));
                        cut += 1;
                    }
                    // The page in which the file ends now.
                    Err(TierError::Damaged { .. }) => cut += 1,
                    other => panic!("{number}: {other:?}"),
                }
            }
        }
        assert!(whole > 10 && cut > 10, "{whole} {cut}");
        // It is used on, and what is left is found by the next process.
        put(&tier, 50);
        assert!(is_there(&tier, 50));
        drop(tier);
        let tier = open(open_backend(directory.path()));
        let left = (0..40).filter(|number| is_there(&tier, *number)).count();
        assert!(left > 5, "{left}");
        put(&tier, 51);
        assert!(is_there(&tier, 51));
    });
}

#[test]
fn many_threads_read_and_write_one_log() {
    let mut random = Random::seeded("MC_TIER_LOG_SEED");
    each(|open_backend| {
        let directory = directory();
        let tier = open(open_backend(directory.path()));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (tier, mut random): (&LogTier, _) = (&tier, Random::new(random.next_u64()));
                scope.spawn(move || {
                    for _ in 0..60 {
                        let number = 100 * thread + random.below(20);
                        match random.below(3) {
                            0 => drop(tier.remove(&id(number)).unwrap()),
                            _ => put(tier, number),
                        }
                        let numbers: Vec<_> =
                            (0..20).map(|_| 100 * random.below(4) + random.below(20)).collect();
                        let ids: Vec<_> = numbers.iter().map(|number| id(*number)).collect();
                        for (number, found) in numbers.into_iter().zip(tier.get_many(&ids)) {
                            assert!(found.unwrap().is_none_or(|found| found == object(number)));
                        }
                    }
                });
            }
        });
    });
}
