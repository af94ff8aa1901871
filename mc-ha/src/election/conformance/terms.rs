use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_types::Epoch;

use super::Cluster;
use super::rig::{Part, at, lost, member, parts};
use crate::election::{ElectionError, MAX_MEMBERS, MemberId, Standing, Takeover};

/// The most that a busy machine may add to a measured time.
const SLACK: Duration = Duration::from_secs(1);

pub(super) async fn one_of_many_wins(cluster: Arc<dyn Cluster>) {
    let [a, b, c] = parts(&*cluster).await;
    let (ra, rb, rc) = tokio::join!(
        a.election.campaign(Takeover::InSync),
        b.election.campaign(Takeover::InSync),
        c.election.campaign(Takeover::InSync)
    );
    let results = [ra, rb, rc];
    let won: Vec<_> = results.iter().flatten().collect();
    let [won] = won[..] else { panic!("not one winner: {results:?}") };
    assert!(won.authority().is_valid());
    for result in results.iter().filter(|result| result.is_err()) {
        assert_eq!(lost(result), Some(won.member().id()), "{result:?}");
    }
    for part in [&a, &b, &c] {
        part.sees_leader(Some(won.member().id())).await;
        let leader = part.election.leader().borrow().clone().expect("there is one");
        assert_eq!((leader.epoch, &leader.member), (won.epoch(), won.member()));
    }
}

pub(super) async fn who_has_not_registered_does_not_campaign(cluster: Arc<dyn Cluster>) {
    let joined = cluster.join().await;
    let error = joined.election.campaign(Takeover::InSync).await.expect_err("it is no member");
    assert!(matches!(error, ElectionError::NotRegistered), "{error}");
}

pub(super) async fn epochs_only_rise(cluster: Arc<dyn Cluster>) {
    let [a, b] = parts(&*cluster).await;
    let mut last = Epoch::new(0);
    for part in [&a, &b, &a, &a] {
        let won = part.win().await;
        assert!(won.epoch() > last, "{} after {last}", won.epoch());
        last = won.epoch();
        won.resign(None).await.expect("the term lasts");
    }
    // A journal may be older than the service.
    b.election.set_standing(at(1000, 1));
    let won = b.win().await;
    assert!(won.epoch() > Epoch::new(1000), "{}", won.epoch());
}

pub(super) async fn a_term_that_is_dropped_ends(cluster: Arc<dyn Cluster>) {
    let [a, b] = parts(&*cluster).await;
    let won = a.win().await;
    let authority = won.authority().clone();
    b.sees_leader(Some(&a.id)).await;
    drop(won);
    assert!(!authority.is_valid());
    b.sees_leader(None).await;
    b.win().await;
}

pub(super) async fn a_campaign_that_is_dropped_leaves_no_term(cluster: Arc<dyn Cluster>) {
    let [a, b] = parts(&*cluster).await;
    // Begun, and not waited for.
    let _ = futures_poll_once(a.election.campaign(Takeover::InSync)).await;
    b.win().await;
}

/// Polls a future once and drops it.
async fn futures_poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match future.as_mut().poll(context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

pub(super) async fn the_authority_ends_before_another_can_win(cluster: Arc<dyn Cluster>) {
    let [a, b] = parts(&*cluster).await;
    let first = a.win().await;
    // Longer than a lease: it is renewed.
    let renewed = Instant::now();
    while renewed.elapsed() < cluster.ttl() * 3 / 2 {
        assert!(first.authority().is_valid());
        assert_eq!(lost(&b.election.campaign(Takeover::InSync).await), Some(&a.id));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let cut = Instant::now();
    a.cut();
    let waits = tokio::spawn({
        let authority = first.authority().clone();
        async move { authority.ended().await }
    });
    b.sees_leader(None).await;
    assert!(cut.elapsed() < cluster.ttl() + SLACK, "seen after {:?}", cut.elapsed());
    let second = b.win().await;
    assert!(!first.authority().is_valid());
    assert!(second.epoch() > first.epoch());
    waits.await.expect("no panic");
    a.connect();
    a.sees_leader(Some(&b.id)).await;
    assert!(!first.authority().is_valid() && second.authority().is_valid());
    let error = first.set_in_sync(&[]).await.expect_err("it is deposed");
    assert!(matches!(error, ElectionError::Deposed { .. }), "{error}");
    // Giving up what is over leaves the new leader alone.
    let error = first.resign(None).await.expect_err("it is deposed");
    assert!(matches!(error, ElectionError::Deposed { .. }), "{error}");
    assert_eq!(lost(&a.election.campaign(Takeover::InSync).await), Some(&b.id));
}

pub(super) async fn the_in_sync_set_is_the_leaders_alone(cluster: Arc<dyn Cluster>) {
    let [a, b] = parts(&*cluster).await;
    let read = a.election.read().await.expect("it is there");
    assert_eq!(read.in_sync, None);
    assert!(read.is_in_sync(&a.id));
    let first = a.win().await;
    first.set_in_sync(slice::from_ref(&b.id)).await.expect("it leads");
    let set = b.election.read().await.expect("it is there").in_sync.expect("it was set");
    assert_eq!((set.epoch, set.members), (first.epoch(), vec![a.id.clone(), b.id.clone()]));
    b.sees(|view| view.is_in_sync(&b.id) && view.in_sync.is_some()).await;
    let many: Vec<_> = (0..MAX_MEMBERS).map(|n| member(&n.to_string()).id().clone()).collect();
    let error = first.set_in_sync(&many).await.expect_err("too many");
    assert!(matches!(error, ElectionError::TooManyMembers { .. }), "{error}");
    first.resign(None).await.expect("it leads");
    // It outlives the term.
    let second = b.win().await;
    let set = a.election.read().await.expect("it is there").in_sync.expect("it was set");
    assert_eq!(set.members, [a.id.clone(), b.id.clone()]);
    second.set_in_sync(&[]).await.expect("it leads");
    a.sees(|view| !view.is_in_sync(&a.id)).await;
    let late = Part::join(&*cluster, "late", Standing::EMPTY).await;
    let none: Option<&MemberId> = None;
    assert_ne!(lost(&late.election.campaign(Takeover::InSync).await), none);
}
