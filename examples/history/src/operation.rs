//! Operations of clients, and the moments when they began and ended.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A moment in nanoseconds, on the one clock that all operations of a history share.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The earliest moment.
    pub const ZERO: Self = Self(0);

    /// Later than every moment that a clock shows: the end of an operation that never ended.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment so many nanoseconds after the clock's zero.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's zero.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since an earlier moment; zero if that one is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment so much earlier, or the [earliest](Self::ZERO).
    #[must_use]
    pub fn before(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(time)))
    }
}

impl From<Duration> for Moment {
    /// The moment so long after the clock's zero.
    fn from(since_zero: Duration) -> Self {
        Self(nanos(since_zero))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// The moment so much later, or [`NEVER`](Self::NEVER).
    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(nanos(time)))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return f.write_str("never");
        }
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// All moments from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first moment.
    pub from: Moment,
    /// The last moment.
    pub to: Moment,
}

/// A value that a put or upsert wrote. No two of a history write the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId {
    /// The client that wrote it.
    pub writer: u32,
    /// The writer's count of values.
    pub version: u32,
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.writer, self.version)
    }
}

/// A call, and what it returned if it changes nothing.
///
/// A get, range read or exist that failed tells nothing and is no operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A put of this value: it takes effect only if there is no object.
    Put(ValueId),
    /// An upsert of this value: it replaces the object, if there is one.
    Upsert(ValueId),
    /// A removal.
    Remove,
    /// A get or range read that returned bytes of this value.
    Found(ValueId),
    /// A get or range read that was told that there is no object.
    Missed,
    /// A get or range read that returned bytes which are of no value of its key.
    WrongBytes,
    /// An exist that was told whether there is an object that can be read.
    Exist(bool),
}

impl Action {
    /// The value that a put or upsert writes.
    #[must_use]
    pub const fn written(self) -> Option<ValueId> {
        match self {
            Self::Put(value) | Self::Upsert(value) => Some(value),
            _ => None,
        }
    }

    /// Returns whether this is a put, an upsert or a removal.
    #[must_use]
    pub const fn is_change(self) -> bool {
        matches!(self, Self::Put(_) | Self::Upsert(_) | Self::Remove)
    }
}

/// The client's knowledge about the effect of a call. That of calls that change nothing is
/// [`Done`](Self::Done).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The call was acknowledged.
    Done,
    /// A put found an object and changed nothing.
    Existing,
    /// A removal found no object.
    Absent,
    /// The call was refused, because there was no space or because of a lease, and changed nothing.
    Refused,
    /// The call failed or never ended: it may have happened, may happen shortly, or never.
    Unknown,
}

/// One operation of a client: 40 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation {
    /// The client that called.
    pub client: u32,
    /// The key, by number.
    pub key: u32,
    /// The call.
    pub action: Action,
    /// The client's knowledge about the effect.
    pub outcome: Outcome,
    /// A moment before the call.
    pub begin: Moment,
    /// A moment after the call, or [`NEVER`](Moment::NEVER).
    pub end: Moment,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} ", self.client)?;
        match self.action {
            Action::Put(value) => write!(f, "put {value}")?,
            Action::Upsert(value) => write!(f, "upserted {value}")?,
            Action::Remove => f.write_str("removed")?,
            Action::Found(value) => write!(f, "got {value}")?,
            Action::Missed => f.write_str("got nothing")?,
            Action::WrongBytes => f.write_str("got wrong bytes")?,
            Action::Exist(true) => f.write_str("was told that it exists")?,
            Action::Exist(false) => f.write_str("was told that it does not exist")?,
        }
        match self.outcome {
            Outcome::Done => {}
            Outcome::Existing => f.write_str(" (existing)")?,
            Outcome::Absent => f.write_str(" (absent)")?,
            Outcome::Refused => f.write_str(" (refused)")?,
            Outcome::Unknown => f.write_str(" (unknown)")?,
        }
        write!(f, " [{} - {}]", self.begin, self.end)
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {}: {self}", self.key)
    }
}

/// The longest time without an acknowledged write, between the first one and the last operation.
#[must_use]
pub fn longest_outage(operations: &[Operation]) -> Duration {
    let is_write = |it: &&Operation| it.action.written().is_some() && it.outcome == Outcome::Done;
    let mut ends: Vec<Moment> = operations.iter().filter(is_write).map(|it| it.end).collect();
    ends.extend(operations.iter().map(|it| it.end).filter(|it| *it != Moment::NEVER).max());
    ends.sort_unstable();
    ends.windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_small() {
        assert_eq!(size_of::<Operation>(), 40);
    }

    #[test]
    fn moments_neither_wrap_nor_underflow() {
        let one = Moment::from(Duration::from_secs(1));
        assert_eq!(one.to_string(), "1.000000000");
        assert_eq!(one.before(Duration::from_secs(2)), Moment::ZERO);
        assert_eq!(Moment::ZERO.since(one), Duration::ZERO);
        assert_eq!(Moment::NEVER + Duration::from_secs(1), Moment::NEVER);
        assert_eq!(one + Duration::MAX, Moment::NEVER);
    }

    #[test]
    fn an_outage_lasts_from_one_acknowledged_write_to_the_next() {
        let operation = |action, outcome, begin, end| {
            let (begin, end) = (Moment::from_nanos(begin), Moment::from_nanos(end));
            Operation { client: 0, key: 0, action, outcome, begin, end }
        };
        let put = |version| Action::Put(ValueId { writer: 1, version });
        let history = [
            operation(put(1), Outcome::Done, 0, 1),
            operation(put(2), Outcome::Unknown, 2, 3),
            operation(put(3), Outcome::Done, 9, 10),
            operation(Action::Missed, Outcome::Done, 11, 12),
        ];
        assert_eq!(longest_outage(&history), Duration::from_nanos(9));
    }
}
