use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::Cluster;
use super::rig::{Part, at, parts};
use crate::election::{
    BootClock, Candidacy, CandidacySettings, ClusterView, Leadership, Takeover, await_leadership,
};

/// Lets a member campaign when it is its turn.
fn stand(part: &Part) -> JoinHandle<Leadership> {
    let election = Arc::clone(&part.election);
    let mut candidacy = Candidacy::new(part.id.clone(), CandidacySettings::default());
    tokio::spawn(async move {
        await_leadership(&*election, &mut candidacy, &BootClock).await.expect("it can lead")
    })
}

pub(super) async fn the_chosen_successor_leads(cluster: Arc<dyn Cluster>) {
    let [a, b, c] = parts(&*cluster).await;
    let first = a.win().await;
    let epoch = first.epoch().as_u64();
    a.election.set_standing(at(epoch, 9));
    b.election.set_standing(at(epoch, 9));
    c.election.set_standing(at(epoch, 1));
    first.set_in_sync(&[b.id.clone(), c.id.clone()]).await.expect("it leads");
    for part in [&b, &c] {
        part.sees(|view| view.is_in_sync(&c.id) && view.members.len() == 3).await;
        part.sees_leader(Some(&a.id)).await;
    }
    let (second, third) = (stand(&c), stand(&b));
    first.resign(Some(&c.id)).await.expect("it leads");
    let second = second.await.expect("no panic");
    assert_eq!(second.last_unclean().as_u64(), 0);
    // The other one stands by, and takes over when the successor has gone.
    b.sees_leader(Some(&c.id)).await;
    second.resign(None).await.expect("it leads");
    third.await.expect("no panic");
}

pub(super) async fn a_member_that_is_not_in_sync_does_not_lead(cluster: Arc<dyn Cluster>) {
    let [a, b, c] = parts(&*cluster).await;
    let first = a.win().await;
    let epoch = first.epoch().as_u64();
    a.election.set_standing(at(epoch, 0));
    c.election.set_standing(at(epoch, 0));
    first.set_in_sync(slice::from_ref(&b.id)).await.expect("it leads");
    c.sees(|view| view.in_sync.is_some() && view.leader.is_some()).await;
    let waiting = stand(&c);
    a.cut();
    c.sees_leader(None).await;
    tokio::time::sleep(cluster.ttl() / 2).await;
    assert!(!waiting.is_finished());
    // Who is in sync has the journal of the term.
    b.election.set_standing(at(epoch, 1));
    let second = stand(&b).await.expect("no panic");
    c.election.set_standing(at(second.epoch().as_u64(), 1));
    second.set_in_sync(slice::from_ref(&c.id)).await.expect("it leads");
    c.sees(|view| view.is_in_sync(&c.id)).await;
    second.resign(None).await.expect("it leads");
    let third = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    third.expect("in time").expect("no panic");
}

pub(super) async fn how_far_the_leader_was_is_recorded(cluster: Arc<dyn Cluster>) {
    let [a, b] = parts(&*cluster).await;
    let first = a.win().await;
    let epoch = first.epoch().as_u64();
    a.election.set_standing(at(epoch, 9));
    let lacks = |view: &ClusterView, sequence| {
        let progress = view.progress.as_ref()?;
        progress.behind(at(epoch, sequence).position).map(|behind| behind.changes)
    };
    b.sees(|view| lacks(view, 9) == Some(0)).await;
    let view = b.election.read().await.expect("it can be read");
    assert_eq!(lacks(&view, 8).unwrap_or(1), 1, "a change behind, or behind all that is known");
    let of_before = at(epoch - 1, 9).position;
    assert_eq!(view.progress.and_then(|progress| progress.behind(of_before)), None);
}

pub(super) async fn an_unclean_takeover_is_remembered(cluster: Arc<dyn Cluster>) {
    let [a, b] = parts(&*cluster).await;
    let unclean = Takeover::Unclean(None);
    let first = a.win_as(unclean).await;
    let epoch = first.epoch();
    assert_eq!(first.last_unclean(), epoch);
    a.election.set_standing(at(epoch.as_u64(), 1));
    first.set_in_sync(slice::from_ref(&b.id)).await.expect("it leads");
    let history = at(1, 1).history;
    b.sees(|view| {
        let recorded = view.in_sync.as_ref().map(|set| (set.history, set.last_unclean));
        recorded == Some((history, epoch))
    })
    .await;
    first.resign(Some(&b.id)).await.expect("it leads");
    let second = b.win().await;
    assert!(second.epoch() > epoch);
    assert_eq!(second.last_unclean(), epoch, "it is of the same history");
}

pub(super) async fn a_leader_that_yields_leaves_no_record(cluster: Arc<dyn Cluster>) {
    let [a, b] = parts(&*cluster).await;
    let first = a.win().await;
    first.set_in_sync(&[]).await.expect("it leads");
    b.sees(|view| view.in_sync.is_some()).await;
    b.election.set_standing(at(1000, 1));
    first.yield_to(&b.id).await.expect("it leads");
    b.sees(|view| view.in_sync.is_none() && view.successor.as_ref() == Some(&b.id)).await;
    let second = stand(&b).await.expect("no panic");
    assert!(second.epoch().as_u64() > 1000, "younger than its journal");
    assert_eq!(second.last_unclean(), second.epoch());
}
