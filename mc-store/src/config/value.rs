//! Values of settings as they are written in files and variables, and what they mean.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU8, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use mc_evict::PolicyKind;
use mc_tier::{FolderMode, SyncPolicy};
use mc_transport::HugePageSize;
use mc_types::{ByteSize, MediaType};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::Protocol;

/// Most characters of a value or a key that an error repeats.
const SHOWN: usize = 64;

/// Longest time that a setting may say.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Most devices that a setting may name, and most connections to one peer.
const MAX_DEVICES: usize = 64;
const MAX_CONNECTIONS: usize = 256;

/// Most threads that may share a copy.
const MAX_COPY_THREADS: usize = 64;

/// Most connections that a setting may let others make.
const MAX_PLACES: usize = 1_000_000;

/// The values that a setting accepts, for the error about another one.
pub(super) type Expected = &'static str;

/// A value as errors repeat it.
pub(super) fn described(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("{:?}", shown(text)),
        Value::Array(list) => match texts(list) {
            Some(names) => format!("{:?}", shown(&names.join(","))),
            None => "a list".to_owned(),
        },
        Value::Object(_) => "a table".to_owned(),
    }
}

/// The elements of a list of texts.
fn texts(list: &[Value]) -> Option<Vec<&str>> {
    list.iter().map(Value::as_str).collect()
}

/// The beginning of `text`, when it is long.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The entries of a file, in their order, also those that have the same key.
pub(super) struct Entries(pub(super) Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of settings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Table)
    }
}

/// A value that is written as a text which `T` reads.
fn parsed<T: FromStr>(value: &Value, expected: Expected) -> Result<T, Expected> {
    value.as_str().and_then(|text| text.parse().ok()).ok_or(expected)
}

/// A whole number, or a text that is one, if `T` holds it.
fn number<T: TryFrom<u64>>(value: &Value) -> Option<T> {
    let number: u64 = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
    number.try_into().ok()
}

/// A number from 1 to `most`.
fn count(value: &Value, most: usize) -> Option<NonZeroUsize> {
    number(value).filter(|number| *number <= most).and_then(NonZeroUsize::new)
}

pub(super) fn text(value: &Value) -> Result<String, Expected> {
    parsed(value, "a text")
}

pub(super) fn path(value: &Value) -> Result<PathBuf, Expected> {
    let path = value.as_str().filter(|path| !path.is_empty());
    path.map(PathBuf::from).ok_or("the path of a file")
}

pub(super) fn flag(value: &Value) -> Result<bool, Expected> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_ascii_lowercase);
    match text.as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("true or false (in a variable also 1, yes or on, or 0, no or off)"),
    }
}

pub(super) fn size(value: &Value) -> Result<ByteSize, Expected> {
    let expected = "a number of bytes such as 4294967296, or a text such as \"4GB\"";
    value.as_u64().map_or_else(|| parsed(value, expected), |bytes| Ok(ByteSize::bytes(bytes)))
}

pub(super) fn policy(value: &Value) -> Result<PolicyKind, Expected> {
    parsed(value, "lru, fifo, s3_fifo, sieve, w_tinylfu, prefix or adaptive")
}

pub(super) fn file_sync(value: &Value) -> Result<SyncPolicy, Expected> {
    parsed(value, "auto, none, data or directory")
}

pub(super) fn folder_mode(value: &Value) -> Result<FolderMode, Expected> {
    parsed(value, "permissions in octal digits, such as \"0770\" or \"2775\"")
}

pub(super) fn medium(value: &Value) -> Result<MediaType, Expected> {
    parsed(value, "dram, ssd or vram")
}

pub(super) fn times(value: &Value) -> Result<u32, Expected> {
    number(value).ok_or("a number of times, from 0 to 4294967295")
}

/// A switch that cannot be on.
pub(super) fn never(value: &Value) -> Result<bool, Expected> {
    let expected = "false: each client has a cache of its own";
    flag(value).ok().filter(|on| !on).ok_or(expected)
}

pub(super) fn page_size(value: &Value) -> Result<HugePageSize, Expected> {
    let expected = "2M or 1G";
    HugePageSize::from_bytes(size(value).map_err(|_| expected)?.as_u64()).ok_or(expected)
}

pub(super) fn device_number(value: &Value) -> Result<u32, Expected> {
    number(value).ok_or("the number of a GPU")
}

pub(super) fn node_number(value: &Value) -> Result<u32, Expected> {
    number(value).ok_or("the number of a NUMA node")
}

pub(super) fn gid_index(value: &Value) -> Result<u8, Expected> {
    number(value).ok_or("an index from 0 to 255; leave it out to have the address chosen")
}

pub(super) fn traffic_class(value: &Value) -> Result<u8, Expected> {
    unset(value).or_else(|| number(value)).ok_or("a traffic class from 0 to 255")
}

pub(super) fn service_level(value: &Value) -> Result<u8, Expected> {
    let level = unset(value).or_else(|| number(value)).filter(|level| *level <= 15);
    level.ok_or("a service level from 0 to 15")
}

/// The number that Mooncake's variables say for "unset", which it sends as 0.
fn unset(value: &Value) -> Option<u8> {
    let is_unset = value.as_i64() == Some(-1) || value.as_str() == Some("-1");
    is_unset.then_some(0)
}

pub(super) fn pkey_index(value: &Value) -> Result<u16, Expected> {
    number(value).ok_or("an index from 0 to 65535")
}

pub(super) fn hop_limit(value: &Value) -> Result<NonZeroU8, Expected> {
    number(value).and_then(NonZeroU8::new).ok_or("a number of routers from 1 to 255")
}

/// A switch that Mooncake's variables also set to 2, which means: where it is supported.
pub(super) fn relaxed_ordering(value: &Value) -> Result<bool, Expected> {
    if number(value) == Some(2_u8) {
        return Ok(true);
    }
    flag(value).map_err(|_| "true or false (in a variable also 1 or 2, or 0)")
}

pub(super) fn connections(value: &Value) -> Result<NonZeroUsize, Expected> {
    count(value, MAX_CONNECTIONS).ok_or("a number from 1 to 256")
}

pub(super) fn copy_threads(value: &Value) -> Result<NonZeroUsize, Expected> {
    count(value, MAX_COPY_THREADS).ok_or("a number from 1 to 64")
}

/// Connections that others may make.
pub(super) fn places(value: &Value) -> Result<NonZeroUsize, Expected> {
    count(value, MAX_PLACES).ok_or("a number from 1 to 1000000")
}

/// Milliseconds, of which there may be none.
pub(super) fn wait_ms(value: &Value) -> Result<Duration, Expected> {
    let wait = number(value).map(Duration::from_millis);
    wait.filter(|wait| *wait <= LONGEST).ok_or("a number of milliseconds, at most seven days")
}

/// Milliseconds, at least one.
pub(super) fn time_ms(value: &Value) -> Result<Duration, Expected> {
    let expected = "a number of milliseconds, at least 1 and at most seven days";
    wait_ms(value).ok().filter(|time| !time.is_zero()).ok_or(expected)
}

/// Seconds, of which there may be none.
pub(super) fn wait_s(value: &Value) -> Result<Duration, Expected> {
    let wait = number(value).map(Duration::from_secs);
    wait.filter(|wait| *wait <= LONGEST).ok_or("a number of seconds, at most seven days")
}

pub(super) fn socket(value: &Value) -> Result<SocketAddr, Expected> {
    parsed(value, "an IP address and a port, such as 0.0.0.0:12345 or [::]:12345")
}

pub(super) fn address(value: &Value) -> Result<IpAddr, Expected> {
    parsed(value, "an IP address such as 127.0.0.1 or ::")
}

pub(super) fn port(value: &Value) -> Result<u16, Expected> {
    number(value).ok_or("a port, from 0 to 65535")
}

pub(super) fn protocol(value: &Value) -> Result<Protocol, Expected> {
    value.as_str().and_then(|text| text.parse().ok()).ok_or("tcp, quic or rdma")
}

/// How the master is called.
pub(super) fn rpc_protocol(value: &Value) -> Result<Protocol, Expected> {
    protocol(value).ok().filter(|of| *of == Protocol::Tcp).ok_or("tcp, the only one that there is")
}

/// Names, as a list or with commas in between.
pub(super) fn names(value: &Value) -> Result<Vec<String>, Expected> {
    let names = match value {
        Value::String(text) => Some(trimmed(text.split(','))),
        Value::Array(list) => texts(list).map(|names| trimmed(names.into_iter())),
        _ => None,
    };
    let expected = "at most 64 names of devices, with commas in between";
    names.filter(|names| names.len() <= MAX_DEVICES).ok_or(expected)
}

/// The names without the space around them, and without empty ones.
pub(super) fn trimmed<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    names.map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_types_of_both_formats() {
        let repeated = |Entries(entries): Entries| -> Vec<String> {
            entries.iter().map(|(key, value)| format!("{key} {}", described(value))).collect()
        };
        let json = r#"{"a": true, "b": 1, "c": -1, "d": 1.5, "e": "x", "f": ["x", "y"],
            "g": [1], "h": {"deep": [{}]}, "i": null, "a": 2}"#;
        assert_eq!(
            repeated(serde_json::from_str(json).unwrap()),
            [
                "a true",
                "b 1",
                "c -1",
                "d 1.5",
                "e \"x\"",
                "f \"x,y\"",
                "g a list",
                "h a table",
                "i null",
                "a 2",
            ]
        );
        let toml = "a = true\nb = 1\nc = -1\ne = 'x'\nf = ['x', 'y']\nh = 1979-05-27\n[i]\nj = 1";
        assert_eq!(
            repeated(toml::from_str(toml).unwrap()),
            ["a true", "b 1", "c -1", "e \"x\"", "f \"x,y\"", "h a table", "i a table"]
        );
    }

    #[test]
    fn numbers_are_bounded() {
        let text = |text: &str| Value::from(text);
        assert_eq!(size(&text("1.5k")), Ok(ByteSize::bytes(1536)));
        assert_eq!(size(&Value::from(u64::MAX)), Ok(ByteSize::bytes(u64::MAX)));
        assert!(size(&text("4 parsecs")).is_err());
        assert_eq!(wait_ms(&text("250")), Ok(Duration::from_millis(250)));
        assert_eq!(wait_s(&Value::from(0)), Ok(Duration::ZERO));
        assert!(time_ms(&Value::from(0)).is_err());
        for endless in [wait_ms, time_ms, wait_s] {
            assert!(endless(&Value::from(u64::MAX)).is_err());
        }
        assert!(connections(&Value::from(0)).is_err());
        assert!(connections(&Value::from(257)).is_err());
        assert_eq!(places(&text("1000000")).map(NonZeroUsize::get), Ok(1_000_000));
        for none in [Value::from(0), Value::from(1_000_001), text("-1"), text("many")] {
            assert!(places(&none).is_err(), "{none}");
        }
        assert!(node_number(&text("-1")).is_err());
        for unset in [text("-1"), Value::from(-1), text("0")] {
            assert_eq!((traffic_class(&unset), service_level(&unset)), (Ok(0), Ok(0)));
        }
        assert_eq!((traffic_class(&text("255")), service_level(&text("15"))), (Ok(255), Ok(15)));
        assert_eq!((gid_index(&text("255")), pkey_index(&text("65535"))), (Ok(255), Ok(65535)));
        assert!(traffic_class(&text("256")).is_err() && service_level(&text("16")).is_err());
        assert!(gid_index(&text("256")).is_err() && pkey_index(&text("65536")).is_err());
        assert!(gid_index(&text("-1")).is_err() && hop_limit(&text("0")).is_err());
        for (said, meant) in [("0", false), ("1", true), ("2", true), ("off", false)] {
            assert_eq!(relaxed_ordering(&text(said)), Ok(meant));
        }
        assert!(relaxed_ordering(&text("3")).is_err());
        assert!(names(&text(&"eth0,".repeat(65))).is_err());
        assert_eq!(names(&text(" a ,, b,")), Ok(vec!["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn an_error_names_every_policy() {
        let expected = policy(&Value::from("best")).unwrap_err();
        for kind in PolicyKind::ALL {
            assert!(expected.contains(kind.as_str()), "{kind}");
            assert_eq!(policy(&Value::from(kind.as_str())), Ok(*kind));
        }
    }

    #[test]
    fn errors_repeat_a_bounded_part() {
        let long = "é".repeat(1 << 20);
        assert_eq!(shown(&long).chars().count(), SHOWN + 1);
        assert!(described(&Value::from(&*long)).len() < 200);
        assert!(described(&Value::from(vec![long])).len() < 200);
    }
}
