//! A flat map in JSON.

use std::collections::BTreeMap;

use serde_json::Value;

use super::entry::{BadLine, Entry, MAX_ENTRIES, line_of, text_of};

/// Reads the settings in the order of their lines.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, BadLine> {
    // Names with escapes cannot be borrowed, so that every name stands in the text as it is.
    let map: BTreeMap<&str, Value> = serde_json::from_str(text).map_err(|error| {
        let hint = if error.is_data() { "; write one map, with names that have no \\" } else { "" };
        BadLine::new(error.line().max(1), format!("{error}{hint}"))
    })?;
    let mut entries = Vec::new();
    // One more than is allowed, and one place more: the caller refuses both.
    for (name, value) in map.into_iter().take(MAX_ENTRIES + 1) {
        // The map keeps the last value of a name only, so that the places of the name are looked up.
        let mut lines = lines_of(text, name).take(2);
        let line = lines.next().unwrap_or(1);
        let value = text_of(line, name, value)?;
        for line in std::iter::once(line).chain(lines) {
            entries.push(Entry { line, name: name.to_owned(), value: value.clone() });
        }
    }
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

/// The lines in which the text has this name, in quotes and with a colon behind. In a flat map that
/// is nowhere within a value, where quotes are escaped.
fn lines_of<'a>(text: &'a str, name: &str) -> impl Iterator<Item = usize> + 'a {
    let quoted = format!("\"{name}\"");
    let places: Vec<usize> = text.match_indices(&quoted).map(|(at, _)| at).collect();
    places.into_iter().filter_map(move |at| {
        let after = text[at + quoted.len()..].trim_start();
        after.starts_with(':').then(|| line_of(&text.as_bytes()[..at]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_read_with_their_lines() {
        let text = "{\n\"b\": 10000, \"a\":\n 0.5,\"c\" : true,\n\n\"d\": \"\\\"a\\\": x\"}";
        let expected = [(2, "a", "0.5"), (2, "b", "10000"), (3, "c", "true"), (5, "d", "\"a\": x")];
        let expected = expected.map(|(line, name, value)| {
            let (name, value) = (name.to_owned(), value.to_owned());
            Entry { line, name, value }
        });
        assert_eq!(parse(text).unwrap(), expected);
        assert_eq!(parse(" {} ").unwrap(), []);
    }

    #[test]
    fn what_is_no_flat_map_is_refused() {
        for (text, line, says) in [
            ("", 1, "EOF"),
            ("[]", 1, "map"),
            ("{\"a\": 1,\n}", 2, "line 2"),
            ("{\n\"a\": null}", 2, "a has no value"),
            ("{\n\"a\": [1]}", 2, "the value of a"),
            ("{\"a\": 1} {}", 1, "trailing"),
            ("{\"a_b\": 1,\n\"a\\u005fb\": 2}", 2, "names that have no \\"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.line == line && refused.text.contains(says), "{text}: {refused:?}");
        }
        let deep = "[".repeat(100_000);
        let refused = parse(&format!("{{\"a\": {deep}")).unwrap_err();
        assert!(refused.text.contains("recursion"), "{refused}");
    }
}
