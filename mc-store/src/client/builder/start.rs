//! The start of a client, step by step.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use mc_environment::Environment;
use mc_meta::TenantId;
use mc_rpc::{ClientConfig, MasterClient, ReadCounter, StorageConfig};
#[cfg(feature = "encryption")]
use mc_tier::TierKeys;
use mc_transport::{BufferPool, Node, Transport as _};
use mc_types::{ByteSize, ClientId, Endpoint};
use tokio::sync::{OnceCell, Semaphore};

use super::{ClientBuilder, NOTHING};
use crate::client::Client;
use crate::client::admission::Admission;
use crate::client::background::Background;
#[cfg(feature = "c2c")]
use crate::client::conversions::Conversions;
use crate::client::core::Core;
use crate::client::data::Transfers;
use crate::client::heartbeat::Liveness;
use crate::client::hot_cache::HotCache;
use crate::client::late::MAX_TASKS;
use crate::client::master_link::MasterLink;
use crate::client::metrics::Metrics;
use crate::client::reports::Reports;
use crate::client::segments::{KeptMemory, SegmentOptions, Segments};
use crate::client::tier_work::{start_local_disk, start_shared_tier};
use crate::client::tiers::local_disk::{LaterLocalDisk, LocalDiskSlot};
use crate::client::tiers::shared::{LaterTier, OwnSettings, SharedTier, storage_config};
use crate::client::tiers::{Sealing, Tiers};
use crate::error::{KeepError, StartError};

/// For values that are read into memory of the client. Pages are taken when they are used.
const LOCAL_BUFFER: ByteSize = ByteSize::mib(256);

impl ClientBuilder {
    pub(super) async fn start(mut self) -> Result<Client, StartError> {
        let makes_requests = self.check()?;
        let environment = Arc::clone(&self.settings.environment);
        let sealing = self.sealing().await?;
        // No peer gets an answer here before the process of before has ended.
        let kept = self.open_kept().await?;
        let mut link = self.connect_to_master(makes_requests).await?;
        let listen = self.accept_peers(&link.master)?;
        #[cfg(feature = "c2c")]
        let c2c = match makes_requests {
            true => Conversions::ask(&link.master, &*environment).await?.map(Arc::new),
            false => None,
        };
        #[cfg(feature = "c2c")]
        let for_conversions = c2c.as_ref().map_or(0, |conversions| conversions.buffer_size());
        #[cfg(not(feature = "c2c"))]
        let for_conversions = 0;
        let (pool, hot) = self.memory_of_reads(for_conversions)?;
        #[cfg(feature = "http")]
        let http = match self.http {
            Some(address) => Some(mc_http::HttpPort::bind(address).await?),
            None => None,
        };
        let storage = storage_config(&link.master).await?;
        warn_of_one_tenant(&storage);
        let (shared_tier, later_tier) = self.open_shared_tier(&storage, &sealing).await;
        let transport = Arc::new(Node::start(self.node.clone()).await?);
        let segments = Arc::new(Segments::new(
            Arc::clone(&transport),
            Arc::clone(&environment),
            self.settings.tickets,
            self.host_name.take().map(String::into_boxed_str),
        ));
        let (local_disk, later_disk) =
            self.open_local_disk(&storage, &transport, &segments, &sealing).await?;
        if let Some(kept) = kept {
            let has_disk = local_disk.get().is_some() || later_disk.is_some();
            self.mount_kept(kept, &segments, &mut link, has_disk).await?;
        }
        let first_segment = self.first_segment();
        let settings = self.settings;
        let (tenant, open) = (storage.tenant, (local_disk, shared_tier));
        let tiers = Tiers::new(tenant, environment, sealing, open, settings.below_memory);
        let metrics = Metrics::new(settings.metrics);
        let background = Arc::new(Background::new());
        let (tasks, copies) = (Arc::clone(&background), settings.local_copy);
        let core = Arc::new(Core {
            link,
            segments,
            transfers: Transfers::new(transport, tasks, metrics.clone(), copies),
            reports: Reports::default(),
            put_keys: Default::default(),
            pool,
            hot,
            tiers,
            #[cfg(feature = "c2c")]
            c2c,
            left: OnceCell::new(),
            first_segment: OnceLock::new(),
            liveness: Liveness::new(settings.clock),
            metrics,
            settings,
            background,
            fencing: Arc::new(Semaphore::new(MAX_TASKS)),
            #[cfg(feature = "http")]
            http: http.as_ref().map(mc_http::HttpPort::local_addr),
            #[cfg(not(feature = "http"))]
            http: None,
        });
        begin(&core, first_segment, listen, later_tier, later_disk).await?;
        #[cfg(feature = "http")]
        if let Some(port) = http {
            // Whether the master answers is told there, also of a client without a segment.
            core.start_heartbeat().map_err(StartError::Thread)?;
            crate::client::http::serve_pages(&core, port);
        }
        Ok(Client { core })
    }

    /// Returns whether the client makes requests.
    ///
    /// # Errors
    /// When the settings cannot be used.
    fn check(&self) -> Result<bool, StartError> {
        if self.master.is_none() {
            return Err(StartError::NoMaster);
        }
        if let Some((name, _)) = self.settings.metrics_labels.iter().find(|it| !is_label(&it.0)) {
            return Err(StartError::BadLabel { name: name.clone() });
        }
        let makes_requests = self.local_buffer != Some(NOTHING);
        if !makes_requests && !self.accepts_peers() {
            return Err(StartError::NoRole);
        }
        if self.keep_segment {
            self.check_kept()?;
        }
        Ok(makes_requests)
    }

    /// Opens the keys of what is encrypted below memory.
    #[cfg(feature = "encryption")]
    async fn sealing(&mut self) -> Result<Sealing, StartError> {
        let Some(source) = self.tier_keys.take() else { return Ok(Sealing::default()) };
        let opened = self.settings.environment.blocking(move || TierKeys::open(source)).await;
        let keys = opened.and_then(Result::ok).ok_or(StartError::Ending)??;
        Ok(Sealing { keys: Some(Arc::new(keys)) })
    }

    #[cfg(not(feature = "encryption"))]
    async fn sealing(&self) -> Result<Sealing, StartError> {
        Ok(Sealing::default())
    }

    /// Checks that the next process can take the segment over.
    fn check_kept(&self) -> Result<(), KeepError> {
        if self.segment_size == NOTHING || !self.memory.is_file() {
            return Err(KeepError::NoFile);
        }
        if self.listen.is_none_or(|listen| listen.port() == 0) {
            return Err(KeepError::NoPort);
        }
        if self.node.has_shortcuts() { Err(KeepError::Rdma) } else { Ok(()) }
    }

    /// Takes the file of a segment that is kept, once the process that has it has ended.
    async fn open_kept(&self) -> Result<Option<KeptMemory>, StartError> {
        if !self.keep_segment {
            return Ok(None);
        }
        let environment = &*self.settings.environment;
        KeptMemory::open(environment, &self.memory, self.segment_size).await.map(Some)
    }

    /// Connects to the master, or to the one of several that leads.
    async fn connect_to_master(&mut self, makes_requests: bool) -> Result<MasterLink, StartError> {
        let pulse = &mut self.settings.pulse;
        pulse.master = self.master.take().ok_or(StartError::NoMaster)?;
        let address = &*pulse.master;
        let environment = &self.settings.environment;
        let id = environment.random_u128().map_err(StartError::NoRandomness)?;
        let id = ClientId::from_u128(id);
        if let Some(network) = environment.to_master() {
            pulse.rpc.environment(network);
        }
        resolve_in_etcd(address, &mut pulse.rpc)?;
        // The heartbeat tells of them, too.
        let reads = match self.tells_reads {
            true => pulse.rpc.count_reads(),
            false => ReadCounter::default(),
        };
        let rpc = pulse.rpc.clone();
        let limit = rpc.call_timeout;
        let waits = |error: &mc_rpc::RpcError| {
            tracing::warn!(master = address, %error, "waiting for the master, for up to {limit:?}");
        };
        let master = MasterClient::connect_to_leader(address, rpc, waits).await?;
        Ok(MasterLink { id, master, reads, admission: Admission::new(makes_requests) })
    }

    /// Prepares the data port for peers, if the client accepts any. Returns where it listens.
    fn accept_peers(&mut self, master: &MasterClient) -> Result<Option<SocketAddr>, StartError> {
        let anywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let listen = self.listen.or((self.segment_size > NOTHING).then_some(anywhere));
        let settings = &mut self.settings;
        if let Some(listen) = listen {
            let leader = master.preferred_addr();
            let towards = leader.as_deref().unwrap_or(&settings.pulse.master);
            let host = advertised(&*settings.environment, listen, self.advertise, towards)?;
            let others = std::mem::take(&mut self.advertise_also);
            self.node
                .accept_peers(listen, std::iter::once(host.to_string()).chain(others).collect());
        }
        #[cfg(target_os = "linux")]
        {
            settings.shares = self.node.shm.is_some();
        }
        settings.pulse.peers = listen.and_then(|_| self.node.of_peer());
        #[cfg(feature = "tls")]
        {
            settings.pulse.certificates = self.node.certificates();
        }
        Ok(listen)
    }

    /// The memory that values are read into, with so many bytes for conversions, and the hot cache.
    fn memory_of_reads(
        &self,
        for_conversions: u64,
    ) -> Result<(BufferPool, Option<HotCache>), StartError> {
        let local_buffer = self.local_buffer.unwrap_or(LOCAL_BUFFER).as_u64();
        let size = ByteSize::bytes(local_buffer.saturating_add(for_conversions));
        let no_room = |size| move |source| StartError::LocalBuffer { size, source };
        let pool = BufferPool::new(usize::try_from(size.as_u64()).unwrap_or(usize::MAX))
            .map_err(no_room(size))?;
        let hot = HotCache::new(self.hot_cache).map_err(no_room(self.hot_cache.capacity))?;
        Ok((pool, hot))
    }

    /// Opens the shared tier, if there is to be one.
    async fn open_shared_tier(
        &mut self,
        storage: &StorageConfig,
        sealing: &Sealing,
    ) -> (Option<SharedTier>, Option<LaterTier>) {
        let own = OwnSettings {
            tier: self.shared_tier.take(),
            root: self.storage_root.take(),
            bucket: self.shared_bucket.take(),
            files: self.files,
        };
        let opened = SharedTier::open(storage, &self.settings.environment, sealing, own).await;
        let (tier, later) = opened.unzip();
        (tier, later.flatten())
    }

    /// Opens the client's local disk, if it is to have one.
    async fn open_local_disk(
        &mut self,
        storage: &StorageConfig,
        node: &Node,
        segments: &Segments,
        sealing: &Sealing,
    ) -> Result<(LocalDiskSlot, Option<LaterLocalDisk>), StartError> {
        let Some(place) = self.own_place.take() else {
            return Ok((LocalDiskSlot::default(), None));
        };
        let cluster_id = &storage.settings.cluster_id;
        let environment = &self.settings.environment;
        Ok(LocalDiskSlot::open(place, cluster_id, node, segments, environment, sealing).await?)
    }

    /// Mounts the segment that is kept, as the client of the process before if the master knows it.
    async fn mount_kept(
        &mut self,
        kept: KeptMemory,
        segments: &Segments,
        link: &mut MasterLink,
        has_disk: bool,
    ) -> Result<(), StartError> {
        let (name, own) = (self.segment_name.take(), link.id);
        link.id = segments.mount_kept(&link.master, own, kept, name, self.medium).await?;
        if link.id != own && !has_disk {
            // The process before may have had a disk, which the master takes for this client's.
            let _ = link.master.unmount_local_disk(link.id, true).await;
        }
        Ok(())
    }

    /// The segment that the client begins with, unless it is one that is kept.
    fn first_segment(&mut self) -> Option<SegmentOptions> {
        let options = SegmentOptions::new(self.segment_size).memory(self.memory.clone());
        let options = options.medium(self.medium).device(self.device);
        let options = match self.segment_name.take() {
            Some(name) => options.name(name),
            None => options,
        };
        (self.segment_size > NOTHING && !self.keep_segment).then_some(options)
    }
}

/// Mounts the first segment, and starts what a client does by itself.
async fn begin(
    core: &Arc<Core>,
    first_segment: Option<SegmentOptions>,
    listen: Option<SocketAddr>,
    later_tier: Option<LaterTier>,
    later_disk: Option<LaterLocalDisk>,
) -> Result<(), StartError> {
    if let Some(segment) = first_segment {
        core.mount(segment).await?;
    }
    if let Some(first) = core.segments.list().pop() {
        core.first_segment.set(first.name).expect("nobody else has the client yet");
        core.start_heartbeat().map_err(StartError::Thread)?;
    }
    // Only after a successful start, so that an error is the only message.
    if let Some(listen) = listen {
        let towards = core.link.master.preferred_addr();
        let towards = towards.as_deref().unwrap_or(&core.settings.pulse.master);
        warn_of_loopback(listen, core.transfers.transport.endpoint(), towards);
    }
    core.log_figures();
    core.send_reports();
    start_shared_tier(core, later_tier);
    if core.tiers.local_disk.get().is_some() || later_disk.is_some() {
        core.start_heartbeat().map_err(StartError::Thread)?;
    }
    start_local_disk(core, later_disk).await;
    #[cfg(feature = "c2c")]
    crate::client::c2c::start(core);
    Ok(())
}

/// Warns when the master keeps the objects of all tenants together.
fn warn_of_one_tenant(storage: &StorageConfig) {
    if storage.tenants_are_together && storage.tenant != TenantId::DEFAULT {
        tracing::warn!(
            tenant = %storage.tenant,
            "the master does not keep tenants apart: this client shares its objects with those of \
             all tenants; start the master with --enable_multi_tenants"
        );
    }
}

/// Whether Prometheus takes this as a label's name that is not its own.
fn is_label(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let mut bytes = name.bytes();
    bytes.next().is_some_and(letter)
        && bytes.all(|byte| letter(byte) || byte.is_ascii_digit())
        && !name.starts_with("__")
}

/// Has masters be found in etcd whose address says so.
fn resolve_in_etcd(master: &str, rpc: &mut ClientConfig) -> Result<(), StartError> {
    if !master.starts_with("etcd://") || rpc.has_resolver("etcd") {
        return Ok(());
    }
    #[cfg(feature = "etcd")]
    rpc.resolver("etcd", Arc::new(crate::EtcdResolver::new()));
    #[cfg(not(feature = "etcd"))]
    return Err(StartError::NeedsEtcd { address: master.into() });
    #[cfg(feature = "etcd")]
    Ok(())
}

/// The address to tell peers: one that they can use, so never the unspecified
/// one.
fn advertised(
    environment: &dyn Environment,
    listen: SocketAddr,
    chosen: Option<IpAddr>,
    master: &str,
) -> Result<IpAddr, StartError> {
    if let Some(address) = chosen {
        return Ok(address);
    }
    if !listen.ip().is_unspecified() {
        return Ok(listen.ip());
    }
    environment.address_towards(master).map_err(|source| StartError::NoAddress { source })
}

/// A node that listens on every address, or has its master on another host, but is reached by a
/// loopback address serves this host alone, which is seldom meant. It is what the name of a host
/// often resolves to on that host.
fn warn_of_loopback(listen: SocketAddr, endpoint: Option<&Endpoint>, master: &str) {
    let Some(endpoint) = endpoint else { return };
    let told = endpoint.address().parse::<SocketAddr>();
    let is_meant = !listen.ip().is_unspecified() && is_loopback(master);
    if !is_meant && told.is_ok_and(|told| told.ip().is_loopback()) {
        tracing::warn!(
            %endpoint,
            "advertising a loopback address: clients on other hosts cannot connect; set \
             local_hostname (--host of mc-node) to an address by which they reach this host"
        );
    }
}

/// Whether the address of a master is one that no other host reaches.
fn is_loopback(master: &str) -> bool {
    match master.parse::<SocketAddr>() {
        Ok(address) => address.ip().is_loopback(),
        Err(_) => master.starts_with("unix:") || master.starts_with("localhost:"),
    }
}
