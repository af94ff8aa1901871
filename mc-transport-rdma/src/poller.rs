//! The thread that takes completions: it spins for a moment while there are some, and sleeps until
//! a device has something otherwise.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::flow::Flow;
use super::ports::Ports;
use super::verbs::DeviceEvent;

/// The interval at which requests that take too long are looked for.
const TICK: Duration = Duration::from_millis(20);

/// The time without any request after which the thread looks for none any more, until it is
/// [stirred](Poller::stir).
const LINGER: Duration = Duration::from_secs(1);

/// The queues that the thread watches, and its way to wake up.
pub(super) struct Poller {
    watched: Mutex<HashMap<u64, (Weak<Flow>, usize)>>,
    next: AtomicU64,
    wake: OwnedFd,
    /// The thread sleeps, or is about to, and looks for no requests that take too long.
    is_dozing: AtomicBool,
    is_ended: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Poller {
    /// Starts the thread.
    ///
    /// # Errors
    /// What the system said when it gave no thread or descriptor.
    pub(super) fn start(ports: Arc<Ports>, spin: Duration) -> std::io::Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let poller = Arc::new(Self {
            watched: Mutex::default(),
            next: AtomicU64::new(1),
            wake,
            is_dozing: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        let theirs = Arc::clone(&poller);
        let run = move || {
            let (hot, worked) = (Vec::new(), Instant::now());
            Loop { poller: &theirs, ports: &ports, spin, hot, worked }.run();
        };
        let thread = std::thread::Builder::new().name("mc-rdma-poll".to_owned()).spawn(run)?;
        *poller.thread.lock() = Some(thread);
        Ok(poller)
    }

    /// A number for a completion queue.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Has the completion queue `queue` of `flow` watched, whose channel knows it by `number`.
    pub(super) fn watch(&self, number: u64, flow: &Arc<Flow>, queue: usize) {
        self.watched.lock().insert(number, (Arc::downgrade(flow), queue));
        self.wake();
    }

    pub(super) fn forget(&self, number: u64) {
        self.watched.lock().remove(&number);
    }

    /// Has the thread look after everything at once.
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Has the thread watch the time of requests that were posted after a pause. Costs next to
    /// nothing when it does already.
    pub(super) fn stir(&self) {
        if self.is_dozing.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Ends the thread, and waits for it unless it is the caller.
    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::SeqCst);
        self.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    fn flows(&self) -> Vec<Arc<Flow>> {
        let mut flows: Vec<Arc<Flow>> = Vec::new();
        for (flow, _) in self.watched.lock().values() {
            if let Some(flow) = flow.upgrade()
                && !flows.iter().any(|known| Arc::ptr_eq(known, &flow))
            {
                flows.push(flow);
            }
        }
        flows
    }
}

/// The thread.
struct Loop<'a> {
    poller: &'a Poller,
    ports: &'a Ports,
    spin: Duration,
    /// Queues that are not armed: their channels do not report the next completion.
    hot: Vec<u64>,
    /// When requests were under way last.
    worked: Instant,
}

impl Loop<'_> {
    fn run(mut self) {
        let mut seen = Instant::now();
        let mut ticked = Instant::now();
        while !self.poller.is_ended.load(Ordering::SeqCst) {
            let now = Instant::now();
            if now.duration_since(ticked) >= TICK {
                ticked = now;
                self.tick(now);
            }
            if self.take() {
                seen = Instant::now();
                continue;
            }
            if !self.hot.is_empty() && seen.elapsed() < self.spin {
                std::thread::yield_now();
                continue;
            }
            if self.arm() {
                seen = Instant::now();
                continue;
            }
            if self.sleep() {
                seen = Instant::now();
            }
        }
    }

    fn of(&self, number: u64) -> Option<(Arc<Flow>, usize)> {
        let watched = self.poller.watched.lock();
        let (flow, queue) = watched.get(&number)?;
        Some((flow.upgrade()?, *queue))
    }

    /// Takes what the hot queues have; returns whether there was something.
    fn take(&mut self) -> bool {
        let mut any = false;
        let hot = std::mem::take(&mut self.hot);
        for number in hot {
            if let Some((flow, queue)) = self.of(number) {
                any |= flow.reap(queue);
                self.hot.push(number);
            }
        }
        any
    }

    /// Arms the channels; returns whether something came meanwhile.
    fn arm(&mut self) -> bool {
        let mut any = false;
        for number in std::mem::take(&mut self.hot) {
            let Some((flow, queue)) = self.of(number) else { continue };
            flow.arm(queue);
            if flow.reap(queue) {
                any = true;
                self.hot.push(number);
            }
        }
        any
    }

    /// Sleeps until there is something to do; returns whether a queue has something.
    fn sleep(&mut self) -> bool {
        // Before the question: requests that come later stir the thread.
        self.poller.is_dozing.store(true, Ordering::SeqCst);
        if self.poller.flows().iter().any(|flow| flow.is_at_work()) {
            self.worked = Instant::now();
        }
        let is_dozing = self.worked.elapsed() >= LINGER;
        self.poller.is_dozing.store(is_dozing, Ordering::SeqCst);
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
        let timeout = (!is_dozing).then_some(tick);
        let fds: Vec<BorrowedFd<'_>> = self
            .ports
            .devices
            .iter()
            .flat_map(|open| [open.channel.as_fd(), open.device.as_fd()])
            .chain([self.poller.wake.as_fd()])
            .collect();
        let mut polled: Vec<PollFd<'_>> =
            fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let _ = poll(&mut polled, timeout.as_ref());
        self.poller.is_dozing.store(false, Ordering::SeqCst);
        if rustix::io::read(&self.poller.wake, &mut [0; 8]).is_ok() {
            self.tick(Instant::now());
        }
        let mut any = false;
        for open in &self.ports.devices {
            while let Some(number) = open.channel.next() {
                if !self.hot.contains(&number) {
                    self.hot.push(number);
                }
                any = true;
            }
        }
        for device in 0..self.ports.devices.len() {
            self.take_events(device);
        }
        any
    }

    fn take_events(&self, device: usize) {
        let open = &self.ports.devices[device].device;
        while let Some(event) = open.next_event() {
            let name = open.name();
            match event {
                DeviceEvent::PortActive(port) => {
                    tracing::info!(device = %name, port, "RDMA port is up");
                    self.ports.set_active(device, port, true);
                    self.poller.flows().iter().for_each(|flow| flow.revive());
                }
                DeviceEvent::PortDown(port) => {
                    tracing::warn!(device = %name, port, "RDMA port is down");
                    let places = self.ports.set_active(device, port, false);
                    self.poller.flows().iter().for_each(|flow| flow.lose_ports(&places));
                }
                DeviceEvent::Fatal => {
                    tracing::error!(device = %name, "the RDMA device failed or was removed");
                    let places = self.ports.set_broken(device);
                    self.poller.flows().iter().for_each(|flow| flow.lose_ports(&places));
                }
                DeviceEvent::Other(number) => {
                    tracing::debug!(device = %name, number, "event of an RDMA device");
                }
            }
        }
    }

    fn tick(&self, now: Instant) {
        self.poller.watched.lock().retain(|_, (flow, _)| flow.strong_count() > 0);
        self.poller.flows().iter().for_each(|flow| flow.tick(now));
    }
}
