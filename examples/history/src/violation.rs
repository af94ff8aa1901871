//! Broken promises, with the operations that prove them.

use std::fmt;

use crate::Operation;

/// The promise that the store broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ViolationKind {
    /// A get returned bytes of no value of its key.
    WrongBytes,
    /// A get returned a value that no put or upsert of its key wrote.
    NeverWritten,
    /// A get returned a value of a put that was answered "existing" or refused.
    NotStored,
    /// A get returned a value before its put or upsert began.
    Future,
    /// A value was current before and after it was removed, replaced or missed.
    Stale,
    /// Two values of one key were current at the same time.
    TwoValues,
    /// An object was gone that nothing had removed.
    Lost,
    /// A put was stored where there was an object that nothing had removed.
    Overwritten,
    /// An object was said to exist when none can have existed.
    Phantom,
    /// Two puts or upserts of one key wrote the same value: a fault of what made the history, which
    /// proves nothing about this value.
    WrittenTwice,
}

impl ViolationKind {
    /// The kind in a word or two, as in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WrongBytes => "wrong bytes",
            Self::NeverWritten => "never written",
            Self::NotStored => "not stored",
            Self::Future => "from the future",
            Self::Stale => "stale",
            Self::TwoValues => "two values",
            Self::Lost => "lost",
            Self::Overwritten => "overwritten",
            Self::Phantom => "phantom",
            Self::WrittenTwice => "written twice",
        }
    }

    const fn explanation(self) -> &'static str {
        match self {
            Self::WrongBytes => "a get returned bytes of no value of its key",
            Self::NeverWritten => "a get returned a value that was never written",
            Self::NotStored => "a get returned a value whose put changed nothing",
            Self::Future => "a get returned a value before its write began",
            Self::Stale => "the value of the first was removed, replaced or missed before",
            Self::TwoValues => "both values were current at the same time",
            Self::Lost => "the object of the second is gone, and nothing has removed it",
            Self::Overwritten => "a put was stored over the object of the second",
            Self::Phantom => "an object exists, though none can have existed",
            Self::WrittenTwice => "the history has two writes of one value",
        }
    }
}

impl fmt::Display for ViolationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A proof that the store broke a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The promise.
    pub kind: ViolationKind,
    /// The operations that prove it, all of one key; the accused one is the first.
    pub operations: Vec<Operation>,
}

impl Violation {
    pub(crate) fn new<const N: usize>(kind: ViolationKind, operations: [&Operation; N]) -> Self {
        let mut proof: Vec<Operation> = Vec::with_capacity(N);
        for operation in operations {
            if !proof.contains(operation) {
                proof.push(*operation);
            }
        }
        Self { kind, operations: proof }
    }

    /// The key of its operations.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.operations.first().map_or(0, |operation| operation.key)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {}: {}: {}", self.key(), self.kind, self.kind.explanation())?;
        self.operations.iter().try_for_each(|operation| write!(f, "; {operation}"))
    }
}
