//! The masters that a process knows, and when it asks etcd for them again.
//!
//! Sans-I/O: the time and a random number are arguments.

use core::time::Duration;
use std::time::Instant;

use mc_ha::election::ElectionError;
use mc_ha::election::etcd::Masters;

/// The time over which the processes of a cluster spread their first question when no master takes
/// connections any more, and the shortest time between two questions of one that knows several
/// masters. Ten thousand processes ask etcd 333 times a second at most.
const SPREAD: Duration = Duration::from_secs(30);

/// The pause after the first question of a process that knows at most one master. It doubles with
/// each further question, up to [`SPREAD`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// When a process that has connected looks which other masters there are: a while after it has
/// connected, since masters are often started one after the other, and rarely from then on.
const FIRST_REFRESH: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(60));
const REFRESH: (Duration, Duration) = (Duration::from_secs(200), Duration::from_secs(400));

/// Most addresses that are kept.
const MAX_MASTERS: usize = 16;

/// Why no master is known.
#[derive(Clone, Debug)]
pub(super) enum Unknown {
    /// No master is registered in etcd.
    NoMaster,
    /// etcd cannot be asked.
    Etcd(ElectionError),
}

/// The masters of one cluster, as all clients of a process know them.
///
/// While a master takes connections etcd is hardly asked. When none does, the masters that are known
/// are tried again and again: one of them leads next as a rule, and a standby knows the leader. Only
/// a process that knows no other master asks etcd soon.
#[derive(Debug)]
pub(super) struct Directory {
    /// The one to try first in front.
    masters: Vec<String>,
    /// Why the last question was answered by nothing.
    failure: Option<Unknown>,
    /// Whether a master has taken a connection since the last failed round.
    is_connected: bool,
    /// When etcd may be asked; `None`: at once.
    next: Option<Instant>,
    is_asking: bool,
    /// Questions since a master took a connection.
    questions: u32,
}

impl Directory {
    pub(super) const fn new() -> Self {
        Self {
            masters: Vec::new(),
            failure: None,
            is_connected: false,
            next: None,
            is_asking: false,
            questions: 0,
        }
    }

    /// Returns the masters to try, in this order.
    ///
    /// # Errors
    /// When no master was ever found.
    pub(super) fn masters(&self) -> Result<Vec<String>, Unknown> {
        match &self.failure {
            Some(failure) if self.masters.is_empty() => Err(failure.clone()),
            _ => Ok(self.masters.clone()),
        }
    }

    /// Returns whether there is anything to say before the answer to a question comes.
    pub(super) fn has_answer(&self) -> bool {
        !self.masters.is_empty() || self.failure.is_some() && !self.is_asking
    }

    /// Notes that no master took a connection, or that none is known. Returns whether etcd is to be
    /// asked now; [`found`](Self::found) takes the answer. `random` is from 0 to 1.
    pub(super) fn no_master_answered(&mut self, now: Instant, random: f64) -> bool {
        if self.is_connected {
            self.is_connected = false;
            let wait = if self.masters.len() > 1 { SPREAD } else { FIRST_PAUSE };
            self.next = Some(now + wait.mul_f64(random));
        }
        self.asks(now)
    }

    /// Asks at once, as when etcd's settings have changed.
    pub(super) fn forget_pause(&mut self) {
        self.next = None;
    }

    /// Returns when etcd is to be asked although a master is connected.
    pub(super) fn refresh_at(&self) -> Option<Instant> {
        self.next.filter(|_| self.is_connected && !self.is_asking)
    }

    /// Returns whether that time has come, so that etcd is to be asked now.
    pub(super) fn refreshes(&mut self, now: Instant) -> bool {
        self.is_connected && self.asks(now)
    }

    fn asks(&mut self, now: Instant) -> bool {
        let is_due = !self.is_asking && self.next.is_none_or(|next| next <= now);
        self.is_asking |= is_due;
        is_due
    }

    /// Notes the answer of etcd.
    pub(super) fn found(
        &mut self,
        found: Result<Masters, ElectionError>,
        now: Instant,
        random: f64,
    ) {
        self.is_asking = false;
        match found {
            Ok(found) if found.members.is_empty() => self.failure = Some(Unknown::NoMaster),
            Ok(found) => {
                self.failure = None;
                self.replace(found);
            }
            Err(error) => self.failure = Some(Unknown::Etcd(error)),
        }
        let pause = if self.is_connected {
            between(REFRESH, random)
        } else if self.masters.len() > 1 {
            between((SPREAD, SPREAD + SPREAD / 2), random)
        } else {
            let full = FIRST_PAUSE.saturating_mul(1 << self.questions.min(16)).min(SPREAD);
            between((full / 2, full), random)
        };
        self.questions = self.questions.saturating_add(1);
        self.next = Some(now + pause);
    }

    /// The leader first, then the one that led last.
    fn replace(&mut self, found: Masters) {
        let last = self.masters.first().cloned();
        let mut masters: Vec<String> =
            found.members.iter().map(|member| member.rpc_address().to_owned()).collect();
        // A master that is down is not registered, and may be back before etcd is asked again.
        if !self.is_connected {
            masters.extend(
                self.masters.drain(..).filter(|known| {
                    !found.members.iter().any(|member| member.rpc_address() == known)
                }),
            );
        }
        self.masters = masters;
        if let Some(last) = last {
            self.put_first(&last);
        }
        if let Some(leader) = found.leader {
            self.put_first(leader.member.rpc_address());
        }
        self.masters.truncate(MAX_MASTERS);
    }

    fn put_first(&mut self, address: &str) {
        if let Some(place) = self.masters.iter().position(|known| known == address) {
            self.masters[..=place].rotate_right(1);
        }
    }

    /// Notes that a master took a connection at this address.
    pub(super) fn reached(&mut self, address: &str, now: Instant, random: f64) {
        if !self.masters.iter().any(|known| known == address) {
            self.masters.push(address.to_owned());
        }
        self.put_first(address);
        self.masters.truncate(MAX_MASTERS);
        if !self.is_connected {
            (self.is_connected, self.questions) = (true, 0);
            self.next = Some(now + between(FIRST_REFRESH, random));
        }
    }
}

fn between((least, most): (Duration, Duration), random: f64) -> Duration {
    least + (most - least).mul_f64(random)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use mc_ha::election::{Leader, Member};
    use mc_types::Epoch;

    use super::*;

    /// Masters of these names, of which the one in front leads if `leads`.
    fn found(names: &[&str], leads: bool) -> Masters {
        let members: Vec<Member> =
            names.iter().map(|name| Member::new(name, &format!("{name}:1")).unwrap()).collect();
        let leader = members.first().filter(|_| leads).cloned();
        let leader = leader.map(|member| Leader { epoch: Epoch::new(1), member });
        Masters { leader, members }
    }

    fn unreachable() -> ElectionError {
        ElectionError::Unreachable { failures: "etcd:2379: refused".into() }
    }

    fn after(begin: Instant, millis: u64) -> Instant {
        begin + Duration::from_millis(millis)
    }

    #[test]
    fn the_leader_is_tried_first_and_then_the_one_before() {
        let (mut known, now) = (Directory::new(), Instant::now());
        assert!(known.no_master_answered(now, 0.5));
        known.found(Ok(found(&["b", "a", "c"], true)), now, 0.5);
        assert_eq!(known.masters().unwrap(), ["b:1", "a:1", "c:1"]);
        known.reached("c:1", now, 0.5);
        assert_eq!(known.masters().unwrap(), ["c:1", "b:1", "a:1"]);
        // A standby named it.
        known.reached("d:1", now, 0.5);
        assert_eq!(known.masters().unwrap(), ["d:1", "c:1", "b:1", "a:1"]);
        // Masters that have gone for good are forgotten while another is connected, and no earlier.
        known.found(Ok(found(&["a", "d"], false)), now, 0.5);
        assert_eq!(known.masters().unwrap(), ["d:1", "a:1"]);
        assert!(!known.no_master_answered(now, 0.5));
        known.found(Ok(found(&["e"], true)), now, 0.5);
        assert_eq!(known.masters().unwrap(), ["e:1", "d:1", "a:1"]);
        known.found(Ok(found(&[], false)), now, 0.5);
        known.found(Err(unreachable()), now, 0.5);
        assert_eq!(known.masters().unwrap(), ["e:1", "d:1", "a:1"]);
    }

    #[test]
    fn who_knows_no_other_master_asks_soon_and_ever_more_rarely() {
        let (mut known, begin) = (Directory::new(), Instant::now());
        let mut asked = Vec::new();
        for millis in (0..120_000).step_by(50) {
            if known.no_master_answered(after(begin, millis), 1.0) {
                known.found(Ok(found(&[], false)), after(begin, millis), 1.0);
                asked.push(millis);
            }
            assert!(matches!(known.masters(), Err(Unknown::NoMaster)));
        }
        assert_eq!(asked, [0, 250, 750, 1750, 3750, 7750, 15750, 31750, 61750, 91750]);
    }

    #[test]
    fn one_question_is_under_way_at_a_time() {
        let (mut known, now) = (Directory::new(), Instant::now());
        assert!(known.no_master_answered(now, 0.5) && !known.has_answer());
        assert!(!known.no_master_answered(now, 0.5));
        known.found(Err(unreachable()), now, 0.5);
        assert!(known.has_answer() && matches!(known.masters(), Err(Unknown::Etcd(_))));
    }

    #[test]
    fn masters_are_looked_up_again_while_one_is_connected() {
        let (mut known, now) = (Directory::new(), Instant::now());
        assert!(known.no_master_answered(now, 0.0) && known.refresh_at().is_none());
        known.found(Ok(found(&["a"], true)), now, 0.0);
        known.reached("a:1", now, 0.0);
        let first = known.refresh_at().unwrap();
        assert_eq!(first, now + FIRST_REFRESH.0);
        // Further connections put nothing off.
        known.reached("a:1", after(now, 1000), 1.0);
        assert!(!known.refreshes(after(now, 1000)) && known.refreshes(first));
        known.found(Ok(found(&["a", "b"], true)), first, 0.0);
        assert_eq!(known.refresh_at(), Some(first + REFRESH.0));
    }

    /// How often ten thousand processes ask etcd in each second, whose rounds of attempts to connect
    /// fail after pauses up to this. Each has connected before to one of `masters`, and lost it at
    /// the same moment; a master leads again after a minute, for a minute.
    async fn questions(masters: &'static [&'static str]) -> Vec<u32> {
        const PROCESSES: u64 = 10_000;
        const SECONDS: usize = 180;
        let begin = tokio::time::Instant::now();
        let asked = Rc::new((0..=SECONDS).map(|_| Cell::new(0)).collect::<Vec<_>>());
        let tasks = tokio::task::LocalSet::new();
        for seed in 0..PROCESSES {
            let asked = Rc::clone(&asked);
            tasks.spawn_local(async move {
                let (mut random, mut known) = (fastrand::Rng::with_seed(seed), Directory::new());
                let now = || tokio::time::Instant::now().into_std();
                known.found(Ok(found(masters, true)), now(), random.f64());
                known.reached("a:1", now(), random.f64());
                while begin.elapsed().as_secs() < SECONDS as u64 {
                    let second = begin.elapsed().as_secs() as usize;
                    let leads = (60..120).contains(&second);
                    let asks = if leads {
                        known.reached("a:1", now(), random.f64());
                        known.refreshes(now())
                    } else {
                        known.no_master_answered(now(), random.f64())
                    };
                    if asks {
                        asked[second].set(asked[second].get() + 1);
                        known.found(Ok(found(masters, leads)), now(), random.f64());
                    }
                    tokio::time::sleep(Duration::from_secs(1).mul_f64(0.5 + random.f64() / 2.0))
                        .await;
                }
            });
        }
        tasks.await;
        asked.iter().map(Cell::get).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn ten_thousand_clients_without_a_leader_ask_etcd_less_than_500_times_a_second() {
        let asked = questions(&["a", "b", "c"]).await;
        println!("{asked:?}");
        assert!(asked.iter().all(|&asked| asked <= 500), "{asked:?}");
        assert!(asked[..30].iter().sum::<u32>() > 9_000, "each of them asks: {asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_know_one_master_ask_etcd_as_rarely_in_the_end() {
        let asked = questions(&["a"]).await;
        println!("{asked:?}");
        assert!(asked[32..60].iter().all(|&asked| asked <= 1_000), "{asked:?}");
        let mean = asked[32..60].iter().sum::<u32>() / 28;
        assert!(mean <= 500, "{mean}: {asked:?}");
    }
}
