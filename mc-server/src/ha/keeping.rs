//! The tasks of a master with its journal and its term, in the order of its start.

use std::sync::Arc;

use mc_environment::Environment;
use mc_ha::HistoryId;
use mc_ha::JournalSink;
use mc_ha::election::{ElectionError, LeaderElection, Leadership, Standing};
use mc_meta::MasterConfig;
use mc_rpc::{Clock, DurableWatch, HaReport, HaRole, MasterService, ServerConfig, Term};
use mc_types::Time;

use super::alone::Alone;
use super::cluster::LeaderSeat;
use super::journal::{
    JournalConfig, JournalStartError, JournalWatch, LedJournal, Recovered, RunningJournal, recover,
    take_over,
};
use super::status::{Leading, Status};
use super::term::{HandOverError, JournalPort, Leases, MayAnswer, RunningTerm, TermParts};
use crate::ticker::TickerWatch;

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
    election: Arc<dyn LeaderElection>,
    led: LedJournal,
    status: Arc<Status>,
    history: HistoryId,
    /// The journal held nothing before.
    is_first: bool,
    /// Returns whether there is no object.
    has_none: Box<dyn Fn() -> bool + Send + Sync>,
    /// Tells the journal of leases.
    leases: Box<dyn Fn(Leases) + Send + Sync>,
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
        match self {
            Self::Alone(config) => {
                let Recovered { state, corrections, replayed } =
                    recover(&config, master, seed, &**environment)?;
                let journal =
                    RunningJournal::start(Arc::clone(environment), config, &corrections, replayed)?;
                Ok((state, Kept { journal, term: None }))
            }
            Self::Leader(seat) => {
                let LeaderSeat { config, leadership, replica, status } = *seat;
                let Recovered { state, corrections, replayed } =
                    take_over(replica, &config.journal, master, seed, &**environment)?;
                let identity = config.journal.journal.identity()?;
                let history = identity.expect("a journal that is led has one").history();
                let is_first = replayed.batches == 0;
                let (journal, led) = RunningJournal::lead(
                    Arc::clone(environment),
                    config.journal,
                    &leadership,
                    &corrections,
                    replayed,
                    config.replication,
                )?;
                let election = config.election;
                let term = WonTerm {
                    leadership,
                    election,
                    led,
                    status,
                    history,
                    is_first,
                    has_none: Box::new(|| false),
                    leases: Box::new(|_| {}),
                };
                Ok((state, Kept { journal, term: Some(term) }))
            }
        }
    }
}

impl Kept {
    /// The sink that the master needs.
    pub(crate) fn sink(&self) -> JournalSink {
        self.journal.sink()
    }

    /// Returns the watch that answers wait for.
    pub(crate) fn durability(&self) -> DurableWatch {
        self.journal.durability()
    }

    /// Sees the journal's state.
    pub(crate) fn watch(&self) -> JournalWatch {
        self.journal.watch()
    }

    /// Makes the master's server one of its term, and takes its snapshots from now on.
    pub(crate) fn attend<C: Clock>(
        &mut self,
        state: &Arc<mc_meta::Master>,
        now: impl Fn() -> Time + Send + Sync + 'static,
        service: MasterService<C>,
        config: &mut ServerConfig,
    ) -> Result<MasterService<C>, JournalStartError> {
        let now = Arc::new(now);
        let clock = Arc::clone(&now);
        self.journal.attend(state, move || clock())?;
        let Some(term) = &mut self.term else {
            return Ok(service.with_ha(Arc::new(Alone(Some(self.journal.watch())))));
        };
        let known = Arc::downgrade(state);
        term.has_none = Box::new(move || {
            known.upgrade().is_some_and(|state| state.report().totals.objects == 0)
        });
        let known = Arc::downgrade(state);
        term.leases = Box::new(move |leases| {
            if let Some(state) = known.upgrade() {
                match leases {
                    Leases::List => state.list_leases(now()),
                    Leases::Withdraw => state.withdraw_leases(now()),
                }
            }
        });
        let WonTerm { leadership, led, status, .. } = term;
        let authority = Arc::new(MayAnswer(leadership.authority().clone()));
        config.term = Some(Term { epoch: leadership.epoch(), authority });
        let snapshots = self.journal.snapshot_request();
        config.upgrade = Some(Arc::new(JournalPort { hub: Arc::clone(&led.hub), snapshots }));
        Ok(service.with_ha(Arc::clone(status) as Arc<dyn HaReport>))
    }

    /// Tells the other members which history this term's is, and that none of them is in sync with it
    /// yet: before the first answer, for those of the last term lack it.
    pub(crate) async fn begin(&self) -> Result<(), ElectionError> {
        let Some(term) = &self.term else { return Ok(()) };
        let (_, position) = self.journal.watch().ends();
        term.election.set_standing(Standing { position, history: Some(term.history) });
        term.leadership.set_in_sync(&[]).await
    }

    /// Keeps the term from now on.
    pub(crate) fn serve(self, ticker: TickerWatch) -> Keeper {
        let Self { journal, term } = self;
        let term = term.map(|won| {
            let WonTerm { leadership, election, led, status, history, .. } = won;
            let WonTerm { is_first, has_none, leases, .. } = won;
            let (epoch, hub) = (leadership.epoch(), Arc::clone(&led.hub));
            let authority = leadership.authority().clone();
            let is_blank = Box::new(move || is_first && has_none());
            let watch = journal.watch();
            let parts = TermParts {
                leadership,
                election,
                led,
                journal: watch,
                ticker,
                history,
                is_blank,
                leases,
            };
            let term = RunningTerm::start(parts, status.notice());
            let hand_over = term.wishes();
            status.leads(epoch, Leading { hub, journal: journal.watch(), authority, hand_over });
            (term, status)
        });
        Keeper { term, journal }
    }
}

impl Keeper {
    /// Sees the journal's state.
    pub(crate) fn watch(&self) -> JournalWatch {
        self.journal.watch()
    }

    /// Reports the state of the journal, and of the term if there is one.
    pub(crate) fn report(&self) -> Arc<dyn HaReport> {
        match &self.term {
            Some((_, status)) => Arc::clone(status) as Arc<dyn HaReport>,
            None => Arc::new(Alone(Some(self.journal.watch()))),
        }
    }

    /// Waits until the term is over; for ever for a master that is alone.
    pub(crate) async fn over(&self) {
        match &self.term {
            Some((term, _)) => term.over().await,
            None => std::future::pending().await,
        }
    }

    /// Hands the term over, if there is one, to a standby that has everything.
    pub(crate) async fn hand_over(&self) -> Result<(), HandOverError> {
        match &self.term {
            Some((term, _)) => term.hand_over().await,
            None => Ok(()),
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
