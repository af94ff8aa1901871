//! Elections in a real etcd whose members, or whose clients, fail.

use std::time::{Duration, Instant};

use mc_ha::election::etcd::{EtcdElection, MasterLookup, find_leader};
use mc_ha::election::{
    ElectionError, LeaderElection, Leadership, Member, MemberId, Standing, Takeover,
};
use mc_ha::etcd::{EtcdConfig, EtcdTls};
use mc_testkit::{EtcdCluster, Input, Program, eventually, eventually_async, role};

const LIMIT: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(2);

/// The most that a busy machine may add to a measured time.
const SLACK: Duration = Duration::from_secs(1);

/// A cluster whose terms end [soon](TTL).
fn config(etcd: &EtcdCluster, cluster_id: &str) -> EtcdConfig {
    default_config(etcd, cluster_id).with_lease_ttl(TTL).unwrap()
}

fn default_config(etcd: &EtcdCluster, cluster_id: &str) -> EtcdConfig {
    EtcdConfig::new(&etcd.endpoints().join(";")).unwrap().with_cluster_id(cluster_id).unwrap()
}

async fn member(config: &EtcdConfig, id: &str) -> EtcdElection {
    let election = EtcdElection::start(config).unwrap();
    let member = Member::new(id, &format!("{id}.example:50051")).unwrap();
    election.register(member, Standing::EMPTY).await.unwrap();
    election
}

async fn win(election: &dyn LeaderElection) -> Leadership {
    eventually_async(LIMIT, "it wins", async || election.campaign(Takeover::InSync).await).await
}

async fn sees_leader(election: &dyn LeaderElection, id: Option<&str>) {
    let mut leader = election.leader();
    let is = leader.wait_for(|seen| seen.as_ref().map(|seen| seen.member.id().as_str()) == id);
    tokio::time::timeout(LIMIT, is).await.expect("in time").unwrap();
}

/// A member in a process of its own; does nothing in a run of all tests.
#[tokio::test]
async fn plays_a_member() {
    let Some(role) = role::role() else { return };
    let (cluster_id, endpoints) = role.split_once(' ').unwrap();
    let config = EtcdConfig::new(endpoints).unwrap().with_cluster_id(cluster_id).unwrap();
    let config = config.with_lease_ttl(TTL).unwrap();
    let election = member(&config, "child").await;
    let leadership = win(&election).await;
    role::say(leadership.epoch().as_u64());
    while role::hear().is_some() {
        role::say(leadership.authority().is_valid());
    }
}

fn child(etcd: &EtcdCluster, cluster_id: &str) -> Program {
    let role = format!("{cluster_id} {}", etcd.endpoints().join(";"));
    Program::start(LIMIT, &mut role::command("election_faults::plays_a_member", &role), Input::Open)
}

#[tokio::test]
async fn a_leader_that_is_killed_is_replaced_after_its_lease() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let etcd = EtcdCluster::start(1);
    let election = member(&config(&etcd, "killed"), "a").await;
    let mut child = child(&etcd, "killed");
    let epoch: u64 = child.hear().parse().unwrap();
    sees_leader(&election, Some("child")).await;
    let lookup = MasterLookup::new(&config(&etcd, "killed")).unwrap();
    let masters = lookup.find().await.unwrap();
    let members: Vec<&str> = masters.members.iter().map(Member::rpc_address).collect();
    assert_eq!(members, ["a.example:50051", "child.example:50051"]);
    let found = find_leader(&config(&etcd, "killed")).await.unwrap().unwrap();
    assert_eq!(masters.leader.as_ref(), Some(&found));
    assert_eq!((found.epoch.as_u64(), found.member.rpc_address()), (epoch, "child.example:50051"));
    let killed = Instant::now();
    child.kill();
    sees_leader(&election, None).await;
    let (seen, won) = (killed.elapsed(), win(&election).await);
    println!("killed: seen after {seen:?}, replaced after {:?}", killed.elapsed());
    assert!(seen < TTL + SLACK, "{seen:?}");
    assert!(won.epoch().as_u64() > epoch);
}

#[tokio::test]
async fn a_leader_that_was_frozen_does_not_resume() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let etcd = EtcdCluster::start(1);
    let election = member(&config(&etcd, "frozen"), "a").await;
    let mut child = child(&etcd, "frozen");
    child.hear();
    child.tell("?");
    assert_eq!(child.hear(), "true");
    sees_leader(&election, Some("child")).await;
    child.freeze();
    let frozen = Instant::now();
    let won = win(&election).await;
    println!("frozen: replaced after {:?}", frozen.elapsed());
    child.resume();
    // The first thing that it does is to look.
    child.tell("?");
    assert_eq!(child.hear(), "false");
    won.set_in_sync(&[]).await.unwrap();
    assert!(won.authority().is_valid());
}

/// A frozen leader of etcd renews leases and ends those that its successor has renewed when it goes
/// on; see the module's documentation. Neither touches a term.
#[tokio::test]
async fn a_term_survives_a_leader_of_etcd_that_is_killed_or_frozen() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let mut etcd = EtcdCluster::start(3);
    let config = config(&etcd, "etcd").with_lease_ttl(Duration::from_secs(8)).unwrap();
    let (a, b) = (member(&config, "a").await, member(&config, "b").await);
    let leadership = win(&a).await;
    let epoch = leadership.epoch();
    sees_leader(&b, Some("a")).await;

    let first = eventually(LIMIT, "etcd has a leader", || etcd.leader()).await;
    etcd.freeze(first);
    let second =
        eventually(LIMIT, "another leader", || etcd.leader().filter(|leader| *leader != first))
            .await;
    // Longer than the lease, so that the frozen one believes that all leases are over.
    let frozen = Instant::now();
    while frozen.elapsed() < Duration::from_secs(9) {
        assert!(leadership.authority().is_valid(), "after {:?}", frozen.elapsed());
        assert!(b.campaign(Takeover::InSync).await.is_err());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    etcd.resume(first);
    etcd.kill(second);
    let killed = Instant::now();
    while killed.elapsed() < Duration::from_secs(9) {
        assert!(leadership.authority().is_valid(), "after {:?}", killed.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    etcd.restart(second);
    eventually_async(LIMIT, "etcd works", async || leadership.set_in_sync(&[]).await).await;
    assert_eq!(b.leader().borrow().as_ref().map(|leader| leader.epoch), Some(epoch));
    eventually(LIMIT, "both are members", || {
        b.view().borrow().as_ref().is_some_and(|view| view.members.len() == 2)
    })
    .await;
}

/// The rest of a term with the default lease that was renewed a moment before.
const RENEWED: Duration = Duration::from_secs(5);

/// `MC_ETCD_KILLS` is how often etcd's leader is killed, 3 times otherwise.
#[tokio::test]
async fn a_term_with_the_default_lease_outlives_elections_of_etcd() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let kills = std::env::var("MC_ETCD_KILLS").map_or(3, |kills| kills.parse::<u32>().unwrap());
    let mut etcd = EtcdCluster::start_with_election_timeout(3, Duration::from_secs(1));
    let config = default_config(&etcd, "elections");
    assert!(!config.has_short_lease());
    let election = member(&config, "a").await;
    let term = win(&election).await;
    for kill in 1..=kills {
        let leader = eventually(LIMIT, "etcd has a leader", || etcd.leader()).await;
        etcd.kill(leader);
        let killed = Instant::now();
        let follows = || etcd.leader().filter(|next| *next != leader);
        eventually(LIMIT, "etcd has another leader", follows).await;
        let left = term.authority().remaining();
        println!("kill {kill}: elected after {:?}, the term has {left:?}", killed.elapsed());
        assert!(left.is_some(), "the term has ended with kill {kill}");
        etcd.restart(leader);
        etcd.wait_until_ready(leader);
        let is_renewed =
            || !term.authority().is_valid() || term.authority().remaining() > Some(RENEWED);
        eventually(LIMIT, "the term is renewed", is_renewed).await;
        assert!(term.authority().is_valid(), "the term has ended after kill {kill}");
    }
}

#[tokio::test]
async fn without_a_quorum_of_etcd_nobody_leads() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let mut etcd = EtcdCluster::start(3);
    let config = config(&etcd, "quorum");
    let (a, b) = (member(&config, "a").await, member(&config, "b").await);
    let first = win(&a).await;
    let lost = Instant::now();
    etcd.kill(0);
    etcd.kill(1);
    tokio::time::timeout(TTL + SLACK, first.authority().ended()).await.expect("in time");
    println!("quorum lost: the term ends after {:?}", lost.elapsed());
    assert!(matches!(b.campaign(Takeover::InSync).await, Err(error) if error.is_retryable()));
    let error = eventually_async(LIMIT, "etcd knows it", async || match b.read().await {
        Err(error @ ElectionError::NoQuorum { .. }) => Ok(error),
        other => Err(other),
    });
    let error = error.await.to_string();
    let outage = b.outage().expect("etcd does not answer");
    assert!(outage.since >= lost, "{outage:?}");
    assert!(error.contains("no quorum") && error.contains(&etcd.endpoints()[2]), "{error}");
    etcd.restart(0);
    etcd.restart(1);
    let second = win(&b).await;
    assert!(second.epoch() > first.epoch() && !first.authority().is_valid());
    sees_leader(&a, Some("b")).await;
    eventually(LIMIT, "etcd answers both", || a.outage().is_none() && b.outage().is_none()).await;
}

#[tokio::test]
async fn credentials_are_checked() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let mut etcd = EtcdCluster::start(1);
    // A request may take a quarter of it, and etcd is slow to look at a password.
    let plain = config(&etcd, "auth").with_lease_ttl(Duration::from_secs(8)).unwrap();
    // Where there is no authentication, a user does no harm.
    let root = plain.clone().with_credentials("root", "secret");
    assert!(find_leader(&root).await.unwrap().is_none());
    for arguments in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "guest:guest"],
        &["role", "add", "masters"],
        &["role", "grant-permission", "masters", "readwrite", "--prefix=true", "/mc-store/"],
        &["user", "add", "master:secret"],
        &["user", "grant-role", "master", "masters"],
        &["auth", "enable"],
    ] {
        etcd.ctl(arguments);
    }
    for (config, user) in [
        (plain.clone().with_credentials("root", "wrong"), "user \"root\""),
        (plain.clone().with_credentials("nobody", "secret"), "user \"nobody\""),
        (plain.clone(), "without a user"),
    ] {
        let error = find_leader(&config).await.unwrap_err();
        assert!(matches!(error, ElectionError::Credentials { .. }), "{error:?}");
        assert!(!error.is_retryable());
        let error = error.to_string();
        assert!(error.contains(user) && error.contains(&etcd.endpoints()[0]), "{error}");
    }
    let guest = find_leader(&plain.with_credentials("guest", "guest")).await.unwrap_err();
    assert!(matches!(guest, ElectionError::Forbidden { .. }), "{guest:?}");
    assert!(guest.to_string().contains("/mc-store/auth/"), "{guest}");

    let config = root.with_credentials("master", "secret");
    let election = member(&config, "a").await;
    let leadership = win(&election).await;
    sees_leader(&election, Some("a")).await;
    // A token does not outlast a restart of etcd.
    etcd.restart(0);
    etcd.wait_until_ready(0);
    eventually_async(LIMIT, "a new token", async || election.read().await).await;
    if leadership.authority().is_valid() {
        leadership.set_in_sync(&[]).await.unwrap();
    }
}

#[tokio::test]
async fn keys_that_are_changed_by_hand_depose_and_are_safe() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let etcd = EtcdCluster::start(1);
    let config = config(&etcd, "hand");
    let (a, b) = (member(&config, "a").await, member(&config, "b").await);
    let first = win(&a).await;
    sees_leader(&b, Some("a")).await;
    etcd.ctl(&["del", "/mc-store/hand/leader"]);
    let error = first.set_in_sync(&[]).await.unwrap_err();
    assert!(matches!(error, ElectionError::Deposed { .. }), "{error}");
    assert!(!first.authority().is_valid());
    let second = win(&b).await;
    assert!(second.epoch() > first.epoch());
    second.set_in_sync(&[MemberId::new("a").unwrap()]).await.unwrap();
    let written = etcd.ctl(&["get", "--prefix", "--keys-only", "/mc-store/hand/"]);
    let keys: Vec<&str> = written.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(
        keys,
        ["in-sync", "leader", "members/a", "members/b"].map(|key| format!("/mc-store/hand/{key}"))
    );
    // A registration that an administrator deletes comes back.
    etcd.ctl(&["del", "/mc-store/hand/members/a"]);
    eventually(LIMIT, "it was seen", || {
        b.view().borrow().as_ref().unwrap().member(&MemberId::new("a").unwrap()).is_none()
    })
    .await;
    eventually(LIMIT, "it comes back", || {
        b.view().borrow().as_ref().unwrap().member(&MemberId::new("a").unwrap()).is_some()
    })
    .await;
    etcd.ctl(&["put", "/mc-store/hand/leader", "not ours"]);
    let error =
        eventually_async(LIMIT, "it is read", async || match a.campaign(Takeover::InSync).await {
            Err(error @ ElectionError::Malformed { .. }) => Ok(error),
            other => Err(other),
        });
    let error = error.await;
    assert!(error.to_string().contains("/mc-store/hand/leader"), "{error}");
    // A member that waits for its turn waits for the key to be deleted.
    assert!(error.is_retryable());
}

#[tokio::test]
async fn the_history_of_the_keys_is_forgotten() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let etcd = EtcdCluster::start(1);
    let history = Some(Duration::from_millis(200));
    let config = config(&etcd, "history").with_history(history).with_lease_ttl(TTL / 2).unwrap();
    let election = member(&config, "a").await;
    let _leadership = win(&election).await;
    let is_compacted = || first_revision(&etcd).is_err_and(|error| error.contains("compacted"));
    eventually(LIMIT, "the first revisions are gone", is_compacted).await;
}

/// A request at the first revision, which etcd refuses when it has forgotten it.
fn first_revision(etcd: &EtcdCluster) -> Result<(), String> {
    let mut get = std::process::Command::new("etcdctl");
    get.env("ETCDCTL_API", "3").args(["--endpoints", &etcd.endpoints()[0]]);
    let got = get.args(["get", "--rev=1", "any"]).output().unwrap();
    if got.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&got.stderr).into()) }
}

#[tokio::test]
async fn the_history_of_other_users_of_etcd_is_left_to_them() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let etcd = EtcdCluster::start(1);
    etcd.ctl(&["put", "/registry/pods/a", "theirs"]);
    let history = Some(Duration::from_millis(100));
    let config = config(&etcd, "shared").with_history(history).with_lease_ttl(TTL / 2).unwrap();
    let election = member(&config, "a").await;
    let _leadership = win(&election).await;
    sees_leader(&election, Some("a")).await;
    // Twenty renewals take much longer than what is kept of the history.
    let renewals = || {
        let shown = etcd.ctl(&["get", "/mc-store/shared/leader", "--write-out=fields"]);
        let version = shown.lines().find_map(|line| line.strip_prefix("\"Version\" : "));
        version.unwrap().trim().parse::<u32>().unwrap()
    };
    eventually(LIMIT, "the term is renewed", || renewals() > 20).await;
    assert_eq!(first_revision(&etcd), Ok(()));
    // Unless they are told to, or those keys are gone.
    let allowed = config.clone().with_compaction_for_others(true);
    let other = member(&allowed, "b").await;
    let is_compacted = || first_revision(&etcd).is_err_and(|error| error.contains("compacted"));
    eventually(LIMIT, "a member that may compacts", is_compacted).await;
    drop(other);
}

#[tokio::test]
async fn an_etcd_that_is_not_there_is_named() {
    let config = EtcdConfig::new("127.0.0.1:1;127.0.0.1:2").unwrap();
    let error = find_leader(&config).await.unwrap_err();
    assert!(matches!(error, ElectionError::Unreachable { .. }) && error.is_retryable());
    let error = error.to_string();
    assert!(error.contains("127.0.0.1:1: ") && error.contains("127.0.0.1:2: "), "{error}");
    assert!(error.contains("refused"), "{error}");
    let election = EtcdElection::start(&EtcdConfig::new("127.0.0.1:1").unwrap()).unwrap();
    let member = Member::new("a", "host:1").unwrap();
    let error = election.register(member, Standing::EMPTY).await.unwrap_err();
    assert!(matches!(error, ElectionError::Unreachable { .. }), "{error}");
    assert!(election.view().borrow().is_none());
    let outage = election.outage().unwrap();
    assert!(matches!(outage.cause, ElectionError::Unreachable { .. }), "{outage:?}");
}

#[tokio::test]
async fn etcd_is_reached_over_tls() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [certificate, key, other] =
        ["cert.pem", "key.pem", "other.pem"].map(|f| dir.path().join(f));
    // The cluster's address is known when it runs; the name is checked instead.
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let another = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&other, another.cert.pem()).unwrap();
    let etcd = EtcdCluster::start_encrypted(&certificate, &key);
    let at = |ca: Option<&std::path::Path>| {
        let config = EtcdConfig::new(&format!("https://{}", etcd.address(0))).unwrap();
        config.with_tls(EtcdTls {
            ca: ca.map(Into::into),
            server_name: Some("localhost".into()),
            ..EtcdTls::default()
        })
    };
    let election = member(&at(Some(&certificate)), "a").await;
    win(&election).await.set_in_sync(&[]).await.unwrap();
    let error = find_leader(&at(Some(&other))).await.unwrap_err();
    assert!(error.to_string().contains("invalid peer certificate"), "{error}");
    let error = find_leader(&at(None)).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("set the file with the authority"), "{source}");
    let error = find_leader(&at(Some(&dir.path().join("none.pem")))).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("none.pem"), "{source}");
}
