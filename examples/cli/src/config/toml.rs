//! A flat table in TOML.

use std::collections::BTreeMap;

use serde_json::Value;
use toml::Spanned;

use super::entry::{BadLine, Entry, line_of, text_of};

/// Reads the settings in the order of their lines. A name that is there twice is refused.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, BadLine> {
    let line = |at: usize| line_of(&text.as_bytes()[..at.min(text.len())]);
    let table: BTreeMap<String, Spanned<Value>> = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        BadLine::new(line(at), error.message().replace('\n', "; "))
    })?;
    let mut entries = Vec::new();
    for (name, value) in table {
        let line = line(value.span().start);
        let value = text_of(line, &name, value.into_inner())?;
        entries.push(Entry { line, name, value });
    }
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_with_their_lines() {
        let text =
            "# a\nb = 10_000\na = 0.5 # much\n\nc = true\nd = 'x'\ne = [\n  'x', \"y\",\n]\n";
        let expected =
            [(2, "b", "10000"), (3, "a", "0.5"), (5, "c", "true"), (6, "d", "x"), (7, "e", "x,y")];
        let expected = expected.map(|(line, name, value)| {
            let (name, value) = (name.to_owned(), value.to_owned());
            Entry { line, name, value }
        });
        assert_eq!(parse(text).unwrap(), expected);
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn what_is_no_flat_table_is_refused() {
        for (text, line, says) in [
            ("a = 1\na = 2\n", 2, "duplicate key"),
            ("a = 1\nb\n", 2, ""),
            ("a = 1\nb = \n", 2, ""),
            ("a = 1\n[b]\nc = 1\n", 2, "the value of b is a table"),
            ("a = 1\nb = [1]\n", 2, "the value of b is a list"),
            ("a = 1\nb = 1979-05-27\n", 2, "the value of b is a table"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.line == line && refused.text.contains(says), "{text}: {refused:?}");
            assert!(!refused.text.contains('\n'), "{refused:?}");
        }
    }
}
