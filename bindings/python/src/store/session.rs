//! The state of a store between its setup and its close.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use mc_standalone::DummyClient;
use mc_store::blocking::{self, GivenUp, unless};
use mc_store::{
    ByteSize, ClientBuilder, ClientConfig, MountedSegment, SegmentId, SegmentOptions, StartError,
};
use mc_transport::{Memory, MemoryOptions, MemorySlice};
use parking_lot::Mutex;

use super::backend::Backend;
use super::exit::ShutDown;
use super::ports::with_port;
use crate::error::Failure;
use crate::interrupt::is_interrupted;
use crate::memory::Buffers;
use crate::threads::Threads;

/// A client and the memory that is registered with it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) backend: Backend,
    pub(super) buffers: Buffers,
    hostname: String,
    /// Whether calls may take and return values; memory by address they always may.
    handles_values: bool,
    /// The configuration of a member of the cluster.
    config: ClientConfig,
    /// A client that mounts the segments of a store that was set up without one.
    contributor: Mutex<Option<blocking::Client>>,
    pool: Option<Pool>,
}

/// The memory of a thin client from which `alloc_from_mem_pool` allocates. It is never freed in
/// parts.
#[derive(Debug)]
struct Pool {
    memory: Memory,
    used: Mutex<usize>,
}

/// Allocations from the pool begin at multiples of this.
const ALIGN: usize = 64;

impl Session {
    /// Joins a cluster.
    pub(super) fn join(config: ClientConfig, handles_values: bool) -> Result<Self, StartError> {
        let config = with_port(config);
        let client = connect(&config).or_else(|error| match with_any_port(&config) {
            // As Mooncake does, which chooses ports at random.
            Some(open) if is_taken(&error) => {
                tracing::warn!(config.local_hostname, "the port is taken; another one is used");
                connect(&open)
            }
            _ => Err(error),
        })?;
        let named = client.segment_name().map(ToOwned::to_owned);
        let hostname = named.or_else(|| config.local_hostname.clone()).unwrap_or_default();
        let session = Self::new(Backend::member(client), hostname, config, None);
        Ok(Self { handles_values, ..session })
    }

    /// Becomes a thin client of the node agent at `server`.
    pub(super) fn attach(
        server: &str,
        mem_pool_size: usize,
        local_buffer_size: usize,
    ) -> Result<Self, Failure> {
        let threads = Threads::start(1, "mc-thin-client").map_err(|error| {
            tracing::warn!("cannot start the runtime of a thin client: {error}");
            Failure::INTERNAL
        })?;
        let mut builder = DummyClient::builder().server(server);
        if local_buffer_size > 0 {
            builder = builder.local_buffer(ByteSize::bytes(local_buffer_size as u64));
        }
        let connected = threads.block_on(unless(is_interrupted, builder.connect()));
        let client = connected.map_err(|GivenUp| Failure::GIVEN_UP)??;
        let backend = Backend::served(client, threads.into_runtime());
        let pool = match mem_pool_size {
            0 => None,
            size => {
                let memory = Memory::options().shared().allocate(size);
                let memory = memory.map_err(Failure::refuse)?;
                backend.register(&memory)?;
                Some(Pool { memory, used: Mutex::new(0) })
            }
        };
        Ok(Self::new(backend, server.to_owned(), ClientConfig::default(), pool))
    }

    fn new(backend: Backend, hostname: String, config: ClientConfig, pool: Option<Pool>) -> Self {
        let (buffers, contributor) = (Buffers::default(), Mutex::default());
        Self { backend, buffers, hostname, handles_values: true, config, contributor, pool }
    }

    /// Returns the name of this store's segment; without a segment the hostname given to `setup`.
    pub(super) fn hostname(&self) -> &str {
        &self.hostname
    }

    /// The memory for values; 0 where calls take and return none.
    pub(super) fn local_buffer_size(&self) -> u64 {
        let size = self.config.local_buffer_size.filter(|_| self.handles_values);
        size.map_or(0, ByteSize::as_u64)
    }

    /// Rejects a call that takes or returns values of a store that was set up without memory for them.
    pub(super) fn check_handles_values(&self) -> Result<(), Failure> {
        if self.handles_values {
            return Ok(());
        }
        Err(Failure::refuse(
            "the store has no local buffer; set it up with local_buffer_size, or use put_from and \
             get_into with memory of your own",
        ))
    }

    /// Allocates `len` bytes of the pool that a thin client shares with the node agent.
    pub(super) fn allocate(&self, len: usize) -> Option<MemorySlice> {
        let pool = self.pool.as_ref()?;
        let mut used = pool.used.lock();
        let part = pool.memory.slice(*used, len).filter(|part| !part.is_empty())?;
        *used = (*used + len).next_multiple_of(ALIGN).min(pool.memory.len());
        Some(part)
    }

    /// Returns the `len` bytes at `address` if they lie in the pool.
    pub(super) fn find_allocated(&self, address: usize, len: usize) -> Option<MemorySlice> {
        let pool = self.pool.as_ref()?;
        let first = pool.memory.whole().address().addr();
        pool.memory.slice(address.checked_sub(first)?, len)
    }

    /// Returns whether `block` is the pool.
    pub(super) fn is_pool(&self, block: &Memory) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.memory.is_same(block))
    }

    /// Contributes a segment.
    pub(super) fn mount(&self, size: usize, memory: MemoryOptions) -> Result<SegmentId, Failure> {
        let own = self.backend.own("mounting segments")?;
        let segment = SegmentOptions::new(ByteSize::bytes(size as u64)).memory(memory);
        if own.endpoint().is_some() {
            return Ok(own.mount_segment(segment)?);
        }
        // A client that accepts no peers has no threads that serve them.
        let mut contributor = self.contributor.lock();
        let server = match contributor.take() {
            Some(server) => server,
            None => {
                let mut config = self.config.clone();
                config.global_segment_size = None;
                config.local_buffer_size = Some(ByteSize::bytes(0));
                config.enable_client_http_server = None;
                serving(&config)?
            }
        };
        let mounted = server.mount_segment(segment);
        *contributor = Some(server);
        Ok(mounted?)
    }

    /// Unmounts a segment.
    pub(super) fn unmount(&self, id: SegmentId, grace: Duration) -> Result<(), Failure> {
        let own = self.backend.own("unmounting segments")?;
        let contributor = self.contributor.lock().clone();
        let has = |client: &blocking::Client| client.segments().iter().any(|it| it.id == id);
        match contributor.filter(has) {
            Some(contributor) => Ok(contributor.unmount_segment(id, grace)?),
            None => Ok(own.unmount_segment(id, grace)?),
        }
    }

    /// Returns the mounted segments.
    pub(super) fn segments(&self) -> Vec<MountedSegment> {
        let Ok(own) = self.backend.own("segments") else { return Vec::new() };
        let mut segments = own.segments();
        segments.extend(self.contributor.lock().iter().flat_map(blocking::Client::segments));
        segments
    }
}

impl ShutDown for Session {
    /// Leaves the cluster and unregisters all memory. Pending calls end by themselves; later calls
    /// fail.
    fn shut_down(&self) {
        let contributor = self.contributor.lock().take();
        if let Some(contributor) = contributor {
            contributor.shutdown();
        }
        self.backend.shut_down();
        for buffer in self.buffers.clear() {
            if !buffer.settle() {
                tracing::warn!("a transfer still uses memory that was registered; do not free it");
            }
        }
    }
}

/// Connects a client with the settings of `config` and, where it leaves details open, of the
/// environment.
fn connect(config: &ClientConfig) -> Result<blocking::Client, StartError> {
    ClientBuilder::from_config(config)?
        .software(crate::software::SOFTWARE)
        .connect_blocking_unless(is_interrupted)
}

/// Connects a client that accepts peers, with a segment or without.
fn serving(config: &ClientConfig) -> Result<blocking::Client, StartError> {
    let anywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let builder = ClientBuilder::from_config(config)?.software(crate::software::SOFTWARE);
    let builder = builder.listen(config.listen.unwrap_or(anywhere));
    // Only a client that begins with a segment resolves a host name.
    let host = config.local_hostname.as_deref().unwrap_or_default();
    match host.parse::<IpAddr>() {
        Ok(address) if !address.is_unspecified() => {
            builder.advertise(address).connect_blocking_unless(is_interrupted)
        }
        _ => builder.connect_blocking_unless(is_interrupted),
    }
}

/// Returns whether the data port is in use.
fn is_taken(error: &StartError) -> bool {
    let StartError::Transport(error) = error else { return false };
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::AddrInUse)
        {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Returns `config` without the port in `local_hostname`; `None` if there is no port.
fn with_any_port(config: &ClientConfig) -> Option<ClientConfig> {
    let (host, port) = config.local_hostname.as_deref()?.rsplit_once(':')?;
    let is_v6_without_port = host.contains(':') && !host.ends_with(']');
    if is_v6_without_port || port.parse::<u16>().is_err() {
        return None;
    }
    let mut config = config.clone();
    config.local_hostname = Some(host.to_owned());
    Some(config)
}
