//! Pages that are there before they are needed.

use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Builder};

use parking_lot::Mutex;

use super::mapping::Mapping;

/// Bytes that a thread populates at a time: some milliseconds of work, so that
/// all threads end together.
const CHUNK: usize = 32 << 20;

/// Gives the pages of the first `len` bytes of `mapping` memory, with at most
/// `threads` threads, the caller's among them. `page` is the size of a page, and
/// `blank` says that all bytes are zero.
///
/// Where the system has no memory left, this is an error and not a signal, from
/// Linux 5.14 on.
pub(super) fn populate(
    mapping: &Mapping,
    len: usize,
    page: usize,
    threads: NonZeroUsize,
    blank: bool,
) -> io::Result<()> {
    let chunk = CHUNK.max(page);
    let chunks = len.div_ceil(chunk);
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= chunks {
                return;
            }
            let start = index * chunk;
            let part = chunk.min(len - start);
            if let Err(error) = mapping.populate(start, part, page, blank) {
                failure.lock().get_or_insert(error);
                next.store(chunks, Ordering::Relaxed);
                return;
            }
        }
    };
    let processors = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = threads.min(processors).get().min(chunks);
    thread::scope(|scope| {
        for _ in 1..threads {
            // The running threads do the work of a thread that could not start.
            if Builder::new().name("mc-populate".to_owned()).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    failure.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::super::mapping::{Content, page_size, resident_pages};
    use super::*;

    #[test]
    fn every_page_is_there_for_any_number_of_threads() {
        for threads in [1, 2, 3, 1000] {
            for len in [1, page_size(), CHUNK - 1, 2 * CHUNK + 1] {
                let mapping = Mapping::new(len, Content::Private).unwrap();
                let threads = NonZeroUsize::new(threads).unwrap();
                populate(&mapping, len, page_size(), threads, true).unwrap();
                assert_eq!(resident_pages(&mapping), len.div_ceil(page_size()), "{threads} {len}");
            }
        }
    }
    /// Behind the end of its file, a mapping has no memory and never will.
    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_cannot_be_had_is_an_error() {
        use std::os::fd::AsFd;

        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
        let version = (numbers.next().unwrap(), numbers.next().unwrap());
        if version < (5, 14) {
            eprintln!("not run: Linux {version:?} ends a process that lacks memory");
            return;
        }
        let page = page_size();
        let file = super::super::shared::create(page, None).unwrap();
        let content = Content::Shared { file: file.as_fd(), writable: true };
        let mapping = Mapping::new(2 * page, content).unwrap();
        populate(&mapping, page, page, NonZeroUsize::MIN, true).unwrap();
        let refused = populate(&mapping, 2 * page, page, NonZeroUsize::MIN, true).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EFAULT), "{refused}");
    }
}
