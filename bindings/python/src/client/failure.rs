//! The store's errors as exceptions of `mc_store.exceptions`.

use std::convert::Infallible;
use std::error::Error as StdError;

use mc_store::{
    C2cError, CallError, ConfigError, ErrorCode, GetError, MasterStartError, PutError, Refusal,
    SegmentError, StartError,
};
use pyo3::IntoPyObjectExt as _;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyNone};

use crate::error::Chain;

/// The outcome of a call of the store.
pub(super) type Outcome<T> = Result<T, Failure>;

/// The result of a call that returns `None`. The unit type is an empty tuple in Python.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done;

impl Done {
    /// Converts the store's unit result.
    pub(super) fn from((): ()) -> Self {
        Self
    }
}

impl<'py> IntoPyObject<'py> for Done {
    type Target = PyNone;
    type Output = Borrowed<'py, 'py, PyNone>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        Ok(PyNone::get(py))
    }
}

/// A failed call. Made without the interpreter, on the thread where the call ends.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    class: &'static str,
    code: ErrorCode,
    message: String,
    retryable: bool,
    /// The object that the call was about.
    key: Option<String>,
    /// A note to show below the traceback.
    note: Option<String>,
}

impl Failure {
    fn new(code: ErrorCode, error: &(dyn StdError + 'static), retryable: bool) -> Self {
        Self { retryable, ..Self::plain(code, Chain(error).to_string()) }
    }

    /// An argument is invalid.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::plain(ErrorCode::InvalidParams, message.into())
    }

    /// An awaited event did not happen in time.
    pub(super) fn timeout(message: impl Into<String>) -> Self {
        Self { retryable: true, ..Self::plain(ErrorCode::RpcTimeout, message.into()) }
    }

    /// The client is closed.
    pub(super) fn closed(message: impl Into<String>) -> Self {
        let code = ErrorCode::UnavailableInCurrentStatus;
        Self { class: "Closed", ..Self::plain(code, message.into()) }
    }

    /// A system call failed.
    pub(super) fn system(what: &str, error: &std::io::Error) -> Self {
        Self::plain(ErrorCode::Internal, format!("{what}: {error}"))
    }

    fn plain(code: ErrorCode, message: String) -> Self {
        Self { class: class_of(code), code, message, retryable: false, key: None, note: None }
    }

    /// The memory of a GPU could not be copied.
    pub(super) fn of_device() -> Self {
        Self::plain(ErrorCode::InvalidParams, UNCOPIED.into())
    }

    /// Adds the key of the object that the call was about.
    fn about(self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self }
    }

    /// Adds a note.
    pub(super) fn with_note(mut self, note: String) -> Self {
        self.note = Some(note);
        self
    }

    /// Returns whether the key has no readable object.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self.code, ErrorCode::ObjectNotFound | ErrorCode::ReplicaIsNotReady)
    }

    /// Returns the exception.
    pub(super) fn into_exception(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        static EXCEPTIONS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
        let module = EXCEPTIONS.get_or_try_init(py, || {
            PyModule::import(py, "mc_store.exceptions").map(Bound::unbind)
        })?;
        let class = module.bind(py).getattr(self.class)?;
        let arguments =
            (self.message, self.code.code(), self.code.as_str(), self.retryable, self.key);
        let exception = class.call1(arguments)?;
        if let Some(note) = self.note {
            exception.call_method1("add_note", (note,))?;
        }
        Ok(exception)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        // Every caller is attached already; this only reads a thread-local variable.
        Python::attach(|py| match failure.into_exception(py) {
            Ok(exception) => Self::from_value(exception),
            Err(error) => error,
        })
    }
}

/// The message of a failure whose cause stands in the log.
pub(super) const UNCOPIED: &str = "the memory of the GPU cannot be copied; the log says why";

/// Adds the object's key to an error.
pub(super) trait About<T> {
    /// Adds `key` to the failure, if the outcome is one.
    fn about(self, key: &str) -> Outcome<T>;
}

impl<T, E: Into<Failure>> About<T> for Result<T, E> {
    fn about(self, key: &str) -> Outcome<T> {
        self.map_err(|error| error.into().about(key))
    }
}

/// Returns the name of the class of `mc_store.exceptions` for an error code.
fn class_of(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::ObjectNotFound
        | ErrorCode::SegmentNotFound
        | ErrorCode::ClientNotFound
        | ErrorCode::ReplicaNotFound
        | ErrorCode::TaskNotFound
        | ErrorCode::JobNotFound => "NotFound",
        ErrorCode::ReplicaIsNotReady => "NotReady",
        ErrorCode::ObjectAlreadyExists
        | ErrorCode::PutInProgress
        | ErrorCode::SegmentAlreadyExists => "AlreadyExists",
        ErrorCode::InvalidKey | ErrorCode::InvalidParams | ErrorCode::ObjectTooLarge => {
            "InvalidArgument"
        }
        ErrorCode::Full => "Full",
        ErrorCode::Fragmented => "Fragmented",
        ErrorCode::TooFewSegments => "TooFewSegments",
        ErrorCode::AllLeased => "AllLeased",
        ErrorCode::TenantQuotaExceeded => "QuotaExceeded",
        ErrorCode::ObjectHasLease => "Leased",
        ErrorCode::LeaseExpired => "LeaseExpired",
        ErrorCode::InvalidWrite
        | ErrorCode::ObjectHasReplicationTask
        | ErrorCode::ObjectNoReplicationTask
        | ErrorCode::ReplicaIsGone
        | ErrorCode::ObjectReplicaBusy
        | ErrorCode::TenantNotEmpty
        | ErrorCode::AnswerNotKept
        | ErrorCode::OutcomeUnknown
        | ErrorCode::UnavailableInCurrentStatus => "Conflict",
        ErrorCode::TransferFail => "TransferFailed",
        ErrorCode::ChecksumMismatch => "Corrupt",
        ErrorCode::RpcFail => "Unreachable",
        ErrorCode::RpcTimeout => "Timeout",
        ErrorCode::Overloaded
        | ErrorCode::OffloadQueueFull
        | ErrorCode::TaskPendingLimitExceeded => "Overloaded",
        ErrorCode::Unauthenticated
        | ErrorCode::PermissionDenied
        | ErrorCode::IllegalClient
        | ErrorCode::TenantNotRegistered => "PermissionDenied",
        ErrorCode::InvalidVersion
        | ErrorCode::UnavailableInCurrentMode
        | ErrorCode::NotSupported
        | ErrorCode::UnableOffload
        | ErrorCode::UnableOffloading => "Unsupported",
        _ => "StoreError",
    }
}

macro_rules! from_errors_with_codes {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                let closed = matches!(error, <$error>::Closed);
                let failure = Self::new(error.code(), &error, error.is_retryable());
                if closed { Self { class: "Closed", ..failure } } else { failure }
            }
        }
    )*};
}

from_errors_with_codes!(PutError, GetError, CallError, SegmentError, C2cError);

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code, &refusal, refusal.is_retryable())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(ErrorCode::InvalidParams, &error, false)
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let (code, retryable) = match &error {
            StartError::NoMaster
            | StartError::NoRole
            | StartError::BadLabel { .. }
            | StartError::Config(_)
            | StartError::NoAddress { .. } => (ErrorCode::InvalidParams, false),
            StartError::Master(cause) => (cause.code(), cause.is_retryable()),
            StartError::Segment(cause) => (cause.code(), cause.is_retryable()),
            StartError::GivenUp(_) => (ErrorCode::Cancelled, true),
            _ => (ErrorCode::Internal, false),
        };
        Self::new(code, &error, retryable)
    }
}

impl From<MasterStartError> for Failure {
    fn from(error: MasterStartError) -> Self {
        let code = match error {
            MasterStartError::Config(_) => ErrorCode::InvalidParams,
            _ => ErrorCode::Internal,
        };
        Self::new(code, &error, false)
    }
}

/// The result of a batch call for one of its keys.
#[derive(Debug)]
pub(super) enum Each<T> {
    Is(T),
    Failed(Failure),
}

impl<'py, T: IntoPyObject<'py>> IntoPyObject<'py> for Each<T> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Is(value) => value.into_bound_py_any(py),
            Self::Failed(failure) => failure.into_exception(py),
        }
    }
}

/// Returns the results of a batch call. A failure is one of the results with `return_exceptions`;
/// otherwise the first failure is that of the whole call.
pub(super) fn gathered<T, E: Into<Failure>>(
    keys: &[String],
    outcomes: impl IntoIterator<Item = Result<T, E>>,
    return_exceptions: bool,
) -> Outcome<Vec<Each<T>>> {
    let mut gathered = Vec::with_capacity(keys.len());
    let (mut first, mut failed) = (None, 0_usize);
    for (key, outcome) in keys.iter().zip(outcomes) {
        gathered.push(match outcome.about(key) {
            Ok(value) => Each::Is(value),
            Err(failure) => {
                failed += 1;
                if first.is_none() && !return_exceptions {
                    first = Some(failure.clone());
                }
                Each::Failed(failure)
            }
        });
    }
    match first {
        None => Ok(gathered),
        Some(failure) => {
            let note = format!(
                "{failed} of {} keys failed; this is the first failure. return_exceptions=True \
                 returns the result of each key",
                keys.len()
            );
            Err(failure.with_note(note))
        }
    }
}
