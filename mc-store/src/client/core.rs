//! The state that the clones of a client share.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use mc_transport::BufferPool;
use tokio::sync::{OnceCell, Semaphore};

use super::background::Background;
use super::data::Transfers;
use super::heartbeat::Liveness;
use super::hot_cache::HotCache;
use super::master_link::MasterLink;
use super::metrics::Metrics;
use super::put_keys::PutKeys;
use super::read::Reader;
use super::reports::Reports;
use super::segments::Segments;
use super::settings::Settings;
use super::tiers::Tiers;

/// The state that all clones share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) link: MasterLink,
    pub(super) transfers: Transfers,
    pub(super) segments: Arc<Segments>,
    /// The name of the segment that it began with.
    pub(super) first_segment: OnceLock<Box<str>>,
    pub(super) reports: Reports,
    pub(super) put_keys: PutKeys,
    /// Memory that values are read into.
    pub(super) pool: BufferPool,
    pub(super) hot: Option<HotCache>,
    pub(super) tiers: Tiers,
    /// The conversions for other models.
    #[cfg(feature = "c2c")]
    pub(super) c2c: Option<Arc<super::conversions::Conversions>>,
    pub(super) liveness: Liveness,
    pub(super) left: OnceCell<()>,
    pub(super) settings: Settings,
    pub(super) metrics: Metrics,
    pub(super) background: Arc<Background>,
    /// One for each task that asks peers for the end of lost links.
    pub(super) fencing: Arc<Semaphore>,
    /// Where its pages are.
    pub(super) http: Option<SocketAddr>,
}

impl Core {
    /// The parts that reads need.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader {
            link: &self.link,
            transfers: &self.transfers,
            tiers: &self.tiers,
            segments: &self.segments,
            reports: &self.reports,
            pool: &self.pool,
            hot: self.hot.as_ref(),
            clock: self.settings.clock,
            origin: self.settings.origin,
        }
    }
}
