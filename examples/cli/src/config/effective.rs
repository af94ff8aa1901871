//! The settings that count, with where each comes from, as text.

use std::fmt;

use serde_json::json;

use crate::text::{table, visible};

/// Where the value of a setting comes from. Later ones override earlier ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Origin {
    /// Nowhere else: the value is the default.
    Default,
    /// A file, with the line: `PATH:LINE`.
    File(String),
    /// The variable of the environment with this name.
    Variable(String),
    /// A flag of the command line.
    Flag,
}

impl Origin {
    /// Which one overrides another: the greater.
    #[must_use]
    pub const fn rank(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::File(_) => 1,
            Self::Variable(_) => 2,
            Self::Flag => 3,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(place) => write!(f, "file {}", visible(place)),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// A setting with the value that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// Its name: that of its flag, or else its key.
    pub name: String,
    /// The text of its value; of a default that depends on others, words about it.
    pub value: String,
    /// Where the value comes from.
    pub origin: Origin,
}

impl Effective {
    /// The value without secrets: the value of a setting that is one, and user and password of a URL.
    #[must_use]
    pub fn shown(&self) -> String {
        let is_secret = ["password", "secret", "token", "credential"]
            .iter()
            .any(|word| self.name.contains(word))
            && !["_file", "_path"].iter().any(|end| self.name.ends_with(end));
        if is_secret && !self.value.is_empty() {
            return "***".into();
        }
        self.value.split_inclusive([';', ',']).map(without_user).collect()
    }
}

/// A URL without its user and password.
fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.into() };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://***{}", &rest[at..]),
        None => url.into(),
    }
}

/// A table for people.
pub(super) fn as_table(settings: &[Effective]) -> String {
    let rows: Vec<[String; 3]> = settings
        .iter()
        .map(|it| [it.name.clone(), visible(&it.shown()), it.origin.to_string()])
        .collect();
    table(["SETTING", "VALUE", "FROM"], &rows)
}

/// A JSON object in each line.
pub(super) fn as_json(settings: &[Effective]) -> String {
    let line = |it: &Effective| {
        let (from, at) = match &it.origin {
            Origin::Default => ("default", None),
            Origin::File(place) => ("file", Some(place)),
            Origin::Variable(name) => ("variable", Some(name)),
            Origin::Flag => ("flag", None),
        };
        format!("{}\n", json!({"name": it.name, "value": it.shown(), "from": from, "at": at}))
    };
    settings.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str, value: &str) -> String {
        Effective { name: name.into(), value: value.into(), origin: Origin::Flag }.shown()
    }

    #[test]
    fn secrets_are_masked() {
        for (name, value, expected) in [
            ("rpc_port", "7", "7"),
            ("token_file", "/t", "/t"),
            ("etcd_password_file", "/p", "/p"),
            ("some_token", "s3cret", "***"),
            ("some_password", "", ""),
            ("master", "etcd://u:p@h:1/c", "etcd://***@h:1/c"),
            ("etcd_endpoints", "http://u:p@a:1;http://b:2", "http://***@a:1;http://b:2"),
            ("shared_tier", "s3://bkt/a@b", "s3://bkt/a@b"),
        ] {
            assert_eq!(shown(name, value), expected, "{name}");
        }
    }

    #[test]
    fn the_forms_are_a_table_and_lines_of_json() {
        let of = |name: &str, value: &str, origin| Effective {
            name: name.into(),
            value: value.into(),
            origin,
        };
        let settings = [
            of("a", "1", Origin::Default),
            of("bc", "x\ny", Origin::File("/f:2".into())),
            of("d", "", Origin::Variable("D".into())),
        ];
        assert_eq!(
            as_table(&settings),
            "SETTING  VALUE  FROM\na        1      default\nbc       x\\ny   file /f:2\n\
             d               variable D\n"
        );
        let lines: Vec<serde_json::Value> =
            as_json(&settings).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[1], json!({"name": "bc", "value": "x\ny", "from": "file", "at": "/f:2"}));
        assert_eq!(lines[2], json!({"name": "d", "value": "", "from": "variable", "at": "D"}));
        assert_eq!(lines[0]["at"], serde_json::Value::Null);
    }
}
