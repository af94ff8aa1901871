//! Mooncake's enumerations.

use pyo3::prelude::*;

/// Declares an enumeration whose members have names and numbers. A member is constructed, copied and
/// pickled by its number, but does not equal it. The first argument is the Python module, that of
/// the store by default.
macro_rules! enumeration {
    ($(#[$doc:meta])* $name:ident { $($member:ident = $value:literal,)* }) => {
        enumeration! {
            "mc_store.mooncake.store";
            $(#[$doc])* $name { $($member = $value,)* }
        }
    };
    ($module:literal; $(#[$doc:meta])* $name:ident { $($member:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[pyclass(frozen, eq, hash, from_py_object, module = $module)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "Mooncake's names")]
        pub(crate) enum $name {
            $($member = $value,)*
        }

        impl $name {
            const MEMBERS: &[Self] = &[$(Self::$member,)*];

            fn as_str(self) -> &'static str {
                match self {
                    $(Self::$member => stringify!($member),)*
                }
            }
        }

        #[pymethods]
        impl $name {
            #[new]
            fn of(value: i64) -> PyResult<Self> {
                let member = Self::MEMBERS.iter().find(|member| **member as i64 == value);
                member.copied().ok_or_else(|| {
                    pyo3::exceptions::PyValueError::new_err(format!(concat!("{} is not a ", stringify!($name)), value))
                })
            }

            /// The member's name.
            #[getter]
            fn name(&self) -> &'static str {
                self.as_str()
            }

            /// The member's number.
            #[getter]
            fn value(&self) -> i64 {
                *self as i64
            }

            fn __int__(&self) -> i64 {
                *self as i64
            }

            fn __index__(&self) -> i64 {
                *self as i64
            }

            fn __str__(&self) -> String {
                format!(concat!(stringify!($name), ".{}"), self.as_str())
            }

            fn __repr__(&self) -> String {
                format!(concat!("<", stringify!($name), ".{}: {}>"), self.as_str(), *self as i64)
            }

            fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, pyo3::types::PyType>, (i64,)) {
                (py.get_type::<Self>(), (*self as i64,))
            }
        }
    };
}

pub(crate) use enumeration;

enumeration! {
    /// The effect of a put on an object's soft pin.
    SoftPinAction { PRESERVE = 0, ENABLE = 1, DISABLE = 2, }
}

enumeration! {
    /// The kind of an object's content, a hint that the store ignores.
    ObjectDataType {
        UNKNOWN = 0,
        KVCACHE = 1,
        TENSOR = 2,
        WEIGHT = 3,
        SAMPLE = 4,
        ACTIVATION = 5,
        GRADIENT = 6,
        OPTIMIZER_STATE = 7,
        METADATA = 8,
        GENERAL = 9,
    }
}

enumeration! {
    /// The state of a replica; a COMPLETE replica can be read.
    ReplicaStatus {
        UNDEFINED = 0,
        INITIALIZED = 1,
        PROCESSING = 2,
        COMPLETE = 3,
        REMOVED = 4,
        FAILED = 5,
    }
}

enumeration! {
    /// The kind of a task.
    TaskType { REPLICA_COPY = 0, REPLICA_MOVE = 1, }
}

enumeration! {
    /// The state of a task.
    TaskStatus { PENDING = 0, PROCESSING = 1, FAILED = 2, SUCCESS = 3, }
}

impl From<mc_meta::ReplicaStatus> for ReplicaStatus {
    fn from(status: mc_meta::ReplicaStatus) -> Self {
        match status {
            mc_meta::ReplicaStatus::Undefined => Self::UNDEFINED,
            mc_meta::ReplicaStatus::Initialized => Self::INITIALIZED,
            mc_meta::ReplicaStatus::Processing => Self::PROCESSING,
            mc_meta::ReplicaStatus::Complete => Self::COMPLETE,
            mc_meta::ReplicaStatus::Removed => Self::REMOVED,
            mc_meta::ReplicaStatus::Failed => Self::FAILED,
        }
    }
}

impl From<mc_meta::TaskStatus> for TaskStatus {
    fn from(status: mc_meta::TaskStatus) -> Self {
        match status {
            mc_meta::TaskStatus::Pending => Self::PENDING,
            mc_meta::TaskStatus::Processing => Self::PROCESSING,
            mc_meta::TaskStatus::Failed => Self::FAILED,
            mc_meta::TaskStatus::Success => Self::SUCCESS,
        }
    }
}
