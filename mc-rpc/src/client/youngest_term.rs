//! The youngest leader that the clients of one configuration have seen.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_types::Epoch;
use tokio::sync::watch;

/// The highest epoch of a master to which a connection was made: masters with a lower one led
/// before it, and what they answer is not believed. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct YoungestTerm(Arc<TermsSeen>);

#[derive(Debug)]
struct TermsSeen {
    /// Looked at for each call.
    youngest: AtomicU64,
    /// Told when it has grown.
    grown: watch::Sender<()>,
}

impl Default for YoungestTerm {
    fn default() -> Self {
        Self(Arc::new(TermsSeen { youngest: AtomicU64::new(0), grown: watch::Sender::new(()) }))
    }
}

impl YoungestTerm {
    /// Notes that a connection was made to a master in this term, if it has any.
    ///
    /// # Errors
    /// When the term is over.
    pub(super) fn admit(&self, epoch: Option<Epoch>) -> io::Result<()> {
        let Some(epoch) = epoch else { return Ok(()) };
        if self.0.youngest.fetch_max(epoch.as_u64(), Ordering::AcqRel) < epoch.as_u64() {
            self.0.grown.send_replace(());
        }
        self.check(Some(epoch))
    }

    /// Fails when this term is over: the connection of such a master is lost.
    pub(super) fn check(&self, epoch: Option<Epoch>) -> io::Result<()> {
        let Some(epoch) = epoch else { return Ok(()) };
        let youngest = self.0.youngest.load(Ordering::Acquire);
        if epoch.as_u64() >= youngest {
            return Ok(());
        }
        let text = format!(
            "the master there led in term {}, which is over: another one leads in term {youngest}",
            epoch.as_u64()
        );
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, text))
    }

    /// Waits until this term is over, and returns why its connections are lost.
    pub(super) async fn end(&self, epoch: Epoch) -> io::Error {
        let mut grown = self.0.grown.subscribe();
        loop {
            if let Err(over) = self.check(Some(epoch)) {
                return over;
            }
            // The sender is here, so that it is not gone.
            drop(grown.changed().await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_younger_leader_is_believed() {
        let terms = YoungestTerm::default();
        let (old, young) = (Epoch::new(3), Epoch::new(5));
        terms.admit(Some(old)).unwrap();
        let end = terms.end(old);
        terms.clone().admit(Some(young)).unwrap();
        let words = end.await.to_string();
        assert!(words.contains("term 3") && words.contains("term 5"), "{words}");
        assert!(terms.admit(Some(old)).is_err() && terms.check(Some(old)).is_err());
        terms.admit(Some(young)).unwrap();
        terms.admit(None).unwrap();
    }
}
