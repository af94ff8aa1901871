//! The subject of the pages.

use std::sync::Arc;
use std::time::Instant;

use mc_events::EventSystem;
use mc_http::MetricsText;
use mc_meta::{Master, TenantId};
use mc_rpc::{Clock, HaReport, HaStatus, History, NodeLoads, Streams};
use mc_server::{JournalWatch, MasterReport, ServerWatch, TickerWatch};

use super::query::Query;
use crate::{figures, journal};

/// The subject of the pages: the master that runs now, if any, and its part among others.
#[derive(Clone, Default)]
pub(crate) struct Shown {
    pub(crate) master: Option<ShownMaster>,
    pub(crate) cluster: Option<Arc<dyn HaReport>>,
}

impl Shown {
    /// This master's part among others; `None` when it is the only one.
    pub(super) fn ha_status(&self) -> Option<HaStatus> {
        self.cluster.as_ref().map(|cluster| cluster.ha_status())
    }
}

/// A master that runs.
#[derive(Clone)]
pub(crate) struct ShownMaster {
    pub(super) state: Arc<Master>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) history: Arc<History>,
    pub(super) loads: Arc<NodeLoads>,
    pub(super) rpc: ServerWatch,
    /// Takes the calls of pages that change something.
    pub(super) streams: Streams,
    pub(super) ticker: TickerWatch,
    pub(super) events: Option<Arc<EventSystem>>,
    pub(super) journal: Option<JournalWatch>,
    pub(super) ha: Option<Arc<dyn HaReport>>,
}

impl ShownMaster {
    pub(crate) fn of(master: &mc_server::Master) -> Self {
        Self {
            state: Arc::clone(master.state()),
            clock: master.clock(),
            history: Arc::clone(master.history()),
            loads: Arc::clone(master.loads()),
            rpc: master.rpc_watch(),
            streams: master.streams().clone(),
            ticker: master.ticker_watch(),
            events: master.events().map(Arc::clone),
            journal: master.journal_watch(),
            ha: master.ha_report(),
        }
    }

    /// Returns the problem that keeps the master from its work.
    pub(super) fn problem(&self) -> Option<String> {
        let ticker = self.ticker.read().problem.map(|problem| problem.to_string());
        let journal = self.journal.as_ref().and_then(JournalWatch::trouble);
        ticker.or_else(|| journal.map(|trouble| trouble.to_string()))
    }

    pub(super) fn metrics(&self) -> MetricsText {
        let mut text = figures::prometheus(&self.state.report());
        figures::rpc(&mut text, &self.rpc.read());
        figures::ticker(&mut text, &self.ticker.read());
        if let Some(report) = self.state.tenant_quotas() {
            figures::tenants(&mut text, report);
        }
        if let Some(events) = &self.events {
            figures::events(&mut text, &events.stats());
        }
        if let Some(journal) = &self.journal {
            journal::metrics(&mut text, &journal.read());
        }
        text
    }
}

/// A request that may be answered.
pub(super) struct Asked<'a> {
    pub(super) shown: &'a Shown,
    pub(super) master: &'a ShownMaster,
    pub(super) tenant: &'a TenantId,
    pub(super) query: Query<'a>,
    pub(super) started: Instant,
}

impl Asked<'_> {
    pub(super) fn report(&self) -> MasterReport {
        self.master.state.report()
    }
}
