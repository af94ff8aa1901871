//! The book against a plain list of every task there ever was.

use proptest::prelude::*;
use proptest::sample::Index;

use crate::side_tables::tasks::*;
use crate::vocabulary::request::MAX_REPLICAS;

fn at(millis: u64) -> Time {
    Time::from_millis(millis)
}

fn client(number: u8) -> ClientId {
    ClientId::from_u128(u128::from(number))
}

/// Ids that do not come in the order of creation.
fn id(number: usize) -> TaskId {
    TaskId::from_u128((number as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xff)
}

fn key(number: usize) -> ObjectKey {
    ObjectKey::new(format!("key-{number}")).unwrap()
}

fn copy(source: &str) -> TaskKind {
    TaskKind::Copy { source: source.into(), targets: vec!["b".into(), "c".into()] }
}

fn a_move(source: &str) -> TaskKind {
    TaskKind::Move { source: source.into(), target: "b".into() }
}

#[derive(Clone, Debug)]
enum Op {
    Create { client: u8, kind: TaskKind },
    Fetch { client: u8, max: usize },
    Complete { client: u8, task: Index, status: TaskStatus },
    Fail { task: Index },
    Reassign { task: Index, client: u8 },
    Gone { client: u8 },
    Expire { limit: usize },
    Clock { to: u64 },
    Pass { millis: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let client = 0u8..3;
    let kind = prop_oneof![3 => Just(copy("a")), 2 => Just(a_move("a")), 1 => Just(a_move("b"))];
    let status = prop_oneof![
        4 => Just(TaskStatus::Success),
        4 => Just(TaskStatus::Failed),
        1 => Just(TaskStatus::Processing),
        1 => Just(TaskStatus::Pending),
    ];
    let task = any::<Index>;
    prop_oneof![
        8 => (client.clone(), kind).prop_map(|(client, kind)| Op::Create { client, kind }),
        6 => (client.clone(), 0usize..4).prop_map(|(client, max)| Op::Fetch { client, max }),
        8 => (client.clone(), task(), status)
            .prop_map(|(client, task, status)| Op::Complete { client, task, status }),
        1 => task().prop_map(|task| Op::Fail { task }),
        2 => (task(), client.clone()).prop_map(|(task, client)| Op::Reassign { task, client }),
        1 => client.prop_map(|client| Op::Gone { client }),
        3 => prop_oneof![Just(usize::MAX), 0usize..3].prop_map(|limit| Op::Expire { limit }),
        1 => prop_oneof![Just(u64::MAX), 0u64..500].prop_map(|to| Op::Clock { to }),
        6 => (0u64..60).prop_map(|millis| Op::Pass { millis }),
    ]
}

fn config() -> impl Strategy<Value = TaskConfig> {
    let limit = || prop_oneof![1usize..6, Just(usize::MAX)];
    let timeout = || prop_oneof![Just(0u64), 1u64..200].prop_map(Duration::from_millis);
    (limit(), limit(), 0usize..8, timeout(), timeout()).prop_map(
        |(max_pending, max_processing, max_finished, pending_timeout, processing_timeout)| {
            TaskConfig {
                max_pending,
                max_processing,
                max_finished,
                pending_timeout,
                processing_timeout,
                max_retry_attempts: 3,
            }
        },
    )
}

/// A task of the model; its place in the list is its number.
#[derive(Clone, Debug)]
struct Known {
    info: TaskInfo,
    /// When it is due, and after how many other deadlines that was decided.
    deadline: Option<(Time, usize)>,
    /// How many tasks had ended before it.
    ended: Option<usize>,
}

struct Model {
    config: TaskConfig,
    now: Time,
    tasks: Vec<Known>,
    deadlines: usize,
    ended: usize,
}

impl Model {
    fn count(&self, status: TaskStatus) -> usize {
        self.tasks.iter().filter(|task| task.info.status == status).count()
    }

    fn deadline(&mut self, timeout: Duration) -> Option<(Time, usize)> {
        self.deadlines += 1;
        (timeout > Duration::ZERO).then(|| (self.now + timeout, self.deadlines))
    }

    fn is_known(&self, number: usize) -> bool {
        self.tasks.get(number).is_some_and(|task| {
            task.ended.is_none_or(|n| n + self.config.max_finished >= self.ended)
        })
    }

    /// Numbers of one client's tasks in the order of creation.
    fn of(&self, client: ClientId, status: TaskStatus) -> Vec<usize> {
        let is = |info: &TaskInfo| (info.assigned_client, info.status) == (client, status);
        (0..self.tasks.len()).filter(|&number| is(&self.tasks[number].info)).collect()
    }

    fn create(&mut self, client: ClientId, kind: TaskKind) -> Result<(), TaskError> {
        if kind == a_move("b") {
            return Err(TaskError::SameSegment);
        }
        let limit = self.config.max_pending;
        if self.count(TaskStatus::Pending) >= limit {
            return Err(TaskError::PendingLimit { limit });
        }
        let deadline = self.deadline(self.config.pending_timeout);
        let number = self.tasks.len();
        let info = TaskInfo {
            id: id(number),
            kind,
            key: key(number),
            status: TaskStatus::Pending,
            created_at: self.now,
            last_updated_at: self.now,
            assigned_client: client,
            message: "".into(),
        };
        self.tasks.push(Known { info, deadline, ended: None });
        Ok(())
    }

    fn touch(&mut self, number: usize) -> &mut Known {
        let task = &mut self.tasks[number];
        task.info.last_updated_at = task.info.last_updated_at.max(self.now);
        task
    }

    fn fetch(&mut self, client: ClientId, max: usize) -> Vec<TaskId> {
        let mut fetched = Vec::new();
        for number in self.of(client, TaskStatus::Pending) {
            if fetched.len() == max
                || self.count(TaskStatus::Processing) >= self.config.max_processing
            {
                break;
            }
            let deadline = self.deadline(self.config.processing_timeout);
            let task = self.touch(number);
            task.info.status = TaskStatus::Processing;
            task.deadline = deadline;
            fetched.push(task.info.id);
        }
        fetched
    }

    fn end(&mut self, number: usize, status: TaskStatus, message: &str) -> TaskInfo {
        let ended = self.ended;
        self.ended += 1;
        let task = self.touch(number);
        task.info.status = status;
        task.info.message = message.into();
        task.deadline = None;
        task.ended = Some(ended);
        task.info.clone()
    }

    fn complete(
        &mut self,
        client: ClientId,
        number: usize,
        status: TaskStatus,
    ) -> Result<TaskStatus, TaskError> {
        if matches!(status, TaskStatus::Pending | TaskStatus::Processing) {
            return Err(TaskError::NotFinal { status });
        }
        if !self.is_known(number) {
            return Err(TaskError::NotFound);
        }
        let info = &self.tasks[number].info;
        if info.assigned_client != client {
            return Err(TaskError::IllegalClient);
        }
        match info.status {
            TaskStatus::Pending => {
                Err(TaskError::BadTransition { from: TaskStatus::Pending, to: status })
            }
            TaskStatus::Processing => Ok(self.end(number, status, "reported").status),
            ended => Ok(ended),
        }
    }

    fn fail(&mut self, number: usize) -> Result<TaskStatus, TaskError> {
        if !self.is_known(number) {
            return Err(TaskError::NotFound);
        }
        let status = self.tasks[number].info.status;
        if matches!(status, TaskStatus::Pending | TaskStatus::Processing) {
            return Ok(self.end(number, TaskStatus::Failed, "given up").status);
        }
        Ok(status)
    }

    fn reassign(&mut self, number: usize, client: ClientId) -> Result<(), TaskError> {
        if !self.is_known(number) {
            return Err(TaskError::NotFound);
        }
        let from = self.tasks[number].info.status;
        if from != TaskStatus::Pending {
            return Err(TaskError::BadTransition { from, to: TaskStatus::Pending });
        }
        if matches!(self.tasks[number].info.kind, TaskKind::Move { .. }) {
            return Err(TaskError::SourceFixed);
        }
        let task = self.touch(number);
        task.info.assigned_client = client;
        task.info.kind = copy("elsewhere");
        Ok(())
    }

    fn gone(&mut self, client: ClientId) -> Orphans {
        let mut orphans = Orphans::default();
        for number in self.of(client, TaskStatus::Processing) {
            let message = format!("client {client}, which worked on the task, has gone");
            orphans.failed.push(self.end(number, TaskStatus::Failed, &message));
        }
        for number in self.of(client, TaskStatus::Pending) {
            let message = format!("client {client}, which held the source, has gone");
            match self.tasks[number].info.kind {
                TaskKind::Copy { .. } => orphans.waiting.push(self.tasks[number].info.clone()),
                TaskKind::Move { .. } => {
                    orphans.failed.push(self.end(number, TaskStatus::Failed, &message));
                }
            }
        }
        orphans
    }

    fn expire(&mut self, limit: usize) -> Vec<TaskInfo> {
        let mut due: Vec<((Time, usize), usize)> = (0..self.tasks.len())
            .filter_map(|number| Some((self.tasks[number].deadline?, number)))
            .filter(|((due, _), _)| *due <= self.now)
            .collect();
        due.sort_unstable();
        due.truncate(limit);
        due.into_iter()
            .map(|(_, number)| {
                let message = match self.tasks[number].info.status {
                    TaskStatus::Pending => "pending timeout",
                    _ => "processing timeout",
                };
                self.end(number, TaskStatus::Failed, message)
            })
            .collect()
    }
}

/// The book and its model; each operation is done to both.
struct Pair {
    book: TaskBook,
    model: Model,
}

impl Pair {
    fn new(config: TaskConfig) -> Self {
        let model =
            Model { config: config.clone(), now: at(100), tasks: vec![], deadlines: 0, ended: 0 };
        Self { book: TaskBook::new(config), model }
    }

    fn apply(&mut self, op: Op) {
        let Self { book, model } = self;
        let now = model.now;
        // One more than there are, for a task that no client knows.
        let number_of = |task: Index| task.index(model.tasks.len() + 1);
        match op {
            Op::Create { client: by, kind } => {
                let number = model.tasks.len();
                let created = book.create(now, id(number), client(by), key(number), kind.clone());
                assert_eq!(created, model.create(client(by), kind));
            }
            Op::Fetch { client: by, max } => {
                let fetched = book.fetch(now, client(by), max);
                let ids: Vec<TaskId> = fetched.iter().map(|assignment| assignment.id).collect();
                assert_eq!(ids, model.fetch(client(by), max));
                for assignment in fetched {
                    let info = book.query(assignment.id).unwrap();
                    let TaskAssignment { kind, key, created_at, max_retry_attempts, .. } =
                        assignment;
                    assert_eq!((&info.kind, &info.key), (&kind, &key));
                    assert_eq!((info.created_at, 3), (created_at, max_retry_attempts));
                }
            }
            Op::Complete { client: by, task, status } => {
                let number = number_of(task);
                let completed = book.complete(now, client(by), id(number), status, "reported");
                assert_eq!(completed, model.complete(client(by), number, status));
            }
            Op::Fail { task } => {
                let number = number_of(task);
                assert_eq!(book.fail(now, id(number), "given up"), model.fail(number));
            }
            Op::Reassign { task, client: to } => {
                let number = number_of(task);
                let reassigned = book.reassign(now, id(number), client(to), "elsewhere".into());
                assert_eq!(reassigned, model.reassign(number, client(to)));
            }
            Op::Gone { client: by } => {
                assert_eq!(book.client_gone(now, client(by)), model.gone(client(by)));
            }
            Op::Expire { limit } => assert_eq!(book.expire(now, limit), model.expire(limit)),
            Op::Clock { to } => model.now = at(to),
            Op::Pass { millis } => model.now = now + Duration::from_millis(millis),
        }
        self.compare();
    }

    fn compare(&self) {
        let Self { book, model } = self;
        for (number, task) in model.tasks.iter().enumerate() {
            let expected =
                if model.is_known(number) { Ok(&task.info) } else { Err(TaskError::NotFound) };
            assert_eq!(book.query(id(number)), expected);
        }
        let counts = TaskCounts {
            pending: model.count(TaskStatus::Pending),
            processing: model.count(TaskStatus::Processing),
            finished: model.ended.min(model.config.max_finished),
        };
        assert_eq!(book.counts(), counts);
        assert_eq!(book.tasks.len(), counts.pending + counts.processing + counts.finished);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn the_book_agrees_with_a_plain_list(
        config in config(),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut pair = Pair::new(config);
        for op in ops {
            pair.apply(op);
        }
    }
}

fn book_with(tasks: usize) -> TaskBook {
    let mut book = TaskBook::new(TaskConfig::default());
    for number in 0..tasks {
        book.create(at(0), id(number), client(1), key(number), copy("a")).unwrap();
    }
    book
}

#[test]
fn an_id_names_one_task() {
    let mut book = book_with(1);
    let again = book.create(at(0), id(0), client(2), key(9), copy("a"));
    assert_eq!(again, Err(TaskError::IdTaken));
    assert_eq!(book.query(id(0)).unwrap().assigned_client, client(1));
    assert_eq!(book.counts().pending, 1);
}

#[test]
fn a_copy_has_a_target_and_not_too_many() {
    let mut book = TaskBook::new(TaskConfig::default());
    for (count, is_valid) in
        [(0, false), (1, true), (MAX_REPLICAS, true), (MAX_REPLICAS + 1, false)]
    {
        let kind = TaskKind::Copy { source: "a".into(), targets: vec!["b".into(); count] };
        let expected = if is_valid { Ok(()) } else { Err(TaskError::TargetCount { count }) };
        assert_eq!(book.create(at(0), id(count), client(1), key(count), kind), expected);
    }
}

#[test]
fn a_report_after_the_time_was_up_changes_nothing() {
    let mut book = book_with(1);
    assert_eq!(book.fetch(at(0), client(1), 16).len(), 1);
    assert_eq!(book.expire(at(299_999), 16), vec![]);
    assert_eq!(book.expire(at(300_000), 16).len(), 1);
    let late = book.complete(at(300_001), client(1), id(0), TaskStatus::Success, "done");
    assert_eq!(late, Ok(TaskStatus::Failed));
    let info = book.query(id(0)).unwrap();
    assert_eq!((&*info.message, info.last_updated_at), ("processing timeout", at(300_000)));
}

#[test]
fn an_older_copy_that_is_reassigned_comes_before_younger_ones() {
    let mut book = TaskBook::new(TaskConfig::default());
    for (number, by) in [(0, 1), (1, 2), (2, 1), (3, 2)] {
        book.create(at(0), id(number), client(by), key(number), copy("a")).unwrap();
    }
    for info in book.client_gone(at(5), client(1)).waiting {
        book.reassign(at(5), info.id, client(2), "d".into()).unwrap();
    }
    let fetched: Vec<TaskId> =
        book.fetch(at(6), client(2), 16).into_iter().map(|assignment| assignment.id).collect();
    assert_eq!(fetched, [id(0), id(1), id(2), id(3)]);
    assert_eq!(book.query(id(0)).unwrap().kind.source(), "d");
    assert_eq!(book.client_gone(at(7), client(1)), Orphans::default());
}

#[test]
fn a_message_is_cut_between_characters() {
    let mut book = book_with(1);
    book.fetch(at(0), client(1), 1);
    let message = "x".to_owned() + &"ä".repeat(MAX_TASK_MESSAGE_LEN);
    book.complete(at(1), client(1), id(0), TaskStatus::Failed, &message).unwrap();
    let kept = &book.query(id(0)).unwrap().message;
    assert_eq!(kept.len(), MAX_TASK_MESSAGE_LEN - 1);
    assert!(message.starts_with(&**kept));
    assert_eq!(cut(&message[..1023]), &message[..1023]);
}

#[test]
fn errors_carry_the_numbers_of_the_reference_system() {
    assert_eq!(TaskError::NotFound.code().code(), -1400);
    assert_eq!(TaskError::PendingLimit { limit: 1 }.code().code(), -1401);
    assert_eq!(TaskError::IllegalClient.code().code(), -601);
    assert_eq!(TaskError::NotFinal { status: TaskStatus::Pending }.code().code(), -600);
}
