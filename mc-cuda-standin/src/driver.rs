//! The driver of this process, and what every call of it does first.

use std::cell::RefCell;
use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::panic::AssertUnwindSafe;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::codes::{Answer, Code, INVALID_CONTEXT, NOT_INITIALIZED, UNKNOWN, is_sticky};
use crate::schedule::Step;
use crate::settings::Settings;
use crate::state::State;

/// The variable with the settings.
const VARIABLE: &str = "MC_CUDA_STANDIN";

pub(crate) struct Driver {
    state: Mutex<State>,
    changed: Condvar,
    /// The process that called `cuInit`; 0 before that.
    started: AtomicU32,
}

static DRIVER: LazyLock<Driver> = LazyLock::new(|| {
    let mut settings = Settings::default();
    if let Ok(text) = std::env::var(VARIABLE)
        && let Err(pair) = settings.apply(&text)
    {
        eprintln!("mc-cuda-standin: {VARIABLE}: {pair:?} is not understood");
    }
    Driver {
        state: Mutex::new(State::new(settings)),
        changed: Condvar::new(),
        started: AtomicU32::new(0),
    }
});

static THREADS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The contexts that this thread has pushed.
    static CONTEXTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// The driver's state, during a call.
pub(crate) struct Locked {
    pub(crate) call: &'static str,
    state: MutexGuard<'static, State>,
}

impl Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Locked {
    /// Waits until the condition holds.
    pub(crate) fn wait_until(&mut self, mut holds: impl FnMut(&mut State) -> bool) {
        while !holds(&mut self.state) {
            DRIVER.changed.wait(&mut self.state);
        }
    }

    /// Tells all threads that something has changed.
    pub(crate) fn changed(&mut self) {
        if !self.is_scheduled {
            self.is_scheduled = true;
            let thread = std::thread::Builder::new().name("standin-gpu".into());
            if let Err(error) = thread.spawn(run) {
                eprintln!("mc-cuda-standin: no thread for the streams: {error}");
            }
        }
        DRIVER.changed.notify_all();
    }

    /// The ordinal of the current context's device.
    pub(crate) fn current(&self) -> Result<usize, Code> {
        let context = CONTEXTS.with_borrow(|contexts| contexts.last().copied());
        self.device_of(context.ok_or(INVALID_CONTEXT)?)
    }

    /// The same of a context that is not dead.
    pub(crate) fn usable(&self) -> Result<usize, Code> {
        let device = self.current()?;
        self.check_lost(device)?;
        Ok(device)
    }

    /// The key of a stream of the current device.
    pub(crate) fn named_stream(&mut self, handle: u64) -> Result<(usize, u64), Code> {
        let device = self.usable()?;
        let call = self.call;
        let key = self.stream(call, handle, device, THREAD.with(|thread| *thread))?;
        Ok((device, key))
    }

    /// Waits until a stream has done its first pieces of work.
    pub(crate) fn wait_stream(&mut self, device: usize, key: u64, number: u64) -> Answer {
        self.wait_until(|state| {
            let is_done = |stream: &crate::stream::Stream| stream.done >= number;
            state.streams.get(&key).is_none_or(is_done) || state.devices[device].lost.is_some()
        });
        self.check_lost(device)
    }
}

/// The contexts of this thread, the current one last.
pub(crate) fn contexts<T>(act: impl FnOnce(&mut Vec<u64>) -> T) -> T {
    CONTEXTS.with_borrow_mut(act)
}

/// Runs a call that a program may make at any time.
pub(crate) fn call_any_time(name: &'static str, body: impl FnOnce(&mut Locked) -> Answer) -> c_int {
    let started = DRIVER.started.load(Ordering::SeqCst);
    if started != 0 && started != std::process::id() {
        // The lock may have been held when the process was forked.
        eprintln!("mc-cuda-standin: violation: {name} after a fork");
        return NOT_INITIALIZED.0;
    }
    let run = AssertUnwindSafe(|| {
        let mut locked = Locked { call: name, state: DRIVER.state.lock() };
        locked.injected()?;
        let answer = body(&mut locked);
        locked.hang_next = false;
        answer
    });
    match std::panic::catch_unwind(run) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => UNKNOWN.0,
    }
}

/// Runs a call that needs `cuInit` before it.
pub(crate) fn call(name: &'static str, body: impl FnOnce(&mut Locked) -> Answer) -> c_int {
    if DRIVER.started.load(Ordering::SeqCst) == 0 {
        return NOT_INITIALIZED.0;
    }
    call_any_time(name, body)
}

/// Notes that this process has called `cuInit`.
pub(crate) fn start(locked: &mut Locked) -> Answer {
    if DRIVER.started.load(Ordering::SeqCst) == 0 {
        locked.start()?;
        DRIVER.started.store(std::process::id(), Ordering::SeqCst);
    }
    Ok(())
}

impl Locked {
    /// Counts the call, and plays the failure that was ordered for it.
    fn injected(&mut self) -> Answer {
        let name = self.call;
        let number = self.calls.entry(name).or_default();
        *number += 1;
        let number = *number;
        let blocks = self.settings.blocks.get(name).is_some_and(|calls| calls.contains(&number));
        if blocks {
            self.wait_until(|state| state.settings.resumed);
        }
        self.hang_next = self.settings.hangs.get(name).is_some_and(|calls| calls.contains(&number));
        let fails = self.settings.fails.get(name);
        let found = fails.and_then(|calls| calls.iter().find(|(call, _)| *call == number));
        let Some(&(_, code)) = found else { return Ok(()) };
        if is_sticky(code)
            && let Ok(device) = self.current()
        {
            self.devices[device].lost = Some(code);
            self.changed();
        }
        Err(code)
    }
}

/// Does the work of the streams.
fn run() {
    let mut state = DRIVER.state.lock();
    loop {
        match state.step(Instant::now()) {
            Step::Did => {
                DRIVER.changed.notify_all();
            }
            Step::Call { function, data, stream } => {
                let data = std::ptr::with_exposed_provenance_mut(data as usize);
                MutexGuard::unlocked(&mut state, || {
                    // SAFETY: the program gave the function for this argument.
                    unsafe { function(data) };
                });
                state.called(stream);
                DRIVER.changed.notify_all();
            }
            Step::Until(at) => {
                let _ = DRIVER.changed.wait_until(&mut state, at);
            }
            Step::Idle => DRIVER.changed.wait(&mut state),
        }
    }
}
