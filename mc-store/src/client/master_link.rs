//! The link to the master.

use std::time::Duration;

use mc_rpc::{MasterClient, ReadCounter};
use mc_types::ClientId;

use super::admission::Admission;
use crate::error::Unusable;

/// How long a client that ends waits for the master to hear which of its reads are over.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The connection to the master, and the calls that a client may make now.
#[derive(Debug)]
pub(super) struct MasterLink {
    /// The identity that the master knows the client by.
    pub(super) id: ClientId,
    pub(super) master: MasterClient,
    /// The client's reads under way, of which the master learns when they are over.
    pub(super) reads: ReadCounter,
    pub(super) admission: Admission,
}

impl MasterLink {
    /// The master, for a request about objects.
    pub(super) fn request(&self) -> Result<&MasterClient, Unusable> {
        self.admission.request().map(|()| &self.master)
    }

    /// The master, for a question about the cluster, which any role may ask.
    pub(super) fn question(&self) -> Result<&MasterClient, Unusable> {
        self.admission.question().map(|()| &self.master)
    }

    /// Tells the master which reads are over, unless a call has told it.
    pub(super) async fn tell_reads(&self) {
        if self.reads.has_news() {
            // Any call tells it. Without a master it learns nothing, and needs not.
            let _ = tokio::time::timeout(LAST_WORDS, self.master.longest_prefix(&[])).await;
        }
    }
}
