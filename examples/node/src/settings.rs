//! Settings of the environment, a file and the command line, combined.

use mc_store::{ClientConfig, ConfigError};
use mc_types::ByteSize;

use crate::args::Args;

const MASTER: &str = "localhost:50051";
const SEGMENT_SIZE: ByteSize = ByteSize::gib(4);

/// The settings of the client: the file's, overridden by variables of the environment,
/// overridden by flags.
///
/// # Errors
/// [`ConfigError`] of the file or the environment.
pub(crate) fn settings(args: &Args) -> Result<ClientConfig, ConfigError> {
    let said = match &args.config {
        Some(path) => ClientConfig::from_file(path)?.apply_env()?,
        None => ClientConfig::from_env()?,
    };
    Ok(with_flags(said, args))
}

fn with_flags(said: ClientConfig, args: &Args) -> ClientConfig {
    let mut flags = args.credentials.settings();
    flags.master = args.master.clone();
    flags.global_segment_size = args.segment_size;
    // Mooncake's default of 0 stands for none, without which this program still works.
    flags.local_buffer_size = args.local_buffer_size.filter(|size| size.as_u64() > 0);
    flags.segment_name = args.segment_name.clone();
    flags.segment_file = args.segment_file.clone();
    flags.keep_segment = args.keep_segment.then_some(true);
    flags.segment_medium = args.segment_medium;
    flags.segment_device = args.segment_device;
    flags.metadata_server = args.metadata_server.clone();
    args.path.add_to(&mut flags);
    args.transfer.add_to(&mut flags);
    flags.transfer_max_connections = args.max_connections;
    flags.transfer_max_connections_per_address = args.max_connections_per_address;
    flags.enable_client_http_server = args.enable_http_server.then_some(true);
    flags.client_http_port = args.http_port;
    flags.shared_tier.clone_from(&args.shared_tier);
    flags.file_sync = args.file_sync;
    flags.dfs_mode = args.dfs_mode;
    flags.tier_keys.clone_from(&args.tier_keys);
    flags.enable_ssd_offload = args.enable_offload.then_some(true);
    flags.ssd_offload_path = args.ssd_offload_path.clone();
    flags.ssd_offload_size = args.ssd_offload_size;
    let mut config = said.overridden_by(flags);
    config.master.get_or_insert_with(|| MASTER.to_owned());
    config.global_segment_size.get_or_insert(SEGMENT_SIZE);
    if args.host.is_some() || args.data_port.is_some() {
        (config.local_hostname, config.listen) = (None, None);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    fn args(flags: &[&str]) -> Args {
        let args = std::iter::once("mc-node").chain(flags.iter().copied());
        mc_cli::parse_from(args.map(Into::into)).unwrap()
    }

    #[test]
    fn flags_win_and_defaults_lose() {
        let said = ClientConfig::from_toml(
            "master = 'a:1'\nglobal_segment_size = '1GB'\nlocal_hostname = '10.0.0.1:7'\n\
             put_wait_ms = 7\ntransfer_max_connections = 64\n\
             transfer_max_connections_per_address = 16",
        )
        .unwrap();
        let config = with_flags(said.clone(), &args(&[]));
        assert_eq!(config, said);
        let config = with_flags(
            said,
            &args(&[
                "--master_server_address=b:2",
                "--data_port=8",
                "--enable_http_server",
                "--transfer_max_connections=128",
                "--local_buffer_size=64MB",
            ]),
        );
        assert_eq!(config.local_buffer_size, Some(ByteSize::mib(64)));
        let unsaid = with_flags(ClientConfig::default(), &args(&["--local_buffer_size=0"]));
        assert_eq!(unsaid.local_buffer_size, None);
        assert_eq!(config.master.as_deref(), Some("b:2"));
        assert_eq!(config.global_segment_size, Some(ByteSize::gib(1)));
        assert_eq!(config.local_hostname, None);
        assert_eq!(config.enable_client_http_server, Some(true));
        assert!(config.put_wait.is_some());
        let limits = (config.transfer_max_connections, config.transfer_max_connections_per_address);
        assert_eq!(limits, (NonZeroUsize::new(128), NonZeroUsize::new(16)));
    }

    #[test]
    fn defaults_are_the_reference_system_s() {
        let config = with_flags(ClientConfig::default(), &args(&[]));
        assert_eq!(config.master.as_deref(), Some("localhost:50051"));
        assert_eq!(config.global_segment_size, Some(ByteSize::gib(4)));
    }
}
