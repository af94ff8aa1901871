use proptest::prelude::*;

use crate::side_tables::offload_queue::*;

const A: ClientId = ClientId::from_u128(1);
const B: ClientId = ClientId::from_u128(2);

fn at(millis: u64) -> Time {
    Time::from_millis(millis)
}

fn key(number: u64) -> ObjectKey {
    ObjectKey::new(format!("k{number}")).unwrap()
}

fn job(number: u64) -> TierJob {
    TierJob { key: key(number), generation: Generation::new(number), len: number }
}

fn book(queue_limit: usize) -> Offloads {
    let config = OffloadConfig { queue_limit, task_timeout: Duration::from_millis(100) };
    let mut book = Offloads::new(config);
    assert_eq!(book.mount(A, true), Ok(Vec::new()));
    book
}

fn queue(book: &mut Offloads, client: ClientId, number: u64) -> Result<(), OffloadError> {
    book.queue(at(0), client, key(number).as_ref(), Generation::new(number), number)
}

#[test]
fn objects_are_handed_out_once_in_order() {
    let mut book = book(10);
    for number in [3, 1, 2] {
        assert_eq!(queue(&mut book, A, number), Ok(()));
    }
    assert_eq!(queue(&mut book, A, 3), Err(OffloadError::AlreadyPending));
    assert_eq!(book.drain(at(0), A, 2), Ok(vec![job(3), job(1)]));
    assert_eq!(book.drain(at(0), A, 2), Ok(vec![job(2)]));
    assert_eq!(book.drain(at(0), A, 2), Ok(Vec::new()));
    assert_eq!(queue(&mut book, A, 3), Err(OffloadError::AlreadyPending), "being written");
    assert_eq!(book.written(at(0), A, Generation::new(3)), Ok(job(3)));
    assert_eq!(book.written(at(0), A, Generation::new(3)), Err(OffloadError::NotPending));
    assert_eq!(book.failed(at(0), A, Generation::new(1)), Ok(false));
    assert_eq!(queue(&mut book, A, 1), Ok(()), "it may be tried again");
    let usage = book.usage(A).unwrap();
    assert_eq!((usage.queued, usage.writing), (1, 1));
}

#[test]
fn a_disk_that_hangs_is_told_by_how_long_it_has_been_silent() {
    let mut book = book(10);
    let waits = |book: &mut Offloads, millis| {
        book.expire(at(millis), 10);
        book.usage(A).unwrap().waits_for
    };
    assert_eq!(waits(&mut book, 50), Duration::ZERO);
    queue(&mut book, A, 1).unwrap();
    assert_eq!(waits(&mut book, 60), Duration::from_millis(60), "it does not ask for it");
    book.drain(at(60), A, 1).unwrap();
    assert_eq!(waits(&mut book, 90), Duration::from_millis(30), "it is written");
    // Its time is up, and the client has said nothing meanwhile.
    assert_eq!(waits(&mut book, 500), Duration::from_millis(440));
    assert_eq!(book.drain(at(500), A, 1), Ok(Vec::new()));
    assert_eq!(waits(&mut book, 600), Duration::ZERO);
}

#[test]
fn nobody_reports_what_nobody_fetched() {
    let mut book = book(10);
    book.mount(B, true).unwrap();
    queue(&mut book, A, 1).unwrap();
    assert_eq!(book.written(at(0), A, Generation::new(1)), Err(OffloadError::NotPending));
    book.drain(at(0), A, 1).unwrap();
    assert_eq!(book.written(at(0), B, Generation::new(1)), Err(OffloadError::NotPending));
    assert_eq!(book.written(at(0), A, Generation::new(1)), Ok(job(1)));
}

#[test]
fn the_limit_counts_what_is_being_written() {
    let mut book = book(2);
    queue(&mut book, A, 1).unwrap();
    queue(&mut book, A, 2).unwrap();
    let refused = queue(&mut book, A, 3).unwrap_err();
    assert_eq!(refused, OffloadError::QueueFull { limit: 2 });
    assert!(refused.is_retryable());
    assert_eq!(refused.code(), ErrorCode::OffloadQueueFull);
    book.drain(at(0), A, 2).unwrap();
    assert!(queue(&mut book, A, 3).is_err());
    book.written(at(0), A, Generation::new(1)).unwrap();
    assert_eq!(queue(&mut book, A, 3), Ok(()));
    assert_eq!(book.totals().offload_refused, 2);
}

#[test]
fn a_disk_that_takes_nothing_hands_its_queue_back() {
    let mut book = book(10);
    queue(&mut book, A, 1).unwrap();
    book.drain(at(0), A, 1).unwrap();
    queue(&mut book, A, 2).unwrap();
    queue(&mut book, A, 3).unwrap();
    assert_eq!(book.enable(A, false), Ok(vec![job(2), job(3)]));
    assert_eq!(queue(&mut book, A, 4), Err(OffloadError::Disabled));
    assert_eq!(book.written(at(0), A, Generation::new(1)), Ok(job(1)), "it was fetched before");
    assert_eq!(book.mount(A, true), Ok(Vec::new()));
    assert_eq!(queue(&mut book, A, 4), Ok(()));
}

#[test]
fn a_client_that_goes_leaves_what_it_did_not_write() {
    let mut book = book(10);
    for number in 1..4 {
        queue(&mut book, A, number).unwrap();
    }
    book.drain(at(0), A, 1).unwrap();
    assert_eq!(book.unmount(A), vec![job(1), job(2), job(3)]);
    assert_eq!(book.unmount(A), Vec::new());
    assert_eq!(book.drain(at(0), A, 1), Err(OffloadError::NoDisk));
    assert_eq!(book.drain(at(0), A, 1).unwrap_err().code(), ErrorCode::SegmentNotFound);
    assert_eq!(queue(&mut book, A, 1), Err(OffloadError::NoDisk));
    assert!(book.expire(at(1000), 10).is_empty());
}

#[test]
fn each_step_has_its_time() {
    let mut book = book(10);
    queue(&mut book, A, 1).unwrap();
    queue(&mut book, A, 2).unwrap();
    book.drain(at(90), A, 1).unwrap();
    assert!(book.expire(at(99), 10).is_empty());
    assert_eq!(book.expire(at(100), 10), vec![(A, job(2))]);
    assert_eq!(book.expire(at(190), 10), vec![(A, job(1))]);
    assert_eq!(book.written(at(0), A, Generation::new(1)), Err(OffloadError::NotPending));
}

#[test]
fn a_wipe_is_told_once_to_each_disk() {
    let mut book = book(10);
    book.mount(B, true).unwrap();
    queue(&mut book, A, 1).unwrap();
    queue(&mut book, B, 2).unwrap();
    assert_eq!(book.clear(), vec![(A, job(1)), (B, job(2))]);
    assert!(book.take_wipe(A));
    assert!(!book.take_wipe(A));
    assert!(book.take_wipe(B));
    assert_eq!(book.drain(at(0), A, 1), Ok(Vec::new()));
}

#[test]
fn a_disks_capacity_is_noted() {
    let mut book = book(10);
    book.set_capacity(A, 1000).unwrap();
    assert_eq!(book.usage(A).unwrap().capacity, 1000);
    assert_eq!(book.usage(B), None);
    assert_eq!(book.set_capacity(B, 1), Err(OffloadError::NoDisk));
}

#[test]
fn a_client_that_says_nothing_is_given_nothing_and_not_waited_for() {
    let mut book = book(10);
    let promised = |book: &Offloads, now| (book.promises_soon(at(now), 7), book.promised(at(now)));
    book.queue(at(1000), A, key(1).as_ref(), Generation::new(1), 7).unwrap();
    book.promise(A, Generation::new(1), 7);
    assert_eq!(promised(&book, 1000), (true, 7));
    assert_eq!(promised(&book, 1500), (false, 7), "a put waits no longer");
    assert!(!book.promises_soon(at(1000), 8));
    assert_eq!(book.late(at(1499), 7, 9), []);
    let first = TierJob { len: 7, ..job(1) };
    assert_eq!(book.late(at(1500), 7, 9), [first]);
    assert_eq!(promised(&book, 4000), (false, 0));
    let later = |book: &mut Offloads, number, now| {
        book.queue(at(now), A, key(number).as_ref(), Generation::new(number), number)
    };
    assert_eq!(later(&mut book, 2, 3999), Ok(()));
    assert_eq!(later(&mut book, 3, 4000), Err(OffloadError::Silent));
    // It is there again.
    book.drain(at(4000), A, 1).unwrap();
    assert_eq!(later(&mut book, 3, 4000), Ok(()));
    assert_eq!(promised(&book, 4000), (true, 7));
    assert_eq!(promised(&book, 4499), (false, 7), "the second has waited too long");
    book.drain(at(4499), A, 9).unwrap();
    assert_eq!(promised(&book, 4499), (true, 7));
    book.written(at(4499), A, Generation::new(1)).unwrap();
    assert_eq!(promised(&book, 4499), (false, 0));
}

#[test]
fn what_failed_once_is_known_when_it_fails_again() {
    let mut book = book(10);
    for again in [false, true, false] {
        queue(&mut book, A, 1).unwrap();
        book.drain(at(0), A, 1).unwrap();
        assert_eq!(book.failed(at(0), A, Generation::new(1)), Ok(again));
    }
}

#[test]
fn a_client_fetches_so_many_bytes_at_a_time() {
    let mut book = book(10);
    for number in 1..4 {
        let len = MAX_FETCHED / 2;
        book.queue(at(0), A, key(number).as_ref(), Generation::new(number), len).unwrap();
    }
    assert_eq!(book.drain(at(0), A, 9).unwrap().len(), 2);
    assert_eq!(book.drain(at(0), A, 9).unwrap().len(), 1);
}

#[derive(Clone, Debug)]
enum Op {
    Mount(usize, bool),
    Unmount(usize),
    Queue(usize, u64),
    Drain(usize, usize),
    Written(usize, u64),
    Failed(usize, u64),
    Cancel(usize, u64),
    Pass(u64),
    Expire(usize),
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    let client = || 0..2usize;
    let number = || 0..8u64;
    prop_oneof![
        2 => (client(), prop::bool::weighted(0.8)).prop_map(|(c, enabled)| Op::Mount(c, enabled)),
        1 => client().prop_map(Op::Unmount),
        8 => (client(), number()).prop_map(|(c, n)| Op::Queue(c, n)),
        4 => (client(), 0..3usize).prop_map(|(c, max)| Op::Drain(c, max)),
        4 => (client(), number()).prop_map(|(c, n)| Op::Written(c, n)),
        2 => (client(), number()).prop_map(|(c, n)| Op::Failed(c, n)),
        2 => (client(), number()).prop_map(|(c, n)| Op::Cancel(c, n)),
        4 => (0..80u64).prop_map(Op::Pass),
        3 => (0..3usize).prop_map(Op::Expire),
        1 => Just(Op::Clear),
    ]
}

/// One list of everything, searched from its beginning each time.
#[derive(Default)]
struct Model {
    now: u64,
    /// Whether each mounted disk takes objects.
    disks: BTreeMap<ClientId, bool>,
    entries: Vec<Entry>,
    /// Since when each has had something to write and was not heard.
    owing: BTreeMap<ClientId, u64>,
    /// Objects that failed once.
    failed: BTreeSet<(ClientId, u64)>,
    /// Steps begun so far: what is due at one time comes in their order.
    steps: u64,
}

#[derive(Clone)]
struct Entry {
    client: ClientId,
    number: u64,
    fetched: bool,
    due: (u64, u64),
}

const LIMIT: usize = 4;

impl Model {
    fn due(&mut self) -> (u64, u64) {
        self.steps += 1;
        (self.now + 100, self.steps)
    }

    fn has(&self, client: ClientId) -> Result<(), OffloadError> {
        if self.disks.contains_key(&client) { Ok(()) } else { Err(OffloadError::NoDisk) }
    }

    fn remove(&mut self, which: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        self.entries.extract_if(.., |entry| which(entry)).collect()
    }

    fn heard(&mut self, client: ClientId) {
        self.owing.remove(&client);
        if self.entries.iter().any(|entry| entry.client == client) {
            self.owing.insert(client, self.now);
        }
    }

    fn queue(&mut self, client: ClientId, number: u64) -> Result<(), OffloadError> {
        self.has(client)?;
        let of_client: Vec<&Entry> =
            self.entries.iter().filter(|entry| entry.client == client).collect();
        let silent = self.now - self.owing.get(&client).copied().unwrap_or(self.now);
        if !self.disks[&client] {
            Err(OffloadError::Disabled)
        } else if silent >= PATIENCE.as_millis() as u64 {
            Err(OffloadError::Silent)
        } else if of_client.iter().any(|entry| entry.number == number) {
            Err(OffloadError::AlreadyPending)
        } else if of_client.len() == LIMIT {
            Err(OffloadError::QueueFull { limit: LIMIT })
        } else {
            self.owing.entry(client).or_insert(self.now);
            let due = self.due();
            self.entries.push(Entry { client, number, fetched: false, due });
            Ok(())
        }
    }

    fn drain(&mut self, client: ClientId, max: usize) -> Result<Vec<TierJob>, OffloadError> {
        self.has(client)?;
        self.heard(client);
        let mut jobs = Vec::new();
        for place in 0..self.entries.len() {
            let entry = self.entries[place].clone();
            if jobs.len() < max && entry.client == client && !entry.fetched {
                let due = self.due();
                self.entries[place] = Entry { fetched: true, due, ..entry };
                jobs.push(job(entry.number));
            }
        }
        Ok(jobs)
    }

    fn end(&mut self, client: ClientId, number: u64) -> Result<TierJob, OffloadError> {
        self.has(client)?;
        let ended =
            self.remove(|entry| entry.client == client && entry.number == number && entry.fetched);
        self.heard(client);
        ended.first().map(|entry| job(entry.number)).ok_or(OffloadError::NotPending)
    }

    fn expire(&mut self, limit: usize) -> Vec<(ClientId, TierJob)> {
        let mut due: Vec<Entry> = self.entries.clone();
        due.retain(|entry| entry.due.0 <= self.now);
        due.sort_by_key(|entry| entry.due);
        due.truncate(limit);
        self.remove(|entry| due.iter().any(|due| due.due == entry.due));
        due.iter().map(|entry| (entry.client, job(entry.number))).collect()
    }
}

/// In an order in which lists can be compared whose order does not matter.
fn sorted(mut jobs: Vec<TierJob>) -> Vec<TierJob> {
    jobs.sort_by_key(|job| job.generation);
    jobs
}

fn jobs(entries: &[Entry]) -> Vec<TierJob> {
    entries.iter().map(|entry| job(entry.number)).collect()
}

fn apply(book: &mut Offloads, model: &mut Model, op: &Op) {
    let client = |at: usize| [A, B][at];
    let now = at(model.now);
    match *op {
        Op::Mount(c, enabled) => {
            let c = client(c);
            model.disks.insert(c, enabled);
            let back = model.remove(|e| !enabled && e.client == c && !e.fetched);
            assert_eq!(book.mount(c, enabled), Ok(jobs(&back)));
        }
        Op::Unmount(c) => {
            let c = client(c);
            model.disks.remove(&c);
            model.owing.remove(&c);
            model.failed.retain(|(client, _)| *client != c);
            let back = model.remove(|entry| entry.client == c);
            assert_eq!(sorted(book.unmount(c)), sorted(jobs(&back)));
        }
        Op::Queue(c, n) => {
            let queued = book.queue(now, client(c), key(n).as_ref(), Generation::new(n), n);
            if queued.is_ok() {
                book.promise(client(c), Generation::new(n), n);
            }
            assert_eq!(queued, model.queue(client(c), n));
        }
        Op::Drain(c, max) => {
            assert_eq!(book.drain(now, client(c), max), model.drain(client(c), max));
        }
        Op::Written(c, n) => {
            let ended = model.end(client(c), n);
            assert_eq!(book.written(now, client(c), Generation::new(n)), ended);
        }
        Op::Failed(c, n) => {
            let c = client(c);
            let ended = model.end(c, n).map(|_| {
                let is_first = model.failed.insert((c, n));
                if !is_first {
                    model.failed.remove(&(c, n));
                }
                !is_first
            });
            assert_eq!(book.failed(now, c, Generation::new(n)), ended);
        }
        Op::Cancel(c, n) => {
            let c = client(c);
            let back = model.remove(|entry| entry.client == c && entry.number == n);
            let cancelled = book.cancel(c, Generation::new(n));
            assert_eq!(cancelled, jobs(&back).first().cloned());
        }
        Op::Pass(millis) => model.now += millis,
        Op::Expire(limit) => assert_eq!(book.expire(now, limit), model.expire(limit)),
        Op::Clear => {
            let back = model.remove(|_| true);
            let cleared = book.clear().into_iter().map(|(_, job)| job).collect();
            assert_eq!(sorted(cleared), sorted(jobs(&back)));
        }
    }
}

fn check(book: &Offloads, model: &Model) {
    for client in [A, B] {
        let usage = model.disks.get(&client).map(|enabled| {
            let of_client = model.entries.iter().filter(|entry| entry.client == client);
            let (writing, queued): (Vec<_>, Vec<_>) = of_client.partition(|entry| entry.fetched);
            LocalDiskUsage {
                enabled: *enabled,
                used: 0,
                capacity: 0,
                queued: queued.len(),
                writing: writing.len(),
                waits_for: Duration::ZERO,
            }
        });
        let told = book.usage(client);
        let told = told.map(|told| LocalDiskUsage { waits_for: Duration::ZERO, ..told });
        assert_eq!(told, usage);
    }
    assert_eq!(book.deadlines.len(), model.entries.len(), "no timer is left behind");
    // Each promises its number.
    let promised = model.entries.iter().map(|entry| entry.number).sum();
    assert_eq!(book.promised, promised);
    assert_eq!(book.disks.values().map(|disk| disk.promised).sum::<u64>(), promised);
    let ended =
        book.totals.offload_written + book.totals.offload_failed + book.totals.offload_given_up;
    assert_eq!(book.totals.offload_queued, ended + model.entries.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_book_does_what_a_list_does(ops in prop::collection::vec(op(), 1..120)) {
        let mut book = book(LIMIT);
        let mut model = Model::default();
        model.disks.insert(A, true);
        for op in &ops {
            apply(&mut book, &mut model, op);
            check(&book, &model);
        }
    }
}
