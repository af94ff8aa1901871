use std::sync::Arc;
use std::time::Duration;

use super::Cluster;
use super::rig::{Part, at, member, parts};

pub(super) async fn members_see_each_other_and_their_positions(cluster: Arc<dyn Cluster>) {
    let a = Part::join(&*cluster, "a", at(1, 2)).await;
    let b = Part::join(&*cluster, "b", at(1, 3)).await;
    for part in [&a, &b] {
        part.sees(|view| {
            let of = |id| view.member(&id).map(|status| (status.member.clone(), status.standing));
            of(a.id.clone()) == Some((member("a"), at(1, 2)))
                && of(b.id.clone()) == Some((member("b"), at(1, 3)))
        })
        .await;
    }
    assert_eq!(a.election.read().await.expect("it is there").members.len(), 2);
    for sequence in 4..1000 {
        b.election.set_standing(at(1, sequence));
    }
    assert_eq!(b.election.standing(), at(1, 999));
    a.sees(|view| view.member(&b.id).is_some_and(|b| b.standing == at(1, 999))).await;
}

pub(super) async fn a_registration_that_was_lost_comes_back(cluster: Arc<dyn Cluster>) {
    let [a, b] = parts(&*cluster).await;
    b.cut();
    a.sees(|view| view.member(&b.id).is_none()).await;
    b.connect();
    a.sees(|view| view.member(&b.id).is_some()).await;
    b.sees(|view| view.members.len() == 2).await;
}

pub(super) async fn a_closed_election_ends_its_registration(cluster: Arc<dyn Cluster>) {
    let [a, b] = parts(&*cluster).await;
    a.sees(|view| view.members.len() == 2).await;
    drop(b);
    let gone = a.sees(|view| view.members.len() == 1);
    tokio::time::timeout(cluster.ttl() + Duration::from_secs(5), gone).await.expect("in time");
}
