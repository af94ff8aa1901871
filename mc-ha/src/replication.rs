//! The journal of a leader on its standbys.
//!
//! A standby opens a stream to the leader, by whatever way, and says who it is and where its journal
//! ends. The leader answers with its term and sends the batches behind that position; or a snapshot
//! first, if it no longer has them or the standby has others: the end of a former leader's journal,
//! that was never acknowledged. A standby whose journal is of another history takes nothing from the leader
//! before the journal was [set aside](Applier::set_aside). The standby appends what comes to its own journal, acknowledges it when it is
//! durable there, and applies it to a [`Replica`](crate::Replica), with which it can lead at once.
//!
//! Every frame is a byte for its kind, 4 bytes for its length (little-endian, as all integers), and
//! its payload:
//!
//! | kind | from | payload |
//! |---|---|---|
//! | 1 hello | standby | version (1 byte: 1), epoch and sequence of its last batch (8 bytes each), id (the rest, UTF-8) |
//! | 2 acknowledgement | standby | epoch and sequence up to which its journal is durable |
//! | 16 start | leader | version, epoch of the term, seed (8 bytes), secret (16 bytes), 1 when a snapshot comes first or 0; then, not from older leaders, the last term that began uncleanly (8 bytes), 1 or 0 for what follows, checksum of its batch at the standby's position |
//! | 17 batch | leader | a batch as [`encoding`](crate::encoding) describes it |
//! | 18 beat | leader | epoch and sequence of its last batch |
//!
//! A snapshot is sent as its batches, the last of which is its end.

mod applier;
mod frame;
mod hub;
mod own_snapshot;
mod standby;
mod stream;

pub use applier::{Applier, ApplierSettings, ApplierState};
pub use frame::{Difference, ReplicationError};
pub use hub::{FollowerState, Hub, HubSettings};
pub use standby::follow;
