//! What a master has to do with its journal and its term, in the order of its start.

use std::sync::Arc;

use mc_ha::JournalSink;
use mc_ha::election::{ElectionError, Leadership};
use mc_ha::replication::Hub;
use mc_meta::MasterConfig;
use mc_rpc::{Clock, DurableWatch, HaReport, HaRole, MasterService, ServerConfig, Term};
use mc_types::Time;
use tokio::sync::mpsc;

use super::cluster::LeaderSeat;
use super::environment::HaEnvironment;
use super::journal::{
    JournalConfig, JournalStartError, JournalWatch, Recovered, RunningJournal, recover, take_over,
};
use super::status::{Leading, Status};
use super::term::{JournalPort, MayAnswer, RunningTerm};
use crate::environment::Environment;

/// How a master that is to be started keeps its metadata.
pub(crate) enum Keeping {
    Alone(JournalConfig),
    Leader(Box<LeaderSeat>),
}

/// The journal of a master that does not serve yet.
pub(crate) struct Kept {
    journal: RunningJournal,
    term: Option<WonTerm>,
}

struct WonTerm {
    leadership: Leadership,
    hub: Arc<Hub>,
    status: Arc<Status>,
}

/// The journal of a master that serves, and its term.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// Ends before the journal does.
    term: Option<(RunningTerm, Arc<Status>)>,
    journal: RunningJournal,
}

impl Keeping {
    /// Makes the master. Blocks.
    pub(crate) fn open(
        self,
        master: &MasterConfig,
        seed: Option<u64>,
        environment: &Arc<dyn Environment>,
    ) -> Result<(mc_meta::Master, Kept), JournalStartError> {
        let executor = Arc::new(HaEnvironment::new(Arc::clone(environment)));
        let environment = &**environment;
        match self {
            Self::Alone(config) => {
                let Recovered { state, corrections, replayed } =
                    recover(&config, master, seed, environment)?;
                let journal = RunningJournal::start(executor, config, &corrections, replayed)?;
                Ok((state, Kept { journal, term: None }))
            }
            Self::Leader(seat) => {
                let LeaderSeat { config, leadership, replica, status } = *seat;
                let Recovered { state, corrections, replayed } =
                    take_over(replica, &config.journal, master, seed, environment)?;
                let (journal, hub) = RunningJournal::lead(
                    executor,
                    config.journal,
                    leadership.epoch(),
                    &corrections,
                    replayed,
                    config.replication,
                )?;
                Ok((state, Kept { journal, term: Some(WonTerm { leadership, hub, status }) }))
            }
        }
    }
}

impl Kept {
    /// The sink that the master needs.
    pub(crate) fn sink(&self) -> JournalSink {
        self.journal.sink()
    }

    /// What answers wait for.
    pub(crate) fn durability(&self) -> DurableWatch {
        self.journal.durability()
    }

    /// Makes the master's server one of its term, and takes its snapshots from now on.
    pub(crate) fn attend<C: Clock>(
        &mut self,
        state: &Arc<mc_meta::Master>,
        now: impl Fn() -> Time + Send + Sync + 'static,
        service: MasterService<C>,
        config: &mut ServerConfig,
    ) -> Result<MasterService<C>, JournalStartError> {
        self.journal.attend(state, now)?;
        let Some(WonTerm { leadership, hub, status }) = &self.term else { return Ok(service) };
        let authority = Arc::new(MayAnswer(leadership.authority().clone()));
        config.term = Some(Term { epoch: leadership.epoch(), authority });
        let snapshots = self.journal.snapshot_request();
        config.upgrade = Some(Arc::new(JournalPort { hub: Arc::clone(hub), snapshots }));
        Ok(service.with_ha(Arc::clone(status) as Arc<dyn HaReport>))
    }

    /// Tells the other members that none of them is in sync with this term yet: before the first
    /// answer, for those of the last term lack it.
    pub(crate) async fn begin(&self) -> Result<(), ElectionError> {
        match &self.term {
            Some(term) => term.leadership.set_in_sync(&[]).await,
            None => Ok(()),
        }
    }

    /// Keeps the term from now on.
    pub(crate) fn serve(self) -> Keeper {
        let Self { journal, term } = self;
        let term = term.map(|WonTerm { leadership, hub, status }| {
            let (hand_over, wishes) = mpsc::channel(1);
            let epoch = leadership.epoch();
            let authority = leadership.authority().clone();
            let leading =
                Leading { hub: Arc::clone(&hub), journal: journal.watch(), authority, hand_over };
            status.leads(epoch, leading);
            (RunningTerm::start(leadership, hub, journal.watch(), wishes), status)
        });
        Keeper { term, journal }
    }
}

impl Keeper {
    /// Sees the journal's state.
    pub(crate) fn watch(&self) -> JournalWatch {
        self.journal.watch()
    }

    /// Waits until the term is over; for ever for a master that is alone.
    pub(crate) async fn over(&self) {
        match &self.term {
            Some((term, _)) => term.over().await,
            None => std::future::pending().await,
        }
    }

    /// Writes what waits, for ten seconds at most.
    pub(crate) async fn close(&self) {
        self.journal.close().await;
    }

    /// Ends the term. Returns whether there was one.
    pub(crate) fn end_term(&mut self) -> bool {
        self.term.take().map(|(_, status)| status.becomes(HaRole::Standby, None)).is_some()
    }
}
