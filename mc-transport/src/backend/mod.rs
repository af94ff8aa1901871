//! Building blocks for a transport of one's own: the parts that those of this crate, QUIC and RDMA
//! share.
//!
//! A transport needs [`Transport`](crate::Transport), [`Link`](crate::Link) and a
//! [`RegionTable`](crate::RegionTable), and none of these; `docs/your-own-transport.md` leads through one.
//! They are what a transport over a network comes to need sooner or later:
//!
//! | for | there is |
//! |---|---|
//! | everything that is the same for all networks | [`Shell`] and [`Networked`], by which a type is a transport |
//! | accepting peers, with a bounded number of places | [`Door`], [`Listener`], [`sweeping`], [`advertise`], [`Counters`] |
//! | tasks that end with their transport | [`Tasks`], [`Counted`], [`first`] |
//! | letting the operations of peers in | [`Admission`], [`Claim`], and for devices [`OpenRegion`] |
//! | ending links for each other, so that no late write arrives | [`OpenLinks`], [`OpenLink`] |
//! | memory that is copied through stages | [`AdmittedStaged`], [`StagePeer`], [`Room`] |
//! | results of a batch, with checksums | [`Drive`], [`Summing`], [`joined`], [`guarded`] |
//! | the requests of `docs/tcp-wire.md` | [`headers`] |
//! | being a transport of a [`Node`](crate::Node) | [`CarrierConfig`] and [`Carrier`], [`ShortcutConfig`] and [`ShortcutTransport`] |
//! | the description of a node for its peers | [`Description`], [`Shortcut`] |
//! | descriptors beside bytes, over a Unix socket | `try_send`, `try_receive` |
//! | the proof that a peer is the one that was met elsewhere | [`ProvenLinks`], [`Close`], [`NodeSecret`], [`nonce`] |
//!
//! Their names change more often than those of the contract.

pub(crate) mod accept;
pub(crate) mod carrier;
pub(crate) mod counters;
pub(crate) mod description;
pub(crate) mod first;
pub mod headers;
pub(crate) mod listen;
pub(crate) mod proof;
pub(crate) mod proven_links;
pub(crate) mod shell;
pub(crate) mod sweep;
pub(crate) mod tasks;
pub(crate) mod tune;

pub use self::accept::{Door, Listener};
pub use self::carrier::{
    Carrier, CarrierConfig, CarrierError, Reached, ShortcutConfig, ShortcutTransport,
};
pub use self::counters::Counters;
pub use self::description::{Description, MAX_DESCRIPTION, MAX_WAYS, Shortcut};
pub use self::first::{First, first};
pub use self::listen::advertise;
pub use self::proof::{Label, NodeSecret, Nonce, Proof, nonce};
pub use self::proven_links::{Close, ProvenLinks};
pub use self::shell::{Networked, Shell, check_scheme};
pub use self::sweep::sweeping;
pub use self::tasks::{Counted, Tasks};
pub use self::tune::tune;
pub use crate::cancel::guarded;
pub use crate::completion::Drive;
pub use crate::open_links::{OpenLink, OpenLinks};
pub use crate::region::{Admission, Claim, OpenRegion, Registered, Withdrawn};
#[cfg(target_os = "linux")]
pub use crate::shm::frames::{try_receive, try_send};
pub use crate::slice_sums::{Summing, joined};
pub use crate::staged::{AdmittedStaged, ReadRoom, Room, Stage, StagePeer};
