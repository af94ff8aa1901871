//! Calls that store values.

use mc_store::{Put, PutOutcome, ReplicateConfig};
use mc_transport::Source;

use super::calls;
use crate::client::arguments::{EventInfo, EventInfos, Pairs, Parts, Placement, puts};
use crate::client::failure::{About as _, Done, Each, gathered};
use crate::client::value::Value;

fn config(placement: Option<Placement>) -> ReplicateConfig {
    placement.unwrap_or_default().0
}

/// Returns whether this put stored the value.
fn stored(outcome: PutOutcome) -> bool {
    outcome == PutOutcome::Stored
}

/// Stores a value with the client's call for bytes, or the one for memory; a value with a
/// description for events as a batch of one.
macro_rules! store {
    (
        $client:ident, $key:ident, $value:ident, $info:ident, $config:ident,
        $with:ident, $from:ident, $batch:ident
    ) => {
        match ($value, $info) {
            (Value::Bytes(bytes), None) => $client.$with(&$key, bytes, &$config).await,
            (Value::Memory(memory), None) => $client.$from(&$key, &memory, &$config).await,
            (value, info) => {
                one($client.$batch(vec![described(&$key, vec![value], info)], &$config).await)
            }
        }
    };
}

calls! {
    /// Stores a value under a new key. A key that has a value keeps it: values are immutable until
    /// they are removed.
    ///
    /// :param value: A bytes-like object, sent without a copy. If its bytes change during the call,
    ///     nothing is stored and the call raises :class:`~mc_store.exceptions.Corrupt`.
    /// :param replicas: The number of copies, on different segments. Fewer are made, but at least
    ///     one, when fewer segments have space.
    /// :param soft_pin: Evict other objects first while this object is in use, or for so many seconds.
    /// :param hard_pin: Never evict the object; it stays until it is removed.
    /// :param group: The name of a group, whose objects are evicted together or not at all.
    /// :param parent: The key of the preceding object, such as the previous block of a prompt, for
    ///     eviction policies that use prefixes.
    /// :param preferred_segments: Names of segments to try first, in this order.
    /// :param excluded_segments: Names of segments not to use.
    /// :param medium: ``"dram"``, ``"ssd"`` or ``"vram"``: the medium for all copies. Without it
    ///     they are placed in DRAM, as long as there is any.
    /// :param event_info: A :class:`StoreEventInfo`, which the master publishes with the event that
    ///     reports the object as stored. :exc:`ValueError` if a field is too long.
    /// :returns: Whether the value was stored; ``False`` when the key has a value already, or
    ///     another client is storing one at this moment.
    /// :raises NoSpace: when there is no space, after waiting up to ``put_wait`` seconds if
    ///     eviction may make some.
    #[pyo3(
        signature = (key, value, *, event_info=None, **placement),
        text_signature = "($self, key, value, *, replicas=1, soft_pin=False, hard_pin=False, group=None, parent=None, preferred_segments=(), excluded_segments=(), medium=None, event_info=None)"
    )]
    example {
        ///
        /// >>> store.put("block", b"keys and values", soft_pin=True)
        /// True
        /// >>> store.put("block", b"others")
        /// False
        /// >>> bytes(store.get("block"))
        /// b'keys and values'
    }
    fn put(
        key: String,
        value: Value,
        event_info: Option<EventInfo>,
        placement: Option<Placement>,
    ) -> bool [value.len()] = |client| async move {
        let config = config(placement);
        let outcome = store!(client, key, value, event_info, config, put_with, put_from, batch_put);
        outcome.about(&key).map(stored)
    };

    /// Stores the concatenation of several bytes-like objects; otherwise as :meth:`put`. Each part
    /// has a checksum of its own.
    #[pyo3(
        signature = (key, parts, *, event_info=None, **placement),
        text_signature = "($self, key, parts, *, replicas=1, soft_pin=False, hard_pin=False, group=None, parent=None, preferred_segments=(), excluded_segments=(), medium=None, event_info=None)"
    )]
    example {
        ///
        /// >>> store.put_parts("block", [b"keys ", bytearray(b"and "), memoryview(b"values")])
        /// True
        /// >>> bytes(store.get("block"))
        /// b'keys and values'
    }
    fn put_parts(
        key: String,
        parts: Parts,
        event_info: Option<EventInfo>,
        placement: Option<Placement>,
    ) -> bool [parts.bytes()] = |client| async move {
        let put = described(&key, parts.0, event_info);
        let outcomes = client.batch_put(vec![put], &config(placement)).await;
        one(outcomes).about(&key).map(stored)
    };

    /// Stores many values, each independent of the others; otherwise as :meth:`put`. Takes two round
    /// trips to the master for any number of values.
    ///
    /// :param items: A mapping from keys to bytes-like objects, or an iterable of pairs.
    /// :param return_exceptions: Return the exception of a failed key in the key's place. By
    ///     default the first exception is raised when all puts have ended.
    /// :param event_infos: A :class:`StoreEventInfo` or ``None`` for each item, in order.
    /// :returns: For each key, in order, whether the value was stored.
    #[pyo3(
        signature = (items, *, return_exceptions=false, event_infos=None, **placement),
        text_signature = "($self, items, *, return_exceptions=False, replicas=1, soft_pin=False, hard_pin=False, group=None, parent=None, preferred_segments=(), excluded_segments=(), medium=None, event_infos=None)"
    )]
    example {
        ///
        /// >>> store.put_many({"a": b"1", "b": b"2"})
        /// [True, True]
        /// >>> store.put_many([("b", b"2"), ("c", b"3")], replicas=2)
        /// [False, True]
    }
    fn put_many(
        items: Pairs<Value>,
        return_exceptions: bool,
        event_infos: Option<EventInfos>,
        placement: Option<Placement>,
    ) -> Vec<Each<bool>> [items.bytes()] = move |client| async move {
        let (keys, sources) = items.into_puts();
        let outcomes = client.batch_put(puts(&keys, sources, event_infos)?, &config(placement)).await;
        let each = outcomes.into_iter().map(|outcome| outcome.map(stored));
        gathered(&keys, each, return_exceptions)
    };

    /// Stores a value under a key, replacing the key's value if it has one. The old value can be
    /// read until the new value takes its place; a reader gets one of them whole. Of several
    /// concurrent upserts of a key the one that began last wins, and the others fail. Arguments as
    /// for :meth:`put`.
    #[pyo3(
        signature = (key, value, *, event_info=None, **placement),
        text_signature = "($self, key, value, *, replicas=1, soft_pin=False, hard_pin=False, group=None, parent=None, preferred_segments=(), excluded_segments=(), medium=None, event_info=None)"
    )]
    example {
        ///
        /// >>> store.upsert("state", b"one")
        /// >>> store.upsert("state", b"two")
        /// >>> bytes(store.get("state"))
        /// b'two'
    }
    fn upsert(
        key: String,
        value: Value,
        event_info: Option<EventInfo>,
        placement: Option<Placement>,
    ) -> Done [value.len()] = |client| async move {
        let config = config(placement);
        let outcome = store!(client, key, value, event_info, config, upsert_with, upsert_from, batch_upsert);
        outcome.map(Done::from).about(&key)
    };

    /// :meth:`upsert` of the concatenation of several bytes-like objects.
    #[pyo3(
        signature = (key, parts, *, event_info=None, **placement),
        text_signature = "($self, key, parts, *, replicas=1, soft_pin=False, hard_pin=False, group=None, parent=None, preferred_segments=(), excluded_segments=(), medium=None, event_info=None)"
    )]
    example {
        ///
        /// >>> store.upsert_parts("state", [b"t", b"w", b"o"])
    }
    fn upsert_parts(
        key: String,
        parts: Parts,
        event_info: Option<EventInfo>,
        placement: Option<Placement>,
    ) -> Done [parts.bytes()] = |client| async move {
        let put = described(&key, parts.0, event_info);
        let outcomes = client.batch_upsert(vec![put], &config(placement)).await;
        one(outcomes).map(Done::from).about(&key)
    };

    /// :meth:`upsert` of many values, each independent of the others. If a key occurs twice, its last
    /// value is stored. Arguments as for :meth:`put_many`.
    ///
    /// :returns: For each key, in order, ``None`` or, with ``return_exceptions``, the exception.
    #[pyo3(
        signature = (items, *, return_exceptions=false, event_infos=None, **placement),
        text_signature = "($self, items, *, return_exceptions=False, replicas=1, soft_pin=False, hard_pin=False, group=None, parent=None, preferred_segments=(), excluded_segments=(), medium=None, event_infos=None)"
    )]
    example {
        ///
        /// >>> store.upsert_many({"a": b"1", "b": b"2"})
        /// [None, None]
    }
    fn upsert_many(
        items: Pairs<Value>,
        return_exceptions: bool,
        event_infos: Option<EventInfos>,
        placement: Option<Placement>,
    ) -> Vec<Each<Done>> [items.bytes()] = move |client| async move {
        let (keys, sources) = items.into_puts();
        let outcomes = client.batch_upsert(puts(&keys, sources, event_infos)?, &config(placement)).await;
        let each = outcomes.into_iter().map(|outcome| outcome.map(Done::from));
        gathered(&keys, each, return_exceptions)
    };

    /// Converts an object for another model and stores the result, by a rule of the master
    /// (``--enable_c2c``). Puts do so in the background; a full projector, which needs the target
    /// model's own object of the same tokens, is used only here.
    ///
    /// :param key: The key of the source model's object.
    /// :param out: The key of the converted object.
    /// :param target: The key of the target model's object. If several rules apply to ``key``, this
    ///     one, or ``out`` without it, names the rule.
    /// :returns: ``True``, or ``False`` if ``out`` had a value already.
    /// :raises NotFound: when there is no such object.
    /// :raises InvalidArgument: when no rule applies, or the objects do not fit it.
    /// :raises Unsupported: when the master has no rules.
    #[pyo3(signature = (key, out, *, target=None))]
    fn convert(key: String, out: String, target: Option<String>) -> bool = |client| async move {
        client.convert(&key, target.as_deref(), &out).await.about(&key).map(stored)
    };
}

/// A put of the concatenation of `parts`.
fn described(key: &str, parts: Vec<Value>, info: Option<EventInfo>) -> Put<'_> {
    let slices = parts.into_iter().map(Source::from).collect();
    Put { event_info: info.map(|info| info.0), ..Put::of_slices(key, slices) }
}

/// Returns the outcome of a batch of one put.
fn one<T>(outcomes: Vec<T>) -> T {
    outcomes.into_iter().next().expect("one outcome for each put")
}
