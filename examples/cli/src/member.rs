//! How a program joins a cluster as a member that may contribute memory: flags, and the
//! variables that the reference system's sample programs read.

use mc_store::{ClientBuilder, ClientConfig, ConfigError, Protocol};
use mc_types::ByteSize;

use crate::credentials::CredentialArgs;
use crate::entry::UsageError;

/// The flags, to be flattened into a program's own. A flag goes before its variable, and
/// that before the variables of [`ClientConfig::from_env`], which are heeded, too.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub struct MemberArgs {
    /// The master, as host:port.
    #[arg(
        long = "master_server_address",
        env = "MASTER_SERVER",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:50051"
    )]
    pub master: String,
    /// Accepted for the reference system's sake: the master itself says where segments are.
    #[arg(long = "metadata_server", env = "METADATA_ADDR", value_name = "URL")]
    pub metadata_server: Option<String>,
    /// Memory to contribute; 0 contributes none.
    #[arg(long = "global_segment_size", value_name = "SIZE", default_value = "3200MB")]
    pub segment_size: ByteSize,
    /// Name or address of this host to tell peers, with or without a port [default: the one
    /// that reaches the master, and a free port].
    #[arg(long = "local_hostname", env = "LOCAL_HOSTNAME", value_name = "HOST[:PORT]")]
    pub local_hostname: Option<String>,
    /// How bytes travel; this build knows tcp, and shares memory with processes of its host.
    #[arg(
        long = "protocol",
        env = "PROTOCOL",
        value_name = "NAME",
        default_value = "tcp",
        value_parser = parse_protocol
    )]
    protocol: Protocol,
    /// Devices of protocols that have them; tcp has none and disregards it.
    #[arg(
        long = "device_name",
        env = "DEVICE_NAME",
        value_name = "NAMES",
        default_value = "",
        hide_default_value = true
    )]
    pub device_name: String,
    /// What to show the master.
    #[command(flatten)]
    pub credentials: CredentialArgs,
}

#[derive(Debug, thiserror::Error)]
#[error("this build has tcp only; write --protocol=tcp or PROTOCOL=tcp, or leave it out")]
struct NotBuilt;

fn parse_protocol(text: &str) -> Result<Protocol, NotBuilt> {
    if text == "tcp" { Ok(Protocol::Tcp) } else { Err(NotBuilt) }
}

/// Why flags and variables do not describe a member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// Credentials that do not fit together.
    #[error(transparent)]
    Credentials(#[from] UsageError),
    /// Flags or variables whose values cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl MemberArgs {
    /// The client that the flags and the environment describe, to be connected.
    ///
    /// # Errors
    /// [`MemberError`]
    pub fn client(&self) -> Result<ClientBuilder, MemberError> {
        if !self.device_name.trim().is_empty() {
            tracing::debug!(device_name = self.device_name, "tcp uses no device");
        }
        let mut flags = ClientConfig::default();
        flags.master = Some(self.master.clone());
        flags.global_segment_size = Some(self.segment_size);
        flags.local_hostname = self.local_hostname.clone();
        flags.protocol = Some(self.protocol);
        let config = ClientConfig::from_env()?.overridden_by(flags);
        Ok(ClientBuilder::from_config(&config)?.rpc(self.credentials.client_config()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    #[derive(Debug, clap::Parser)]
    struct Args {
        #[command(flatten)]
        member: MemberArgs,
    }

    fn parse(args: &[&str]) -> Result<Args, crate::Refusal> {
        let args = std::iter::once("prog").chain(args.iter().copied());
        crate::parse_from(args.map(OsString::from))
    }

    #[test]
    fn refusals_say_what_to_write() {
        let refusal = parse(&["--protocol=rdma"]).unwrap_err().to_string();
        assert!(refusal.contains("tcp only") && !refusal.contains('\n'), "{refusal}");
        let refusal = parse(&["--global_segment_size=lots"]).unwrap_err().to_string();
        assert!(refusal.contains("such as 4GB") && !refusal.contains('\n'), "{refusal}");
    }

    #[test]
    fn the_reference_system_s_names_are_understood() {
        let flags = ["--device_name=ibp6s0", "--metadata-server=127.0.0.1:2379", "--tenant=t"];
        let member = parse(&flags).unwrap().member;
        assert_eq!(member.device_name, "ibp6s0");
        assert_eq!(member.segment_size, ByteSize::mib(3200));
        assert!(member.client().is_ok());
    }
}
