//! Calls about keys, which move no bytes.

use mc_store::ErrorCode;

use super::calls;
use crate::client::arguments::Texts;
use crate::client::failure::{About as _, Done, Each, gathered};

calls! {
    /// Whether a key can be read. A yes keeps the object from being taken away for the length
    /// of a lease.
    #[pyo3(signature = (key))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.exists("a"), "b" in store
        /// (True, False)
    }
    fn exists(key: String) -> bool = |client| async move { client.exist(&key).await.about(&key) };

    /// Whether each of many keys can be read, in their order; as :meth:`exists`.
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

    /// How many of the leading keys can be read: how much of a prompt need not be computed.
    /// Protects nothing from being taken away.
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

    /// How many bytes a value has. Keeps it from being taken away as :meth:`exists` does.
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

    /// :meth:`size` of many values, in the order of their keys; ``None`` for those that cannot
    /// be read.
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

    /// Removes an object.
    ///
    /// :param force: Also when somebody may be reading it.
    /// :raises NotFound: when there is no such object.
    /// :raises Leased: when somebody may be reading it: whoever has read it or asked for it
    ///     lately has a lease, this client too.
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

    /// Removes many objects, each on its own.
    ///
    /// :param force: Also those that somebody may be reading.
    /// :param return_exceptions: Return what went wrong with a key in its place, instead of
    ///     raising the first such exception when all are done.
    /// :returns: For each, in their order, whether it was there.
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

    /// Removes every object whose key matches a regular expression, but unfinished ones and,
    /// unless forced, those that somebody may be reading.
    ///
    /// :param pattern: Matches anywhere in a key unless it is anchored with ``^`` and ``$``.
    /// :returns: How many were removed.
    /// :raises InvalidArgument: when the pattern is none, is empty, or would cost too much.
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

    /// Removes every object but unfinished ones and, unless forced, those that somebody may be
    /// reading; says how many.
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

    /// The keys of objects that can be read and whose keys match a regular expression, in no
    /// order. Each is kept from being taken away for the length of a lease.
    ///
    /// :param pattern: Matches anywhere in a key unless it is anchored with ``^`` and ``$``.
    /// :param limit: Most keys to return; when as many are returned there may be more.
    /// :raises InvalidArgument: when the pattern is none, or would cost too much.
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
