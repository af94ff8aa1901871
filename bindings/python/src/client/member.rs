//! A connected client, the threads that drive its calls, and its owner in Python.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use mc_store::blocking;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Runtime;

use super::embedded::Embedded;
use super::failure::{Failure, Outcome};
use super::settings::Settings;
use super::work::Work;
use crate::fork::{PerProcess, ProcessGuard};
use crate::interrupt::is_interrupted;
use crate::logging;
use crate::threads::Threads;

/// Threads of an asynchronous client that only makes requests. On two shared cores `exists`
/// takes 30 µs with one thread, and 40 µs with two threads, which wake each other up.
const REQUEST_THREADS: usize = 1;

/// Threads of an asynchronous client that also serves peers; the same as of a blocking client.
const PEER_THREADS: usize = 2;

/// Time limit for leaving a cluster without a call of `close`. A master that does not answer
/// notices the missing heartbeat.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// A connected client.
#[derive(Debug)]
pub(super) struct Member {
    client: mc_store::Client,
    driver: Driver,
    /// The master of a cluster that lives in this process; it ends with the client.
    master: Mutex<Option<Embedded>>,
}

#[derive(Debug)]
enum Driver {
    /// The calling threads.
    Callers(blocking::Client),
    /// Threads of the client's own.
    Threads(Threads),
}

impl Member {
    /// Joins a cluster with a client whose callers wait. Blocks: the interpreter must be
    /// [released](crate::interrupt::detached).
    pub(super) fn join(settings: Settings, master: Option<Embedded>) -> Outcome<Arc<Self>> {
        logging::set_up();
        let blocking = settings.builder()?.connect_blocking_unless(is_interrupted)?;
        let client = blocking.as_async().clone();
        Ok(Self::known(Self {
            client,
            driver: Driver::Callers(blocking),
            master: Mutex::new(master),
        }))
    }

    /// Joins a cluster with a client whose calls run on threads of its own. Does not wait: one of
    /// those threads calls `ended` with the outcome.
    pub(super) fn join_apart(
        settings: Settings,
        master: impl FnOnce() -> Outcome<Option<Embedded>> + Send + 'static,
        ended: impl FnOnce(Outcome<Arc<Self>>) + Send + 'static,
    ) -> Outcome<Work> {
        logging::set_up();
        let count = if settings.may_serve() { PEER_THREADS } else { REQUEST_THREADS };
        let threads = Threads::start(count, "mc-client")
            .map_err(|error| Failure::system("cannot start the threads of the client", &error))?;
        let spawner = threads.handle().clone();
        // The future owns the threads, which therefore end when the future fails or is aborted.
        let driver = Driver::Threads(threads);
        let work = async move {
            let described = tokio::task::spawn_blocking(move || {
                let master = master()?;
                let address = master.as_ref().map(|master| master.address().to_string());
                Outcome::Ok((settings.master(address).builder()?, master))
            });
            let (builder, master) = described
                .await
                .map_err(|_| Failure::closed("the client was closed before it was connected"))??;
            let client = builder.connect().await?;
            Ok(Self::known(Self { client, driver, master: Mutex::new(master) }))
        };
        Ok(spawner.spawn(async move { ended(work.await) }).abort_handle().into())
    }

    fn known(member: Self) -> Arc<Self> {
        let member = Arc::new(member);
        let mut known = MEMBERS.get().lock();
        known.retain(|member| member.strong_count() > 0);
        known.push(Arc::downgrade(&member));
        drop(known);
        member
    }

    pub(super) fn client(&self) -> &mc_store::Client {
        &self.client
    }

    /// Leaves the cluster, and ends the cluster if its master is in this process.
    pub(super) async fn shutdown(&self) {
        self.client.shutdown().await;
        let master = self.master.lock().take();
        if let Some(master) = master {
            master.end().await;
        }
    }

    /// Leaves the cluster, within the time limit.
    fn leave(&self, limit: Duration) {
        let shutdown = async { tokio::time::timeout(limit, self.shutdown()).await };
        // On a timeout the master notices the missing heartbeat.
        let _ = self.block_on(shutdown);
    }

    /// Leaves the cluster in the background, if this client contributes segments.
    fn leave_later(self: Arc<Self>) {
        if self.client.segments().is_empty() {
            return;
        }
        // If no thread starts, the master notices the missing heartbeat.
        let _ =
            thread::Builder::new().name("mc-leave".into()).spawn(move || self.leave(LEAVE_TIMEOUT));
    }

    /// Waits for a future. Several threads may wait at the same time.
    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.driver {
            Driver::Callers(client) => client.block_on(future),
            Driver::Threads(threads) => threads.block_on(future),
        }
    }

    /// Waits for a call until `give_up`, which is polled, returns true; the call is abandoned then.
    pub(super) fn block_on_unless<T, F>(&self, call: F, give_up: fn() -> bool) -> Outcome<T>
    where
        F: Future<Output = Outcome<T>>,
    {
        match &self.driver {
            Driver::Callers(client) => client
                .block_on_unless(call, give_up)
                .unwrap_or_else(|given_up| Err(Failure::timeout(given_up.to_string()))),
            Driver::Threads(_) => self.block_on(call),
        }
    }

    /// Polls a future once, on this thread. A pending future must be polled again elsewhere: no
    /// waker is registered.
    pub(super) fn poll_once<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        let _entered = self.threads().map(Runtime::enter);
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Spawns a future on the client's own threads.
    ///
    /// # Errors
    /// When the client has no threads of its own.
    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> Outcome<Work> {
        let threads = self.threads();
        let threads = threads.ok_or_else(|| Failure::closed("this client has no threads"))?;
        Ok(Work::spawn(threads, future))
    }

    fn threads(&self) -> Option<&Runtime> {
        match &self.driver {
            Driver::Callers(_) => None,
            Driver::Threads(threads) => Some(threads),
        }
    }
}

/// The members that leave their clusters when the interpreter exits.
static MEMBERS: PerProcess<Mutex<Vec<Weak<Member>>>> = PerProcess::new();

/// Leaves all clusters, so that peers no longer try to reach this process's segments. Gives up
/// after [`LEAVE_TIMEOUT`].
pub(super) fn leave_all() {
    let members = std::mem::take(&mut *MEMBERS.get().lock());
    let deadline = Instant::now() + LEAVE_TIMEOUT;
    for member in members.iter().filter_map(Weak::upgrade) {
        member.leave(deadline.saturating_duration_since(Instant::now()));
    }
}

/// A Python object's share of a member.
#[derive(Debug)]
pub(super) struct Membership {
    member: RwLock<Option<Arc<Member>>>,
    process: ProcessGuard,
}

impl Membership {
    pub(super) fn new(member: Arc<Member>) -> Self {
        Self { member: RwLock::new(Some(member)), process: ProcessGuard::current() }
    }

    /// Returns the member, for a call.
    pub(super) fn member(&self) -> Outcome<Arc<Member>> {
        if self.process.is_inherited() {
            return Err(Failure::closed(
                "this client belongs to the parent process, which has its connections and threads; \
                 connect another client after the fork",
            ));
        }
        let member = self.member.read().clone();
        member.ok_or_else(|| Failure::closed("this client is closed; connect another client"))
    }

    /// Returns a property of the client, without waiting.
    pub(super) fn ask<T>(&self, question: impl FnOnce(&mc_store::Client) -> T) -> Outcome<T> {
        Ok(question(self.member()?.client()))
    }

    /// Returns the text that shows a client of the class.
    pub(super) fn repr(&self, class: &str) -> String {
        let open = self.ask(|client| {
            let (id, master) = (client.id(), client.master().addr());
            format!("<mc_store.{class} {id} of the master at {master}>")
        });
        open.unwrap_or_else(|_| format!("<mc_store.{class}, closed>"))
    }

    /// Returns whether calls fail because the client is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.process.is_inherited() || self.member.read().is_none()
    }

    /// Makes later calls fail. Pending calls keep the member until they end.
    pub(super) fn end(&self) {
        if !self.process.is_inherited() {
            let member = self.member.write().take();
            drop(member);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let Some(member) = self.member.get_mut().take() else { return };
        if self.process.is_inherited() {
            // The member's threads exist only in the parent; locks that they held at the fork stay
            // locked.
            std::mem::forget(member);
        } else {
            member.leave_later();
        }
    }
}
