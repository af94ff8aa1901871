//! Why a command fails.

use std::io;
use std::path::PathBuf;

use mc_cli::LogError;
use mc_events::subscribe::SubscribeError;
use mc_meta::{PatternError, TenantId};
use mc_rpc::RpcError;
use mc_store::{CallError, GetError, PutError, StartError};
use mc_types::{ByteSize, KeyError};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CtlError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("cannot start")]
    Runtime(#[source] io::Error),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("cannot read {path:?}")]
    ReadFile { path: PathBuf, source: io::Error },
    #[error("cannot read the value from standard input")]
    ReadInput(#[source] io::Error),
    #[error(
        "the value has more bytes than the largest segment ({largest}); mount a larger segment or \
         split the value"
    )]
    TooLarge { largest: ByteSize },
    #[error("there is no segment to hold the value; start a node with mc-node")]
    NoSegment,
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error("{key:?} is no key")]
    BadKey { key: String, source: KeyError },
    #[error("no node serves bytes at {endpoint:?}; `stat` lists the endpoints")]
    NoNode { endpoint: String },
    #[error("{what} is still at work; ask again, or give it more time with --timeout")]
    StillAtWork { what: String },
    #[error("{key:?} is not stored")]
    Put { key: String, source: PutError },
    #[error("another put of {key:?} is under way; this one stored nothing, try again shortly")]
    PutPending { key: String },
    #[error("cannot get {key:?}")]
    Get { key: String, source: GetError },
    #[error("cannot write {path:?}")]
    WriteFile { path: PathBuf, source: io::Error },
    #[error("cannot write to standard output")]
    WriteOutput(#[source] io::Error),
    #[error("{failed} of {asked} not removed: {reasons}")]
    NotRemoved { failed: usize, asked: usize, reasons: String },
    #[error("{failed} of {asked} not {done}: {reasons}")]
    NotPinned { done: &'static str, failed: usize, asked: usize, reasons: String },
    #[error(
        "no KV events to follow; the master needs --enable_kv_event_publish, and for --from \
         --kv_event_publisher_replay_endpoint, too"
    )]
    NoEvents(#[source] SubscribeError),
    #[error("cannot follow the KV events")]
    Events(#[source] SubscribeError),
    #[error(
        "which host publishes KV events does not follow from {master:?}; name it with --endpoint=tcp://HOST:PORT"
    )]
    WhichEndpoint { master: String },
    #[error(
        "this master is too old to list its tasks; `task TASK` shows one, or start a newer one"
    )]
    NoTaskList(#[source] RpcError),
    #[error("a worker failed")]
    Worker(#[source] tokio::task::JoinError),
    #[error("{failed} rounds failed, the first because of this")]
    Bench { failed: usize, source: Box<Self> },
    #[error("objects may be left; remove them with `remove --prefix={prefix} --force`")]
    BenchLeft { prefix: String },
    #[error("no object {key:?}")]
    NoObject { key: String, source: CallError },
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(
        "none takes all quotas away, which leaves nothing to refuse puts for; write a size or default, \
         or leave --refuse, --disks and --files out"
    )]
    NothingToRefuse,
    #[error(
        "the quota of {tenant} is set, but this master is too old to refuse puts beyond it, and evicts \
         objects of the tenant; start a newer one"
    )]
    NoQuotaModes { tenant: TenantId },
    #[error(
        "the quota of {tenant} is set, but this master is too old to limit disks and files; start a \
         newer one"
    )]
    NoQuotasBelow { tenant: TenantId },
    #[error("default limits nothing by itself; give --disks or --files too, or write none")]
    NothingToLimit,
    #[error("no other master took over, and {leader} leads on; `ha status` shows the others")]
    NotHandedOver { leader: Box<str> },
    #[error("not all masters are in sync: {lacking}; `ha status` and their logs say more")]
    NotInSync { lacking: String },
    #[error(
        "{master} names no masters of which all could be waited for; name the members, or list the \
         masters as host:port;host:port"
    )]
    NoMembers { master: String },
    #[error("{leader} leads on: {reason}")]
    LeadsOn { leader: Box<str>, reason: Box<str> },
    #[error(transparent)]
    Rpc(#[from] RpcError),
}
