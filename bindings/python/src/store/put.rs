//! Puts: objects with the buffer protocol, and memory by address.

use mc_store::{Put, PutMode, Source};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::arguments::{Items, Size, Texts, pair_up};
use super::buffers::Located;
use super::config::{Plan, ReplicateConfig};
use super::events::EventInfos;
use super::session::Session;
use super::{NOT_SET_UP, Store};
use crate::error::{Failure, OK, code_of};
use crate::interrupt::detached;
use crate::memory::BorrowGuard;

type Config<'py> = Option<PyRef<'py, ReplicateConfig>>;

/// The arguments that all puts take.
struct Options<'py> {
    config: Config<'py>,
    infos: EventInfos,
}

impl<'py> Options<'py> {
    /// The options of a call that stores `count` objects.
    ///
    /// # Errors
    /// As [`EventInfos::new`].
    fn new(config: Config<'py>, infos: Option<&Bound<'py, PyAny>>, count: usize) -> PyResult<Self> {
        Ok(Self { config, infos: EventInfos::new(infos, count)? })
    }

    /// Converts the options for a call that stores `count` objects.
    fn plan(self, count: usize) -> Result<Plan, Failure> {
        let plan = self.config.map_or_else(|| Ok(Plan::default()), |config| config.plan(count))?;
        Ok(plan.with_infos(self.infos))
    }

    /// [`plan`](Self::plan) of a call whose values are Python objects.
    fn plan_for_values(self, count: usize) -> Result<Plan, Failure> {
        if self.config.as_ref().is_some_and(|config| config.is_only_for_addresses()) {
            return Err(Failure::refuse(
                "prefer_alloc_in_same_node is only for puts of memory by address",
            ));
        }
        self.plan(count)
    }
}

/// Defines a put and an upsert for each call. `$work` is a function of the store, the interpreter,
/// the options and the mode, which is put or upsert. `$count` is the number of keys. Beginning with
/// a mode, it defines one call.
macro_rules! pairs {
    ($(
        $(#[$signature:meta])*
        put { $(#[$put_doc:meta])* $put:ident }
        upsert { $(#[$upsert_doc:meta])* $upsert:ident }
        $arguments:tt [$count:expr] -> $answer:ty = $work:expr;
    )*) => {$(
        pairs! { Put: $(#[$put_doc])* $(#[$signature])* $put $arguments [$count] -> $answer = $work; }
        pairs! { Upsert: $(#[$upsert_doc])* $(#[$signature])* $upsert $arguments [$count] -> $answer = $work; }
    )*};
    (
        $mode:ident:
        $(#[$meta:meta])*
        $name:ident ($($argument:ident: $type:ty),*) [$count:expr] -> $answer:ty = $work:expr;
    ) => {
        #[pymethods]
        impl Store {
            $(#[$meta])*
            fn $name(
                &self,
                py: Python<'_>,
                $($argument: $type,)*
                config: Config<'_>,
                store_event_infos: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<$answer> {
                let options = Options::new(config, store_event_infos, $count)?;
                let work = $work;
                work(self, py, options, PutMode::$mode)
            }
        }
    };
}

pairs! {
    #[pyo3(signature = (key, value, config = None, store_event_infos = None))]
    put {
        /// put(self, key: str, value: Buffer, config: ReplicateConfig = ReplicateConfig(),
        /// store_event_infos=None) -> int
        ///
        /// Stores the bytes of value, any object with the buffer protocol, under key, and sends them
        /// without a copy. A key that has a value keeps it, and the call succeeds. Returns 0; -600
        /// for an empty key, an empty value, and a config with prefer_alloc_in_same_node; -200 for
        /// lack of space.
        ///
        /// store_event_infos, of this and of every other put, is a list with one StoreEventInfo for
        /// each key, or a single one for one key. The master publishes them with the events of
        /// stored objects. Raises ValueError for a different number and for one that is too long.
        put
    }
    upsert {
        /// upsert(self, key: str, value: Buffer, config: ReplicateConfig = ReplicateConfig(),
        /// store_event_infos=None) -> int
        ///
        /// put that replaces the key's value. Readers get the old value or the new value.
        upsert
    }
    (key: &str, value: &Bound<'_, PyAny>) [1] -> i32 = |store: &Self, py, options, mode| {
        let refused = Failure::INVALID_PARAMS.code();
        store.store_one(py, key, [value.clone()], options, mode, refused)
    };

    #[pyo3(signature = (key, *values, config = None, store_event_infos = None))]
    put {
        /// put_parts(self, key: str, *values: Buffer, config: ReplicateConfig = ReplicateConfig(),
        /// store_event_infos=None) -> int
        ///
        /// put of the concatenated bytes of several objects as one value. Without any bytes it
        /// stores nothing and returns 0.
        put_parts
    }
    upsert {
        /// upsert_parts(self, key: str, *values: Buffer, config: ReplicateConfig =
        /// ReplicateConfig(), store_event_infos=None) -> int
        ///
        /// put_parts that replaces the key's value.
        upsert_parts
    }
    (key: &str, values: &Bound<'_, PyTuple>) [1] -> i32 = |store: &Self, py, options, mode| {
        store.store_one(py, key, values, options, mode, OK)
    };

    #[pyo3(signature = (keys, values, config = None, store_event_infos = None))]
    put {
        /// put_batch(self, keys: list[str], values: list[Buffer], config: ReplicateConfig =
        /// ReplicateConfig(), store_event_infos=None) -> int
        ///
        /// put of many values at once, each under its own key. Returns 0 when all are stored, and
        /// otherwise the number of the first failure; the other values are stored nevertheless.
        put_batch
    }
    upsert {
        /// upsert_batch(self, keys: list[str], values: list[Buffer], config: ReplicateConfig =
        /// ReplicateConfig(), store_event_infos=None) -> int
        ///
        /// put_batch that replaces the keys' values.
        upsert_batch
    }
    (keys: Texts, values: Items<Bound<'_, PyAny>>) [keys.len()] -> i32 = |store: &Self, py, options, mode| {
        store.store_many(py, &keys, &values, options, mode)
    };

    #[pyo3(signature = (key, buffer_ptr, size, config = None, store_event_infos = None))]
    put {
        /// put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig =
        /// ReplicateConfig(), store_event_infos=None) -> int
        ///
        /// put of the size bytes at buffer_ptr: directly when they are registered, otherwise with a
        /// copy. Returns -600 when they cannot be read.
        put_from
    }
    upsert {
        /// upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig =
        /// ReplicateConfig(), store_event_infos=None) -> int
        ///
        /// put_from that replaces the key's value.
        upsert_from
    }
    (key: &str, buffer_ptr: Size, size: Size) [1] -> i32 = |store: &Self, py, options, mode| {
        store.store_pieces(py, key, &[(buffer_ptr, size)], options, mode)
    };

    #[pyo3(signature = (keys, buffer_ptrs, sizes, config = None, store_event_infos = None))]
    put {
        /// batch_put_from(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int], config:
        /// ReplicateConfig = ReplicateConfig(), store_event_infos=None) -> list[int]
        ///
        /// put_from of many values at once. Returns 0 or a negative number for each key.
        batch_put_from
    }
    upsert {
        /// batch_upsert_from(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int],
        /// config: ReplicateConfig = ReplicateConfig(), store_event_infos=None) -> list[int]
        ///
        /// batch_put_from that replaces the keys' values.
        batch_upsert_from
    }
    (keys: Texts, buffer_ptrs: Items<Size>, sizes: Items<Size>) [keys.len()] -> Vec<i32> = |store: &Self, py, options, mode| {
        let fits = [buffer_ptrs.len(), sizes.len()] == [keys.len(); 2];
        let pieces: Vec<_> = buffer_ptrs.into_iter().zip(sizes).collect();
        let pieces = pieces.iter().map(std::slice::from_ref).map(Some);
        store.store_each(py, &keys, options, mode, pieces, fits)
    };
}

pairs! {
    Put:
    /// put_from_with_metadata(self, key: str, buffer_ptr: int, metadata_buffer_ptr: int, size: int,
    /// metadata_size: int, config: ReplicateConfig = ReplicateConfig(), store_event_infos=None) ->
    /// int
    ///
    /// put_from of the metadata_size bytes at metadata_buffer_ptr, followed by the size bytes at
    /// buffer_ptr, as one value.
    #[pyo3(signature = (
        key, buffer_ptr, metadata_buffer_ptr, size, metadata_size, config = None,
        store_event_infos = None,
    ))]
    #[allow(clippy::too_many_arguments, reason = "Mooncake's")]
    put_from_with_metadata(
        key: &str, buffer_ptr: Size, metadata_buffer_ptr: Size, size: Size, metadata_size: Size
    ) [1] -> i32 = |store: &Self, py, options, mode| {
        let pieces = [(metadata_buffer_ptr, metadata_size), (buffer_ptr, size)];
        store.store_pieces(py, key, &pieces, options, mode)
    };
}

pairs! {
    Put:
    /// batch_put_from_multi_buffers(self, keys: list[str], all_buffer_ptrs: list[list[int]],
    /// all_sizes: list[list[int]], config: ReplicateConfig = ReplicateConfig(),
    /// store_event_infos=None) -> list[int]
    ///
    /// batch_put_from that gathers each value from several pieces of memory. Returns 0 or a
    /// negative number for each key.
    #[pyo3(signature = (keys, all_buffer_ptrs, all_sizes, config = None, store_event_infos = None))]
    batch_put_from_multi_buffers(
        keys: Texts, all_buffer_ptrs: Items<Items<Size>>, all_sizes: Items<Items<Size>>
    ) [keys.len()] -> Vec<i32> = |store: &Self, py, options, mode| {
        let fits = [all_buffer_ptrs.len(), all_sizes.len()] == [keys.len(); 2];
        let pieces: Vec<_> = all_buffer_ptrs.into_iter().zip(all_sizes).map(pair_up).collect();
        store.store_each(py, &keys, options, mode, pieces.iter().map(Option::as_deref), fits)
    };
}

impl Store {
    /// Stores the bytes of `values` as one value; returns `empty` when there are none.
    fn store_one<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        values: impl IntoIterator<Item = Bound<'py, PyAny>>,
        options: Options<'_>,
        mode: PutMode,
        empty: i32,
    ) -> PyResult<i32> {
        let Some(session) = self.session()? else { return Ok(NOT_SET_UP.code()) };
        let plan = match session.check_handles_values().and_then(|()| options.plan_for_values(1)) {
            Ok(plan) => plan,
            Err(failure) => return Ok(failure.code()),
        };
        let mut guard = BorrowGuard::default();
        let mut slices = Vec::with_capacity(1);
        for value in values {
            let slice = guard.borrow(&value)?;
            if !slice.is_empty() {
                slices.push(slice);
            }
        }
        if slices.is_empty() {
            return Ok(empty);
        }
        let puts = vec![Put::of_slices(key, slices)];
        let outcomes = detached(py, || plan.store(&session.backend, puts, &[0], mode));
        guard.release(py);
        Ok(first_failure(outcomes?))
    }

    /// Stores each of `values` under the key with the same index.
    fn store_many(
        &self,
        py: Python<'_>,
        keys: &Texts,
        values: &[Bound<'_, PyAny>],
        options: Options<'_>,
        mode: PutMode,
    ) -> PyResult<i32> {
        let Some(session) = self.session()?.filter(|_| keys.len() == values.len()) else {
            return Ok(Failure::INVALID_PARAMS.code());
        };
        let plan =
            session.check_handles_values().and_then(|()| options.plan_for_values(keys.len()));
        let plan = match plan {
            Ok(plan) => plan,
            Err(failure) => return Ok(failure.code()),
        };
        let mut guard = BorrowGuard::default();
        let mut sources = Vec::with_capacity(values.len());
        for value in values {
            sources.push(Ok(vec![guard.borrow(value)?]));
        }
        let keys = keys.as_strs();
        let outcomes = detached(py, || store_all(&session, &keys, sources, &plan, mode));
        guard.release(py);
        Ok(first_failure(outcomes?))
    }

    /// Stores pieces of memory as one value.
    fn store_pieces(
        &self,
        py: Python<'_>,
        key: &str,
        pieces: &[(Size, Size)],
        options: Options<'_>,
        mode: PutMode,
    ) -> PyResult<i32> {
        let Some(session) = self.session()? else { return Ok(NOT_SET_UP.code()) };
        let plan = options.plan(1);
        Ok(first_failure(detached(py, || {
            session.store_pieces(&[key], [Some(pieces)], plan, mode)
        })?))
    }

    /// Stores, under each key, the key's pieces of memory, if the lists of pieces `fit` the keys.
    fn store_each<'a>(
        &self,
        py: Python<'_>,
        keys: &Texts,
        options: Options<'_>,
        mode: PutMode,
        pieces: impl IntoIterator<Item = Option<&'a [(Size, Size)]>> + Send,
        fit: bool,
    ) -> PyResult<Vec<i32>> {
        let Some(session) = self.session()?.filter(|_| fit) else {
            return Ok(vec![Failure::INVALID_PARAMS.code(); keys.len()]);
        };
        let plan = options.plan(keys.len());
        let keys = keys.as_strs();
        let outcomes = detached(py, || session.store_pieces(&keys, pieces, plan, mode))?;
        Ok(outcomes.into_iter().map(code_of).collect())
    }
}

impl Session {
    /// Stores, under each key, the key's pieces of memory, in their order.
    fn store_pieces<'a>(
        &self,
        keys: &[&str],
        pieces: impl IntoIterator<Item = Option<&'a [(Size, Size)]>>,
        plan: Result<Plan, Failure>,
        mode: PutMode,
    ) -> Vec<Result<(), Failure>> {
        let plan = match plan {
            Ok(plan) => plan,
            Err(failure) => return vec![Err(failure); keys.len()],
        };
        let lookup = self.buffers.lookup();
        let located = pieces.into_iter().map(|pieces| {
            let pieces = pieces.ok_or(Failure::INVALID_PARAMS)?;
            let pieces = pieces.iter().filter(|(_, size)| size.0 > 0);
            pieces.map(|&(address, size)| self.locate(&lookup, address.0, size.0)).collect()
        });
        let located: Vec<Result<Vec<Located>, Failure>> = located.collect();
        drop(lookup);
        let sources = located.into_iter().map(|located| located.and_then(Located::into_sources));
        let sources = sources.collect();
        store_all(self, keys, sources, &plan, mode)
    }
}

/// Stores the values of the keys that have sources, and returns the failures of the other keys.
fn store_all(
    session: &Session,
    keys: &[&str],
    sources: Vec<Result<Vec<Source>, Failure>>,
    plan: &Plan,
    mode: PutMode,
) -> Vec<Result<(), Failure>> {
    let mut outcomes = Vec::with_capacity(keys.len());
    let mut puts = Vec::with_capacity(keys.len());
    let mut places = Vec::with_capacity(keys.len());
    for (at, (key, sources)) in keys.iter().zip(sources).enumerate() {
        outcomes.push(match sources {
            Ok(slices) if slices.iter().any(|slice| !slice.is_empty()) => {
                puts.push(Put::of_slices(key, slices));
                places.push(at);
                Ok(())
            }
            Ok(_) => Err(Failure::refuse("a value must have at least one byte")),
            Err(failure) => Err(failure),
        });
    }
    for (at, outcome) in places.iter().zip(plan.store(&session.backend, puts, &places, mode)) {
        outcomes[*at] = outcome;
    }
    outcomes
}

fn first_failure(outcomes: Vec<Result<(), Failure>>) -> i32 {
    code_of(outcomes.into_iter().find(Result::is_err).unwrap_or(Ok(())))
}
