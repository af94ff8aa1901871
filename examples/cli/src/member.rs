//! Joining a cluster as a member that may contribute memory: flags, and the
//! variables that Mooncake's sample programs read.

use mc_store::{ClientBuilder, ClientConfig, ConfigError, Protocol};
use mc_types::{ByteSize, ParseByteSizeError};

use crate::credentials::CredentialArgs;
use crate::entry::UsageError;
use crate::transfer::TransferArgs;

/// The flags of a member, to flatten into a program's own. A flag overrides its variable, which
/// overrides the variables of [`ClientConfig::from_env`].
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub struct MemberArgs {
    /// The master: host:port, or several with ';' or ',' between them, of which one leads; or
    /// etcd://host:port;host:port/cluster, where the masters elect their leader
    /// [default: 127.0.0.1:50051].
    #[arg(
        long = "master_server_address",
        visible_alias = "master",
        env = "MASTER_SERVER",
        value_name = "ADDRESS"
    )]
    pub master: Option<String>,
    /// Accepted for compatibility with Mooncake and not used.
    #[arg(long = "metadata_server", env = "METADATA_ADDR", value_name = "URL")]
    pub metadata_server: Option<String>,
    /// Memory to contribute; 0 contributes none [default: 3200MB].
    #[arg(
        long = "global_segment_size",
        value_name = "SIZE",
        value_parser = parse_segment_size
    )]
    pub segment_size: Option<ByteSize>,
    /// Name or address of this host to advertise to peers, with or without a port [default: the
    /// address that reaches the master, and a free port].
    #[arg(long = "local_hostname", env = "LOCAL_HOSTNAME", value_name = "HOST[:PORT]")]
    pub local_hostname: Option<String>,
    /// Protocol between hosts: tcp; quic, which needs --transfer_tls_ca, _cert and _key; or rdma,
    /// for peers that have it, too, and tcp for the others (a build with the feature rdma). Memory
    /// is shared with processes of the same host.
    #[arg(long = "protocol", env = "PROTOCOL", value_name = "NAME")]
    protocol: Option<Protocol>,
    /// Network devices to use together, separated by commas; an RDMA device stands for its
    /// interfaces, and mlx5_0:2 for its second port.
    #[arg(
        long = "device_name",
        env = "DEVICE_NAME",
        value_name = "NAMES",
        default_value = "",
        hide_default_value = true
    )]
    pub device_name: String,
    /// Certificates for transfers between hosts.
    #[command(flatten)]
    pub transfer: TransferArgs,
    /// Credentials for the master.
    #[command(flatten)]
    pub credentials: CredentialArgs,
}

const MASTER: &str = "127.0.0.1:50051";
const SEGMENT_SIZE: ByteSize = ByteSize::mib(3200);

/// The smallest segment. A smaller size is probably a number without its unit.
const LEAST_SEGMENT: ByteSize = ByteSize::kib(4);

/// An invalid size of a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadSegmentSize {
    /// The text is not a size.
    #[error("{0}; write a size such as 4GB, or 0 to contribute nothing")]
    Malformed(ParseByteSizeError),
    /// The size is below the minimum.
    #[error(transparent)]
    TooSmall(SegmentTooSmall),
}

/// Parses the memory to contribute: 0, or at least 4 KiB.
///
/// # Errors
/// [`BadSegmentSize`]
pub fn parse_segment_size(text: &str) -> Result<ByteSize, BadSegmentSize> {
    let size = text.parse().map_err(BadSegmentSize::Malformed)?;
    check_segment_size(size).map_err(BadSegmentSize::TooSmall)?;
    Ok(size)
}

/// A segment that is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{size} is too small for a segment: a number without a unit counts bytes; write one such as \
     4GB, at least {LEAST_SEGMENT}, or 0 to contribute nothing"
)]
pub struct SegmentTooSmall {
    size: ByteSize,
}

/// Rejects sizes below the minimum, except 0.
///
/// # Errors
/// [`SegmentTooSmall`] below 4 KiB, but for zero.
pub fn check_segment_size(size: ByteSize) -> Result<(), SegmentTooSmall> {
    let is_fine = size.as_u64() == 0 || size >= LEAST_SEGMENT;
    if is_fine { Ok(()) } else { Err(SegmentTooSmall { size }) }
}

/// The reason why flags and variables do not describe a member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// The credentials are incomplete.
    #[error(transparent)]
    Credentials(#[from] UsageError),
    /// A flag or variable has an invalid value.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The segment is too small.
    #[error("global_segment_size")]
    Segment(#[from] SegmentTooSmall),
}

impl MemberArgs {
    /// Returns the combined settings of the flags and the environment.
    ///
    /// # Errors
    /// [`MemberError`]
    pub fn settings(&self) -> Result<ClientConfig, MemberError> {
        Ok(self.over(ClientConfig::from_env()?))
    }

    /// The same over these settings in place of the environment's.
    fn over(&self, said: ClientConfig) -> ClientConfig {
        let mut flags = self.credentials.settings();
        flags.master = self.master.clone();
        flags.global_segment_size = self.segment_size;
        flags.local_hostname = self.local_hostname.clone();
        flags.protocol = self.protocol;
        flags.device_name = ClientConfig::device_names(&self.device_name);
        self.transfer.add_to(&mut flags);
        let mut config = said.overridden_by(flags);
        config.master.get_or_insert_with(|| MASTER.to_owned());
        config.global_segment_size.get_or_insert(SEGMENT_SIZE);
        config
    }

    /// Returns a builder of the client that the flags and the environment describe.
    ///
    /// # Errors
    /// [`MemberError`]
    pub fn client(&self) -> Result<ClientBuilder, MemberError> {
        // Flags that need others are refused before anything is done.
        self.credentials.client_config()?;
        let config = self.settings()?;
        check_segment_size(config.global_segment_size.unwrap_or_default())?;
        Ok(ClientBuilder::from_config(&config)?)
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
        let refusal = parse(&["--protocol=roce"]).unwrap_err().to_string();
        assert!(refusal.contains("tcp, quic or rdma") && !refusal.contains('\n'), "{refusal}");
        let refusal = parse(&["--global_segment_size=lots"]).unwrap_err().to_string();
        assert!(refusal.contains("such as 4GB") && !refusal.contains('\n'), "{refusal}");
    }

    #[test]
    fn the_reference_system_s_names_are_understood() {
        let flags = ["--device_name=ibp6s0", "--metadata-server=127.0.0.1:2379", "--tenant=t"];
        let member = parse(&flags).unwrap().member;
        let config = member.over(ClientConfig::default());
        assert_eq!(config.device_name, Some(vec!["ibp6s0".to_owned()]));
        assert_eq!(config.global_segment_size, Some(ByteSize::mib(3200)));
        assert_eq!(config.master.as_deref(), Some("127.0.0.1:50051"));
        assert!(member.client().is_ok());
    }

    #[test]
    fn credentials_and_settings_of_the_environment_are_heeded() {
        let said = ClientConfig::from_toml(
            "master = 'a:1'\ntoken_file = 'env.token'\ntls_ca = 'env.pem'\ntenant_id = 'team-e'\n\
             global_segment_size = '64MB'\nrpc_timeout_ms = 700",
        )
        .unwrap();
        let config = parse(&[]).unwrap().member.over(said.clone());
        let mut with_defaults = config.clone();
        with_defaults.protocol = said.protocol;
        assert_eq!(with_defaults, said);
        let config =
            parse(&["--tenant=team-f", "--global_segment_size=0"]).unwrap().member.over(said);
        assert_eq!(config.tenant_id.as_deref(), Some("team-f"));
        assert_eq!(config.global_segment_size, Some(ByteSize::bytes(0)));
        assert_eq!(config.token_file.as_deref(), Some("env.token".as_ref()));
    }

    #[test]
    fn a_size_whose_unit_was_forgotten_is_refused() {
        let refusal = parse(&["--global_segment_size=64"]).unwrap_err().to_string();
        assert!(refusal.contains("64 B is too small") && refusal.contains("4GB"), "{refusal}");
        assert!(parse(&["--global_segment_size=1MB"]).is_ok());
        assert!(parse(&["--global_segment_size=0"]).is_ok());
    }
}
