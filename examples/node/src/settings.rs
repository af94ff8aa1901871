//! Settings of the environment, a file and the command line, combined.

use mc_cli::{Configured, Effective};
use mc_store::ClientConfig;
use mc_types::ByteSize;

use crate::args::Args;

const MASTER: &str = "localhost:50051";
const SEGMENT_SIZE: ByteSize = ByteSize::gib(4);

/// Defaults that this program has in place of a client's.
pub(crate) const DEFAULTS: &[(&str, &str)] = &[
    ("master_server_address", MASTER),
    ("global_segment_size", "4GB"),
    ("host", "0.0.0.0"),
    ("data_port", "0"),
];

/// The settings of the client: the file's, overridden by variables of the environment,
/// overridden by flags.
pub(crate) fn settings(configured: &Configured<Args>) -> ClientConfig {
    let mut config = with_flags(configured.client.clone(), &configured.args);
    if host_counts(&configured.settings) {
        (config.local_hostname, config.listen) = (None, None);
    }
    config
}

/// Returns whether `host` and `data_port` say where the segment is, and not `local_hostname` and `listen`:
/// those count that come from the later source.
fn host_counts(settings: &[Effective]) -> bool {
    let rank = |names: [&str; 2]| {
        let of = settings.iter().filter(|it| names.contains(&&*it.name));
        of.map(|it| it.origin.rank()).max().unwrap_or(0)
    };
    let host = rank(["host", "data_port"]);
    host > 0 && host >= rank(["local_hostname", "listen"])
}

fn with_flags(mut said: ClientConfig, args: &Args) -> ClientConfig {
    if args.local_buffer_size == Some(ByteSize::bytes(0)) {
        said.local_buffer_size = None;
    }
    let mut flags = args.credentials.settings();
    flags.master = args.master.clone();
    flags.global_segment_size = args.segment_size;
    // Mooncake's default of 0 stands for none, without which this program still works.
    flags.local_buffer_size = args.local_buffer_size.filter(|size| size.as_u64() > 0);
    flags.segment_name = args.segment_name.clone();
    flags.segment_file = args.segment_file.clone();
    flags.keep_segment = args.keep_segment;
    flags.segment_medium = args.segment_medium;
    flags.segment_device = args.segment_device;
    flags.metadata_server = args.metadata_server.clone();
    args.path.add_to(&mut flags);
    args.transfer.add_to(&mut flags);
    flags.transfer_max_connections = args.max_connections;
    flags.transfer_max_connections_per_address = args.max_connections_per_address;
    flags.enable_client_http_server = args.enable_http_server;
    flags.client_http_port = args.http_port;
    flags.shared_tier.clone_from(&args.shared_tier);
    flags.file_sync = args.file_sync;
    flags.dfs_mode = args.dfs_mode;
    flags.tier_keys.clone_from(&args.tier_keys);
    flags.enable_ssd_offload = args.enable_offload;
    flags.ssd_offload_path = args.ssd_offload_path.clone();
    flags.ssd_offload_size = args.ssd_offload_size;
    let mut config = said.overridden_by(flags);
    config.master.get_or_insert_with(|| MASTER.to_owned());
    config.global_segment_size.get_or_insert(SEGMENT_SIZE);
    config
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use mc_cli::Origin;

    use super::*;

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

    #[test]
    fn the_later_source_says_where_the_segment_is() {
        let file = || Origin::File("f:1".into());
        let variable = || Origin::Variable("V".into());
        for (host, hostname, counts) in [
            (Origin::Default, Origin::Default, false),
            (Origin::Default, file(), false),
            (file(), file(), true),
            (file(), variable(), false),
            (Origin::Flag, variable(), true),
        ] {
            let of =
                |name: &str, origin| Effective { name: name.into(), value: "x".into(), origin };
            assert_eq!(host_counts(&[of("host", host), of("listen", hostname)]), counts);
        }
    }
}
