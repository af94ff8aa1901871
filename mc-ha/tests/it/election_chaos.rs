//! Members and their etcd fail at random: never do two of them have authority at once.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mc_ha::election::etcd::EtcdElection;
use mc_ha::election::{
    Authority, BootClock, Candidacy, CandidacySettings, LeaderElection, Member, MemberId, Standing,
    await_leadership,
};
use mc_ha::etcd::EtcdConfig;
use mc_testkit::{EtcdCluster, Random, Relay, eventually};

const LIMIT: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(1);
const ETCD_MEMBERS: usize = 3;
const PARTS: [&str; 3] = ["a", "b", "c"];

/// Every authority that was ever won and the number of its member, in the order of winning.
type Won = Arc<Mutex<Vec<(Authority, usize)>>>;

/// Leads whenever it can, for a while each time.
async fn take_part(election: EtcdElection, part: usize, mut random: Random, won: Won) {
    let id = MemberId::new(PARTS[part]).unwrap();
    let mut candidacy = Candidacy::new(id, CandidacySettings::default());
    loop {
        let leadership = await_leadership(&election, &mut candidacy, &BootClock).await.unwrap();
        won.lock().unwrap().push((leadership.authority().clone(), part));
        let stay = millis(random.below(6000));
        if tokio::time::timeout(stay, leadership.authority().ended()).await.is_err() {
            // Fails where the member is cut off.
            let _ = leadership.resign(None).await;
        }
    }
}

fn millis(millis: usize) -> Duration {
    Duration::from_millis(millis as u64)
}

/// Looks for two that are valid at once, until it is stopped; returns how often it looked.
fn look(won: &Mutex<Vec<(Authority, usize)>>, stop: &AtomicBool) -> u64 {
    let mut looks = 0;
    while !stop.load(Ordering::Relaxed) {
        let authorities = won.lock().unwrap().clone();
        // Of those before the last few none is valid again.
        let recent = &authorities[authorities.len().saturating_sub(8)..];
        for (at, (one, _)) in recent.iter().enumerate() {
            for (other, _) in &recent[at + 1..] {
                // The first once more: it may have ended before the other one began.
                let both = one.is_valid() && other.is_valid() && one.is_valid();
                assert!(!both, "two are valid: {one:?} {other:?}");
                assert_ne!(one.epoch(), other.epoch());
            }
        }
        looks += 1;
        // Leaves the processor to those that are looked at.
        std::thread::sleep(Duration::from_micros(200));
    }
    looks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_members_have_authority_at_once() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let mut random = Random::seeded("MC_ELECTION_SEED");
    let etcd = EtcdCluster::start(ETCD_MEMBERS);
    let won = Won::default();
    let mut relays = Vec::new();
    let mut parts = Vec::new();
    for (part, id) in PARTS.into_iter().enumerate() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut endpoints = Vec::new();
        for member in 0..ETCD_MEMBERS {
            let relay = Relay::between(any, etcd.address(member), 64).await.unwrap();
            endpoints.push(relay.address().to_string());
            relays.push(relay);
        }
        let config = EtcdConfig::new(&endpoints.join(";")).unwrap().with_lease_ttl(TTL).unwrap();
        let election = EtcdElection::start(&config).unwrap();
        let member = Member::new(id, "host:1").unwrap();
        election.register(member, Standing::EMPTY).await.unwrap();
        let task = take_part(election, part, Random::new(random.next_u64()), Arc::clone(&won));
        parts.push(tokio::spawn(task));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let looking = std::thread::spawn({
        let (won, stop) = (Arc::clone(&won), Arc::clone(&stop));
        move || look(&won, &stop)
    });
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(12) {
        // The leader, mostly.
        let leader = won.lock().unwrap().last().map(|(_, part)| *part);
        let other = random.below(PARTS.len());
        let part = leader.filter(|_| random.below(4) > 0).unwrap_or(other);
        let (frozen, member) = (random.below(4) == 0, random.below(ETCD_MEMBERS));
        if frozen {
            etcd.freeze(member);
        } else {
            relays[part * ETCD_MEMBERS..][..ETCD_MEMBERS].iter().for_each(Relay::pause);
        }
        tokio::time::sleep(millis(200 + random.below(2300))).await;
        if frozen {
            etcd.resume(member);
        } else {
            relays.iter().for_each(Relay::resume);
        }
        tokio::time::sleep(millis(random.below(500))).await;
    }
    // When all is well again, there is a leader.
    let terms = won.lock().unwrap().len();
    eventually(LIMIT, "a new term", || won.lock().unwrap().len() > terms).await;
    stop.store(true, Ordering::Relaxed);
    let looks = looking.join().unwrap();
    println!("{} terms, {looks} looks", won.lock().unwrap().len());
    assert!(!parts.iter().any(tokio::task::JoinHandle::is_finished), "a member has failed");
}
