//! The client, and any object store, for callers without an async runtime.
//!
//! [`Client`] has every call of the async [`Client`](crate::Client), under the same name and
//! with the same arguments, and returns when the call is over. What a call does, promises
//! and fails with, the async one's documentation says; two things are different:
//!
//! * **Cancellation** does not exist: a call that is under way cannot be dropped.
//! * **Panics**: every call panics on a thread that runs async tasks, because it would hold
//!   up all of them, those that it waits for among them. Use the async client there, or
//!   tokio's `spawn_blocking`.
//!
//! After [`shutdown`](Client::shutdown), which may be called twice, every call fails with
//! the variant `Closed` of its error, whose code is
//! [`UnavailableInCurrentStatus`](crate::ErrorCode::UnavailableInCurrentStatus).
//!
//! [`Store`] is the same for any [`ObjectStore`].
//!
//! # Threads
//! The calling thread asks the master itself, on a socket that no other thread uses meanwhile,
//! and copies itself what is in shared memory: a call that does nothing else never waits for
//! another thread. Calls of many threads do not wait for each other.
//!
//! Beyond that, a client that accepts no peers has no threads of its own: the calling thread
//! itself writes to the sockets of peers and waits at them, which spares it the way to
//! another thread and back; of several threads that do so at the same time, one waits at the
//! sockets for all. What such a client does by itself, as logging its figures, it does during
//! calls only. One that keeps objects in files has a thread, which writes them between calls. A
//! client that accepts peers, because it has a segment or an address to listen at, or that has
//! pages for readers, has two threads, which serve them all the time.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let cluster = mc_cluster_testkit::BlockingCluster::start(&[]);
//! # let master = cluster.address();
//! use mc_store::{Client, PutOutcome};
//! let client = Client::builder()
//!     .master(master)
//!     .listen("127.0.0.1:0".parse()?)
//!     .segment_size(mc_store::ByteSize::mib(4))
//!     .connect_blocking()?;
//! assert_eq!(client.put("prompt-17/block-0", vec![7; 65_536])?, PutOutcome::Stored);
//! assert_eq!(client.get("prompt-17/block-0")?, vec![7; 65_536]);
//! client.shutdown();
//! # Ok(()) }
//! ```

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use mc_cuda::VramBuffer;
use mc_rpc::blocking::in_place;
use mc_rpc::{
    ClusterReport, ObjectDescription, Refusal, RemovedAll, ReplicaDescription, ReplicaPage,
};
use mc_transport::{Memory, MemorySlice};
use mc_types::{ClientId, Endpoint, Generation, ObjectKey, SegmentId, StoreEventInfo, TaskId};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

#[cfg(feature = "c2c")]
use crate::client::{C2cError, Conversions};
use crate::client::{
    ClientBuilder, ClientMetrics, ClientRole, DrainReport, GetInto, MakeMemory, MountedSegment,
    Put, PutMode, PutOutcome, SegmentOptions, Stat, VramError, VramStage,
};
pub use crate::error::GivenUp;
use crate::error::{CallError, GetError, PutError, SegmentError, StartError};
use crate::{ListCursor, ObjectStore, ReplicateConfig, StoreError, TaskReport};

/// Threads of a client that serves peers.
const THREADS: usize = 2;

/// How often a caller is asked whether it still waits.
const PATIENCE: Duration = Duration::from_millis(100);

/// Clients, and the hosts that serve their segments.
type Hosts = Vec<(ClientId, Vec<Box<str>>)>;

/// A member of the cluster whose calls return when they are over; see the
/// [module](self).
///
/// Clones share one member. When the last one is dropped without a
/// [`shutdown`](Self::shutdown), the master finds out by the missing heartbeat.
#[derive(Clone)]
pub struct Client {
    // Ends before the client that it drives.
    driver: Arc<Driver>,
    client: crate::Client,
}

/// Any [`ObjectStore`] with calls that return when they are over; see the [module](self).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use mc_store::{MemoryStore, ObjectStore, blocking::Store};
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// let store: Store<dyn ObjectStore> = Store::new(runtime, Arc::new(MemoryStore::new()));
/// store.put("block", "keys and values".into())?;
/// assert_eq!(store.get("block")?, "keys and values");
/// # Ok(()) }
/// ```
pub struct Store<S: ?Sized = dyn ObjectStore> {
    // Ends before the store that it drives.
    driver: Arc<Driver>,
    store: Arc<S>,
}

/// Drives futures on the threads that wait for them.
struct Driver {
    /// Taken only when this is dropped.
    runtime: Option<Arc<Runtime>>,
    /// Ends the thread that drives the runtime between calls, if there is one.
    between_calls: Option<oneshot::Sender<Infallible>>,
    /// Conversions, which a thread drives while no call does.
    #[cfg(feature = "c2c")]
    conversions: Option<Arc<Conversions>>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        #[cfg(feature = "c2c")]
        if let Some(conversions) = &self.conversions {
            conversions.close();
        }
        self.between_calls = None;
        if let Some(runtime) = self.runtime.take() {
            end(runtime);
        }
    }
}

/// Ends a runtime that no other thread drives. Waits for nothing, so that a client may be dropped on
/// any thread.
fn end(runtime: Arc<Runtime>) {
    if let Some(runtime) = Arc::into_inner(runtime) {
        runtime.shutdown_background();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.client).finish()
    }
}

impl ClientBuilder {
    /// [`connect`](Self::connect) for callers without an async runtime.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`StartError::Runtime`].
    ///
    /// # Panics
    /// On a thread that runs async tasks; see [`blocking`](crate::blocking).
    pub fn connect_blocking(self) -> Result<Client, StartError> {
        self.connect_blocking_unless(|| false)
    }

    /// As [`connect_blocking`](Self::connect_blocking), until `give_up` says that nobody waits
    /// any more, which is asked ten times a second.
    ///
    /// # Errors
    /// As [`connect_blocking`](Self::connect_blocking), and [`StartError::GivenUp`].
    ///
    /// # Panics
    /// On a thread that runs async tasks, and when `give_up` panics.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use mc_store::{Client, StartError};
    /// // It accepts, as far as the system does that for it, and never answers.
    /// let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let builder = Client::builder().master(silent.local_addr()?.to_string());
    /// let error = builder.connect_blocking_unless(|| true).unwrap_err();
    /// assert!(matches!(error, StartError::GivenUp(_)));
    /// # Ok(()) }
    /// ```
    pub fn connect_blocking_unless(self, give_up: fn() -> bool) -> Result<Client, StartError> {
        let has_threads = self.serves();
        let mut builder = if has_threads {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(THREADS).thread_name("mc-client");
            builder
        } else {
            // On two shared cores `exist` takes 16 µs driven by the calling thread, and 19
            // to 20 µs with threads of the client's own.
            Builder::new_current_thread()
        };
        let runtime = builder.enable_all().build().map_err(StartError::Runtime)?;
        let connected = runtime.block_on(unless(give_up, self.connect()));
        match connected.map_err(StartError::from).flatten() {
            Ok(client) => {
                let mut driver = Driver::new(runtime);
                if !has_threads && client.writes_files() {
                    driver.drive_between_calls().map_err(StartError::Thread)?;
                }
                Ok(Client { driver: driver.of_client(&client)?, client })
            }
            Err(error) => {
                // A name may still be looked up, which no call waits for.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }
}

/// Waits for a future until `give_up`, which is asked ten times a second, says that nobody does
/// any more, which drops the future: for callers who have to answer to somebody else, as to
/// Ctrl-C, and drive a future in a runtime of their own. Its clock must be enabled.
///
/// # Errors
/// [`GivenUp`].
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use mc_store::blocking::{GivenUp, unless};
/// assert_eq!(unless(|| true, async { 1 }).await, Ok(1));
/// assert_eq!(unless(|| true, std::future::pending::<()>()).await, Err(GivenUp));
/// # });
/// ```
pub async fn unless<F: Future>(give_up: fn() -> bool, future: F) -> Result<F::Output, GivenUp> {
    let mut future = pin!(future);
    loop {
        match tokio::time::timeout(PATIENCE, future.as_mut()).await {
            Ok(output) => return Ok(output),
            Err(_) if give_up() => return Err(GivenUp),
            Err(_) => {}
        }
    }
}

/// Makes the methods that drive a future of the caller's.
macro_rules! drives {
    () => {
        /// Waits for a future in the runtime of this one. What the future begins with, up to
        /// the first time that it has to wait for something else than the master, it does on the
        /// calling thread.
        ///
        /// # Panics
        /// On a thread that runs async tasks, and when the future panics.
        ///
        /// ```
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// # let cluster = mc_cluster_testkit::BlockingCluster::start(&[]);
        /// # let master = cluster.address();
        /// use mc_store::Client;
        /// use mc_types::KeyRef;
        /// let client = Client::builder().master(master).connect_blocking()?;
        /// let why = client.block_on(client.as_async().master().explain(KeyRef::new("key")?))?;
        /// assert!(why.object.is_none());
        /// # client.shutdown();
        /// # Ok(()) }
        /// ```
        pub fn block_on<F: Future>(&self, future: F) -> F::Output {
            self.driver.block_on(future)
        }

        /// As [`block_on`](Self::block_on), until `give_up` says that nobody waits any more,
        /// which drops the future. It is asked ten times a second, and when a signal interrupts
        /// this thread: for callers who have to answer to somebody else, as to Ctrl-C.
        ///
        /// # Errors
        /// [`GivenUp`].
        ///
        /// # Panics
        /// On a thread that runs async tasks, and when the future or `give_up` panics.
        ///
        /// ```
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// # let cluster = mc_cluster_testkit::BlockingCluster::start(&[]);
        /// # let master = cluster.address();
        /// use mc_store::{Client, blocking::GivenUp};
        /// let client = Client::builder().master(master).connect_blocking()?;
        /// let forever = std::future::pending::<()>();
        /// assert_eq!(client.block_on_unless(forever, || true), Err(GivenUp));
        /// # client.shutdown();
        /// # Ok(()) }
        /// ```
        pub fn block_on_unless<F: Future>(
            &self,
            future: F,
            give_up: fn() -> bool,
        ) -> Result<F::Output, GivenUp> {
            self.driver.block_on_unless(future, give_up)
        }
    };
}

impl Client {
    /// The async client behind this one, for what has no method here. Its futures want to
    /// be driven by [`block_on`](Self::block_on).
    #[must_use]
    pub fn as_async(&self) -> &crate::Client {
        &self.client
    }

    drives!();

    /// The same client as an [`ObjectStore`], which shares its threads.
    #[must_use]
    pub fn as_store(&self) -> Store<crate::Client> {
        Store { driver: Arc::clone(&self.driver), store: Arc::new(self.client.clone()) }
    }
}

impl<S: ?Sized> Store<S> {
    /// The store, whose calls are driven in `runtime`; its clock and sockets must be enabled as far
    /// as the store needs them.
    #[must_use]
    pub fn new(runtime: Runtime, store: Arc<S>) -> Self {
        Self { driver: Arc::new(Driver::new(runtime)), store }
    }

    /// The same store as another type, as `Arc<dyn ObjectStore>`.
    #[must_use]
    pub fn map<T: ?Sized>(self, convert: impl FnOnce(Arc<S>) -> Arc<T>) -> Store<T> {
        Store { driver: self.driver, store: convert(self.store) }
    }

    /// The async store behind this one.
    #[must_use]
    pub fn as_async(&self) -> &S {
        &self.store
    }

    drives!();
}

impl<S: ?Sized> Clone for Store<S> {
    fn clone(&self) -> Self {
        Self { driver: Arc::clone(&self.driver), store: Arc::clone(&self.store) }
    }
}

impl<S: ?Sized> fmt::Debug for Store<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Driver {
    fn new(runtime: Runtime) -> Self {
        Self {
            runtime: Some(Arc::new(runtime)),
            between_calls: None,
            #[cfg(feature = "c2c")]
            conversions: None,
        }
    }

    /// Has a thread drive the runtime while no call does.
    fn drive_between_calls(&mut self) -> io::Result<()> {
        let (keep, ended) = oneshot::channel::<Infallible>();
        let runtime = Arc::clone(self.shared());
        let drive = move || {
            let _ = runtime.block_on(ended);
            end(runtime);
        };
        std::thread::Builder::new().name("mc-files".into()).spawn(drive)?;
        self.between_calls = Some(keep);
        Ok(())
    }

    /// A driver whose conversions go on between the calls of the application: a thread drives the
    /// runtime while there are any.
    #[cfg(feature = "c2c")]
    fn of_client(mut self, client: &crate::Client) -> Result<Arc<Self>, StartError> {
        let Some(conversions) = client.conversions().cloned() else {
            return Ok(Arc::new(self));
        };
        self.conversions = Some(Arc::clone(&conversions));
        let driver = Arc::new(self);
        let driven = Arc::downgrade(&driver);
        let drive = move || {
            while conversions.wait_for_work() {
                let Some(driver) = driven.upgrade() else { return };
                driver.runtime().block_on(conversions.idle());
            }
        };
        let thread = std::thread::Builder::new().name("mc-c2c".into());
        thread.spawn(drive).map_err(StartError::Thread)?;
        Ok(driver)
    }

    #[cfg(not(feature = "c2c"))]
    fn of_client(self, _: &crate::Client) -> Result<Arc<Self>, StartError> {
        Ok(Arc::new(self))
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        match self.begin(future.as_mut(), || false) {
            Poll::Ready(output) => output,
            Poll::Pending => self.runtime().block_on(future),
        }
    }

    fn block_on_unless<F: Future>(
        &self,
        future: F,
        give_up: fn() -> bool,
    ) -> Result<F::Output, GivenUp> {
        let mut future = pin!(future);
        let output = match self.begin(future.as_mut(), give_up) {
            Poll::Ready(output) => output,
            Poll::Pending => self.runtime().block_on(unless(give_up, future))?,
        };
        Ok(output)
    }

    /// Polls a future once, on this thread alone: calls to the master are made in place.
    fn begin<F: Future>(&self, future: Pin<&mut F>, give_up: fn() -> bool) -> Poll<F::Output> {
        if Handle::try_current().is_ok() {
            // Blocking here could hold up the task that the call waits for: the runtime
            // panics if it is so.
            return Poll::Pending;
        }
        let _entered = self.runtime().enter();
        in_place(give_up, || future.poll(&mut Context::from_waker(Waker::noop())))
    }

    fn runtime(&self) -> &Runtime {
        self.shared()
    }

    fn shared(&self) -> &Arc<Runtime> {
        self.runtime.as_ref().expect("taken only when nobody holds a client")
    }
}

/// Makes a method of each call that is described: one that waits for the async call of that
/// name, or, behind `now`, one that the async client answers at once.
macro_rules! calls {
    (
        $of:literal wait { $(
            fn $name:ident(&self $(, $argument:ident: $type:ty)* $(,)?) $(-> $answer:ty)?;
        )* }
        now { $(
            fn $at_once:ident(&self $(, $given:ident: $of_type:ty)*) -> $value:ty;
        )* }
    ) => {
        $(
            #[doc = concat!(
                "Waits for [`", $of, "::", stringify!($name), "`](crate::", $of, "::",
                stringify!($name), ")."
            )]
            pub fn $name(&self $(, $argument: $type)*) $(-> $answer)? {
                self.block_on(self.as_async().$name($($argument),*))
            }
        )*
        $(
            #[doc = concat!(
                "As [`", $of, "::", stringify!($at_once), "`](crate::", $of, "::",
                stringify!($at_once), ")."
            )]
            #[must_use]
            pub fn $at_once(&self $(, $given: $of_type)*) -> $value {
                self.as_async().$at_once($($given),*)
            }
        )*
    };
}

/// The calls that are the same in a client and in a store but for their errors: those of puts, of
/// gets, of the other calls, and of one key of such a call.
macro_rules! common_calls {
    ($of:literal, $put:ty, $get:ty, $call:ty, $key:ty) => {
        calls! {
            $of wait {
                fn put_from(
                    &self,
                    key: &str,
                    source: &MemorySlice,
                    config: &ReplicateConfig,
                ) -> Result<PutOutcome, $put>;
                fn put_parts(
                    &self,
                    key: &str,
                    parts: Vec<Bytes>,
                    config: &ReplicateConfig,
                ) -> Result<PutOutcome, $put>;
                fn get(&self, key: &str) -> Result<Bytes, $get>;
                fn get_into(&self, key: &str, target: &MemorySlice) -> Result<u64, $get>;
                fn get_range_into(
                    &self,
                    key: &str,
                    offset: u64,
                    target: &MemorySlice,
                ) -> Result<u64, $get>;
                fn get_made(&self, key: &str, make: &MakeMemory<'_>) -> Result<Bytes, $get>;
                fn batch_get(&self, keys: &[&str]) -> Vec<Result<Bytes, $get>>;
                fn batch_get_made(
                    &self,
                    keys: &[&str],
                    make: &MakeMemory<'_>,
                ) -> Vec<Result<Bytes, $get>>;
                fn batch_get_into(&self, gets: Vec<GetInto<'_>>) -> Vec<Result<u64, $get>>;
                fn get_and_remove(&self, key: &str) -> Result<Bytes, $get>;
                fn batch_get_and_remove(&self, keys: &[&str]) -> Vec<Result<Bytes, $get>>;
                fn exist(&self, key: &str) -> Result<bool, $call>;
                fn batch_exist(&self, keys: &[&str]) -> Result<Vec<bool>, $call>;
                fn probe(&self, key: &str) -> Result<bool, $call>;
                fn batch_probe(&self, keys: &[&str]) -> Result<Vec<bool>, $call>;
                fn longest_prefix(&self, keys: &[&str]) -> Result<usize, $call>;
                fn size(&self, key: &str) -> Result<u64, $call>;
                fn stat(&self, key: &str) -> Result<Stat, $call>;
                fn batch_stat(&self, keys: &[&str]) -> Result<Vec<Result<Stat, $key>>, $call>;
                fn remove(&self, key: &str, force: bool) -> Result<(), $call>;
                fn batch_remove(
                    &self,
                    keys: &[&str],
                    force: bool,
                ) -> Result<Vec<Result<(), $key>>, $call>;
                fn remove_generation(
                    &self,
                    key: &str,
                    generation: Generation,
                ) -> Result<(), $call>;
                fn batch_remove_generations(
                    &self,
                    objects: &[(&str, Generation)],
                ) -> Result<Vec<Result<(), $key>>, $call>;
                fn remove_by_regex(&self, pattern: &str, force: bool) -> Result<u64, $call>;
                fn remove_all(&self, force: bool) -> Result<u64, $call>;
                fn find(&self, pattern: &str, at_most: usize) -> Result<Vec<ObjectKey>, $call>;
            }
            now {}
        }
    };
}

impl Client {
    common_calls!("Client", PutError, GetError, CallError, Refusal);
    calls! {
        "Client" wait {
            fn put(&self, key: &str, value: impl Into<Bytes>) -> Result<PutOutcome, PutError>;
            fn put_with(
                &self,
                key: &str,
                value: impl Into<Bytes>,
                config: &ReplicateConfig,
            ) -> Result<PutOutcome, PutError>;
            fn put_from_vram(
                &self,
                key: &str,
                source: &VramBuffer,
                range: Range<usize>,
                stage: &mut VramStage,
                config: &ReplicateConfig,
                event_info: Option<Arc<StoreEventInfo>>,
            ) -> Result<PutOutcome, VramError>;
            fn batch_put(
                &self,
                puts: Vec<Put<'_>>,
                config: &ReplicateConfig,
            ) -> Vec<Result<PutOutcome, PutError>>;
            fn remove_all_counted(&self, force: bool) -> Result<RemovedAll, CallError>;
            fn upsert(&self, key: &str, value: impl Into<Bytes>) -> Result<(), PutError>;
            fn upsert_with(
                &self,
                key: &str,
                value: impl Into<Bytes>,
                config: &ReplicateConfig,
            ) -> Result<(), PutError>;
            fn upsert_from(
                &self,
                key: &str,
                source: &MemorySlice,
                config: &ReplicateConfig,
            ) -> Result<(), PutError>;
            fn batch_upsert(
                &self,
                upserts: Vec<Put<'_>>,
                config: &ReplicateConfig,
            ) -> Vec<Result<(), PutError>>;
            fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, GetError>;
            fn get_range_of(
                &self,
                key: &str,
                generation: Generation,
                range: Range<u64>,
            ) -> Result<Bytes, GetError>;
            fn get_into_vram(
                &self,
                key: &str,
                target: &VramBuffer,
                at: usize,
                stage: &mut VramStage,
            ) -> Result<u64, VramError>;
            fn batch_size(&self, keys: &[&str]) -> Result<Vec<Result<u64, Refusal>>, CallError>;
            fn find_page(
                &self,
                pattern: &str,
                cursor: ListCursor,
                limit: usize,
            ) -> Result<ReplicaPage, CallError>;
            fn describe(&self, key: &str) -> Result<ObjectDescription, CallError>;
            fn replicas(&self, key: &str) -> Result<Vec<ReplicaDescription>, CallError>;
            fn batch_describe(
                &self,
                keys: &[&str],
            ) -> Result<Vec<Result<ObjectDescription, Refusal>>, CallError>;
            fn clear_replicas(
                &self,
                keys: &[&str],
                segment_name: Option<&str>,
            ) -> Result<Vec<ObjectKey>, CallError>;
            fn copy_to(&self, key: &str, targets: &[&str]) -> Result<TaskId, CallError>;
            fn move_to(&self, key: &str, source: &str, target: &str) -> Result<TaskId, CallError>;
            fn task(&self, id: TaskId) -> Result<TaskReport, CallError>;
            fn wait_for_task(&self, id: TaskId, patience: Duration) -> Result<TaskReport, CallError>;
            fn mount_segment(&self, options: SegmentOptions) -> Result<SegmentId, SegmentError>;
            fn unmount_segment(&self, id: SegmentId, grace: Duration) -> Result<(), SegmentError>;
            fn drain(&self, targets: &[&str], limit: Duration) -> Result<DrainReport, CallError>;
            fn ping(&self) -> Result<Duration, CallError>;
            fn cluster_report(&self) -> Result<ClusterReport, CallError>;
            fn flush_files(&self, limit: Duration) -> bool;
            fn hosts(
                &self,
                clients: &[ClientId],
            ) -> Result<Hosts, CallError>;
            fn shutdown(&self);
        }
        now {
            fn id(&self) -> ClientId;
            fn role(&self) -> ClientRole;
            fn endpoint(&self) -> Option<Endpoint>;
            fn segment_name(&self) -> Option<&str>;
            fn segments(&self) -> Vec<MountedSegment>;
            fn metrics(&self) -> ClientMetrics;
            fn http_addr(&self) -> Option<SocketAddr>;
            fn keeps_files(&self) -> bool;
            fn file_path(&self, key: &str, generation: Generation) -> Option<PathBuf>;
        }
    }
}

#[cfg(feature = "c2c")]
impl Client {
    calls! {
        "Client" wait {
            fn convert(
                &self,
                source: &str,
                target: Option<&str>,
                out: &str,
            ) -> Result<PutOutcome, C2cError>;
        }
        now {}
    }
}

/// Futures of stores are boxed, so that any store will do.
impl<S: ObjectStore + ?Sized> Store<S> {
    common_calls!("ObjectStore", StoreError, StoreError, StoreError, StoreError);
    calls! {
        "ObjectStore" wait {
            fn store(
                &self,
                put: Put<'_>,
                config: &ReplicateConfig,
                mode: PutMode,
            ) -> Result<PutOutcome, StoreError>;
            fn batch_store(
                &self,
                puts: Vec<Put<'_>>,
                config: &ReplicateConfig,
                mode: PutMode,
            ) -> Vec<Result<PutOutcome, StoreError>>;
            fn put(&self, key: &str, value: Bytes) -> Result<PutOutcome, StoreError>;
            fn put_with(
                &self,
                key: &str,
                value: Bytes,
                config: &ReplicateConfig,
            ) -> Result<PutOutcome, StoreError>;
            fn upsert(&self, key: &str, value: Bytes) -> Result<(), StoreError>;
            fn upsert_with(
                &self,
                key: &str,
                value: Bytes,
                config: &ReplicateConfig,
            ) -> Result<(), StoreError>;
            fn get_range(
                &self,
                key: &str,
                range: Range<u64>,
                generation: Option<Generation>,
            ) -> Result<Bytes, StoreError>;
            fn register(&self, memory: &Memory) -> Result<(), StoreError>;
            fn unregister(&self, memory: &Memory) -> Result<(), StoreError>;
        }
        now {}
    }
}
