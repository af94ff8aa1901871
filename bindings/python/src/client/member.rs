//! A connected client, what drives its calls, and who may use it.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use mc_store::blocking;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

use super::embedded::Embedded;
use super::failure::{Failure, Outcome};
use super::settings::Settings;
use crate::fork::{Home, PerProcess};
use crate::interrupt::is_interrupted;
use crate::logging;

/// Threads of an asynchronous client that only makes requests. On two shared cores `exists`
/// takes 30 µs with one, and 40 with two, which wake each other up.
const FOR_REQUESTS: usize = 1;

/// Threads of one that serves peers as well, as a blocking client has.
const FOR_PEERS: usize = 2;

/// Longest that leaving may take when nobody has asked for it. A master that does not answer
/// finds out by the missing heartbeat.
const GOODBYE: Duration = Duration::from_secs(2);

/// A client that was connected.
#[derive(Debug)]
pub(super) struct Member {
    client: mc_store::Client,
    driver: Driver,
    /// The cluster's, when this process is all of it; ends with the client.
    master: Mutex<Option<Embedded>>,
}

#[derive(Debug)]
enum Driver {
    /// The threads that call.
    Callers(blocking::Client),
    /// Threads of its own. Taken only when this is dropped.
    Threads(Option<Runtime>),
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Self::Threads(runtime) = self
            && let Some(runtime) = runtime.take()
        {
            // Waits for nothing: the last user may be a thread of this very runtime.
            runtime.shutdown_background();
        }
    }
}

impl Member {
    /// Joins a cluster with a client whose callers wait. Blocks, so the interpreter has to be
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

    /// Joins a cluster with a client whose calls run on threads of its own, without waiting
    /// for that. `ended` is told the outcome, there.
    pub(super) fn join_apart(
        settings: Settings,
        master: impl FnOnce() -> Outcome<Option<Embedded>> + Send + 'static,
        ended: impl FnOnce(Outcome<Arc<Self>>) + Send + 'static,
    ) -> Outcome<AbortHandle> {
        logging::set_up();
        let threads = if settings.may_serve() { FOR_PEERS } else { FOR_REQUESTS };
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("mc-client")
            .enable_all()
            .build()
            .map_err(|error| Failure::system("cannot start the threads of the client", &error))?;
        let spawner = runtime.handle().clone();
        // From here on the runtime belongs to the work, and ends with it when that fails or
        // is given up.
        let driver = Driver::Threads(Some(runtime));
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
        Ok(spawner.spawn(async move { ended(work.await) }).abort_handle())
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

    /// Leaves the cluster, and ends it if it is this process's own.
    pub(super) async fn shutdown(&self) {
        self.client.shutdown().await;
        let master = self.master.lock().take();
        if let Some(master) = master {
            master.end().await;
        }
    }

    /// Leaves the cluster if that takes no longer than `limit`.
    fn leave(&self, limit: Duration) {
        let shutdown = async { tokio::time::timeout(limit, self.shutdown()).await };
        // Too long: the master will find out.
        let _ = self.block_on(shutdown);
    }

    /// Leaves the cluster if it has a part in it, without waiting for that.
    fn leave_later(self: Arc<Self>) {
        if self.client.segments().is_empty() {
            return;
        }
        // Without a thread the master will find out.
        let _ = thread::Builder::new().name("mc-leave".into()).spawn(move || self.leave(GOODBYE));
    }

    /// Waits for a future. Many threads may at the same time.
    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.driver {
            Driver::Callers(client) => client.block_on(future),
            Driver::Threads(runtime) => {
                runtime.as_ref().expect("taken only when nobody is left").block_on(future)
            }
        }
    }

    /// Waits for a call until `give_up`, which is asked now and then, says that nobody does any
    /// more. What the call comes to then is of no interest.
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

    /// Brings a future as far as it gets without waiting, on this thread. It must be polled
    /// again if that is not its end.
    pub(super) fn poll_once<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        let _entered = self.threads().map(Runtime::enter);
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Has the client's own threads work on a future.
    ///
    /// # Errors
    /// When it has none.
    pub(super) fn spawn(
        &self,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Outcome<AbortHandle> {
        let threads = self.threads();
        let threads = threads.ok_or_else(|| Failure::closed("this client has no threads"))?;
        Ok(threads.spawn(future).abort_handle())
    }

    fn threads(&self) -> Option<&Runtime> {
        match &self.driver {
            Driver::Callers(_) => None,
            Driver::Threads(runtime) => runtime.as_ref(),
        }
    }
}

/// Members of this process that may have to leave.
static MEMBERS: PerProcess<Mutex<Vec<Weak<Member>>>> = PerProcess::new();

/// Leaves the clusters that this process is still a member of, so that nobody looks for its
/// segments any more; does without where that takes long.
pub(super) fn leave_all() {
    let members = std::mem::take(&mut *MEMBERS.get().lock());
    let deadline = Instant::now() + GOODBYE;
    for member in members.iter().filter_map(Weak::upgrade) {
        member.leave(deadline.saturating_duration_since(Instant::now()));
    }
}

/// What an object of Python holds of a member.
#[derive(Debug)]
pub(super) struct Membership {
    member: RwLock<Option<Arc<Member>>>,
    home: Home,
}

impl Membership {
    pub(super) fn new(member: Arc<Member>) -> Self {
        Self { member: RwLock::new(Some(member)), home: Home::here() }
    }

    /// The member, for a call.
    pub(super) fn member(&self) -> Outcome<Arc<Member>> {
        if self.home.was_left() {
            return Err(Failure::closed(
                "this client belongs to the process that this one was forked from, where its \
                 connections and threads are; connect another one after the fork",
            ));
        }
        let member = self.member.read().clone();
        member.ok_or_else(|| Failure::closed("this client is closed; connect another one"))
    }

    /// Whether calls would be refused.
    pub(super) fn is_closed(&self) -> bool {
        self.home.was_left() || self.member.read().is_none()
    }

    /// Refuses calls from now on. Those under way keep the member until they end.
    pub(super) fn end(&self) {
        if !self.home.was_left() {
            let member = self.member.write().take();
            drop(member);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let Some(member) = self.member.get_mut().take() else { return };
        if self.home.was_left() {
            // Its threads are not in this process: nobody would answer, and locks that they
            // held when it was forked stay locked.
            std::mem::forget(member);
        } else {
            member.leave_later();
        }
    }
}
