//! How busy and how fast the clients are that contribute memory, as they say themselves and of each other.

use core::time::Duration;
use std::collections::HashMap;

use mc_types::{ClientId, Endpoint, Time};
use parking_lot::Mutex;

use crate::request::{NodeLoad, PeerSpeed};

/// How long what a client said counts.
const KEPT: Duration = Duration::from_secs(60);

/// The time over which rates are measured, at least.
const WINDOW: Duration = Duration::from_secs(4);

/// Most clients that are known at a time; what others say is not kept.
const MAX_CLIENTS: usize = 20_000;

/// How busy and how fast a client is that contributes memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeReport {
    /// The client.
    pub client: ClientId,
    /// Time since it last told.
    pub age: Duration,
    /// Bytes that it served to readers of other processes in a second, as measured over the last seconds. What
    /// processes of its host read from shared memory is not served, and not counted.
    pub read_rate: u64,
    /// Bytes that it took from writers in a second.
    pub write_rate: u64,
    /// Operations of both in a second.
    pub operation_rate: u64,
    /// How long its own data port takes to answer it: the median of its last checks. `None` when it does not
    /// check it.
    pub answer: Option<Duration>,
    /// The longest of those.
    pub worst_answer: Duration,
    /// Clients that said how fast they find it.
    pub judges: u32,
    /// The median of what they say that a transfer of up to 64 KiB takes.
    pub small: Option<Duration>,
    /// The median of what they say that a mebibyte of a longer transfer takes.
    pub mebibyte: Option<Duration>,
}

impl NodeReport {
    /// One of a client that has said nothing of itself, just now.
    #[must_use]
    pub const fn new(client: ClientId) -> Self {
        Self {
            client,
            age: Duration::ZERO,
            read_rate: 0,
            write_rate: 0,
            operation_rate: 0,
            answer: None,
            worst_answer: Duration::ZERO,
            judges: 0,
            small: None,
            mebibyte: None,
        }
    }
}

/// The load of clients, as they said it last. It has no clock: every time is an argument. Nothing of it is kept beyond
/// the process: a master that takes over knows it after some seconds.
#[derive(Debug, Default)]
pub struct NodeLoads(Mutex<HashMap<ClientId, Told>>);

/// The words of one client.
#[derive(Debug)]
struct Told {
    last: (Time, NodeLoad),
    /// Two moments before, of which the first is at least [`WINDOW`] before the second.
    marks: [(Time, Served); 2],
}

/// The operations that were served since the client began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Served {
    operations: u64,
    read_bytes: u64,
    written_bytes: u64,
}

impl Served {
    fn of(load: &NodeLoad) -> Self {
        let operations = load.reads.saturating_add(load.writes);
        Self { operations, read_bytes: load.read_bytes, written_bytes: load.written_bytes }
    }
}

impl NodeLoads {
    /// Notes what a client says now.
    pub(crate) fn note(&self, now: Time, client: ClientId, load: NodeLoad) {
        let served = Served::of(&load);
        let mut known = self.0.lock();
        if known.len() >= MAX_CLIENTS && !known.contains_key(&client) {
            known.retain(|_, told| now - told.last.0 < KEPT);
            if known.len() >= MAX_CLIENTS {
                return;
            }
        }
        let fresh = || Told { last: (now, NodeLoad::default()), marks: [(now, served); 2] };
        let told = known.entry(client).or_insert_with(fresh);
        let [_, (since, before)] = told.marks;
        if served.operations < before.operations || now - told.last.0 > KEPT {
            // Another process of this client, or one that was away.
            told.marks = [(now, served); 2];
        } else if now - since >= WINDOW {
            told.marks = [(since, before), (now, served)];
        }
        told.last = (now, load);
    }

    /// Reports on each client that said something in the last minute, in the order of their ids. `serves` names who
    /// serves at an endpoint.
    #[must_use]
    pub fn report<'a>(
        &self,
        now: Time,
        serves: impl IntoIterator<Item = (ClientId, &'a Endpoint)>,
    ) -> Vec<NodeReport> {
        let served_by: HashMap<&str, ClientId> =
            serves.into_iter().map(|(client, endpoint)| (endpoint.as_str(), client)).collect();
        let mut known = self.0.lock();
        known.retain(|_, told| now - told.last.0 < KEPT);
        let mut judged: HashMap<ClientId, (u32, Vec<u32>, Vec<u32>)> = HashMap::new();
        for PeerSpeed { endpoint, small_us, mebibyte_us } in
            known.values().flat_map(|told| &told.last.1.peers)
        {
            let Some(client) = served_by.get(&**endpoint) else { continue };
            let (judges, small, mebibyte) = judged.entry(*client).or_default();
            *judges += 1;
            small.extend((*small_us > 0).then_some(*small_us));
            mebibyte.extend((*mebibyte_us > 0).then_some(*mebibyte_us));
        }
        let mut reports: Vec<NodeReport> =
            known.iter().map(|(client, told)| told.report(*client, now)).collect();
        drop(known);
        for report in &mut reports {
            if let Some((judges, small, mebibyte)) = judged.remove(&report.client) {
                report.judges = judges;
                (report.small, report.mebibyte) = (median(small), median(mebibyte));
            }
        }
        reports.sort_unstable_by_key(|report| report.client);
        reports
    }
}

impl Told {
    fn report(&self, client: ClientId, now: Time) -> NodeReport {
        let (at, ref load) = self.last;
        let (since, before) = match self.marks {
            [_, (since, before)] if at - since >= WINDOW => (since, before),
            [first, _] => first,
        };
        let (served, millis) = (Served::of(load), (at - since).as_millis());
        let rate = |now: u64, then: u64| {
            let counted = u128::from(now.saturating_sub(then)) * 1000;
            counted.checked_div(millis).map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
        };
        let micros = |micros: u32| Duration::from_micros(micros.into());
        NodeReport {
            age: now - at,
            read_rate: rate(served.read_bytes, before.read_bytes),
            write_rate: rate(served.written_bytes, before.written_bytes),
            operation_rate: rate(served.operations, before.operations),
            answer: load.answer_us.map(micros),
            worst_answer: micros(load.worst_answer_us),
            ..NodeReport::new(client)
        }
    }
}

fn median(mut micros: Vec<u32>) -> Option<Duration> {
    micros.sort_unstable();
    let middle = micros.get(micros.len() / 2)?;
    Some(Duration::from_micros((*middle).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    fn client(number: u128) -> ClientId {
        ClientId::from_u128(number)
    }

    fn load(operations: u64, bytes: u64) -> NodeLoad {
        NodeLoad { reads: operations, read_bytes: bytes, ..NodeLoad::default() }
    }

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let loads = NodeLoads::default();
        for second in 0..60 {
            // 1 MB a second, and 3 MB a second from the thirtieth on.
            let bytes = if second < 30 { second } else { 30 + 3 * (second - 30) };
            loads.note(at(second * 1000), client(1), load(second, bytes * 1_000_000));
            let [report] = &loads.report(at(second * 1000), [])[..] else { panic!("one client") };
            let expected = match second {
                0 => 0..=0,
                1..=30 => 1_000_000..=1_000_000,
                31..=38 => 1_000_000..=3_000_000,
                _ => 3_000_000..=3_000_000,
            };
            assert!(expected.contains(&report.read_rate), "{second}: {}", report.read_rate);
            assert_eq!(report.operation_rate, u64::from(second > 0));
        }
        // A new process of the client begins to count at zero.
        loads.note(at(60_000), client(1), load(1, 10));
        assert_eq!(loads.report(at(60_000), [])[0].read_rate, 0);
        // What is old is forgotten.
        assert_eq!(loads.report(at(119_999), [])[0].age, Duration::from_millis(59_999));
        assert_eq!(loads.report(at(120_000), []), []);
    }

    #[test]
    fn a_slow_node_is_found_by_those_that_use_it() {
        let loads = NodeLoads::default();
        let serves: Vec<(ClientId, Endpoint)> = (1..=4)
            .map(|n| (client(n), Endpoint::new("tcp", &format!("10.0.0.{n}:1")).unwrap()))
            .collect();
        for (one, _) in &serves {
            let others = serves.iter().filter(|(other, _)| other != one);
            let peers = others.map(|(other, endpoint)| PeerSpeed {
                endpoint: endpoint.as_str().into(),
                small_us: if *other == client(3) { 5000 } else { 80 },
                mebibyte_us: 0,
            });
            let peers = peers.chain([PeerSpeed {
                endpoint: "tcp://10.9.9.9:1".into(),
                small_us: 1,
                mebibyte_us: 1,
            }]);
            let load = NodeLoad { peers: peers.collect(), answer_us: Some(60), ..load(0, 0) };
            loads.note(at(0), *one, load);
        }
        let report = loads.report(at(1), serves.iter().map(|(client, at)| (*client, at)));
        let small: Vec<_> = report.iter().map(|node| (node.judges, node.small)).collect();
        let (quick, slow) = (Duration::from_micros(80), Duration::from_micros(5000));
        assert_eq!(small, [(3, Some(quick)), (3, Some(quick)), (3, Some(slow)), (3, Some(quick))]);
        assert!(report.iter().all(|node| node.mebibyte.is_none() && node.answer.is_some()));
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered() {
        let loads = NodeLoads::default();
        let many = MAX_CLIENTS as u128;
        (0..many + 5).for_each(|n| loads.note(at(0), client(n), load(0, 0)));
        assert_eq!(loads.0.lock().len(), MAX_CLIENTS);
        // Those who go make room.
        loads.note(at(60_000), client(many + 9), load(0, 0));
        assert_eq!(loads.0.lock().len(), 1);
    }
}
