//! A thread that notices owners that go, and regions that are withdrawn, when no task does.
//!
//! The tasks of a blocking client run only while it makes calls. One that is idle would keep the
//! memory of an owner that is gone, which no other process has any more, until it makes its next call.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use tracing::debug;

use super::control::Control;

/// The number that the end of the transport has instead of a link.
const END: u64 = 0;

/// Events taken at a time.
const TOGETHER: usize = 16;

/// Longest time that a step of the thread is waited for.
const SETTLES: Duration = Duration::from_secs(1);

/// Bytes of the thread's stack: it unmaps memory and tells those who wait.
const STACK: usize = 256 << 10;

/// The links of one transport that are watched. Dropping it ends the thread.
#[derive(Default)]
pub(super) struct Watch {
    /// From the first link on.
    thread: Mutex<Option<Arc<Watched>>>,
}

/// The descriptors and links that the thread watches.
pub(super) struct Watched {
    epoll: OwnedFd,
    end: OwnedFd,
    links: Mutex<Links>,
    /// Held while the thread gives links up and unmaps.
    works: Mutex<()>,
}

#[derive(Default)]
struct Links {
    by_number: HashMap<u64, Weak<Control>>,
    last: u64,
}

impl Watch {
    /// Watches a link until it fails. Where the system has no thread or descriptor for that,
    /// the link's task alone notices its owner's end.
    pub(super) fn add(&self, control: &Arc<Control>) {
        let added = self.thread().and_then(|thread| control.hang_up().watch(&thread, control));
        if let Err(error) = added {
            debug!(%error, "a link is not watched between calls");
        }
    }

    /// Waits until the thread has unmapped the regions of links that failed before.
    pub(super) fn settle(&self) {
        let thread = self.thread.lock().clone();
        if let Some(thread) = thread {
            // It tells those who wait, too, whose code may be what calls this.
            drop(thread.works.try_lock_for(SETTLES));
        }
    }

    fn thread(&self) -> io::Result<Arc<Watched>> {
        let mut thread = self.thread.lock();
        if let Some(running) = &*thread {
            return Ok(Arc::clone(running));
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &end, EventData::new_u64(END), EventFlags::IN)?;
        let watched =
            Arc::new(Watched { epoll, end, links: Mutex::default(), works: Mutex::new(()) });
        let running = Arc::clone(&watched);
        let builder = Builder::new().name("mc-shm-watch".to_owned()).stack_size(STACK);
        builder.spawn(move || running.run())?;
        Ok(Arc::clone(thread.insert(watched)))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.get_mut() {
            // The counter takes a one in any case.
            let _ = rustix::io::write(&thread.end, &1_u64.to_ne_bytes());
        }
    }
}

impl Watched {
    /// Watches the socket of a link; the number to [remove](Self::remove) it by.
    pub(super) fn add(&self, socket: &impl AsFd, control: &Arc<Control>) -> io::Result<u64> {
        let number = {
            let mut links = self.links.lock();
            links.last += 1;
            let number = links.last;
            links.by_number.insert(number, Arc::downgrade(control));
            number
        };
        // Each arrival is told once: the link's task reads what has arrived.
        let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let added = epoll::add(&self.epoll, socket, EventData::new_u64(number), events);
        added.inspect_err(|_| _ = self.links.lock().by_number.remove(&number))?;
        Ok(number)
    }

    pub(super) fn remove(&self, socket: &impl AsFd, number: u64) {
        // It was added, and is open.
        let _ = epoll::delete(&self.epoll, socket);
        self.links.lock().by_number.remove(&number);
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(TOGETHER);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return debug!(%error, "links are not watched any more"),
            }
            let _works = self.works.lock();
            for event in &events {
                let (number, flags) = (event.data.u64(), event.flags);
                if number == END {
                    return;
                }
                // Not held below, where the link is removed.
                let control = self.links.lock().by_number.get(&number).and_then(Weak::upgrade);
                let Some(control) = control else { continue };
                let gone = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                if flags.intersects(gone) {
                    control.owner_has_gone();
                } else {
                    control.drop_withdrawn();
                }
            }
        }
    }
}
