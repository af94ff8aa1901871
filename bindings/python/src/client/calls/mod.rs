//! The calls of the store, each written once for both clients.

mod cluster;
mod gets;
mod keys;
mod puts;
mod replicas;

/// Defines a method of `Client` and a method of `AsyncClient` for each call. The expression is a
/// function from the client to a future. The examples go to `Client`'s documentation only. The
/// number of bytes that the call sends, if any, follows the result type in brackets.
///
/// A type is matched as a name and its parameters, because PyO3 must see an `Option` to treat an
/// argument as optional.
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

/// Defines methods that a client answers without waiting. They are not coroutines in
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
                    Ok(self.membership.ask($answered)?)
                }
            )*
        }

        #[pyo3::pymethods]
        impl $crate::client::AsyncClient {
            $(
                $(#[$meta])*
                fn $name(&self) -> pyo3::PyResult<$answer> {
                    Ok(self.membership.ask($answered)?)
                }
            )*
        }
    };
}

use {calls, questions};
