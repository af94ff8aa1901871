//! Calls about keys, which move no bytes.

use mc_store::{CallError, ErrorCode};
use mc_types::KeyRef;

use super::calls;
use crate::client::arguments::{Seconds, Texts};
use crate::client::failure::{About as _, Done, Each, gathered};

calls! {
    /// Returns whether the key has a readable object. If so, a lease protects the object from
    /// removal and eviction.
    #[pyo3(signature = (key))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.exists("a"), "b" in store
        /// (True, False)
    }
    fn exists(key: String) -> bool = |client| async move { client.exist(&key).await.about(&key) };

    /// Returns :meth:`exists` for each key, in order.
    #[pyo3(signature = (keys))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.exists_many(["a", "b"])
        /// [True, False]
    }
    fn exists_many(keys: Texts) -> Vec<bool> = |client| async move {
        Ok(client.batch_exist(&keys.refs()).await?)
    };

    /// Returns whether the key has a readable object, without protecting it: it gets no lease, and the
    /// question does not count as a use of it, so that it may be gone a moment later. A master of an
    /// older version grants a lease all the same.
    #[pyo3(signature = (key))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.probe("a"), store.probe("b")
        /// (True, False)
    }
    fn probe(key: String) -> bool = |client| async move { client.probe(&key).await.about(&key) };

    /// Returns :meth:`probe` for each key, in order.
    #[pyo3(signature = (keys))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.probe_many(["a", "b"])
        /// [True, False]
    }
    fn probe_many(keys: Texts) -> Vec<bool> = |client| async move {
        Ok(client.batch_probe(&keys.refs()).await?)
    };

    /// Returns the number of leading keys with a readable object: the part of a prompt that need
    /// not be computed. What is found counts as used, and gets no lease.
    #[pyo3(signature = (keys))]
    example {
        ///
        /// >>> store.put_many({"block-0": b"0", "block-1": b"1", "block-3": b"3"})
        /// [True, True, True]
        /// >>> store.longest_prefix(f"block-{n}" for n in range(4))
        /// 2
    }
    fn longest_prefix(keys: Texts) -> usize = |client| async move {
        Ok(client.longest_prefix(&keys.refs()).await?)
    };

    /// Returns the length of a value in bytes. Protects the object with a lease, as :meth:`exists`
    /// does.
    ///
    /// :raises NotFound: when there is no such object.
    #[pyo3(signature = (key))]
    example {
        ///
        /// >>> store["block"] = b"keys and values"
        /// >>> store.size("block")
        /// 15
    }
    fn size(key: String) -> u64 = |client| async move { client.size(&key).await.about(&key) };

    /// Returns :meth:`size` for each key, in order; ``None`` for keys without a readable object.
    #[pyo3(signature = (keys))]
    example {
        ///
        /// >>> store["block"] = b"keys and values"
        /// >>> store.size_many(["block", "no such block"])
        /// [15, None]
    }
    fn size_many(keys: Texts) -> Vec<Option<u64>> = |client| async move {
        let sizes = client.batch_size(&keys.refs()).await?;
        let each = sizes.into_iter().map(|size| match size {
            Ok(size) => Ok(Some(size)),
            Err(refusal) if is_missing(refusal.code) => Ok(None),
            Err(refusal) => Err(refusal.into()),
        });
        each.collect()
    };

    /// Evicts other objects first from now on, as :meth:`put` with ``soft_pin`` does: for `ttl` seconds, or for
    /// as long as the master's settings say. It counts as a use of the object.
    ///
    /// :raises NotFound: when there is no such object.
    #[pyo3(signature = (key, ttl=None))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.pin("a", ttl=3600)
        /// >>> store.describe("a").soft_pinned
        /// True
    }
    fn pin(key: String, ttl: Option<Seconds>) -> Done = move |client| async move {
        let named = KeyRef::new(&key).map_err(CallError::from).about(&key)?;
        let pinned = client.master().pin(named, ttl.map(|ttl| ttl.0)).await;
        pinned.map(Done::from).map_err(CallError::from).about(&key)
    };

    /// Takes the pins from an object, also one that keeps it for ever.
    ///
    /// :raises NotFound: when there is no such object.
    #[pyo3(signature = (key))]
    example {
        ///
        /// >>> store.put("a", b"1", hard_pin=True)
        /// True
        /// >>> store.unpin("a")
        /// >>> store.explain("a").kept_by
        /// ()
    }
    fn unpin(key: String) -> Done = |client| async move {
        let named = KeyRef::new(&key).map_err(CallError::from).about(&key)?;
        client.master().unpin(named).await.map(Done::from).map_err(CallError::from).about(&key)
    };

    /// Removes an object.
    ///
    /// :param force: Remove the object although a lease protects it.
    /// :raises NotFound: when there is no such object.
    /// :raises Leased: when a lease protects the object: a client, possibly this one, has read or
    ///     looked up the object recently.
    #[pyo3(signature = (key, *, force=false))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.remove("a")
        /// >>> "a" in store
        /// False
    }
    fn remove(key: String, force: bool) -> Done = move |client| async move {
        client.remove(&key, force).await.map(Done::from).about(&key)
    };

    /// Removes many objects, each independent of the others.
    ///
    /// :param force: Remove also objects that a lease protects.
    /// :param return_exceptions: Return the exception of a failed key in the key's place. By
    ///     default the first exception is raised when all removals have ended.
    /// :returns: For each key, in order, whether the object existed.
    #[pyo3(signature = (keys, *, force=false, return_exceptions=false))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.remove_many(["a", "b"])
        /// [True, False]
    }
    fn remove_many(keys: Texts, force: bool, return_exceptions: bool) -> Vec<Each<bool>> = move |client| async move {
        let removed = client.batch_remove(&keys.refs(), force).await?;
        let each = removed.into_iter().map(|removed| match removed {
            Ok(()) => Ok(true),
            Err(refusal) if refusal.code == ErrorCode::ObjectNotFound => Ok(false),
            Err(refusal) => Err(refusal),
        });
        gathered(&keys.0, each, return_exceptions)
    };

    /// Removes every object whose key matches a regular expression. Skips unfinished objects and,
    /// unless forced, objects that a lease protects.
    ///
    /// :param pattern: Matches anywhere in a key unless it is anchored with ``^`` and ``$``.
    /// :returns: The number of objects removed.
    /// :raises InvalidArgument: when the pattern is malformed, empty, or too expensive.
    #[pyo3(signature = (pattern, *, force=false))]
    example {
        ///
        /// >>> store.put_many({"prompt-1/a": b"1", "prompt-1/b": b"2", "prompt-2/a": b"3"})
        /// [True, True, True]
        /// >>> store.remove_matching("^prompt-1/")
        /// 2
    }
    fn remove_matching(pattern: String, force: bool) -> u64 = move |client| async move {
        Ok(client.remove_by_regex(&pattern, force).await?)
    };

    /// Removes all objects and returns their number. Skips unfinished objects and, unless forced,
    /// objects that a lease protects.
    #[pyo3(signature = (*, force=false))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.remove_all()
        /// 1
    }
    fn remove_all(force: bool) -> u64 = move |client| async move {
        Ok(client.remove_all(force).await?)
    };

    /// Returns the keys of readable objects that match a regular expression, in no particular order.
    /// A lease protects each of these objects from removal and eviction.
    ///
    /// :param pattern: Matches anywhere in a key unless it is anchored with ``^`` and ``$``.
    /// :param limit: The maximum number of keys to return; if so many are returned, there may be
    ///     more.
    /// :raises InvalidArgument: when the pattern is malformed or too expensive.
    #[pyo3(signature = (pattern, limit=1000))]
    example {
        ///
        /// >>> store.put_many({"layer0/block1": b"1", "layer1/block1": b"2", "other": b"3"})
        /// [True, True, True]
        /// >>> sorted(store.find("^layer[0-9]+/"))
        /// ['layer0/block1', 'layer1/block1']
    }
    fn find(pattern: String, limit: usize) -> Vec<String> = move |client| async move {
        let keys = client.find(&pattern, limit).await?;
        Ok(keys.iter().map(ToString::to_string).collect())
    };
}

fn is_missing(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::ObjectNotFound | ErrorCode::ReplicaIsNotReady)
}
