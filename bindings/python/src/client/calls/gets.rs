//! Calls that read values.

use bytes::Bytes;
use mc_store::{GetError, GetInto};
use pyo3::prelude::*;

use super::calls;
use crate::client::arguments::{Fallback, Pairs, Texts};
use crate::client::buffer::Buffer;
use crate::client::failure::{About as _, Each, Failure, Outcome, gathered};
use crate::client::value::Target;

/// The outcome of a get of one key.
pub(in crate::client) struct Gotten {
    outcome: Outcome<Buffer>,
    fallback: Fallback,
}

impl Gotten {
    fn new(outcome: Result<Bytes, GetError>, key: &str, fallback: Fallback) -> Self {
        Self { outcome: outcome.map(Buffer::new).about(key), fallback }
    }
}

impl<'py> IntoPyObject<'py> for Gotten {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match (self.outcome, self.fallback) {
            (Ok(buffer), _) => Ok(Bound::new(py, buffer)?.into_any()),
            (Err(failure), Fallback::Is(default)) if failure.is_missing() => {
                Ok(default.into_bound(py))
            }
            (Err(failure), _) => Err(failure.into()),
        }
    }
}

/// The results of a batch of reads; `None` for a key without a readable object.
fn read<T, R, E: Into<Failure>>(
    keys: &[String],
    outcomes: Vec<Result<T, E>>,
    result: impl Fn(T) -> R,
    return_exceptions: bool,
) -> Outcome<Vec<Each<Option<R>>>> {
    let found = |outcome: Result<T, E>| match outcome.map_err(Into::into) {
        Ok(value) => Ok(Some(result(value))),
        Err(failure) if failure.is_missing() => Ok(None),
        Err(failure) => Err(failure),
    };
    gathered(keys, outcomes.into_iter().map(found), return_exceptions)
}

calls! {
    /// Returns the value of a key, whole and verified, as a :class:`Buffer`, which borrows from the
    /// client's local buffer without a copy. The read, and the lease that it gets, protect the
    /// object from removal and eviction.
    ///
    /// :param default: The object to return when the key has no readable object. Without it that
    ///     raises.
    /// :raises NotFound: (a :class:`KeyError`) when there is no such object;
    ///     :class:`~mc_store.exceptions.NotReady` when it cannot be read now.
    #[pyo3(
        signature = (key, default=Fallback::None),
        text_signature = "($self, key, default=...)"
    )]
    example {
        ///
        /// >>> store["block"] = b"keys and values"
        /// >>> bytes(store.get("block"))
        /// b'keys and values'
        /// >>> store.get("no such block", None) is None
        /// True
    }
    fn get(key: String, default: Fallback) -> Gotten = |client| async move {
        Ok(Gotten::new(client.get(&key).await, &key, default))
    };

    /// Returns the bytes of a value from ``start`` up to but excluding ``stop``, fewer when the
    /// value ends earlier. Reads only these bytes.
    ///
    /// :raises InvalidArgument: when ``start`` is greater than the value's length or ``stop``.
    #[pyo3(signature = (key, start, stop))]
    example {
        ///
        /// >>> store["block"] = b"keys and values"
        /// >>> bytes(store.get_range("block", 9, 15))
        /// b'values'
    }
    fn get_range(key: String, start: u64, stop: u64) -> Buffer = move |client| async move {
        client.get_range(&key, start..stop).await.map(Buffer::new).about(&key)
    };

    /// Returns the values of many keys, in the order of the keys; ``None`` for keys without a
    /// readable object. Takes one round trip to the master for any number of keys.
    ///
    /// :param return_exceptions: Return the exception of a failed key in the key's place. By
    ///     default the first exception is raised when all reads have ended.
    #[pyo3(signature = (keys, *, return_exceptions=false))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.get_many(["a", "b"])
        /// [<mc_store.Buffer of 1 bytes>, None]
    }
    fn get_many(keys: Texts, return_exceptions: bool) -> Vec<Each<Option<Buffer>>> = move |client| async move {
        read(&keys.0, client.batch_get(&keys.refs()).await, Buffer::new, return_exceptions)
    };

    /// Returns the value of a key, whole and verified, and removes the object: of several callers, one
    /// gets the value, and for the others it is missing. The object is removed when its value has
    /// been read, also while others read it or a lease protects it; a caller that fails before leaves it
    /// to the others. The value is given out at most once: if the answer to the removal is lost, the
    /// call raises, and the value may be gone.
    ///
    /// :param default: The object to return when the key has no readable object. Without it that
    ///     raises.
    /// :raises NotFound: (a :class:`KeyError`) when there is no such object, or another caller has
    ///     taken it.
    #[pyo3(
        signature = (key, default=Fallback::None),
        text_signature = "($self, key, default=...)"
    )]
    example {
        ///
        /// >>> store["rollout"] = b"hidden states"
        /// >>> bytes(store.get_and_remove("rollout"))
        /// b'hidden states'
        /// >>> store.get_and_remove("rollout", None) is None
        /// True
    }
    fn get_and_remove(key: String, default: Fallback) -> Gotten = |client| async move {
        Ok(Gotten::new(client.get_and_remove(&key).await, &key, default))
    };

    /// :meth:`get_and_remove` for many keys, each independent of the others; ``None`` for keys without
    /// a readable object, and the exception of a failed key in the key's place: raised, it would cost
    /// the values that the call has taken.
    #[pyo3(signature = (keys))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.get_and_remove_many(["a", "b"])
        /// [<mc_store.Buffer of 1 bytes>, None]
    }
    fn get_and_remove_many(keys: Texts) -> Vec<Each<Option<Buffer>>> = |client| async move {
        read(&keys.0, client.batch_get_and_remove(&keys.refs()).await, Buffer::new, true)
    };

    /// Reads a value directly into a writable buffer, and returns the value's length. The rest of
    /// the buffer stays as it is.
    ///
    /// :param buffer: A C-contiguous writable buffer, such as a :class:`bytearray`, a
    ///     :class:`memoryview`, or a NumPy array. It cannot be resized during the call. Or an array with
    ///     ``__cuda_array_interface__``, such as a tensor on a GPU: the bytes are there for all
    ///     streams when the call has ended.
    /// :raises NotFound: when there is no such object.
    /// :raises InvalidArgument: when the value is longer than the buffer.
    #[pyo3(signature = (key, buffer))]
    example {
        ///
        /// >>> store["block"] = b"keys and values"
        /// >>> target = bytearray(16)
        /// >>> store.get_into("block", target), target
        /// (15, bytearray(b'keys and values\x00'))
    }
    fn get_into(key: String, buffer: Target) -> u64 = |client| async move {
        let len = client.get_into(&key, buffer.slice()).await.about(&key)?;
        buffer.land(len).await.about(&key)
    };

    /// Fills a writable buffer with the bytes of a value from ``start`` on. Returns the number of
    /// bytes read, which is less than the buffer's length when the value ends earlier.
    #[pyo3(signature = (key, start, buffer))]
    example {
        ///
        /// >>> store["block"] = b"keys and values"
        /// >>> target = bytearray(6)
        /// >>> store.get_range_into("block", 9, target), target
        /// (6, bytearray(b'values'))
    }
    fn get_range_into(key: String, start: u64, buffer: Target) -> u64 = move |client| async move {
        let len = client.get_range_into(&key, start, buffer.slice()).await.about(&key)?;
        buffer.land(len).await.about(&key)
    };

    /// :meth:`get_into` for many keys, each independent of the others.
    ///
    /// :param items: A mapping from keys to writable buffers, which must not overlap, or an
    ///     iterable of pairs.
    /// :returns: The number of bytes read for each key, in order; ``None`` for keys without a
    ///     readable object.
    #[pyo3(signature = (items, *, return_exceptions=false))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.get_many_into({"a": bytearray(8), "b": bytearray(8)})
        /// [1, None]
    }
    fn get_many_into(items: Pairs<Target>, return_exceptions: bool) -> Vec<Each<Option<u64>>> = move |client| async move {
        let (keys, targets): (Vec<String>, Vec<Target>) = items.0.into_iter().unzip();
        let gets = keys.iter().zip(&targets);
        let gets = gets.map(|(key, target)| GetInto::new(key, target.slice().clone())).collect();
        let mut lengths = Vec::with_capacity(keys.len());
        for (target, length) in targets.iter().zip(client.batch_get_into(gets).await) {
            lengths.push(match length {
                Ok(length) => target.land(length).await,
                Err(error) => Err(error.into()),
            });
        }
        read(&keys, lengths, |length| length, return_exceptions)
    };
}
