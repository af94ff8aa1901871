//! Values of settings as they are written in files and variables, and what they mean.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use mc_evict::PolicyKind;
use mc_transport::HugePageSize;
use mc_types::{ByteSize, MediaType};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Protocol;

/// Most characters of a value or a key that an error repeats.
const SHOWN: usize = 64;

/// Longest time that a setting may say.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Most devices that a setting may name, and most connections to one peer.
const MAX_DEVICES: usize = 64;
const MAX_CONNECTIONS: usize = 256;

/// Most connections that a setting may let others make.
const MAX_PLACES: usize = 1_000_000;

/// What a setting's value must be, when it is not.
pub(super) type Expected = &'static str;

/// A value as it was written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Flag(bool),
    Number(u64),
    Text(String),
    List(Vec<String>),
    /// What no setting can be: a fraction, a negative number, a list of lists.
    Other(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{:?}", shown(text)),
            Self::List(names) => write!(f, "{:?}", shown(&names.join(","))),
            Self::Other(what) => f.write_str(what),
        }
    }
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

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
                Ok(Value::Flag(flag))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
                Ok(Value::Number(number))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
                let negative = |_| Value::Other(number.to_string());
                Ok(u64::try_from(number).map_or_else(negative, Value::Number))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
                Ok(Value::Other(number.to_string()))
            }
            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Text(text.to_owned()))
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Other("null".to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                let (mut names, mut only_names) = (Vec::new(), true);
                while let Some(value) = seq.next_element()? {
                    match value {
                        Value::Text(name) => names.push(name),
                        _ => only_names = false,
                    }
                }
                let other = || Value::Other("a list".to_owned());
                Ok(if only_names { Value::List(names) } else { other() })
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Value::Other("a table".to_owned()))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

pub(super) fn text(value: &Value) -> Result<String, Expected> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        _ => Err("a text"),
    }
}

pub(super) fn path(value: &Value) -> Result<PathBuf, Expected> {
    match value {
        Value::Text(text) if !text.is_empty() => Ok(text.into()),
        _ => Err("the path of a file"),
    }
}

pub(super) fn flag(value: &Value) -> Result<bool, Expected> {
    let expected = "true or false (in a variable also 1, yes or on, or 0, no or off)";
    match value {
        Value::Flag(flag) => Ok(*flag),
        Value::Number(1) => Ok(true),
        Value::Number(0) => Ok(false),
        Value::Text(text) => match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(true),
            "0" | "false" | "no" | "off" => Ok(false),
            _ => Err(expected),
        },
        _ => Err(expected),
    }
}

pub(super) fn size(value: &Value) -> Result<ByteSize, Expected> {
    let expected = "a number of bytes such as 4294967296, or a text such as \"4GB\"";
    match value {
        Value::Number(bytes) => Ok(ByteSize::bytes(*bytes)),
        Value::Text(text) => text.parse().map_err(|_| expected),
        _ => Err(expected),
    }
}

pub(super) fn policy(value: &Value) -> Result<PolicyKind, Expected> {
    let expected = "lru, fifo, s3_fifo, sieve, w_tinylfu, prefix or adaptive";
    text(value).ok().and_then(|text| text.parse().ok()).ok_or(expected)
}

pub(super) fn medium(value: &Value) -> Result<MediaType, Expected> {
    text(value).ok().and_then(|text| text.parse().ok()).ok_or("dram, ssd or vram")
}

pub(super) fn times(value: &Value) -> Result<u32, Expected> {
    let expected = "a number of times, from 0 to 4294967295";
    number(value).and_then(|number| u32::try_from(number).ok()).ok_or(expected)
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

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => Some(*number),
        Value::Text(text) => text.parse().ok(),
        _ => None,
    }
}

pub(super) fn node_number(value: &Value) -> Result<u32, Expected> {
    number(value).and_then(|number| u32::try_from(number).ok()).ok_or("the number of a NUMA node")
}

pub(super) fn connections(value: &Value) -> Result<NonZeroUsize, Expected> {
    let number = number(value).and_then(|number| usize::try_from(number).ok());
    let bounded = number.filter(|number| *number <= MAX_CONNECTIONS);
    bounded.and_then(NonZeroUsize::new).ok_or("a number from 1 to 256")
}

/// Connections that others may make.
pub(super) fn places(value: &Value) -> Result<NonZeroUsize, Expected> {
    let number = number(value).and_then(|number| usize::try_from(number).ok());
    let bounded = number.filter(|number| *number <= MAX_PLACES);
    bounded.and_then(NonZeroUsize::new).ok_or("a number from 1 to 1000000")
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
    let expected = "an IP address and a port, such as 0.0.0.0:12345 or [::]:12345";
    text(value).ok().and_then(|text| text.parse().ok()).ok_or(expected)
}

pub(super) fn address(value: &Value) -> Result<IpAddr, Expected> {
    let expected = "an IP address such as 127.0.0.1 or ::";
    text(value).ok().and_then(|text| text.parse().ok()).ok_or(expected)
}

pub(super) fn port(value: &Value) -> Result<u16, Expected> {
    let expected = "a port, from 0 to 65535";
    number(value).and_then(|number| u16::try_from(number).ok()).ok_or(expected)
}

pub(super) fn protocol(value: &Value) -> Result<Protocol, Expected> {
    match text(value) {
        Ok(text) if text.eq_ignore_ascii_case("tcp") => Ok(Protocol::Tcp),
        Ok(text) if text.eq_ignore_ascii_case("quic") => Ok(Protocol::Quic),
        _ => Err("tcp or quic"),
    }
}

/// How the master is called.
pub(super) fn rpc_protocol(value: &Value) -> Result<Protocol, Expected> {
    protocol(value).ok().filter(|of| *of == Protocol::Tcp).ok_or("tcp, the only one that there is")
}

/// Names, as a list or with commas in between.
pub(super) fn names(value: &Value) -> Result<Vec<String>, Expected> {
    let expected = "at most 64 names of devices, with commas in between";
    let names = match value {
        Value::Text(text) => trimmed(text.split(',')),
        Value::List(names) => trimmed(names.iter().map(String::as_str)),
        _ => return Err(expected),
    };
    if names.len() <= MAX_DEVICES { Ok(names) } else { Err(expected) }
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
        let json = r#"{"a": true, "b": 1, "c": -1, "d": 1.5, "e": "x", "f": ["x", "y"],
            "g": [1], "h": {"deep": [{}]}, "i": null, "a": 2}"#;
        let Entries(entries) = serde_json::from_str(json).unwrap();
        let other = |what: &str| Value::Other(what.into());
        let names = |names: [&str; 2]| Value::List(names.map(str::to_owned).into());
        let expected = [
            ("a", Value::Flag(true)),
            ("b", Value::Number(1)),
            ("c", other("-1")),
            ("d", other("1.5")),
            ("e", Value::Text("x".into())),
            ("f", names(["x", "y"])),
            ("g", other("a list")),
            ("h", other("a table")),
            ("i", other("null")),
            ("a", Value::Number(2)),
        ];
        assert_eq!(entries, expected.map(|(key, value)| (key.to_owned(), value)));
        let toml = "a = true\nb = 1\nc = -1\ne = 'x'\nf = ['x', 'y']\nh = 1979-05-27\n[i]\nj = 1";
        let Entries(entries) = toml::from_str(toml).unwrap();
        let values: Vec<Value> = entries.into_iter().map(|(_, value)| value).collect();
        let expected = [
            Value::Flag(true),
            Value::Number(1),
            other("-1"),
            Value::Text("x".into()),
            names(["x", "y"]),
            other("a table"),
            other("a table"),
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn numbers_are_bounded() {
        let text = |text: &str| Value::Text(text.into());
        assert_eq!(size(&text("1.5k")), Ok(ByteSize::bytes(1536)));
        assert_eq!(size(&Value::Number(u64::MAX)), Ok(ByteSize::bytes(u64::MAX)));
        assert!(size(&text("4 parsecs")).is_err());
        assert_eq!(wait_ms(&text("250")), Ok(Duration::from_millis(250)));
        assert_eq!(wait_s(&Value::Number(0)), Ok(Duration::ZERO));
        assert!(time_ms(&Value::Number(0)).is_err());
        for endless in [wait_ms, time_ms, wait_s] {
            assert!(endless(&Value::Number(u64::MAX)).is_err());
        }
        assert!(connections(&Value::Number(0)).is_err());
        assert!(connections(&Value::Number(257)).is_err());
        assert_eq!(places(&text("1000000")).map(NonZeroUsize::get), Ok(1_000_000));
        for none in [Value::Number(0), Value::Number(1_000_001), text("-1"), text("many")] {
            assert!(places(&none).is_err(), "{none}");
        }
        assert!(node_number(&text("-1")).is_err());
        assert!(names(&text(&"eth0,".repeat(65))).is_err());
        assert_eq!(names(&text(" a ,, b,")), Ok(vec!["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn an_error_names_every_policy() {
        let expected = policy(&Value::Text("best".into())).unwrap_err();
        for kind in PolicyKind::ALL {
            assert!(expected.contains(kind.as_str()), "{kind}");
            assert_eq!(policy(&Value::Text(kind.to_string())), Ok(*kind));
        }
    }

    #[test]
    fn errors_repeat_a_bounded_part() {
        let long = "é".repeat(1 << 20);
        assert_eq!(shown(&long).chars().count(), SHOWN + 1);
        assert!(Value::Text(long.clone()).to_string().len() < 200);
        assert!(Value::List(vec![long]).to_string().len() < 200);
    }
}
