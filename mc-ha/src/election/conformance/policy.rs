use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::Cluster;
use super::rig::{Part, at, parts};
use crate::election::{
    BootClock, Candidacy, CandidacySettings, Leadership, Position, await_leadership,
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
    let a = Part::join(&*cluster, "a", Position::EMPTY).await;
    let b = Part::join(&*cluster, "b", at(1, 9)).await;
    let c = Part::join(&*cluster, "c", at(1, 1)).await;
    let first = a.win().await;
    first.set_in_sync(&[b.id.clone(), c.id.clone()]).await.expect("it leads");
    for part in [&b, &c] {
        part.sees(|view| view.is_in_sync(&c.id) && view.members.len() == 3).await;
        part.sees_leader(Some(&a.id)).await;
    }
    let (second, third) = (stand(&c), stand(&b));
    first.resign(Some(&c.id)).await.expect("it leads");
    let second = second.await.expect("no panic");
    // The other one stands by, and takes over when the successor has gone.
    b.sees_leader(Some(&c.id)).await;
    second.resign(None).await.expect("it leads");
    third.await.expect("no panic");
}

pub(super) async fn a_member_that_is_not_in_sync_does_not_lead(cluster: Arc<dyn Cluster>) {
    let [a, b, c] = parts(&*cluster).await;
    let first = a.win().await;
    first.set_in_sync(slice::from_ref(&b.id)).await.expect("it leads");
    c.sees(|view| view.in_sync.is_some() && view.leader.is_some()).await;
    let waiting = stand(&c);
    a.cut();
    c.sees_leader(None).await;
    tokio::time::sleep(cluster.ttl() / 2).await;
    assert!(!waiting.is_finished());
    // Who is in sync has the journal of the term.
    b.election.set_position(at(first.epoch().as_u64(), 1));
    let second = stand(&b).await.expect("no panic");
    c.election.set_position(at(second.epoch().as_u64(), 1));
    second.set_in_sync(slice::from_ref(&c.id)).await.expect("it leads");
    c.sees(|view| view.is_in_sync(&c.id)).await;
    second.resign(None).await.expect("it leads");
    let third = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    third.expect("in time").expect("no panic");
}
