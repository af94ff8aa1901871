//! Every call of the store, written once for both clients.

mod cluster;
mod gets;
mod keys;
mod puts;
mod replicas;

/// Makes a method of `Client` and one of `AsyncClient` of each call that is described. The
/// work is a function of the client that gives a future; examples are `Client`'s. Behind the
/// type of the answer stands how many bytes are sent, if any are.
///
/// A type is matched as a name and what is in its brackets, because PyO3 must see an `Option`
/// to know that an argument may be left out.
macro_rules! calls {
    ($(
        $(#[$meta:meta])*
        $(example { $(#[$example:meta])* })?
        fn $name:ident(
            $($argument:ident: $type:ident $(<$($of:ty),+>)?),* $(,)?
        ) -> $answer:ty $([$bytes:expr])? = $work:expr;
    )*) => {
        #[pyo3::pymethods]
        impl $crate::client::Client {
            $(
                $(#[$meta])*
                $($(#[$example])*)?
                pub(in crate::client) fn $name(
                    &self,
                    py: pyo3::Python<'_>,
                    $($argument: $type $(<$($of),+>)?),*
                ) -> pyo3::PyResult<$answer> {
                    self.wait(py, $work)
                }
            )*
        }

        #[pyo3::pymethods]
        impl $crate::client::AsyncClient {
            $(
                $(#[$meta])*
                fn $name(
                    &self,
                    $($argument: $type $(<$($of),+>)?),*
                ) -> $crate::client::Call {
                    let bytes = 0 $(+ $bytes)?;
                    self.begin::<$answer, _>(concat!("AsyncClient.", stringify!($name)), bytes, $work)
                }
            )*
        }
    };
}

/// The same of questions that a client answers at once, which are no coroutines of
/// `AsyncClient` either.
macro_rules! questions {
    ($(
        $(#[$meta:meta])*
        $(example { $(#[$example:meta])* })?
        fn $name:ident() -> $answer:ty = $answered:expr;
    )*) => {
        #[pyo3::pymethods]
        impl $crate::client::Client {
            $(
                $(#[$meta])*
                $($(#[$example])*)?
                fn $name(&self) -> pyo3::PyResult<$answer> {
                    self.ask($answered)
                }
            )*
        }

        #[pyo3::pymethods]
        impl $crate::client::AsyncClient {
            $(
                $(#[$meta])*
                fn $name(&self) -> pyo3::PyResult<$answer> {
                    self.ask($answered)
                }
            )*
        }
    };
}

use {calls, questions};
