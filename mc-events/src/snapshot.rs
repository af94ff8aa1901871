//! The live objects, for subscribers that join late.

use crate::event::BlockStoreEvent;

/// A page of the live objects.
#[derive(Clone, Debug, Default)]
pub struct SnapshotPage {
    /// Some of the live objects.
    pub objects: Vec<BlockStoreEvent>,
    /// Where the next page begins, in a form of your own of at most
    /// [`MAX_CURSOR`](crate::replay::MAX_CURSOR) bytes; empty after the last page.
    pub next: Vec<u8>,
}

/// The owner of the objects, who can list them.
///
/// The list may change from page to page: a subscriber applies the messages that were published
/// since it asked for the first page on top of it. Two rules make the result right. Change an object
/// before you publish the event about it. An object that exists from the first page to the last is
/// on one of them.
pub trait Snapshot: Send + Sync {
    /// Returns at most `max_objects` objects, the first ones for an empty cursor.
    ///
    /// Runs on a thread that may block. A cursor comes from outside: answer one that you did not make
    /// with an empty page. The same cursor may come again with fewer objects asked for, when the page
    /// was too large.
    fn page(&self, cursor: &[u8], max_objects: usize) -> SnapshotPage;
}
