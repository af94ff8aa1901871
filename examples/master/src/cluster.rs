//! The part of this master among several, from the command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::ArgAction;
use mc_cli::parse_duration;
use mc_ha::election::etcd::EtcdElection;
use mc_ha::election::{ElectionError, Member, MemberError};
use mc_ha::etcd::{EtcdConfig, EtcdConfigError};
use mc_rpc::Token;
use mc_rpc::tls::ClientTls;
use mc_server::{ClusterConfig, JournalConfig};

use crate::access::AccessArgs;
use crate::args::parse_host;
use crate::etcd::{EtcdArgs, EtcdArgsError};

/// The flags.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "High availability")]
pub(crate) struct ClusterArgs {
    /// Be one of several masters, of which etcd elects the leader. Clients take
    /// etcd://HOST:PORT;HOST:PORT as the master's address, or a list of all masters.
    #[arg(
        long = "enable_ha",
        num_args = 0..=1,
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    enable_ha: Option<bool>,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// The cluster's name: clusters of other names may use the same etcd [default: default] and the
    /// same --root_fs_dir [default: mooncake_cluster].
    #[arg(long = "cluster_id", value_name = "NAME", env = "MC_STORE_CLUSTER_ID")]
    cluster_id: Option<String>,
    /// The address to listen on, when it is not the one of --rpc_address.
    #[arg(long = "rpc_listen", value_name = "HOST", value_parser = parse_host)]
    listen: Option<IpAddr>,
    /// This master's name among the others [default: its address].
    #[arg(long = "ha_member_id", value_name = "NAME")]
    member_id: Option<String>,
    /// The time after which a leader that is not heard of is replaced, from 500ms to 1h. Below 4s an
    /// election in etcd can end the term of a leader that is well.
    #[arg(long = "ha_lease_ttl", value_name = "MS|DURATION", default_value = "6s", value_parser = parse_duration)]
    ha_lease_ttl: Duration,
    /// Have etcd forget the older history of all of its keys, also of those of other users of this
    /// etcd. Without this flag that is done while etcd has keys of masters alone.
    #[arg(
        long = "etcd_compact_shared",
        num_args = 0..=1,
        default_value = "false",
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    etcd_compact_shared: bool,
    /// When a change is acknowledged: async, when --durability allows it; semi_sync, when also every
    /// standby in sync has it on disk.
    #[arg(long = "replication", value_name = "async|semi_sync", default_value = "async")]
    replication: Replication,
    /// How far a standby may be behind and still be in sync.
    #[arg(long = "sync_timeout", value_name = "MS|DURATION", default_value = "2s", value_parser = parse_duration)]
    sync_timeout: Duration,
    /// Time without a leader after which a standby that is not in sync takes over, which loses the
    /// acknowledged changes that it lacks; never for none [default: 10s].
    #[arg(long = "unclean_takeover_after", value_name = "DURATION|never", value_parser = parse_patience)]
    unclean_takeover_after: Option<Patience>,
    /// The most that a standby may lack when it takes over without being in sync: the last leader
    /// must have made it within this time.
    #[arg(long = "unclean_takeover_bound", value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    unclean_takeover_bound: Duration,
    /// Time in which the masters of a cluster that has no record of any leader should have started.
    #[arg(long = "ha_first_start_wait", value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    first_start_wait: Duration,
    /// Lead as soon as no master leads, whatever this one's journal holds or lacks: for an administrator
    /// who gives up what the others have. Holds until a leader was seen.
    #[arg(long = "ha_force_takeover")]
    force_takeover: bool,
    /// File with the token of an administrator, which this master shows to the leader when the
    /// masters have an --access_file.
    #[arg(long = "ha_token_file", value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// Authorities of the masters' certificates (PEM), when they speak TLS.
    #[arg(long = "ha_tls_ca", value_name = "PATH")]
    tls_ca: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Replication {
    Async,
    #[value(name = "semi_sync", alias = "semi-sync")]
    SemiSync,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    Never,
    After(Duration),
}

fn parse_patience(text: &str) -> Result<Patience, mc_cli::ParseDurationError> {
    match text.trim() {
        "never" => Ok(Patience::Never),
        text => parse_duration(text).map(Patience::After),
    }
}

/// Why this master cannot be one of several.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error(transparent)]
    Etcd(#[from] EtcdArgsError),
    #[error("--etcd_endpoints has no effect without --enable_ha")]
    NotEnabled,
    #[error(
        "--enable_ha needs --rpc_address: the address of this host by which clients and other \
         masters reach it; --rpc_listen=0.0.0.0 listens on every one"
    )]
    NoAddress,
    #[error("--enable_ha needs a fixed --rpc_port")]
    NoPort,
    #[error(transparent)]
    Settings(#[from] EtcdConfigError),
    #[error("--ha_member_id: {0}")]
    Member(#[from] MemberError),
    #[error(transparent)]
    Election(#[from] ElectionError),
}

impl ClusterArgs {
    /// The address to listen on, of a master that advertises `address`.
    pub(crate) fn listen(&self, address: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.listen.unwrap_or(address.ip()), address.port())
    }

    /// The cluster's name, if one was given.
    pub(crate) fn cluster_id(&self) -> Option<&str> {
        self.cluster_id.as_deref()
    }

    /// Returns whether this master is one of several.
    pub(crate) fn is_on(&self) -> Result<bool, ClusterError> {
        // Mooncake's files name an etcd and say that it is not to be used.
        if self.etcd.is_named() && self.enable_ha.is_none() {
            return Err(ClusterError::NotEnabled);
        }
        Ok(self.enable_ha == Some(true))
    }

    /// How this master takes part. Reads files.
    pub(crate) fn config(
        &self,
        address: SocketAddr,
        access: &AccessArgs,
        journal: JournalConfig,
    ) -> Result<ClusterConfig, ClusterError> {
        let etcd = self.etcd(address)?;
        if etcd.has_short_lease() {
            tracing::warn!(
                "--ha_lease_ttl={:?} may be over before etcd has elected a leader of its own, which \
                 takes 1 to 4 s with etcd's defaults: the masters then change leaders although all \
                 of them are well; write 4s or more, unless etcd's --election-timeout is shorter",
                self.ha_lease_ttl
            );
        }
        let member = self.member(address)?;
        let election = Arc::new(EtcdElection::start(&etcd)?);
        let mut config = ClusterConfig::new(member, election, journal);
        config.replication.semi_synchronous = self.replication == Replication::SemiSync;
        config.replication.sync_timeout = self.sync_timeout;
        config.candidacy.unclean_takeover_after = match self.unclean_takeover_after {
            Some(Patience::Never) => None,
            Some(Patience::After(time)) => Some(time),
            None => Some(Duration::from_secs(10)),
        };
        config.candidacy.sync_slack = self.sync_timeout + Duration::from_secs(10);
        config.candidacy.unclean_bound = self.unclean_takeover_bound;
        config.candidacy.first_start_wait = self.first_start_wait;
        config.candidacy.is_forced = self.force_takeover;
        config.client.token = self.token_file.as_ref().map(Token::from_file);
        config.client.tls = self.client_tls(access);
        config.client.software = concat!("mc-master/", env!("CARGO_PKG_VERSION")).into();
        Ok(config)
    }

    /// Checks what [`config`](Self::config) refuses, without an election. Reads files.
    pub(crate) fn check(&self, address: SocketAddr) -> Result<(), ClusterError> {
        if self.is_on()? {
            self.etcd(address)?;
            self.member(address)?;
        }
        Ok(())
    }

    /// The file with the token that this master shows to the leader.
    pub(crate) fn token_file(&self) -> Option<&PathBuf> {
        self.token_file.as_ref()
    }

    /// How this master speaks TLS with the others, if it does.
    pub(crate) fn client_tls(&self, access: &AccessArgs) -> Option<ClientTls> {
        let tls = ClientTls::new(self.tls_ca.as_ref()?);
        Some(match access.certificate() {
            Some((cert, key)) => tls.identity(cert, key),
            None => tls,
        })
    }

    fn member(&self, address: SocketAddr) -> Result<Member, ClusterError> {
        let address = address.to_string();
        let id = self.member_id.as_deref().unwrap_or(&address);
        Ok(Member::new(id, &address)?)
    }

    /// The etcd, for a master at this address. Reads the password.
    fn etcd(&self, address: SocketAddr) -> Result<EtcdConfig, ClusterError> {
        let etcd = self.etcd.config()?;
        if address.ip().is_unspecified() {
            return Err(ClusterError::NoAddress);
        }
        if address.port() == 0 {
            return Err(ClusterError::NoPort);
        }
        let etcd = match &self.cluster_id {
            Some(id) => etcd.with_cluster_id(id)?,
            None => etcd,
        };
        let etcd = etcd.with_lease_ttl(self.ha_lease_ttl)?;
        Ok(etcd.with_compaction_for_others(self.etcd_compact_shared))
    }
}
