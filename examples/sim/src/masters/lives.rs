//! The lives of masters: what one process of each kind does.

use std::sync::Arc;
use std::time::Duration;

use mc_cluster_testkit::simulation::{Process, SimulatedHost};
use mc_rpc::ServerConfig;
use mc_store::{ClusterConfig, JournalConfig, Master, MasterStartError, Standby, StandbyError};
use tokio::time::sleep;

use super::{Shared, rpc_address};

/// The life of a master without others.
pub(super) async fn live_alone(
    shared: Shared,
    number: usize,
    process: Process,
    environment: Arc<SimulatedHost>,
    journal: Option<JournalConfig>,
    seed: u64,
) {
    let kept = journal.as_ref().map(|journal| Arc::clone(&journal.journal));
    let from = kept.as_ref().and_then(|journal| journal.last()).unwrap_or_default();
    let (master, streams, life, subscriber) = loop {
        let sink = shared.ledger.sink();
        let life = sink.life();
        let (subscriber, publisher) = shared.subscribe().await;
        let mut builder = Master::builder()
            .config(shared.config())
            .seed(seed)
            .sink(sink)
            .events(publisher)
            .environment(Arc::clone(&environment) as _);
        if let Some(journal) = journal.clone() {
            builder = builder.journal(journal);
        }
        match builder.start_over_streams().await {
            Ok((master, streams)) => break (master, streams, life, subscriber),
            // Its disk is full.
            Err(error @ MasterStartError::Journal(_)) => {
                if let Some(journal) = &kept {
                    shared.ledger.begins(journal.epoch(), from);
                }
                shared.history.say(format_args!("m{number}"), format_args!("cannot lead: {error}"));
                sleep(Duration::from_secs(1)).await;
            }
            Err(error) => {
                shared.history.violates(format_args!("a master does not start: {error}"));
                return;
            }
        }
    };
    let kept = kept.as_ref().map(|journal| (&**journal, from));
    shared.leads(number, &master, (life, subscriber), kept);
    shared.network.listen(&rpc_address(process.host()), &process, streams);
    std::future::pending::<()>().await;
}

/// The life of a master among others, as the program mc-master lives it.
pub(super) async fn live_among_others(
    shared: Shared,
    number: usize,
    process: Process,
    address: String,
    cluster: ClusterConfig,
) {
    let who = format!("m{number}");
    let journal = Arc::clone(&cluster.journal.journal);
    let election = Arc::clone(&cluster.election);
    let mut was_leader = false;
    loop {
        let (cluster, server) = (cluster.clone(), ServerConfig::default());
        let standby = if was_leader {
            Standby::start_over_streams_after_term(cluster, shared.config(), server).await
        } else {
            Standby::start_over_streams(cluster, shared.config(), server).await
        };
        let (standby, streams) = match standby {
            Ok(started) => started,
            Err(error @ StandbyError::Election(_)) => {
                shared.history.say(&who, format_args!("cannot take part: {error}"));
                sleep(Duration::from_secs(1)).await;
                continue;
            }
            Err(error) => {
                shared.history.violates(format_args!("a standby does not start: {error}"));
                return;
            }
        };
        shared.network.listen(&address, &process, streams);
        shared.history.say(&who, "stands by");
        let seat = match standby.lead().await {
            Ok(seat) => seat,
            Err(error) => {
                shared.history.say(&who, format_args!("cannot lead: {error}"));
                sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        was_leader = true;
        let from = journal.last().unwrap_or_default();
        let sink = shared.ledger.sink();
        let life = sink.life();
        let (subscriber, publisher) = shared.subscribe().await;
        let builder =
            Master::builder().config(shared.config()).sink(sink).events(publisher).lead(seat);
        let (master, streams) = match builder.start_over_streams().await {
            Ok(started) => started,
            Err(error @ (MasterStartError::Term(_) | MasterStartError::Journal(_))) => {
                shared.ledger.begins(journal.epoch(), from);
                shared.history.say(&who, format_args!("does not lead: {error}"));
                sleep(Duration::from_secs(1)).await;
                continue;
            }
            Err(error) => {
                shared.history.violates(format_args!("a master does not start: {error}"));
                return;
            }
        };
        shared.leads(number, &master, (life, subscriber), Some((&*journal, from)));
        shared.network.listen(&address, &process, streams);
        let watch = master.journal_watch().expect("it has a journal");
        tokio::select! {
            biased;
            () = master.deposed() => {}
            () = watch.gave_up() => {}
        }
        let view = election.view().borrow().clone();
        shared.leads_no_more(number, view.is_some_and(|view| view.successor.is_some()));
        shared.history.say(&who, "leads no more");
        master.shutdown().await;
    }
}
