//! Reads of a file, several at once.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::buffer::IoBuffer;

/// One read: a place in a file, and the buffer that it fills.
#[derive(Debug)]
pub(super) struct Read {
    /// The number of the read among those of its caller.
    place: usize,
    offset: u64,
    buffer: IoBuffer,
    /// The bytes that were read already.
    filled: usize,
    reply: Reply,
}

/// Results that a caller is woken for, if so many are to come: fewer switches between threads.
const TOGETHER: usize = 8;

/// The results for one caller.
#[derive(Debug)]
struct Inbox {
    state: Mutex<Results>,
    /// Told when there are enough results, or all.
    more: Condvar,
}

#[derive(Debug)]
struct Results {
    ready: Vec<(usize, io::Result<IoBuffer>)>,
    /// Reads that have not ended.
    open: usize,
}

/// The right to put one result into an inbox. A read that is dropped has none.
#[derive(Debug)]
struct Reply(Arc<Inbox>);

impl Reply {
    fn send(&self, place: usize, result: io::Result<IoBuffer>) {
        self.0.state.lock().ready.push((place, result));
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.open -= 1;
        if state.open == 0 || state.ready.len() >= TOGETHER {
            self.0.more.notify_one();
        }
    }
}

impl Inbox {
    /// Waits for results; `None` when all reads have ended and all results were taken.
    fn take(&self) -> Option<Vec<(usize, io::Result<IoBuffer>)>> {
        let mut state = self.state.lock();
        while state.open > 0 && state.ready.len() < TOGETHER {
            self.more.wait(&mut state);
        }
        let ready = core::mem::take(&mut state.ready);
        (!ready.is_empty()).then_some(ready)
    }
}

impl Read {
    /// The offset at which the system continues.
    pub(super) const fn offset(&self) -> u64 {
        self.offset + self.filled as u64
    }

    /// Returns the part that is not read yet.
    pub(super) fn rest(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled..]
    }

    /// Takes what the system said of a read of the rest. Returns the read when it has to go on, and
    /// otherwise tells the caller.
    pub(super) fn advance(mut self, read: io::Result<usize>, alignment: usize) -> Option<Self> {
        match progress(read, self.buffer.len() - self.filled, alignment) {
            Progress::Done => {
                self.reply.send(self.place, Ok(self.buffer));
                None
            }
            Progress::More(bytes) => {
                self.filled += bytes;
                Some(self)
            }
            Progress::Failed(error) => {
                self.fail(error);
                None
            }
        }
    }

    pub(super) fn fail(self, error: io::Error) {
        self.reply.send(self.place, Err(error));
    }

    /// Fails without freeing the buffer, which the system may still write to.
    #[cfg(target_os = "linux")]
    pub(super) fn abandon(self) {
        core::mem::forget(self.buffer);
        self.reply.send(self.place, Err(ended()));
    }
}

/// The progress of a read after an answer of the system.
enum Progress {
    Done,
    /// So many more bytes are there, and not all.
    More(usize),
    Failed(io::Error),
}

/// `wanted` is not 0. A short read is never taken for the whole: it continues where it has stopped, and
/// with direct I/O at the last place before that can be read.
fn progress(read: io::Result<usize>, wanted: usize, alignment: usize) -> Progress {
    match read {
        Ok(bytes) if bytes >= wanted => Progress::Done,
        Ok(bytes) if bytes >= alignment => Progress::More(bytes - bytes % alignment),
        Ok(_) => Progress::Failed(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Progress::More(0),
        Err(error) => Progress::Failed(error),
    }
}

/// Fills a buffer by this thread alone. Offset, length and memory are aligned.
pub(super) fn read_exact(
    file: &File,
    alignment: usize,
    offset: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        let rest = &mut buffer[filled..];
        let wanted = rest.len();
        match progress(file.read_at(rest, offset + filled as u64), wanted, alignment) {
            Progress::Done => break,
            Progress::More(bytes) => filled += bytes,
            Progress::Failed(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends reads to the threads or the ring that `start` has made, and calls `done` with each result.
pub(super) fn read_many(
    reads: Vec<(u64, IoBuffer)>,
    start: impl FnOnce(Vec<Read>),
    done: &mut dyn FnMut(usize, io::Result<IoBuffer>),
) {
    let count = reads.len();
    let results = Results { ready: Vec::new(), open: count };
    let inbox = Arc::new(Inbox { state: Mutex::new(results), more: Condvar::new() });
    let reads = reads.into_iter().enumerate();
    let reads = reads.map(|(place, (offset, buffer))| {
        let reply = Reply(Arc::clone(&inbox));
        Read { place, offset, buffer, filled: 0, reply }
    });
    start(reads.collect());
    let mut is_open = vec![true; count];
    while let Some(results) = inbox.take() {
        for (place, result) in results {
            is_open[place] = false;
            done(place, result);
        }
    }
    let lost = is_open.into_iter().enumerate().filter(|(_, is_open)| *is_open);
    lost.for_each(|(place, _)| done(place, Err(ended())));
}

/// The thread that was to read has ended.
pub(super) fn ended() -> io::Error {
    io::Error::other("the thread that reads has ended")
}

/// Threads that read, for systems without a ring.
#[derive(Debug)]
pub(super) struct Threads {
    /// `None` while the threads are ended.
    requests: Option<Sender<Read>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Threads {
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(file: &Arc<File>, alignment: usize, count: usize) -> io::Result<Self> {
        let (requests, received) = channel();
        let received = Arc::new(Mutex::new(received));
        let mut threads = Vec::with_capacity(count);
        for _ in 0..count {
            let (file, received) = (Arc::clone(file), Arc::clone(&received));
            let thread = thread::Builder::new().name("mc-tier-read".into());
            let thread = thread.spawn(move || read_all(&file, alignment, &received));
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(Self { requests: Some(requests), threads })
    }

    pub(super) fn send(&self, reads: Vec<Read>) {
        let requests = self.requests.as_ref().expect("it is used until it is dropped");
        for read in reads {
            if let Err(unsent) = requests.send(read) {
                unsent.0.fail(ended());
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        drop(self.requests.take());
        for thread in self.threads.drain(..) {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}

fn read_all(file: &File, alignment: usize, received: &Mutex<Receiver<Read>>) {
    loop {
        let next = received.lock().recv();
        let Ok(read) = next else { return };
        let mut left = Some(read);
        while let Some(mut read) = left {
            let offset = read.offset();
            let result = file.read_at(read.rest(), offset);
            left = read.advance(result, alignment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_read_goes_on_and_the_end_is_an_error() {
        let interrupted = || Err(io::ErrorKind::Interrupted.into());
        assert!(matches!(progress(Ok(8192), 8192, 512), Progress::Done));
        assert!(matches!(progress(Ok(4096), 8192, 512), Progress::More(4096)));
        assert!(matches!(progress(Ok(5000), 8192, 512), Progress::More(4608)));
        assert!(matches!(progress(Ok(1), 2, 1), Progress::More(1)));
        assert!(matches!(progress(interrupted(), 2, 1), Progress::More(0)));
        for (end, alignment) in [(0, 1), (0, 512), (511, 512)] {
            let progress = progress(Ok(end), 8192, alignment);
            let Progress::Failed(error) = progress else { panic!("{end} of {alignment}") };
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        let broken = progress(Err(io::Error::from_raw_os_error(5)), 2, 1);
        assert!(matches!(broken, Progress::Failed(error) if error.raw_os_error() == Some(5)));
    }
}
