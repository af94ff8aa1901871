//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;
use mc_cli::{
    CredentialArgs, PathArgs, ServerArgs, TransferArgs, parse_connection_count, parse_segment_size,
    parse_thread_count,
};
use mc_standalone::DEFAULT_PORT;
use mc_store::{FolderMode, SyncPolicy};
use mc_types::{ByteSize, MediaType};

/// Contributes part of this host's memory to a KV-cache store, serves the memory to peers, and is
/// the node agent of this host's thin clients.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "mc-node", version)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// The master: host:port, or several with ';' or ',' between them, of which one leads; or
    /// etcd://host:port;host:port/cluster, where the masters elect their leader
    /// [default: localhost:50051].
    #[arg(
        long = "master_server_address",
        visible_alias = "master",
        value_name = "ADDRESS",
        help_heading = "Cluster"
    )]
    pub(crate) master: Option<String>,
    /// Accepted for compatibility with Mooncake and not used.
    #[arg(long = "metadata_server", value_name = "URL", help_heading = "Cluster")]
    pub(crate) metadata_server: Option<String>,

    #[command(flatten)]
    pub(crate) credentials: CredentialArgs,

    /// Memory to contribute; 0 only works for thin clients [default: 4GB].
    #[arg(
        long = "global_segment_size",
        value_name = "SIZE",
        value_parser = parse_segment_size,
        help_heading = "Segment"
    )]
    pub(crate) segment_size: Option<ByteSize>,
    /// Memory for values that this program reads itself, allocated on first use. Thin clients have
    /// their own. 0 stands for the default [default: 256MB].
    #[arg(long = "local_buffer_size", value_name = "SIZE", help_heading = "Segment")]
    pub(crate) local_buffer_size: Option<ByteSize>,
    /// The name by which puts can prefer the segment [default: its address, with the host as --host
    /// says it].
    #[arg(long = "segment_name", value_name = "NAME", help_heading = "Segment")]
    pub(crate) segment_name: Option<String>,
    /// File that backs the memory [default: plain memory].
    #[arg(long = "segment_file", value_name = "PATH", help_heading = "Segment")]
    pub(crate) segment_file: Option<PathBuf>,
    /// Keep the memory with its objects for the next process with the same --segment_file, which takes
    /// it over; needs a --data_port.
    #[arg(
        long = "keep_segment",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = ArgAction::Set,
        help_heading = "Segment"
    )]
    pub(crate) keep_segment: Option<bool>,
    /// Medium of the memory: dram, ssd or vram; ssd needs a --segment_file, and vram an NVIDIA
    /// GPU or a --segment_file [default: dram].
    #[arg(long = "segment_medium", value_name = "MEDIUM", help_heading = "Segment")]
    pub(crate) segment_medium: Option<MediaType>,
    /// Number of the GPU whose memory a segment of vram takes [default: 0].
    #[arg(long = "segment_device", value_name = "NUMBER", help_heading = "Segment")]
    pub(crate) segment_device: Option<u32>,

    /// Name or address of this host to advertise to peers, with or without the port of --data_port;
    /// 0.0.0.0, the default, selects the address that reaches the master. Peers are told all addresses
    /// of a name, and look it up again when none of them answers.
    #[arg(long = "host", value_name = "HOST[:PORT]", help_heading = "Network")]
    pub(crate) host: Option<String>,
    /// Port where thin clients of this host connect; 0 means a free port.
    #[arg(
        long = "port",
        value_name = "PORT",
        default_value_t = DEFAULT_PORT,
        help_heading = "Network"
    )]
    pub(crate) port: u16,
    /// Port where peers reach the memory; 0, the default, means a free port.
    #[arg(long = "data_port", value_name = "PORT", help_heading = "Network")]
    pub(crate) data_port: Option<u16>,
    /// Maximum number of connections of peers, at most three quarters of the process's limit of
    /// file descriptors. At the limit, a new connection replaces an idle one [default: 16384].
    #[arg(
        long = "transfer_max_connections",
        value_name = "N",
        value_parser = parse_connection_count,
        help_heading = "Network"
    )]
    pub(crate) max_connections: Option<NonZeroUsize>,
    /// Maximum number of connections of peers of one address (IPv6: one /64). At the limit, a new
    /// connection replaces an idle one of the address [default: 16384].
    #[arg(
        long = "transfer_max_connections_per_address",
        value_name = "N",
        value_parser = parse_connection_count,
        help_heading = "Network"
    )]
    pub(crate) max_connections_per_address: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) path: PathArgs,
    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
    /// Time limit after SIGTERM or SIGINT for moving the objects in this memory to other
    /// nodes; 0 moves nothing.
    #[arg(
        long = "drain_timeout",
        value_name = "TIME",
        default_value = "0",
        value_parser = mc_cli::parse_duration,
        help_heading = "Segment"
    )]
    pub(crate) drain_timeout: Duration,
    /// Threads that serve peers and thin clients.
    #[arg(
        long = "threads",
        value_name = "N",
        default_value_t = 1,
        value_parser = parse_thread_count,
        help_heading = "Network"
    )]
    pub(crate) threads: usize,

    /// How this host names the place of the shared tier: dfs:DIR, or the master's bucket, such as at another
    /// endpoint, s3://BUCKET/PREFIX?endpoint=URL&region=REGION [default: as the master names it].
    #[arg(long = "shared_tier", value_name = "URL", help_heading = "Storage below memory")]
    pub(crate) shared_tier: Option<String>,
    /// When files of the shared tier are durable: auto, none, data or directory [default: auto].
    #[arg(long = "file_sync", value_name = "WHEN", help_heading = "Storage below memory")]
    pub(crate) file_sync: Option<SyncPolicy>,
    /// Permissions of folders and files of the shared tier, such as 2770 [default: as the umask says].
    #[arg(long = "dfs_mode", value_name = "MODE", help_heading = "Storage below memory")]
    pub(crate) dfs_mode: Option<FolderMode>,
    /// Encrypt objects below memory with the keys of their tenants: a file with lines of a tenant (or *) and 64
    /// hexadecimal digits, or exec:PROGRAM, which prints such lines.
    #[arg(long = "tier_keys", value_name = "FILE", help_heading = "Storage below memory")]
    pub(crate) tier_keys: Option<String>,
    /// Keep objects on a disk of this host, too, if the master runs with --enable_offload.
    #[arg(
        long = "enable_offload",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = ArgAction::Set,
        help_heading = "Storage below memory"
    )]
    pub(crate) enable_offload: Option<bool>,
    /// Directory of that disk; one process uses it at a time.
    #[arg(long = "ssd_offload_path", value_name = "DIR", help_heading = "Storage below memory")]
    pub(crate) ssd_offload_path: Option<PathBuf>,
    /// Bytes that objects may take there, at least 17MB [default: 90 % of the free space].
    #[arg(long = "ssd_offload_size", value_name = "SIZE", help_heading = "Storage below memory")]
    pub(crate) ssd_offload_size: Option<ByteSize>,

    /// Serve /health, /ready, /live, /metrics and /metrics/summary over HTTP.
    #[arg(
        long = "enable_http_server",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = ArgAction::Set,
        help_heading = "Metrics"
    )]
    pub(crate) enable_http_server: Option<bool>,
    /// Port of these pages; 0 means a free port [default: 9300].
    #[arg(long = "http_port", value_name = "PORT", help_heading = "Metrics")]
    pub(crate) http_port: Option<u16>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn parse(args: &[&str]) -> Result<Args, mc_cli::Refusal> {
        let args = std::iter::once("mc-node").chain(args.iter().copied());
        let tables = crate::PROGRAM.tables;
        mc_cli::parse_compatible(args.map(OsString::from), tables).map(|parsed| parsed.args)
    }

    #[test]
    fn defaults_are_the_reference_system_s() {
        let args = parse(&[]).unwrap();
        assert_eq!((args.port, args.threads, args.enable_http_server), (50052, 1, None));
        assert_eq!((args.master, args.host), (None, None));
        assert_eq!((args.metadata_server, args.segment_name), (None, None));
    }

    #[test]
    fn the_reference_system_s_command_line_is_understood() {
        let args = parse(&[
            "--global_segment_size=3 GB",
            "--master-server-address=a:1",
            "--metadata_server=http://localhost:8080/metadata",
            "--device_name=",
            "--protocol=tcp",
        ]);
        assert_eq!(args.unwrap().segment_size, Some(ByteSize::gib(3)));
        let args = parse(&[
            "--device_names=mlx5_0,mlx5_1",
            "--tenant_id=team-a",
            "--enable_offload=true",
            "--start_offload_rpc_server=true",
            "--local_buffer_size=0",
            "--host=node-a:17000",
            "--threads=8",
            "--logtostderr",
            "-v=0",
        ])
        .unwrap();
        assert_eq!(args.path.device_name, "mlx5_0,mlx5_1");
        assert_eq!(args.credentials.tenant.as_deref(), Some("team-a"));
        assert_eq!((args.enable_offload, args.threads), (Some(true), 8));
        assert_eq!(args.host.as_deref(), Some("node-a:17000"));
        let nothing = parse(&["--global_segment_size=0", "--data_port=7"]).unwrap();
        assert_eq!(nothing.segment_size, Some(ByteSize::bytes(0)));
        assert_eq!(nothing.data_port, Some(7));
    }

    #[test]
    fn refusals_say_what_to_write() {
        for (arg, advice) in [
            ("--global_segment_size=lots", "such as 4GB"),
            ("--global_segment_size=64", "64 B is too small"),
            ("--protocol=roce", "tcp, quic or rdma"),
            ("--threads=0", "between 1 and"),
            ("--transfer_max_connections=0", "between 1 and 1000000"),
            ("--transfer_max_connections_per_address=1000001", "between 1 and 1000000"),
            ("--local_buffer_size=much", "--local_buffer_size"),
            ("--local_bufer_size=1", "did you mean --local_buffer_size?"),
        ] {
            let refusal = parse(&[arg]).expect_err(arg).to_string();
            assert!(refusal.contains(advice) && !refusal.contains('\n'), "{refusal}");
        }
    }
}
