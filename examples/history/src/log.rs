//! The log format, version 1: a line of JSON for each thing that happened.

mod read;
mod write;

use serde::{Deserialize, Serialize};

use crate::{Action, Outcome, ValueId};

pub use read::{History, LineFault, LogError};
pub use write::LogWriter;

/// The name of the format, which the first line of each log tells.
const FORMAT: &str = "mc-history";

/// The version of the format that this library writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// The longest line in bytes.
pub const LINE_LIMIT: usize = 64 << 10;

/// A client's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// A put of this value.
    Put(ValueId),
    /// An upsert of this value.
    Upsert(ValueId),
    /// A get.
    Get,
    /// A get of a part of the value.
    GetRange,
    /// A question whether there is an object.
    Exist,
    /// A removal.
    Remove,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The call was carried out.
    Done,
    /// There is an object already.
    Existing,
    /// There was no object to remove.
    Absent,
    /// The call was refused and changed nothing.
    Refused,
    /// An error, after which it may have happened.
    Unknown,
    /// The bytes of this value.
    Found(ValueId),
    /// There is no object to get.
    Missed,
    /// Bytes of no value of the key.
    WrongBytes,
    /// There is an object, or not.
    Exist(bool),
}

/// The outcome of an operation, by its call and its answer.
enum Told {
    Operation(Action, Outcome),
    /// A call that changes nothing and failed.
    Nothing,
    /// An answer that this call does not have.
    Contradiction,
}

impl Call {
    fn told(self, answer: Answer) -> Told {
        let outcome = match answer {
            Answer::Existing => Outcome::Existing,
            Answer::Absent => Outcome::Absent,
            Answer::Refused => Outcome::Refused,
            Answer::Unknown => Outcome::Unknown,
            _ => Outcome::Done,
        };
        let action = match (self, answer) {
            (Self::Get | Self::GetRange | Self::Exist, Answer::Unknown) => return Told::Nothing,
            (
                Self::Put(value),
                Answer::Done | Answer::Existing | Answer::Refused | Answer::Unknown,
            ) => Action::Put(value),
            (Self::Upsert(value), Answer::Done | Answer::Refused | Answer::Unknown) => {
                Action::Upsert(value)
            }
            (Self::Remove, Answer::Done | Answer::Absent | Answer::Refused | Answer::Unknown) => {
                Action::Remove
            }
            (Self::Get | Self::GetRange, Answer::Found(value)) => Action::Found(value),
            (Self::Get | Self::GetRange, Answer::Missed) => Action::Missed,
            (Self::Get | Self::GetRange, Answer::WrongBytes) => Action::WrongBytes,
            (Self::Exist, Answer::Exist(exists)) => Action::Exist(exists),
            _ => return Told::Contradiction,
        };
        Told::Operation(action, outcome)
    }

    /// The call and the answer that an operation came from.
    fn of(action: Action, outcome: Outcome) -> (Self, Answer) {
        let answer = match outcome {
            Outcome::Done => Answer::Done,
            Outcome::Existing => Answer::Existing,
            Outcome::Absent => Answer::Absent,
            Outcome::Refused => Answer::Refused,
            Outcome::Unknown => Answer::Unknown,
        };
        match action {
            Action::Put(value) => (Self::Put(value), answer),
            Action::Upsert(value) => (Self::Upsert(value), answer),
            Action::Remove => (Self::Remove, answer),
            Action::Found(value) => (Self::Get, Answer::Found(value)),
            Action::Missed => (Self::Get, Answer::Missed),
            Action::WrongBytes => (Self::Get, Answer::WrongBytes),
            Action::Exist(exists) => (Self::Exist, Answer::Exist(exists)),
        }
    }
}

/// A value in a log is `[writer, version]`.
impl Serialize for ValueId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.writer, self.version).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ValueId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (writer, version) = Deserialize::deserialize(deserializer)?;
        Ok(Self { writer, version })
    }
}

/// One line. Times are in nanoseconds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    /// The first line of a log.
    Header { format: String, version: u32 },
    /// The name of a key in the store.
    Name { key: u32, name: String },
    /// A call that is about to be made.
    Begin { id: u64, client: u32, key: u32, call: Call, at: u64 },
    /// The end of the call that began with this id.
    End { id: u64, answer: Answer, at: u64 },
    /// A call from its begin to its end; without an end it never returned.
    Operation {
        client: u32,
        key: u32,
        call: Call,
        answer: Answer,
        begin: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        end: Option<u64>,
    },
    /// A time in which the memory of a node was lost.
    Loss { from: u64, to: u64 },
}

#[cfg(test)]
mod tests;
