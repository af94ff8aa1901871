//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use mc_cli::{CredentialArgs, PathArgs, TransferArgs, parse_duration, parse_positive_size};
use mc_meta::TenantId;
use mc_types::{ByteSize, JobId, MediaType, ParseByteSizeError, TaskId};

/// Puts, gets and shows the objects of a running KV-cache store.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "mc-ctl", version)]
pub(crate) struct Args {
    /// The master: host:port, or several with ';' or ',' between them, of which one leads; or
    /// etcd://host:port;host:port/cluster, where the masters elect their leader.
    #[arg(
        long = "master_server_address",
        visible_alias = "master",
        env = "MOONCAKE_MASTER",
        hide_env_values = true,
        value_name = "ADDRESS",
        default_value = "localhost:50051",
        global = true
    )]
    pub(crate) master: String,
    #[command(flatten)]
    pub(crate) credentials: CredentialArgs,
    #[command(flatten)]
    pub(crate) path: PathArgs,
    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Store a value under a key: VALUE, a file, or standard input.
    Put(Put),
    /// Store a value under a key, in place of the one that is there.
    Upsert(Put),
    /// Write an object's bytes to standard output or a file.
    Get(Get),
    /// Print which keys can be read; exit code 0 if all can, else 1.
    Exist(Exist),
    /// Remove objects.
    Remove(Remove),
    /// Remove every object that no client is reading.
    #[command(name = "remove-all", alias = "remove_all")]
    RemoveAll {
        /// Also objects that are being read.
        #[arg(long)]
        force: bool,
    },
    /// Keep objects in preference to others for some time from now on, as a put with --with_soft_pin does.
    Pin(Pin),
    /// Take the pins from objects, those that keep them for ever too.
    Unpin(Unpin),
    /// List keys in order, with size and readable replicas.
    Ls(Ls),
    /// List the objects whose keys match a regular expression; exit code 0 if there are any, else 1.
    Find(Find),
    /// Say why a key is there or not, and what keeps it; exit code 0 if it is there, else 1.
    Explain(Explain),
    /// Show the cluster's totals and segments or, with a key, where an object is.
    Stat(Stat),
    /// Show the tiers below memory, the nodes' disks and the shared tier, and when they are full. For administrators.
    Tiers(Tiers),
    /// Show the quotas and usage of all tenants, as quota show. For administrators.
    Tenants {
        /// One JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Show and set quotas of tenants. For administrators.
    #[command(subcommand)]
    Quota(Quota),
    /// Empty segments into others, so that their nodes can go. For administrators.
    #[command(subcommand)]
    Drain(Drain),
    /// Take new objects into segments again that were drained. For administrators.
    Reopen {
        #[arg(required = true, value_name = "SEGMENT")]
        segments: Vec<String>,
    },
    /// Have a node that holds an object copy it to other segments.
    Copy {
        key: String,
        #[arg(required = true, value_name = "SEGMENT")]
        to: Vec<String>,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Have a node move its replica of an object to another segment.
    Move {
        key: String,
        #[arg(value_name = "FROM")]
        from: String,
        #[arg(value_name = "TO")]
        to: String,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Show how far a copy or a move is; exit code 0 unless it has failed.
    Task {
        #[arg(value_name = "TASK")]
        id: TaskId,
        #[command(flatten)]
        waiting: Waiting,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// List the copies and moves that the master knows, those at work first. For administrators.
    Tasks {
        /// One JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Show what the cluster does, again and again.
    Top(Top),
    /// Follow what becomes of objects, as a master with --enable_kv_event_publish publishes it.
    Events(Events),
    /// Measure puts, gets, exists and removes of this cluster from this host.
    Bench(Bench),
    /// Look for what is wrong with this host and the cluster, and say what to do; exit code 1 for a fault.
    Doctor(Doctor),
    /// Show the nodes: the memory and the disk that each contributes. For administrators.
    Nodes {
        /// One JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Show what the master counted in the last hour: lookups, puts, evictions, and what else became of objects. For
    /// administrators.
    History {
        /// One JSON object per line, one for each minute, with all totals.
        #[arg(long)]
        json: bool,
    },
    /// Show who is connected to the master, with which software and version. For administrators.
    Clients {
        /// One JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Write completions for a shell, or manual pages.
    #[command(subcommand)]
    Pages(Pages),
    /// Show the masters of a cluster and which of them leads, or change the leader.
    #[command(subcommand)]
    Ha(Ha),
}

/// Whether to wait for the end of what was begun.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Waiting {
    /// Wait until it is over; exit code 1 if it fails.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Wait no longer than this [default: as long as it takes].
    #[arg(long, value_name = "MS|DURATION", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Drain {
    /// Begin to empty segments; prints the job's id.
    #[command(group = clap::ArgGroup::new("what").args(["segments", "of"]).required(true).multiple(true))]
    Start {
        #[arg(value_name = "SEGMENT")]
        segments: Vec<String>,
        /// All segments of the node that serves bytes at this endpoint, or of the client with this id.
        #[arg(long, value_name = "ENDPOINT|CLIENT")]
        of: Option<String>,
        /// Move objects to this segment; may be given several times [default: to any].
        #[arg(long, value_name = "SEGMENT", action = clap::ArgAction::Append)]
        to: Vec<String>,
        /// Most moves under way at a time; 0 for as many as the master thinks fit.
        #[arg(long, value_name = "N", default_value_t = 0)]
        concurrency: usize,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// List the jobs that the master knows, those at work first.
    List {
        /// One JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Wait until a job is over; exit code 0 if its segments are empty then, else 1.
    Wait {
        #[arg(value_name = "JOB")]
        id: JobId,
        /// Wait no longer than this [default: as long as it takes].
        #[arg(long, value_name = "MS|DURATION", value_parser = parse_duration)]
        timeout: Option<Duration>,
    },
    /// Call a job off; its segments take new objects again.
    Cancel {
        #[arg(value_name = "JOB")]
        id: JobId,
    },
}

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Pages {
    /// Print completions: mc-ctl pages completions bash > /etc/bash_completion.d/mc-ctl
    Completions { shell: clap_complete::Shell },
    /// Write a manual page for each verb into a directory, which is made if it is not there.
    Man { directory: PathBuf },
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Put no value into the segments and get none.
    #[arg(long = "no_transfers")]
    pub(crate) no_transfers: bool,
    /// Segments that a value is put into and got from, at the most.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) segments: usize,
    /// One JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Top {
    /// Time between two looks, at least 100 ms.
    #[arg(long, value_name = "MS|DURATION", value_parser = parse_duration, default_value = "2s")]
    pub(crate) interval: Duration,
    /// End after so many [default: with Ctrl-C].
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// One JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Tiers {
    /// Time between two looks, by which growth is judged; 0 for one look without it.
    #[arg(long, value_name = "MS|DURATION", value_parser = parse_duration, default_value = "1s")]
    pub(crate) interval: Duration,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Events {
    /// Where the master publishes in the form s4: tcp://HOST:PORT or ipc://PATH [default: port 19997 of
    /// the master's host].
    #[arg(long, value_name = "ENDPOINT")]
    pub(crate) endpoint: Option<String>,
    /// The replay endpoint that belongs to it, for --from [default: port 19998 of the master's host].
    #[arg(long = "replay_endpoint", value_name = "ENDPOINT")]
    pub(crate) replay_endpoint: Option<String>,
    /// Take only messages whose topic begins with this.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) topic: String,
    /// Begin with the message of this number, or with the oldest one that is kept; 0 for all that are kept
    /// [default: what is published from now on].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) from: Option<u64>,
    /// End after so many events [default: with Ctrl-C].
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// One JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Bench {
    /// Size of a value.
    #[arg(long, value_name = "SIZE", value_parser = parse_positive_size, default_value = "1MB")]
    pub(crate) size: ByteSize,
    /// Rounds of put, exist, get and remove [default: as many as --time allows].
    #[arg(long, value_name = "N", conflicts_with = "time")]
    pub(crate) count: Option<u64>,
    /// Time to measure for.
    #[arg(long, value_name = "MS|DURATION", value_parser = parse_duration, default_value = "5s")]
    pub(crate) time: Duration,
    /// Rounds at a time, each with a value of its own.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) concurrency: u16,
    /// One JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Ha {
    /// Show each master's role, term, journal and lag; exit code 0 if one leads, else 1.
    Status {
        /// One JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Wait until a master leads and the others are in sync with it, as each step of an upgrade needs.
    Wait {
        /// Ids or addresses of the members that are to be in sync; all of the address if none is named.
        #[arg(value_name = "MEMBER")]
        members: Vec<String>,
        /// Wait no longer than this [default: as long as it takes].
        #[arg(long, value_name = "MS|DURATION", value_parser = parse_duration)]
        timeout: Option<Duration>,
    },
    /// Have the leader hand over to another master. For administrators.
    #[command(name = "hand-over", alias = "hand_over")]
    HandOver {
        /// The member that is to lead; the one that has most of the journal if none is named.
        #[arg(value_name = "MEMBER")]
        to: Option<String>,
    },
}

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Quota {
    /// Show quota and usage of all tenants, or of one.
    Show {
        #[arg(value_name = "TENANT", value_parser = parse_tenant)]
        whose: Option<TenantId>,
        /// One JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Give a tenant quotas: of memory a size such as 10GB, or default; none is as unset.
    Set {
        #[arg(value_name = "TENANT", value_parser = parse_tenant)]
        whose: TenantId,
        #[arg(value_name = "SIZE|default|none", value_parser = parse_quota)]
        size: NewQuota,
        /// Refuse puts beyond the quota. Without this, they evict objects of the tenant.
        #[arg(long)]
        refuse: bool,
        /// Most bytes on the nodes' local disks; objects beyond it are not written there. Default: no
        /// limit.
        #[arg(long, value_name = "SIZE")]
        disks: Option<ByteSize>,
        /// Most bytes in files of the shared tier; puts beyond it have no file. Default: no limit.
        #[arg(long, value_name = "SIZE")]
        files: Option<ByteSize>,
    },
    /// Remove a tenant's quota; the master's --default_tenant_quota applies then.
    #[command(visible_alias = "delete")]
    Unset {
        #[arg(value_name = "TENANT", value_parser = parse_tenant)]
        whose: TenantId,
    },
}

/// The change of a tenant's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewQuota {
    Bytes(ByteSize),
    /// That of tenants without one of their own, of memory alone.
    Default,
    /// The tenant has none of its own any more.
    Unset,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}; write a size such as 10GB, or default, or none")]
struct BadQuota(ParseByteSizeError);

fn parse_quota(text: &str) -> Result<NewQuota, BadQuota> {
    match text {
        "none" => Ok(NewQuota::Unset),
        "default" => Ok(NewQuota::Default),
        text => text.parse().map(NewQuota::Bytes).map_err(BadQuota),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("write the tenant's name; default is the one of callers that name none")]
struct NoTenant;

fn parse_tenant(name: &str) -> Result<TenantId, Box<dyn std::error::Error + Send + Sync>> {
    if name.is_empty() {
        return Err(NoTenant.into());
    }
    Ok(TenantId::new(name)?)
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Put {
    pub(crate) key: String,
    /// The value; without it and --file, standard input is read to its end.
    #[arg(conflicts_with = "file", allow_negative_numbers = true)]
    pub(crate) value: Option<OsString>,
    /// Store this file's bytes.
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
    /// Number of replicas; fewer, but at least one, if there is not enough space.
    #[arg(
        long = "replica_num",
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(crate) replica_num: u32,
    /// Segment to try first; may be given several times.
    #[arg(long = "preferred_segment", value_name = "NAME", action = clap::ArgAction::Append)]
    pub(crate) preferred_segments: Vec<String>,
    /// Place all replicas in segments of this medium: dram, ssd or vram [default: dram, if any].
    #[arg(long = "medium", value_name = "MEDIUM")]
    pub(crate) medium: Option<MediaType>,
    /// Evict other objects before this one.
    #[arg(long = "with_soft_pin")]
    pub(crate) with_soft_pin: bool,
    /// Duration of the soft pin, at most the master's --max_kv_soft_pin_ttl; implies --with_soft_pin
    /// [default: the master's --default_kv_soft_pin_ttl].
    #[arg(long = "soft_pin_ttl", value_name = "MS|DURATION", value_parser = parse_duration)]
    pub(crate) soft_pin_ttl: Option<Duration>,
    /// Never evict this object: it stays until it is removed, or unpinned.
    #[arg(long = "with_hard_pin")]
    pub(crate) with_hard_pin: bool,
    /// Print nothing but errors and warnings.
    #[arg(long)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Get {
    pub(crate) key: String,
    /// Write to this file, after the whole object was read.
    #[arg(long, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,
    /// Show no progress on a terminal.
    #[arg(long)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Exist {
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<String>,
}

#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").args(["keys", "prefix", "regex"]).required(true))]
pub(crate) struct Remove {
    #[arg(value_name = "KEY")]
    pub(crate) keys: Vec<String>,
    /// Remove every object whose key begins with this.
    #[arg(long, value_name = "PREFIX", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) prefix: Option<String>,
    /// Remove every object whose key matches this regular expression.
    #[arg(long, value_name = "PATTERN", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) regex: Option<String>,
    /// Also if it is being read.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Pin {
    #[command(flatten)]
    pub(crate) which: Pinned,
    /// How long they are kept. Default: as long as the master's settings say.
    #[arg(long = "soft_pin_ttl", visible_alias = "ttl", value_name = "MS|DURATION", value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Unpin {
    #[command(flatten)]
    pub(crate) which: Pinned,
}

/// The objects that are pinned, or not any more.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").args(["keys", "prefix"]).required(true))]
pub(crate) struct Pinned {
    #[arg(value_name = "KEY")]
    pub(crate) keys: Vec<String>,
    /// Every object whose key begins with this.
    #[arg(long, value_name = "PREFIX", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) prefix: Option<String>,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Ls {
    /// List only keys that begin with this.
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// List the first N keys only.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// One JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Find {
    /// A regular expression; it may match anywhere in a key unless it is anchored with ^ and $.
    pub(crate) pattern: String,
    /// List N objects at the most.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// One JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Explain {
    pub(crate) key: String,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Stat {
    pub(crate) key: Option<String>,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Every total of the master, with its meaning.
    #[arg(long, conflicts_with_all = ["json", "key"])]
    pub(crate) totals: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, mc_cli::Refusal> {
        let args = std::iter::once("mc-ctl").chain(args.iter().copied());
        mc_cli::parse_from(args.map(OsString::from))
    }

    #[test]
    fn the_master_may_be_named_before_and_after_the_verb() {
        for args in [
            &["--master_server_address=a:1", "ls"][..],
            &["ls", "--master-server-address", "a:1"],
            &["stat", "k", "-master_server_address=a:1"],
        ] {
            assert_eq!(parse(args).unwrap().master, "a:1");
        }
        assert_eq!(parse(&["stat"]).unwrap().master, "localhost:50051");
    }

    #[test]
    fn put_takes_one_source_and_several_preferences() {
        let args = ["put", "--preferred_segment=a", "--preferred-segment", "b", "k", "-5"];
        let Verb::Put(put) = parse(&args).unwrap().verb else { panic!("another verb") };
        assert_eq!(put.preferred_segments, ["a", "b"]);
        assert_eq!(put.value, Some("-5".into()));
        assert!(parse(&["put", "k", "v", "--file=f"]).is_err());
        assert!(parse(&["put"]).unwrap_err().to_string().contains("<KEY>"));
    }

    #[test]
    fn a_quota_is_a_size_or_none() {
        let set = |text| match parse(&["quota", "set", "a", text]).map(|args| args.verb) {
            Ok(Verb::Quota(Quota::Set { size, .. })) => Ok(size),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal.to_string()),
        };
        assert_eq!(set("2KB"), Ok(NewQuota::Bytes(ByteSize::kib(2))));
        assert_eq!(set("none"), Ok(NewQuota::Unset));
        assert_eq!(set("default"), Ok(NewQuota::Default));
        let refused = set("much").unwrap_err();
        assert!(refused.contains("10GB, or default, or none"), "{refused}");
        let refuses = |args: &[&str]| match parse(args).unwrap().verb {
            Verb::Quota(Quota::Set { refuse, .. }) => refuse,
            other => panic!("{other:?}"),
        };
        assert!(refuses(&["quota", "set", "a", "1GB", "--refuse"]));
        assert!(!refuses(&["quota", "set", "a", "1GB"]));
        let below = match parse(&["quota", "set", "a", "default", "--disks=1KB", "--files=0"]) {
            Ok(Args { verb: Verb::Quota(Quota::Set { disks, files, .. }), .. }) => (disks, files),
            other => panic!("{other:?}"),
        };
        assert_eq!(below, (Some(ByteSize::kib(1)), Some(ByteSize::bytes(0))));
        let unset = parse(&["quota", "delete", "a"]).unwrap().verb;
        assert!(matches!(unset, Verb::Quota(Quota::Unset { .. })));
    }

    #[test]
    fn lists_need_a_key() {
        for verb in ["exist", "remove"] {
            let refused = parse(&[verb]).unwrap_err().to_string();
            assert!(refused.contains("KEY"), "{verb}: {refused}");
        }
        assert!(matches!(parse(&["remove-all"]).unwrap().verb, Verb::RemoveAll { force: false }));
        assert!(parse(&["vanish"]).is_err());
    }
}
