//! `ls` and `find`: the keys in order, read page by page. Neither grants a lease.

use std::collections::BinaryHeap;
use std::process::ExitCode;

use mc_cli::{table, visible};
use mc_meta::{KeyInfo, ListCursor, Pattern};
use mc_rpc::MAX_PAGE;
use mc_store::Client;
use mc_types::{ByteSize, ObjectKey};

use crate::args;
use crate::error::CtlError;
use crate::text::print;

pub(crate) async fn ls(client: &Client, ls: &args::Ls) -> Result<ExitCode, CtlError> {
    let smallest = read(client, &ls.prefix, ls.limit, |_| true).await?;
    let text = if ls.json { json(smallest) } else { human(smallest) };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The pattern is looked for here: the master's own search would put all that it finds under lease.
pub(crate) async fn find(client: &Client, find: &args::Find) -> Result<ExitCode, CtlError> {
    let pattern = Pattern::new(&find.pattern)?;
    let prefix = pattern.literal_prefix().unwrap_or_default();
    let matches = |key: &str| pattern.is_match(key);
    let smallest = read(client, prefix, find.limit, matches).await?;
    let found = smallest.seen > 0;
    let text = if find.json { json(smallest) } else { human(smallest) };
    print(text.as_bytes())?;
    Ok(if found { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All keys that begin with `prefix`, in order.
pub(crate) async fn keys(client: &Client, prefix: &str) -> Result<Vec<ObjectKey>, CtlError> {
    let all = read(client, prefix, None, |_| true).await?;
    Ok(all.keys.into_sorted_vec().into_iter().map(|line| line.key).collect())
}

/// The first `limit` of the keys that begin with `prefix` and are wanted.
async fn read(
    client: &Client,
    prefix: &str,
    limit: Option<usize>,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Smallest, CtlError> {
    let mut smallest = Smallest::new(limit);
    let mut cursor = ListCursor::default();
    loop {
        let page = client.master().list_keys(prefix, cursor, MAX_PAGE).await?;
        let wanted = page.keys.into_iter().filter(|info| is_wanted(info.key.as_str()));
        wanted.for_each(|key| smallest.add(key));
        match page.next {
            // A cursor that stands still would list for ever.
            Some(next) if next != cursor => cursor = next,
            _ => return Ok(smallest),
        }
    }
}

/// The first keys of a listing that comes in no order. Holds no more keys than
/// are wanted.
struct Smallest {
    limit: usize,
    keys: BinaryHeap<Line>,
    seen: u64,
    bytes: u64,
}

/// Ordered by key.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    key: ObjectKey,
    len: u64,
    replicas: u32,
}

impl Smallest {
    fn new(limit: Option<usize>) -> Self {
        Self { limit: limit.unwrap_or(usize::MAX), keys: BinaryHeap::new(), seen: 0, bytes: 0 }
    }

    fn add(&mut self, KeyInfo { key, len, replicas }: KeyInfo) {
        self.seen += 1;
        self.bytes = self.bytes.saturating_add(len);
        self.keys.push(Line { key, len, replicas });
        if self.keys.len() > self.limit {
            self.keys.pop();
        }
    }
}

fn human(smallest: Smallest) -> String {
    let Smallest { keys, seen, bytes, .. } = smallest;
    let shown = keys.len() as u64;
    let rows: Vec<[String; 3]> = keys
        .into_sorted_vec()
        .into_iter()
        .map(|line| {
            let size = ByteSize::bytes(line.len).to_string();
            [size, line.replicas.to_string(), visible(line.key.as_str())]
        })
        .collect();
    let more = if shown < seen { format!(", the first {shown} shown") } else { String::new() };
    let size = ByteSize::bytes(bytes);
    table([">SIZE", ">REPLICAS", "KEY"], &rows) + &format!("{seen} keys, {size}{more}\n")
}

fn json(smallest: Smallest) -> String {
    let mut text = String::new();
    for Line { key, len, replicas } in smallest.keys.into_sorted_vec() {
        let line = serde_json::json!({ "key": key.as_str(), "bytes": len, "replicas": replicas });
        text += &line.to_string();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(limit: Option<usize>) -> Smallest {
        let mut smallest = Smallest::new(limit);
        for (key, len) in [("c", 1), ("a\n", 2048), ("b", 3)] {
            let key = ObjectKey::new(key).unwrap();
            smallest.add(KeyInfo { key, len, replicas: 1 });
        }
        smallest
    }

    #[test]
    fn keys_are_sorted_and_harmless() {
        let expected = "   SIZE  REPLICAS  KEY\n2.00 KB         1  a\\n\n    3 B         1  b\n    \
                        1 B         1  c\n3 keys, 2.00 KB\n";
        assert_eq!(human(listing(None)), expected);
        assert!(human(listing(Some(1))).ends_with("a\\n\n3 keys, 2.00 KB, the first 1 shown\n"));
        assert!(human(listing(Some(0))).contains("the first 0 shown"));
    }

    #[test]
    fn json_is_one_object_per_line() {
        let text = json(listing(Some(2)));
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["key"], &lines[0]["bytes"]), (&"a\n".into(), &2048.into()));
        assert_eq!((&lines[1]["key"], &lines[1]["replicas"]), (&"b".into(), &1.into()));
    }
}
