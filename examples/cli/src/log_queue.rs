//! Lines of the log on their way to standard error, which a thread of its own writes.
//!
//! The parent of a program may leave its standard error unread, or close it. Neither holds the
//! program up or ends it: lines without a reader wait in bounded memory, then they are dropped
//! and counted, and the count is logged when standard error is read again.

use std::io::{self, Write};
use std::panic;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

use crate::log_limit::LIMIT;

/// Bytes of lines that wait to be written. A line may be as long.
const MAX_WAITING: usize = 1 << 20;
/// How long the end of the program waits for a reader of what was logged last.
const FLUSH_LIMIT: Duration = Duration::from_millis(500);

/// The lines that wait.
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    waiting: Vec<u8>,
    dropped: u64,
    is_writing: bool,
}

static STDERR: Queue = Queue::new();

impl Queue {
    const fn new() -> Self {
        let state = State { waiting: Vec::new(), dropped: 0, is_writing: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves nothing half done here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.state();
        if state.waiting.len() + line.len() > MAX_WAITING {
            state.dropped += 1;
            return;
        }
        state.waiting.extend_from_slice(line);
        self.changed.notify_all();
    }

    /// Writes lines to `out` as they come. Lines that it cannot take, as when its reader is gone,
    /// are lost.
    fn write_to(&self, mut out: impl Write) -> ! {
        let mut lines = Vec::new();
        loop {
            let mut state = self.state();
            state.is_writing = false;
            self.changed.notify_all();
            while state.waiting.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            lines.clear();
            std::mem::swap(&mut lines, &mut state.waiting);
            state.is_writing = true;
            drop(state);
            let is_read = out.write_all(&lines).is_ok();
            let dropped = std::mem::take(&mut self.state().dropped);
            if dropped > 0 && is_read {
                tracing::warn!(
                    dropped,
                    "lines of the log were dropped: nobody read standard error"
                );
            }
            LIMIT.report_if_due();
        }
    }

    /// Waits until all lines are written, for `limit` at most.
    fn flush(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut state = self.state();
        while state.is_writing || !state.waiting.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<'a> MakeWriter<'a> for &'static Queue {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        Lines(self)
    }
}

/// One line on its way to the queue. The log writes each line at once.
pub(crate) struct Lines(&'static Queue);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The queue of standard error, and the thread that writes it. A panic is told after what was
/// logged before it.
///
/// # Errors
/// The system's error when it refused the thread.
pub(crate) fn begin() -> io::Result<&'static Queue> {
    let write = || STDERR.write_to(io::stderr());
    thread::Builder::new().name("log".into()).spawn(write)?;
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        flush_log();
        hook(panic);
    }));
    Ok(&STDERR)
}

/// Waits until the log is written to standard error, for half a second at most: there may be no
/// reader. A program that ends by [`run`](crate::run) need not call it.
pub fn flush_log() {
    STDERR.flush(FLUSH_LIMIT);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// Takes a part when the test does.
    struct Reader(SyncSender<Vec<u8>>);

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
            self.0.send(bytes.to_vec()).map_err(gone).map(|()| bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn queue() -> (&'static Queue, Receiver<Vec<u8>>) {
        let queue: &'static Queue = Box::leak(Box::new(Queue::new()));
        let (sender, receiver) = sync_channel(0);
        thread::spawn(|| queue.write_to(Reader(sender)));
        (queue, receiver)
    }

    #[test]
    fn lines_are_written_in_their_order() {
        let (queue, read) = queue();
        let mut expected = Vec::new();
        for number in 0..1000 {
            let line = format!("line {number}\n");
            queue.push(line.as_bytes());
            expected.extend_from_slice(line.as_bytes());
        }
        let mut got = Vec::new();
        while got.len() < expected.len() {
            got.extend(read.recv_timeout(Duration::from_secs(30)).unwrap());
        }
        assert_eq!(got, expected);
        queue.flush(Duration::from_secs(30));
        assert!(queue.state().waiting.is_empty());
    }

    #[test]
    fn what_nobody_reads_is_bounded_and_counted() {
        let (queue, read) = queue();
        let line = [b'x'; 1 << 10];
        for _ in 0..4096 {
            queue.push(&line);
        }
        {
            let state = queue.state();
            assert!(state.waiting.len() <= MAX_WAITING);
            // What waits and what is being written.
            assert!(state.dropped >= 4096 - 2 * 1024, "{}", state.dropped);
        }
        queue.flush(Duration::ZERO);
        drop(read);
        queue.push(b"nobody will ever read this\n");
        queue.flush(Duration::from_secs(30));
        assert!(queue.state().waiting.is_empty(), "lost with the reader");
    }
}
