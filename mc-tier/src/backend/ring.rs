//! Reads by io_uring: a ring of its own thread.
//!
//! The only unsafe code of the crate. The kernel writes into the buffer of a read from its
//! submission to its completion. The buffer is owned by the table of the reads in flight for that
//! time: callers give it away, and get it back with the completion. Where completions cannot be waited
//! for any more, the buffers in the table are leaked and not freed.

#![allow(unsafe_code, reason = "the kernel is given addresses of buffers")]

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use tracing::error;

use super::queue::{Read, ended};

/// The `user_data` of the wait for the event. Reads have 1 and more, each a number that no other has.
const WAKE: u64 = 0;

/// The longest part of a buffer that the kernel is asked for at once; it stops there itself.
const MAX_READ: usize = 1 << 30;

/// A thread that reads for all others.
#[derive(Debug)]
pub(super) struct Ring {
    /// `None` while the thread is ended.
    requests: Option<Sender<Vec<Read>>>,
    wake: Arc<OwnedFd>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Ring {
    /// A ring that keeps `depth` reads in flight.
    ///
    /// # Errors
    /// When the kernel has no io_uring, or does not let this process use it.
    pub(super) fn start(file: &Arc<File>, alignment: usize, depth: u32) -> io::Result<Self> {
        // One more for the event.
        let ring = IoUring::new(depth + 1)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::PollAdd::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (requests, received) = channel();
        let mut run = Run {
            ring,
            file: Arc::clone(file),
            alignment,
            depth: depth as usize,
            wake: Arc::clone(&wake),
            received,
            is_closing: false,
            is_wake_armed: false,
            waiting: VecDeque::new(),
            in_flight: InFlight::default(),
            next: WAKE + 1,
        };
        let thread = thread::Builder::new().name("mc-tier-ring".into());
        let thread = thread.spawn(move || run.run())?;
        Ok(Self { requests: Some(requests), wake, thread: Some(thread) })
    }

    pub(super) fn send(&self, reads: Vec<Read>) {
        let requests = self.requests.as_ref().expect("it is used until it is dropped");
        match requests.send(reads) {
            Ok(()) => wake(&self.wake),
            Err(unsent) => unsent.0.into_iter().for_each(|read| read.fail(ended())),
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        drop(self.requests.take());
        wake(&self.wake);
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}

fn wake(event: &OwnedFd) {
    // It fails only when it was written to 2^64 times and not read: the thread is awake then.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// The reads that the kernel has, by their `user_data`.
#[derive(Default)]
struct InFlight(HashMap<u64, Read>);

impl Drop for InFlight {
    fn drop(&mut self) {
        // Empty but for a ring that has failed. The kernel may still write into these buffers.
        self.0.drain().for_each(|(_, read)| read.abandon());
    }
}

/// The state of a ring's thread.
struct Run {
    ring: IoUring,
    file: Arc<File>,
    alignment: usize,
    depth: usize,
    wake: Arc<OwnedFd>,
    received: Receiver<Vec<Read>>,
    /// Whether no more requests come.
    is_closing: bool,
    is_wake_armed: bool,
    waiting: VecDeque<Read>,
    in_flight: InFlight,
    next: u64,
}

impl Run {
    fn run(&mut self) {
        while !self.is_done() {
            self.receive();
            self.submit();
            if self.is_done() {
                return;
            }
            // Several at once, where many are in flight: fewer switches to this thread.
            match self.ring.submit_and_wait((self.in_flight.0.len() / 8).max(1)) {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(error) => {
                    error!(%error, "io_uring has failed; the log can only be read one by one");
                    return;
                }
            }
            self.complete();
        }
    }

    fn is_done(&self) -> bool {
        self.is_closing
            && !self.is_wake_armed
            && self.waiting.is_empty()
            && self.in_flight.0.is_empty()
    }

    fn receive(&mut self) {
        while !self.is_closing {
            match self.received.try_recv() {
                Ok(reads) => self.waiting.extend(reads),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.is_closing = true,
            }
        }
    }

    fn submit(&mut self) {
        if !self.is_wake_armed && !self.is_closing {
            let fd = types::Fd(self.wake.as_raw_fd());
            let poll = opcode::PollAdd::new(fd, rustix::event::PollFlags::IN.bits().into());
            self.is_wake_armed = push(&mut self.ring, &poll.build().user_data(WAKE));
        }
        while self.in_flight.0.len() < self.depth {
            let Some(mut read) = self.waiting.pop_front() else { return };
            let entry = entry(self.file.as_raw_fd(), &mut read).user_data(self.next);
            if !push(&mut self.ring, &entry) {
                self.waiting.push_front(read);
                return;
            }
            self.in_flight.0.insert(self.next, read);
            self.next += 1;
        }
    }

    fn complete(&mut self) {
        for completion in self.ring.completion() {
            let user_data = completion.user_data();
            if user_data == WAKE {
                self.is_wake_armed = false;
                let mut count = [0; 8];
                // Nothing to read means that another completion has told it already.
                let _ = rustix::io::read(&self.wake, &mut count);
                continue;
            }
            let Some(read) = self.in_flight.0.remove(&user_data) else {
                error!(user_data, "io_uring has completed a read that was not in flight");
                continue;
            };
            let result = match u32::try_from(completion.result()) {
                Ok(bytes) => Ok(bytes as usize),
                Err(_) => Err(passing(completion.result().saturating_neg())),
            };
            // The rest of a short read goes first.
            if let Some(read) = read.advance(result, self.alignment) {
                self.waiting.push_front(read);
            }
        }
    }
}

/// The kernel's error. One that says to try again is as an interruption.
fn passing(errno: i32) -> io::Error {
    let error = io::Error::from_raw_os_error(errno);
    if is_passing(&error) { io::ErrorKind::Interrupted.into() } else { error }
}

/// Returns whether the same may succeed at once.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, ResourceBusy, WouldBlock};
    matches!(error.kind(), Interrupted | WouldBlock | ResourceBusy)
}

fn entry(file: RawFd, read: &mut Read) -> squeue::Entry {
    let offset = read.offset();
    let rest = read.rest();
    let len = rest.len().min(MAX_READ) as u32;
    opcode::Read::new(types::Fd(file), rest.as_mut_ptr(), len).offset(offset).build()
}

/// Returns whether there was room.
fn push(ring: &mut IoUring, entry: &squeue::Entry) -> bool {
    // SAFETY: the event and the file are open for as long as `Run` is, and a poll has no memory. The
    // memory of a read belongs to its `Read`, which the caller moves into `in_flight` without freeing
    // or touching its heap memory, and which leaves it only with the completion; see the module.
    unsafe { ring.submission().push(entry) }.is_ok()
}
