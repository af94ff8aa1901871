use mc_types::ObjectKey;
use proptest::prelude::*;

use crate::side_tables::promotion_queue::*;

const A: ClientId = ClientId::from_u128(1);
const B: ClientId = ClientId::from_u128(2);

fn at(millis: u64) -> Time {
    Time::from_millis(millis)
}

fn job(number: u64) -> TierJob {
    let key = ObjectKey::new(format!("k{number}")).unwrap();
    TierJob { key, generation: Generation::new(number), len: number }
}

fn limits(admission_threshold: u8, limit: usize) -> PromotionConfig {
    PromotionConfig {
        admission_threshold,
        queue_limit: limit,
        candidate_limit: limit,
        max_per_heartbeat: 2,
        task_timeout: Duration::from_millis(100),
    }
}

fn book(admission_threshold: u8, limit: usize) -> Promotions {
    Promotions::new(limits(admission_threshold, limit), 7)
}

fn hit(book: &mut Promotions, now: u64, owner: ClientId, number: u64, room: bool) -> Admission {
    let TierJob { key, generation, len } = job(number);
    let hit = TierHit { owner, key: key.as_ref(), hash: number, generation, len };
    book.hit(at(now), &hit, room)
}

fn ended(number: u64, owner: ClientId, begun: bool) -> EndedPromotion {
    EndedPromotion { job: job(number), owner, begun }
}

#[test]
fn an_object_is_queued_once_it_is_read_often_enough() {
    let mut book = book(3, 10);
    assert_eq!(hit(&mut book, 0, A, 1, true), Admission::Cold);
    assert_eq!(hit(&mut book, 0, A, 1, true), Admission::Cold);
    assert_eq!(hit(&mut book, 0, A, 1, true), Admission::Queued);
    assert_eq!(hit(&mut book, 0, B, 1, true), Admission::Known);
    assert_eq!(book.drain(at(0), A), vec![job(1)]);
    assert_eq!(hit(&mut book, 0, A, 1, true), Admission::Known, "on its way");
    assert_eq!(book.drain(at(0), A), Vec::new());
}

#[test]
fn limits_of_zero_count_as_one() {
    let mut book = Promotions::new(PromotionConfig { max_per_heartbeat: 0, ..limits(0, 0) }, 7);
    assert_eq!(hit(&mut book, 0, A, 1, true), Admission::Queued);
    assert_eq!(hit(&mut book, 0, A, 2, true), Admission::QueueFull);
    assert_eq!(hit(&mut book, 0, A, 3, true), Admission::Dropped);
    assert_eq!(book.drain(at(0), A).len(), 1);
}

#[test]
fn a_client_gets_a_few_at_a_time() {
    let mut book = book(1, 10);
    for number in 1..=3 {
        hit(&mut book, 0, A, number, true);
    }
    hit(&mut book, 0, B, 4, true);
    assert_eq!(book.drain(at(0), A), vec![job(1), job(2)]);
    assert_eq!(book.drain(at(0), B), vec![job(4)]);
    assert_eq!(book.drain(at(0), A), vec![job(3)]);
}

#[test]
fn memory_is_given_once_to_the_client_that_fetched() {
    let mut book = book(1, 10);
    let one = Generation::new(1);
    hit(&mut book, 0, A, 1, true);
    assert_eq!(book.begin(at(0), A, one, 1), Err(PromotionError::NoTask), "not fetched");
    book.drain(at(0), A);
    assert_eq!(book.begin(at(0), B, one, 1), Err(PromotionError::IllegalClient));
    let wrong = PromotionError::WrongLength { given: 2, len: 1 };
    assert_eq!(book.begin(at(0), A, one, 2), Err(wrong));
    assert_eq!(book.finish(A, one), Err(PromotionError::NoTask), "no memory yet");
    assert_eq!(book.begin(at(0), A, one, 1), Ok(&job(1)));
    assert_eq!(book.begin(at(0), A, one, 1), Err(PromotionError::AlreadyBegun));
    assert_eq!(book.finish(B, one), Err(PromotionError::IllegalClient));
    assert_eq!(book.finish(A, one), Ok(job(1)));
    assert_eq!(book.finish(A, one), Err(PromotionError::NoTask));
    assert_eq!(book.tasks(), 0);
    assert_eq!(hit(&mut book, 0, A, 1, true), Admission::Queued, "it may go to disk again");
}

#[test]
fn a_failure_may_be_told_twice() {
    let mut book = book(1, 10);
    let one = Generation::new(1);
    hit(&mut book, 0, A, 1, true);
    book.drain(at(0), A);
    assert_eq!(book.fail(B, one), Err(PromotionError::IllegalClient));
    book.begin(at(0), A, one, 1).unwrap();
    assert_eq!(book.fail(A, one), Ok(Some(ended(1, A, true))));
    assert_eq!(book.fail(A, one), Ok(None));
    assert_eq!(book.totals().promotion_failed, 1);
}

#[test]
fn what_finds_no_room_is_tried_again() {
    let mut book = book(1, 1);
    assert_eq!(hit(&mut book, 0, A, 1, false), Admission::NoRoom);
    assert_eq!(hit(&mut book, 0, A, 1, true), Admission::Known);
    assert_eq!(hit(&mut book, 0, A, 2, false), Admission::Dropped, "one candidate may wait");
    assert_eq!(book.retry(at(9), true, 10), 0, "too early");
    assert_eq!(book.retry(at(10), false, 10), 0);
    assert_eq!(book.retry(at(29), true, 10), 0, "it waits twice as long now");
    assert_eq!(book.retry(at(30), true, 10), 1);
    assert_eq!((book.tasks(), book.candidates()), (1, 0));
    assert_eq!(hit(&mut book, 30, A, 2, true), Admission::QueueFull);
    assert_eq!(book.retry(at(40), true, 10), 0, "the queue is full still");
    assert_eq!(book.drain(at(40), A), vec![job(1)]);
    book.fail(A, Generation::new(1)).unwrap();
    assert_eq!(book.retry(at(60), true, 10), 1);
    let totals = book.totals();
    assert_eq!((totals.promotion_no_room, totals.promotion_queue_full), (3, 2));
    assert_eq!((totals.promotion_queued, totals.promotion_dropped), (2, 1));
}

#[test]
fn tries_come_to_an_end() {
    let mut book = book(1, 10);
    hit(&mut book, 0, A, 1, false);
    let mut tries = Vec::new();
    for now in 0..10_000 {
        let refused = book.totals().promotion_no_room;
        book.retry(at(now), false, 10);
        if book.totals().promotion_no_room > refused {
            tries.push(now);
        }
    }
    assert_eq!(tries, [10, 30, 70, 150, 310, 630, 1270, 2270]);
    assert_eq!((book.candidates(), book.totals().promotion_exhausted), (0, 1));
    hit(&mut book, 10_000, A, 1, false);
    assert_eq!(book.retry(at(10_000) + CANDIDATE_LIFE, true, 10), 1, "not too old yet");
    hit(&mut book, 10_000, A, 2, false);
    let late = at(10_001) + CANDIDATE_LIFE;
    assert_eq!(book.retry(late, true, 10), 0, "no request came for that long");
    assert_eq!((book.candidates(), book.totals().promotion_exhausted), (0, 2));
}

#[test]
fn each_step_has_its_time() {
    let mut book = book(1, 10);
    for number in 1..=3 {
        hit(&mut book, 0, [A, A, B][number as usize - 1], number, true);
    }
    book.drain(at(60), A);
    book.begin(at(120), A, Generation::new(1), 1).unwrap();
    assert_eq!(book.expire(at(99), 10), Vec::new());
    assert_eq!(book.expire(at(100), 10), vec![ended(3, B, false)]);
    assert_eq!(book.drain(at(100), B), Vec::new());
    assert_eq!(book.expire(at(219), 10), vec![ended(2, A, false)]);
    assert_eq!(book.expire(at(220), 10), vec![ended(1, A, true)]);
    assert_eq!(book.finish(A, Generation::new(1)), Err(PromotionError::NoTask));
    assert_eq!(book.totals().promotion_expired, 3);
}

#[test]
fn what_goes_leaves_nothing_behind() {
    let mut book = book(1, 10);
    for number in 1..=4 {
        hit(&mut book, 0, A, number, true);
    }
    hit(&mut book, 0, A, 5, false);
    hit(&mut book, 0, B, 6, false);
    book.drain(at(0), A);
    book.begin(at(0), A, Generation::new(2), 2).unwrap();
    assert_eq!(book.cancel(Generation::new(2)), Some(ended(2, A, true)));
    assert_eq!(book.cancel(Generation::new(2)), None);
    assert_eq!(book.cancel(Generation::new(3)), Some(ended(3, A, false)));
    let left = [1, 4, 5].map(|number| ended(number, A, false));
    assert_eq!(book.client_gone(A), left);
    assert_eq!(book.clear(), vec![ended(6, B, false)]);
    assert_eq!(book.totals().promotion_cancelled, 4, "candidates were never queued");
    assert_eq!((book.tasks(), book.candidates()), (0, 0));
}

#[test]
fn a_client_that_does_not_ask_loses_what_is_queued_for_it_and_gets_no_more_until_it_asks() {
    let mut config = limits(1, 80);
    config.task_timeout = Duration::from_secs(600);
    let mut book = Promotions::new(config, 7);
    for number in 0..64 {
        assert_eq!(hit(&mut book, 0, A, number, true), Admission::Queued);
    }
    assert_eq!(hit(&mut book, 0, A, 64, true), Admission::QueueFull, "others have room");
    assert_eq!(hit(&mut book, 0, B, 65, true), Admission::Queued);
    assert_eq!(book.drain(at(9_000), B), vec![job(65)]);
    assert_eq!(hit(&mut book, 9_000, B, 66, true), Admission::Queued);
    book.drop_unfetched(at(9_999), 100);
    assert_eq!(book.tasks(), 66);
    assert!(book.asks(A, at(9_999)) && !book.asks(A, at(10_000)));
    book.drop_unfetched(at(10_000), 10);
    assert_eq!(book.tasks(), 56, "so many at a time");
    book.drop_unfetched(at(10_000), 100);
    assert_eq!((book.tasks(), book.totals().promotion_expired), (2, 64), "what B has");
    assert_eq!(hit(&mut book, 10_001, A, 67, true), Admission::Silent);
    assert!(book.waits_for(A), "it is to ask");
    assert_eq!(book.drain(at(10_002), A), Vec::new());
    assert!(!book.waits_for(A));
    assert_eq!(hit(&mut book, 10_002, A, 67, true), Admission::Queued);
    assert_eq!(book.drain(at(10_003), A), vec![job(67)]);
    // One of which nothing more is heard is tried again some time.
    assert_eq!(hit(&mut book, 10_003, A, 68, true), Admission::Queued);
    book.drop_unfetched(at(20_003), 100);
    assert_eq!(hit(&mut book, 20_003, A, 69, true), Admission::Silent);
    book.drop_unfetched(at(140_000), 100);
    assert_eq!(hit(&mut book, 140_000, A, 69, true), Admission::Queued);
}

#[test]
fn clients_without_disks_bring_files_back_as_long_as_they_say_so() {
    let mut book = book(1, 10);
    assert!(!book.is_taker(A, at(0)));
    book.takes_files(at(0), A);
    assert!(book.is_taker(A, at(59_999)) && !book.is_taker(A, at(60_000)));
    book.drop_unfetched(at(60_000), 1);
    assert!(book.takers.is_empty());
}

#[derive(Clone, Debug)]
enum Op {
    Hit(usize, u64, bool),
    Retry(bool, usize),
    Drain(usize),
    Begin(usize, u64, bool),
    Finish(usize, u64),
    Fail(usize, u64),
    Cancel(u64),
    Gone(usize),
    Expire(usize),
    Pass(u64),
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    let client = || 0..2usize;
    let number = || 0..8u64;
    let room = || prop::bool::weighted(0.6);
    prop_oneof![
        10 => (client(), number(), room()).prop_map(|(c, n, room)| Op::Hit(c, n, room)),
        4 => (room(), 0..3usize).prop_map(|(room, limit)| Op::Retry(room, limit)),
        5 => client().prop_map(Op::Drain),
        5 => (client(), number(), prop::bool::weighted(0.9))
            .prop_map(|(c, n, right)| Op::Begin(c, n, right)),
        4 => (client(), number()).prop_map(|(c, n)| Op::Finish(c, n)),
        2 => (client(), number()).prop_map(|(c, n)| Op::Fail(c, n)),
        2 => number().prop_map(Op::Cancel),
        1 => client().prop_map(Op::Gone),
        2 => (0..3usize).prop_map(Op::Expire),
        5 => prop_oneof![0..40u64, 0..40u64, Just(60_001)].prop_map(Op::Pass),
        1 => Just(Op::Clear),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Candidate { since: u64, tries: u32 },
    Queued,
    Fetched,
    PendingPut,
}

#[derive(Clone, Copy)]
struct Entry {
    owner: ClientId,
    number: u64,
    step: Step,
    /// When its timer comes, and the order among those that come then.
    due: (u64, u64),
}

const LIMIT: usize = 3;

/// One list of everything, searched from its beginning each time. Those that are queued
/// are in it in the order of their arrival.
#[derive(Default)]
struct Model {
    now: u64,
    entries: Vec<Entry>,
    steps: u64,
    /// Since when each client has not asked for what is queued for it.
    owing: [Option<u64>; 2],
}

impl Model {
    fn due(&mut self, after: u64) -> (u64, u64) {
        self.steps += 1;
        (self.now + after, self.steps)
    }

    fn candidates(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry.step, Step::Candidate { .. })).count()
    }

    fn refusal(&self, room: bool) -> Option<Admission> {
        if !room {
            Some(Admission::NoRoom)
        } else if self.entries.len() - self.candidates() >= LIMIT {
            Some(Admission::QueueFull)
        } else {
            None
        }
    }

    fn asks(&self, owner: ClientId) -> bool {
        let since = self.owing[usize::from(owner == B)];
        since.is_none_or(|since| self.now - since < 10_000)
    }

    /// Notes for whom something is queued.
    fn note_owing(&mut self, asked: Option<ClientId>) {
        for (owing, owner) in self.owing.iter_mut().zip([A, B]) {
            let has_tasks =
                self.entries.iter().any(|it| it.owner == owner && it.step == Step::Queued);
            let since = owing.filter(|_| asked != Some(owner)).unwrap_or(self.now);
            *owing = has_tasks.then_some(since);
        }
    }

    fn add(&mut self, owner: ClientId, number: u64, step: Step, after: u64) {
        let due = self.due(after);
        self.entries.push(Entry { owner, number, step, due });
    }

    fn hit(&mut self, owner: ClientId, number: u64, room: bool) -> Admission {
        if self.entries.iter().any(|entry| entry.number == number) {
            return Admission::Known;
        }
        if !self.asks(owner) {
            return Admission::Silent;
        }
        match self.refusal(room) {
            None => {
                self.add(owner, number, Step::Queued, 100);
                Admission::Queued
            }
            Some(_) if self.candidates() == LIMIT => Admission::Dropped,
            Some(refusal) => {
                let step = Step::Candidate { since: self.now, tries: 0 };
                self.add(owner, number, step, 10);
                refusal
            }
        }
    }

    fn retry(&mut self, room: bool, limit: usize) -> usize {
        let mut queued = 0;
        for entry in self.take_due(limit, true) {
            let Step::Candidate { since, tries } = entry.step else { panic!("a candidate") };
            if self.now - since > 60_000 || !self.asks(entry.owner) {
                continue;
            }
            if self.refusal(room).is_none() {
                self.add(entry.owner, entry.number, Step::Queued, 100);
                queued += 1;
            } else if tries < 7 {
                let step = Step::Candidate { since, tries: tries + 1 };
                self.add(entry.owner, entry.number, step, (20 << tries).min(1000));
            }
        }
        queued
    }

    /// The first that are due, taken out of the list.
    fn take_due(&mut self, limit: usize, candidates: bool) -> Vec<Entry> {
        let mut due = self.entries.clone();
        due.retain(|entry| {
            entry.due.0 <= self.now && matches!(entry.step, Step::Candidate { .. }) == candidates
        });
        due.sort_by_key(|entry| entry.due);
        due.truncate(limit);
        self.entries.retain(|entry| due.iter().all(|due| due.due != entry.due));
        due
    }

    fn drain(&mut self, owner: ClientId) -> Vec<TierJob> {
        let mut jobs = Vec::new();
        for place in 0..self.entries.len() {
            let entry = self.entries[place];
            if jobs.len() < 2 && entry.owner == owner && entry.step == Step::Queued {
                let due = self.due(100);
                self.entries[place] = Entry { step: Step::Fetched, due, ..entry };
                jobs.push(job(entry.number));
            }
        }
        jobs
    }

    /// The place of a task that is this client's.
    fn task(&self, client: ClientId, number: u64) -> Result<usize, PromotionError> {
        let is_task =
            |entry: &Entry| entry.number == number && !matches!(entry.step, Step::Candidate { .. });
        let place = self.entries.iter().position(is_task).ok_or(PromotionError::NoTask)?;
        if self.entries[place].owner != client {
            return Err(PromotionError::IllegalClient);
        }
        Ok(place)
    }

    fn begin(
        &mut self,
        client: ClientId,
        number: u64,
        right: bool,
    ) -> Result<TierJob, PromotionError> {
        let place = self.task(client, number)?;
        match self.entries[place].step {
            Step::PendingPut => Err(PromotionError::AlreadyBegun),
            Step::Fetched if right => {
                self.entries[place].due = self.due(100);
                self.entries[place].step = Step::PendingPut;
                Ok(job(number))
            }
            Step::Fetched => Err(PromotionError::WrongLength { given: number + 1, len: number }),
            Step::Queued | Step::Candidate { .. } => Err(PromotionError::NoTask),
        }
    }

    fn finish(&mut self, client: ClientId, number: u64) -> Result<TierJob, PromotionError> {
        let place = self.task(client, number)?;
        if self.entries[place].step != Step::PendingPut {
            return Err(PromotionError::NoTask);
        }
        Ok(job(self.entries.remove(place).number))
    }

    fn remove(&mut self, which: impl Fn(&Entry) -> bool) -> Vec<EndedPromotion> {
        let mut removed: Vec<Entry> = self.entries.extract_if(.., |entry| which(entry)).collect();
        removed.sort_by_key(|entry| entry.number);
        removed.iter().map(|entry| entry.ended()).collect()
    }
}

impl Entry {
    fn ended(&self) -> EndedPromotion {
        ended(self.number, self.owner, self.step == Step::PendingPut)
    }
}

fn apply(book: &mut Promotions, model: &mut Model, op: &Op) {
    let client = |at: usize| [A, B][at];
    let now = at(model.now);
    match *op {
        Op::Hit(c, n, room) => {
            assert_eq!(hit(book, model.now, client(c), n, room), model.hit(client(c), n, room));
        }
        Op::Retry(room, limit) => {
            assert_eq!(book.retry(now, room, limit), model.retry(room, limit));
        }
        Op::Drain(c) => assert_eq!(book.drain(now, client(c)), model.drain(client(c))),
        Op::Begin(c, n, right) => {
            let len = if right { n } else { n + 1 };
            let begun = book.begin(now, client(c), Generation::new(n), len).cloned();
            assert_eq!(begun, model.begin(client(c), n, right));
        }
        Op::Finish(c, n) => {
            assert_eq!(book.finish(client(c), Generation::new(n)), model.finish(client(c), n));
        }
        Op::Fail(c, n) => {
            let expected = match model.task(client(c), n) {
                Ok(place) => Ok(Some(model.entries.remove(place).ended())),
                Err(PromotionError::NoTask) => Ok(None),
                Err(error) => Err(error),
            };
            assert_eq!(book.fail(client(c), Generation::new(n)), expected);
        }
        Op::Cancel(n) => {
            let removed = model.remove(|entry| entry.number == n);
            assert_eq!(book.cancel(Generation::new(n)), removed.into_iter().next());
        }
        Op::Gone(c) => {
            let removed = model.remove(|entry| entry.owner == client(c));
            assert_eq!(book.client_gone(client(c)), removed);
        }
        Op::Expire(limit) => {
            let due = model.take_due(limit, false);
            let due: Vec<EndedPromotion> = due.iter().map(Entry::ended).collect();
            assert_eq!(book.expire(now, limit), due);
        }
        Op::Pass(millis) => model.now += millis,
        Op::Clear => assert_eq!(book.clear(), model.remove(|_| true)),
    }
    let asked = if let Op::Drain(c) = *op { Some(client(c)) } else { None };
    model.note_owing(asked);
}

fn check(book: &Promotions, model: &Model) {
    assert_eq!(book.candidates(), model.candidates());
    assert_eq!(book.tasks(), model.entries.len() - model.candidates());
    assert_eq!(book.retries.len(), book.candidates(), "no timer is left behind");
    assert_eq!(book.deadlines.len(), book.tasks());
    let totals = book.totals();
    let over = totals.promotion_promoted
        + totals.promotion_failed
        + totals.promotion_cancelled
        + totals.promotion_expired;
    assert_eq!(totals.promotion_queued, over + book.tasks() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_book_does_what_a_list_does(ops in prop::collection::vec(op(), 1..120)) {
        let mut book = book(1, LIMIT);
        let mut model = Model::default();
        for op in &ops {
            apply(&mut book, &mut model, op);
            check(&book, &model);
        }
    }
}
