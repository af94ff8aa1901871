//! Flags that say how bytes travel between hosts.

use std::path::PathBuf;

use mc_store::{ClientConfig, NodeConfig, Protocol};

use crate::entry::UsageError;
use crate::refusal::cause_chain;

/// The way that bytes take between hosts.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Network")]
pub struct PathArgs {
    /// Protocol between hosts: tcp; quic, which needs --transfer_tls_ca, _cert and _key; or rdma,
    /// for peers that have it, too, and tcp for the others (a build with the feature rdma).
    #[arg(long = "protocol", value_name = "NAME", global = true)]
    pub protocol: Option<Protocol>,
    /// Network devices to use together, separated by commas; an RDMA device stands for its
    /// interfaces, and mlx5_0:2 for its second port [default: the system chooses; with protocol
    /// rdma all RDMA devices].
    #[arg(
        long = "device_name",
        alias = "device_names",
        value_name = "NAMES",
        default_value = "",
        hide_default_value = true,
        global = true
    )]
    pub device_name: String,
}

impl PathArgs {
    /// Adds the flags to `settings`.
    pub fn add_to(&self, settings: &mut ClientConfig) {
        settings.protocol = self.protocol;
        settings.device_name = ClientConfig::device_names(&self.device_name);
    }
}

/// Certificates for transfers between hosts.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Network")]
pub struct TransferArgs {
    /// Encrypt transfers between hosts; peers need certificates of these authorities (PEM).
    #[arg(long = "transfer_tls_ca", value_name = "PATH", global = true)]
    pub transfer_tls_ca: Option<PathBuf>,
    /// The certificate to show to peers, with its chain (PEM).
    #[arg(long = "transfer_tls_cert", value_name = "PATH", global = true)]
    pub transfer_tls_cert: Option<PathBuf>,
    /// That certificate's private key (PEM, without a pass phrase).
    #[arg(long = "transfer_tls_key", value_name = "PATH", global = true)]
    pub transfer_tls_key: Option<PathBuf>,
}

impl TransferArgs {
    /// Adds the flags to `settings`.
    pub fn add_to(&self, settings: &mut ClientConfig) {
        settings.transfer_tls_ca = self.transfer_tls_ca.clone();
        settings.transfer_tls_cert = self.transfer_tls_cert.clone();
        settings.transfer_tls_key = self.transfer_tls_key.clone();
    }

    /// Returns the transports that the flags and the environment describe. Reads the
    /// certificates.
    ///
    /// # Errors
    /// [`UsageError`] for unusable files, and for settings that exclude each other.
    pub fn node_config(&self, path: &PathArgs) -> Result<NodeConfig, UsageError> {
        let usage = |error: mc_store::ConfigError| UsageError::new(cause_chain(&error));
        let mut flags = ClientConfig::default();
        path.add_to(&mut flags);
        self.add_to(&mut flags);
        let said = ClientConfig::from_env().map_err(usage)?;
        said.overridden_by(flags).node_config().map_err(usage)
    }
}
