//! From settings to a client.

use std::net::SocketAddr;

use mc_transport::topology::{Discovery, Topology};
use mc_transport::{Copiers, HugePages, Memory, MemoryOptions, NodeConfig, TcpConfig};
use mc_types::{BoxFuture, ByteSize, MediaType};
use tracing::{info, warn};

use super::{ClientConfig, ConfigError, Protocol};
use crate::blocking;
use crate::client::{Client, ClientBuilder, HotCacheConfig, LocalDiskOptions};
use crate::error::StartError;
use crate::local_host::LocalHost;

/// The address at which pages are served by default; the port is Mooncake's.
#[cfg(feature = "http")]
const HTTP_HOST: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
#[cfg(feature = "http")]
const HTTP_PORT: u16 = 9300;

/// Hands on to methods of a builder what settings say.
macro_rules! hand_on {
    ($config:ident, $builder:ident: $($field:ident => $method:ident,)*) => {
        $(if let Some(value) = &$config.$field {
            $builder = $builder.$method(value.clone());
        })*
    };
}

impl ClientBuilder {
    /// Describes the client that `config` says. What it does not say can be said, and what
    /// it says can be replaced, by the other methods.
    ///
    /// May block: it looks at the network devices when they are to be chosen, and a host's
    /// name up. Settings that have no effect are logged.
    ///
    /// # Errors
    /// [`ConfigError`] when settings contradict each other, or this host cannot do what
    /// they say.
    ///
    /// ```
    /// # mc_cluster_testkit::with_master(|master| async move {
    /// use mc_store::{ClientBuilder, ClientConfig, ClientRole};
    /// let text = r#"{
    ///     "local_hostname": "localhost",
    ///     "metadata_server": "http://localhost:8080/metadata",
    ///     "global_segment_size": 4194304,
    ///     "local_buffer_size": "16MB",
    ///     "protocol": "tcp",
    ///     "device_name": ""
    /// }"#;
    /// let config = ClientConfig::from_json(text)?;
    /// let client = ClientBuilder::from_config(&config)?.master(master).connect().await?;
    /// assert_eq!(client.role(), ClientRole::Both);
    /// # client.shutdown().await;
    /// # Ok(()) });
    /// ```
    pub fn from_config(config: &ClientConfig) -> Result<Self, ConfigError> {
        let mut builder = Client::builder().rpc(config.rpc_config()?).node(node(config)?);
        builder = builder.segment_memory(memory(config)?);
        if let Some(reach) = reach(config)? {
            builder = builder.listen(reach.listen);
            if let Some(host) = &reach.host {
                builder = builder.host(host);
            }
        }
        if let Some(url) = config.metadata_server.as_ref().filter(|url| !url.is_empty()) {
            info!(
                metadata_server = ?url,
                "metadata_server has no effect: the master itself says where segments are"
            );
        }
        hand_on! {
            config, builder:
            master => master,
            global_segment_size => segment_size,
            segment_name => segment_name,
            segment_medium => segment_medium,
            segment_device => segment_device,
            keep_segment => keep_segment,
            local_buffer_size => local_buffer,
            heartbeat_interval => heartbeat_interval,
            put_wait => put_wait,
            put_timeout => put_timeout,
            local_disk_timeout => local_disk_timeout,
            peer_disk_timeout => peer_disk_timeout,
            shared_tier_timeout => shared_tier_timeout,
            local_memcpy => local_copy,
            client_metric => metrics,
            client_metric_interval => metrics_interval,
        }
        builder = builder.below_memory(config)?;
        if config.checksum == Some(false) {
            info!("checksum = false has no effect: every value is checked");
        }
        builder = local_disk(config, builder)?;
        builder = pages(config, builder)?;
        builder = builder.hot_cache(hot_cache(config));
        if let Some(cluster) = &config.cluster_id {
            builder = builder.metrics_label("cluster_id", &**cluster);
        }
        Ok(builder)
    }

    /// Takes what `config` says of the shared tier and of the keys below memory, and nothing else of it.
    ///
    /// # Errors
    /// [`ConfigError`] when the place of the shared tier is none, and when this build has no encryption.
    pub fn below_memory(self, config: &ClientConfig) -> Result<Self, ConfigError> {
        let mut builder = self;
        hand_on! {
            config, builder:
            storage_root_dir => storage_root,
            file_sync => file_sync,
            dfs_mode => dfs_mode,
        }
        if let Some(url) = &config.shared_tier {
            builder = builder.shared_place(url.parse()?);
        }
        tier_keys(config, builder)
    }
}

impl Client {
    /// Joins the cluster that the environment names, see [`ClientConfig::from_env`].
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running then.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use mc_store::{Client, StartError};
    /// // With no variable that names a master there is nothing to join.
    /// let outcome = Client::from_env().await;
    /// # if std::env::var_os("MOONCAKE_MASTER").is_none() {
    /// assert!(matches!(outcome, Err(StartError::NoMaster)));
    /// # }
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn from_env() -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(
            async move { ClientBuilder::from_config(&ClientConfig::from_env()?)?.connect().await },
        )
    }
}

impl blocking::Client {
    /// Joins the cluster that the environment names, see [`ClientConfig::from_env`].
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running then.
    ///
    /// # Panics
    /// On a thread that runs async tasks.
    pub fn from_env() -> Result<Self, StartError> {
        ClientBuilder::from_config(&ClientConfig::from_env()?)?.connect_blocking()
    }
}

/// The disk that objects go to when memory has no room for them.
fn local_disk(config: &ClientConfig, builder: ClientBuilder) -> Result<ClientBuilder, ConfigError> {
    let path = config.ssd_offload_path.as_ref().filter(|path| !path.as_os_str().is_empty());
    match (config.enable_ssd_offload, path) {
        (Some(true), Some(path)) => {
            let disk = LocalDiskOptions::new(path);
            Ok(builder.local_disk(match config.ssd_offload_size {
                Some(size) if size.as_u64() > 0 => disk.size(size),
                _ => disk,
            }))
        }
        (Some(true), None) => Err(ConfigError::Missing {
            key: "enable_ssd_offload",
            needs: "ssd_offload_path",
            reason: "name a directory on the SSD",
        }),
        _ => Ok(builder),
    }
}

/// The port of the client's pages.
#[cfg(feature = "http")]
fn pages(config: &ClientConfig, builder: ClientBuilder) -> Result<ClientBuilder, ConfigError> {
    let host = config.client_http_host.unwrap_or(HTTP_HOST);
    let port = config.client_http_port.unwrap_or(HTTP_PORT);
    let wanted = config.enable_client_http_server == Some(true);
    Ok(if wanted { builder.http(SocketAddr::new(host, port)) } else { builder })
}

#[cfg(feature = "encryption")]
fn tier_keys(config: &ClientConfig, builder: ClientBuilder) -> Result<ClientBuilder, ConfigError> {
    let Some(source) = config.tier_keys.as_ref().filter(|source| !source.is_empty()) else {
        return Ok(builder);
    };
    let Ok(source) = source.parse();
    Ok(builder.tier_keys(source))
}

#[cfg(not(feature = "encryption"))]
fn tier_keys(config: &ClientConfig, builder: ClientBuilder) -> Result<ClientBuilder, ConfigError> {
    if config.tier_keys.as_ref().is_some_and(|source| !source.is_empty()) {
        let (key, feature) = ("tier_keys", "encryption");
        return Err(ConfigError::NeedsFeature { key, feature });
    }
    Ok(builder)
}

#[cfg(not(feature = "http"))]
fn pages(config: &ClientConfig, builder: ClientBuilder) -> Result<ClientBuilder, ConfigError> {
    if config.enable_client_http_server == Some(true) {
        let (key, feature) = ("enable_client_http_server", "http");
        return Err(ConfigError::NeedsFeature { key, feature });
    }
    Ok(builder)
}

/// The cache of the client's own.
fn hot_cache(config: &ClientConfig) -> HotCacheConfig {
    let mut cache = HotCacheConfig::new(config.local_hot_cache_size.unwrap_or_default());
    if let Some(most) = config.local_hot_block_size {
        cache.max_object = most;
    }
    if let Some(times) = config.local_hot_admission_threshold {
        cache.admission = times;
    }
    if let Some(policy) = config.local_hot_cache_policy {
        cache.policy = policy;
    }
    cache
}

#[cfg(feature = "tls")]
fn tls(config: &ClientConfig, rpc: &mut mc_rpc::ClientConfig) -> Result<(), ConfigError> {
    use mc_rpc::tls::ClientTls;

    let lacks = |key, needs| {
        let reason = "set both, or neither";
        Err(ConfigError::Missing { key, needs, reason })
    };
    let Some(ca) = &config.tls_ca else {
        return match (&config.tls_cert, &config.tls_key, &config.tls_server_name) {
            (Some(_), _, _) => lacks("tls_cert", "tls_ca"),
            (_, Some(_), _) => lacks("tls_key", "tls_ca"),
            (_, _, Some(_)) => lacks("tls_server_name", "tls_ca"),
            _ => Ok(()),
        };
    };
    let mut tls = ClientTls::new(ca);
    match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => tls = tls.identity(cert, key),
        (Some(_), None) => return lacks("tls_cert", "tls_key"),
        (None, Some(_)) => return lacks("tls_key", "tls_cert"),
        (None, None) => {}
    }
    if let Some(name) = &config.tls_server_name {
        tls = tls.server_name(&**name);
    }
    rpc.tls = Some(tls);
    Ok(())
}

#[cfg(not(feature = "tls"))]
fn tls(config: &ClientConfig, _: &mut mc_rpc::ClientConfig) -> Result<(), ConfigError> {
    let given = [
        ("tls_ca", config.tls_ca.is_some()),
        ("tls_cert", config.tls_cert.is_some()),
        ("tls_key", config.tls_key.is_some()),
        ("tls_server_name", config.tls_server_name.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((key, _)) => Err(ConfigError::NeedsFeature { key, feature: "tls" }),
        None => Ok(()),
    }
}

impl ClientConfig {
    /// Returns the settings for connecting to the master, for [`ClientBuilder::rpc`] and
    /// [`mc_rpc::MasterClient`]. Files of certificates and tokens are read when it connects.
    ///
    /// # Errors
    /// [`ConfigError`] for settings that lack another one, and for those of a feature that this
    /// build does not have.
    pub fn rpc_config(&self) -> Result<mc_rpc::ClientConfig, ConfigError> {
        let mut rpc = mc_rpc::ClientConfig::default();
        rpc.software = crate::client::SOFTWARE.into();
        if let Some(time) = self.rpc_timeout {
            rpc.call_timeout = time;
        }
        if let Some(time) = self.rpc_connect_timeout {
            rpc.connect_timeout = time;
        }
        rpc.outage_timeout = self.rpc_outage_timeout;
        if let Some(most) = self.rpc_connections {
            rpc.connections = most.get();
        }
        rpc.token = self.token_file.as_ref().map(mc_rpc::Token::from_file);
        rpc.tenant = self.tenant_id.clone().unwrap_or_default();
        tls(self, &mut rpc)?;
        super::etcd::add_resolver(self, &mut rpc)?;
        Ok(rpc)
    }

    /// Returns the transports that the settings describe, for [`ClientBuilder::node`]. Reads the
    /// files of certificates, and looks for network devices if the settings say so.
    ///
    /// # Errors
    /// [`ConfigError`] for settings that do not go together, files that cannot be used, and
    /// devices that are not there.
    pub fn node_config(&self) -> Result<NodeConfig, ConfigError> {
        node(self)
    }
}

/// The way of the bytes.
fn node(config: &ClientConfig) -> Result<NodeConfig, ConfigError> {
    config.protocol.unwrap_or_default().warn_if_missing();
    let mut tcp = TcpConfig::default();
    if let Some(links) = config.links_per_peer {
        tcp.links_per_peer = links;
    }
    if let Some(time) = config.transfer_connect_timeout {
        tcp.connect_timeout = time;
    }
    if let Some(time) = config.transfer_stall_timeout {
        tcp.stall_timeout = time;
    }
    if let Some(most) = config.transfer_max_connections {
        tcp.max_connections = most.get();
    }
    if let Some(most) = config.transfer_max_connections_per_address {
        tcp.max_connections_per_address = most.get();
    }
    let mut discovery = discovery(config);
    let topology = if discovery.auto { Some(Topology::read()?) } else { None };
    if let Some(topology) = &topology
        && config.auto_discovery != Some(true)
    {
        drop_unusable(&mut discovery, topology);
    }
    if let Some(topology) = topology.filter(|_| discovery.auto) {
        let cards = discovery.select(&topology)?;
        // One address of each: two would make one card look like two.
        tcp.rails = cards.iter().filter_map(|card| card.addresses.first().copied()).collect();
        let names: Vec<&str> = cards.iter().map(|card| &*card.name).collect();
        info!(interfaces = names.join(","), "using these network interfaces together");
    }
    let mut node = NodeConfig::new(tcp);
    if let Some(threads) = config.copy_threads {
        node.copiers = Copiers::new(threads);
    }
    if config.shared_memory == Some(false) {
        node.disable_shared_memory();
    }
    encrypt(config, &mut node)?;
    #[cfg(all(feature = "rdma", target_os = "linux"))]
    if config.protocol == Some(Protocol::Rdma) {
        node.add_shortcut(rdma(config, &node));
    }
    Ok(node)
}

/// RDMA, beside TCP.
#[cfg(all(feature = "rdma", target_os = "linux"))]
fn rdma(config: &ClientConfig, node: &NodeConfig) -> mc_transport_rdma::RdmaConfig {
    if config.transfer_tls_ca.is_some() {
        warn!("bytes that travel by RDMA are not encrypted; use protocol quic or tcp for that");
    }
    let mut rdma = mc_transport_rdma::RdmaConfig::default();
    // Unlike over TCP, all devices are used where none is named.
    rdma.devices = discovery(config).filters;
    rdma.near_numa_node = config.numa_node;
    rdma.connect_timeout = node.tcp.connect_timeout;
    // This limits a whole request, not silence: it has a default of its own.
    if let Some(time) = config.transfer_stall_timeout {
        rdma.stall_timeout = time;
    }
    rdma.max_connections = node.tcp.max_connections;
    rdma.gid_index = config.rdma_gid_index;
    rdma.traffic_class = config.rdma_traffic_class.unwrap_or(rdma.traffic_class);
    rdma.service_level = config.rdma_service_level.unwrap_or(rdma.service_level);
    rdma.pkey_index = config.rdma_pkey_index.unwrap_or(rdma.pkey_index);
    rdma.hop_limit = config.rdma_hop_limit.unwrap_or(rdma.hop_limit);
    rdma.relaxed_ordering = config.rdma_relaxed_ordering.unwrap_or(rdma.relaxed_ordering);
    rdma
}

/// The certificates that bytes travel under, if there are any.
#[cfg(feature = "tls")]
fn encrypt(config: &ClientConfig, node: &mut NodeConfig) -> Result<(), ConfigError> {
    use std::sync::Arc;

    use mc_rpc::tls::{ClientAuth, ClientTls, ServerTls, TlsFiles};
    use mc_transport::TcpTls;

    let wanted = config.protocol == Some(Protocol::Quic);
    let files = [
        ("transfer_tls_ca", &config.transfer_tls_ca),
        ("transfer_tls_cert", &config.transfer_tls_cert),
        ("transfer_tls_key", &config.transfer_tls_key),
    ];
    let [(_, Some(ca)), (_, Some(cert)), (_, Some(key))] = files else {
        let given = files.iter().find(|(_, file)| file.is_some()).map(|(key, _)| *key);
        let Some(key) = given.or(wanted.then_some("protocol")) else { return Ok(()) };
        let missing = files.iter().find(|(_, file)| file.is_none());
        let needs = missing.map_or("transfer_tls_key", |(key, _)| *key);
        let reason = "peers show each other certificates; set all three transfer_tls_ settings";
        return Err(ConfigError::Missing { key, needs, reason });
    };
    let client = ClientTls::new(ca).identity(cert, key);
    let files = TlsFiles::new(cert, key).client_ca(ca, ClientAuth::Required);
    let server = Arc::new(ServerTls::load(files)?);
    #[cfg(feature = "quic")]
    {
        let mut quic = mc_transport_quic::QuicConfig::connecting(client.clone());
        quic.connect_timeout = node.tcp.connect_timeout;
        quic.stall_timeout = node.tcp.stall_timeout;
        // The one that accepts peers.
        quic.server = wanted.then(|| Arc::clone(&server));
        node.add_carrier(quic);
    }
    #[cfg(not(feature = "quic"))]
    if wanted {
        return Err(ConfigError::NeedsFeature { key: "protocol", feature: "quic" });
    }
    node.tcp.tls = Some(TcpTls::new(client).server(server));
    Ok(())
}

#[cfg(not(feature = "tls"))]
fn encrypt(config: &ClientConfig, _: &mut NodeConfig) -> Result<(), ConfigError> {
    if config.protocol == Some(Protocol::Quic) {
        return Err(ConfigError::NeedsFeature { key: "protocol", feature: "quic" });
    }
    let given = [
        ("transfer_tls_ca", config.transfer_tls_ca.is_some()),
        ("transfer_tls_cert", config.transfer_tls_cert.is_some()),
        ("transfer_tls_key", config.transfer_tls_key.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((key, _)) => Err(ConfigError::NeedsFeature { key, feature: "tls" }),
        None => Ok(()),
    }
}

/// Which network devices to use: named ones, or those that are found.
fn discovery(config: &ClientConfig) -> Discovery {
    let list = |names: &Option<Vec<String>>| names.clone().unwrap_or_default();
    let (named, filters) = (list(&config.device_name), list(&config.device_filters));
    let found = config.auto_discovery == Some(true);
    if found && !named.is_empty() {
        warn!("device_name has no effect with auto_discovery; name the devices in device_filters");
    }
    if !found && !filters.is_empty() {
        warn!("device_filters has no effect without auto_discovery");
    }
    let mut discovery = Discovery::default();
    discovery.auto = found || !named.is_empty();
    discovery.filters = if found { filters } else { named };
    discovery.near = config.numa_node;
    discovery
}

/// Leaves out the named devices that this host cannot use, with a warning, and uses none if none is
/// left: configurations of Mooncake name the RDMA devices of other hosts, which it disregards over
/// TCP.
fn drop_unusable(discovery: &mut Discovery, topology: &Topology) {
    let mut device = discovery.clone();
    let (usable, unusable): (Vec<_>, Vec<_>) =
        std::mem::take(&mut discovery.filters).into_iter().partition(|name| {
            device.filters = vec![name.clone()];
            device.select(topology).is_ok()
        });
    if !unusable.is_empty() {
        let instead = if usable.is_empty() { "the system chooses" } else { "the others are used" };
        warn!(
            "device_name: this host has no usable network device {}; {instead}",
            unusable.join(", ")
        );
    }
    discovery.auto = !usable.is_empty();
    discovery.filters = usable;
}

/// Returns the kind of memory of the segment.
fn memory(config: &ClientConfig) -> Result<MemoryOptions, ConfigError> {
    let mut memory = Memory::options();
    let huge = config.use_hugepage == Some(true);
    if let Some(path) = &config.segment_file {
        let excluded = |second| ConfigError::Conflict {
            first: "segment_file",
            second,
            reason: "a file has the pages that its file system gives; leave one out",
        };
        if huge {
            return Err(excluded("use_hugepage"));
        }
        if config.numa_node.is_some() {
            return Err(excluded("numa_node"));
        }
        memory = memory.file(path);
    } else if config.segment_medium == Some(MediaType::Ssd) {
        return Err(ConfigError::Missing {
            key: "segment_medium",
            needs: "segment_file",
            reason: "name a file on the SSD, which then backs the memory",
        });
    }
    if config.keep_segment == Some(true) {
        if config.segment_file.is_none() {
            return Err(ConfigError::Missing {
                key: "keep_segment",
                needs: "segment_file",
                reason: "name the file that the next process finds the memory in",
            });
        }
        if config.protocol == Some(Protocol::Rdma) {
            return Err(ConfigError::Conflict {
                first: "keep_segment",
                second: "protocol",
                reason: "a device may still write by RDMA when the process has been killed; leave one out",
            });
        }
    }
    let takes_gpu = config.segment_medium == Some(MediaType::Vram) && config.segment_file.is_none();
    if config.segment_device.is_some() && !takes_gpu {
        return Err(ConfigError::Conflict {
            first: "segment_device",
            second: "segment_medium",
            reason: "segment_device is for a segment of vram without a segment_file; leave it out",
        });
    }
    if huge {
        memory = memory.huge_pages(HugePages::preferred(config.hugepage_size.unwrap_or_default()));
    }
    if let Some(node) = config.numa_node {
        memory = memory.numa_node(node);
    }
    Ok(memory)
}

/// Where to listen, and what to tell peers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reach {
    listen: SocketAddr,
    host: Option<LocalHost>,
}

fn reach(config: &ClientConfig) -> Result<Option<Reach>, ConfigError> {
    let contributes = config.global_segment_size.is_some_and(|size| size > ByteSize::bytes(0));
    let host = config.local_hostname.as_deref().map(str::trim).filter(|host| !host.is_empty());
    let Some(host) = host.filter(|_| contributes) else {
        return Ok(config.listen.map(|listen| Reach { listen, host: None }));
    };
    let host = LocalHost::resolve(host)
        .map_err(|source| ConfigError::Host { host: super::shown(host), source })?;
    let listen = match (config.listen, host.port()) {
        (Some(listen), Some(port)) if listen.port() != port => {
            return Err(ConfigError::Conflict {
                first: "listen",
                second: "local_hostname",
                reason: "they name different ports; leave one of them out",
            });
        }
        (Some(listen), _) => listen,
        (None, port) => host.listen(port.unwrap_or(0)),
    };
    Ok(Some(Reach { listen, host: Some(host) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_looked_up_only_for_a_segment() {
        let mut config =
            ClientConfig { local_hostname: Some("no such host".into()), ..ClientConfig::default() };
        assert_eq!(reach(&config).unwrap(), None);
        config.global_segment_size = Some(ByteSize::mib(1));
        let error = reach(&config).unwrap_err();
        assert!(matches!(&error, ConfigError::Host { host, .. } if host == "no such host"));
    }

    #[test]
    fn ports_must_agree() {
        let mut config = ClientConfig {
            local_hostname: Some("127.0.0.1:7".into()),
            listen: Some("0.0.0.0:8".parse().unwrap()),
            global_segment_size: Some(ByteSize::mib(1)),
            ..ClientConfig::default()
        };
        let error = reach(&config).unwrap_err();
        assert!(matches!(error, ConfigError::Conflict { first: "listen", .. }), "{error}");
        config.listen = Some("0.0.0.0:7".parse().unwrap());
        let agreed = reach(&config).unwrap().unwrap();
        assert_eq!(agreed.listen.to_string(), "0.0.0.0:7");
        config.listen = None;
        let (listen, host) = ("127.0.0.1:7".parse().unwrap(), LocalHost::resolve("127.0.0.1:7"));
        let expected = Reach { listen, host: host.ok() };
        assert_eq!(reach(&config).unwrap(), Some(expected));
    }

    #[test]
    fn limits_of_connections_reach_the_transport() {
        let limits = |toml: &str| {
            let tcp = node(&ClientConfig::from_toml(toml).unwrap()).unwrap().tcp;
            (tcp.max_connections, tcp.max_connections_per_address)
        };
        assert_eq!(limits(""), (16_384, 16_384));
        let both = "transfer_max_connections = 7\ntransfer_max_connections_per_address = 3";
        assert_eq!(limits(both), (7, 3));
    }

    #[cfg(all(feature = "rdma", target_os = "linux"))]
    #[test]
    fn marks_of_packets_reach_the_transport() {
        let rdma = |toml: &str| {
            let config = ClientConfig::from_toml(&format!("protocol = 'rdma'\n{toml}")).unwrap();
            let rdma = rdma(&config, &node(&config).unwrap());
            let marks = (rdma.traffic_class, rdma.service_level, rdma.hop_limit.get());
            (marks, rdma.gid_index, rdma.pkey_index, rdma.relaxed_ordering)
        };
        assert_eq!(rdma(""), ((0, 0, 64), None, 0, true));
        let all = "rdma_traffic_class = 106\nrdma_service_level = 3\nrdma_hop_limit = 8\n\
            rdma_gid_index = 3\nrdma_pkey_index = 1\nrdma_relaxed_ordering = false";
        assert_eq!(rdma(all), ((106, 3, 8), Some(3), 1, false));
    }

    #[test]
    fn devices_are_named_or_found() {
        let found = |toml: &str| {
            let discovery = discovery(&ClientConfig::from_toml(toml).unwrap());
            (discovery.auto, discovery.filters.join(","))
        };
        assert_eq!(found(""), (false, String::new()));
        assert_eq!(found("device_name = ''"), (false, String::new()));
        assert_eq!(found("device_name = 'a, b'"), (true, "a,b".into()));
        assert_eq!(found("auto_discovery = true"), (true, String::new()));
        assert_eq!(found("auto_discovery = true\ndevice_filters = ['a']"), (true, "a".into()));
        assert_eq!(found("device_filters = ['a']"), (false, String::new()));
        assert_eq!(
            found("auto_discovery = true\ndevice_name = 'b'\ndevice_filters = 'a'"),
            (true, "a".into())
        );
        let node = |toml: &str| node(&ClientConfig::from_toml(toml).unwrap());
        let unusable = "auto_discovery = true\ndevice_filters = 'no-such-device'";
        assert!(matches!(node(unusable), Err(ConfigError::Devices(_))));
        let rails = |toml: &str| node(toml).unwrap().tcp.rails.len();
        assert_eq!(rails("device_name = 'no-such-device'"), 0);
        assert_eq!(rails("device_name = 'no-such-device, lo'"), 1);
    }
}
