//! The operations of the clients, in the order in which they saw them.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mc_cluster_testkit::simulation::virtual_time;
use mc_history::{Action, Moment, Operation, Outcome, ValueId, Window};

/// A call of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// A put that changes nothing when the key has a value.
    Put(ValueId),
    /// A put in place of what is there.
    Upsert(ValueId),
    Remove,
    /// A get of all bytes, or of a range.
    Get,
    Exist,
}

/// The client's knowledge when a call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The outcome of a call that changes something.
    Change(Outcome),
    /// A get returned this value.
    Found(ValueId),
    /// A get was told that there is no object.
    Missed,
    Exists(bool),
    /// A call that changes nothing failed, and proves nothing.
    Failed,
}

/// The history of one simulation: operations to check, and lines whose digest is the history's.
#[derive(Default)]
pub(crate) struct History {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    operations: Vec<Operation>,
    undoable: Option<Window>,
    undone: BTreeMap<u32, Vec<Window>>,
    /// Calls by name and answer.
    answers: BTreeMap<(&'static str, &'static str), u64>,
    digest: Digest,
    lines: u64,
    /// The moment of the last line, and the lines of that moment.
    moment: (Duration, u64),
    line: String,
    copy: Option<Box<dyn io::Write + Send>>,
    copy_error: Option<io::Error>,
    violations: Vec<String>,
}

/// Lines of one moment after which the simulation is taken for one that works without an end.
const MOST_AT_ONCE: u64 = 1_000_000;

/// FNV-1a of 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u128);

impl Default for Digest {
    fn default() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Digest {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl History {
    /// An empty history whose lines are copied to `copy`, too.
    pub(crate) fn new(copy: Option<Box<dyn io::Write + Send>>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { copy, ..State::default() }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line.
    pub(crate) fn say(&self, who: impl fmt::Display, what: impl fmt::Display) {
        let state = &mut *self.state();
        let at = virtual_time();
        state.line.clear();
        let _ = writeln!(state.line, "{:>9}.{:03} {who}: {what}", at.as_secs(), at.subsec_millis());
        state.digest.add(state.line.as_bytes());
        state.lines += 1;
        let before = if state.moment.0 == at { state.moment.1 } else { 0 };
        state.moment = (at, before + 1);
        assert!(before < MOST_AT_ONCE, "time stands still: {}", state.line.trim());
        if let Some(copy) = &mut state.copy
            && let Err(error) = copy.write_all(state.line.as_bytes())
        {
            state.copy_error = Some(error);
            state.copy = None;
        }
    }

    /// Begins an operation. One that is dropped without an outcome is unknown.
    pub(crate) fn begin(self: &Arc<Self>, client: u32, key: u32, call: Call) -> Begun {
        Begun { history: Arc::clone(self), client, key, call, begin: virtual_time(), ended: false }
    }

    /// Adds what a check found.
    pub(crate) fn violates(&self, what: impl fmt::Display) {
        self.say("VIOLATION", &what);
        self.state().violations.push(format!("{:?}: {what}", virtual_time()));
    }

    /// Notes that any change may be undone: see [`mc_history::Rules::undoable`].
    pub(crate) fn may_undo_all(&self) {
        self.state().undoable = Some(Window { from: Moment::ZERO, to: Duration::MAX.into() });
    }

    /// Notes that the changes of this key since then are undone.
    pub(crate) fn undoes(&self, key: u32, since: Duration) {
        let time = Window { from: since.into(), to: virtual_time().into() };
        self.state().undone.entry(key).or_default().push(time);
    }

    pub(crate) fn has_violations(&self) -> bool {
        !self.state().violations.is_empty()
    }

    /// Takes what there is at the end.
    pub(crate) fn end(&self) -> Ended {
        let mut state = self.state();
        if let Some(copy) = &mut state.copy
            && let Err(error) = copy.flush()
        {
            state.copy_error = Some(error);
        }
        Ended {
            operations: std::mem::take(&mut state.operations),
            undoable: state.undoable.into_iter().collect(),
            undone: std::mem::take(&mut state.undone),
            answers: std::mem::take(&mut state.answers),
            digest: state.digest,
            lines: state.lines,
            violations: std::mem::take(&mut state.violations),
            copy_error: state.copy_error.take(),
        }
    }
}

/// See [`History::end`].
pub(crate) struct Ended {
    pub(crate) operations: Vec<Operation>,
    pub(crate) undoable: Vec<Window>,
    pub(crate) undone: BTreeMap<u32, Vec<Window>>,
    pub(crate) answers: BTreeMap<(&'static str, &'static str), u64>,
    pub(crate) digest: Digest,
    pub(crate) lines: u64,
    pub(crate) violations: Vec<String>,
    pub(crate) copy_error: Option<io::Error>,
}

/// A call that is under way. Dropped without an answer, its outcome is unknown.
pub(crate) struct Begun {
    history: Arc<History>,
    client: u32,
    key: u32,
    call: Call,
    begin: Duration,
    ended: bool,
}

impl Begun {
    pub(crate) fn begin(&self) -> Duration {
        self.begin
    }

    /// Notes the answer, with the error's name if there was one.
    pub(crate) fn ends(mut self, answer: Answer, detail: impl fmt::Display) {
        self.note(answer, detail);
    }

    fn note(&mut self, answer: Answer, detail: impl fmt::Display) {
        self.ended = true;
        let Self { client, key, call, begin, .. } = *self;
        let end = virtual_time();
        let took = (end - begin).as_millis();
        self.history.say(
            format_args!("n{client}"),
            format_args!("k{key} {call:?} took {took}: {answer:?} {detail}"),
        );
        let (action, outcome) = match (call, answer) {
            (_, Answer::Failed) => (None, Outcome::Unknown),
            (_, Answer::Found(value)) => (Some(Action::Found(value)), Outcome::Done),
            (_, Answer::Missed) => (Some(Action::Missed), Outcome::Done),
            (_, Answer::Exists(yes)) => (Some(Action::Exist(yes)), Outcome::Done),
            (Call::Put(value), Answer::Change(outcome)) => (Some(Action::Put(value)), outcome),
            (Call::Upsert(value), Answer::Change(outcome)) => {
                (Some(Action::Upsert(value)), outcome)
            }
            (Call::Remove, Answer::Change(outcome)) => (Some(Action::Remove), outcome),
            (Call::Get | Call::Exist, Answer::Change(_)) => (None, Outcome::Unknown),
        };
        let mut state = self.history.state();
        *state.answers.entry((call.name(), answer.name())).or_default() += 1;
        let (begin, end) = (begin.into(), end.into());
        state.operations.extend(action.map(|action| Operation {
            client,
            key,
            action,
            outcome,
            begin,
            end,
        }));
    }
}

impl Call {
    const fn name(self) -> &'static str {
        match self {
            Self::Put(_) => "put",
            Self::Upsert(_) => "upsert",
            Self::Remove => "remove",
            Self::Get => "get",
            Self::Exist => "exist",
        }
    }
}

impl Answer {
    const fn name(self) -> &'static str {
        match self {
            Self::Change(Outcome::Done) => "done",
            Self::Change(Outcome::Existing) => "existing",
            Self::Change(Outcome::Absent) | Self::Missed | Self::Exists(false) => "absent",
            Self::Change(Outcome::Refused) => "refused",
            Self::Change(Outcome::Unknown) => "unknown",
            Self::Found(_) | Self::Exists(true) => "found",
            Self::Failed => "failed",
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.ended {
            let answer = match self.call {
                Call::Get | Call::Exist => Answer::Failed,
                _ => Answer::Change(Outcome::Unknown),
            };
            self.note(answer, "its process ended");
        }
    }
}
