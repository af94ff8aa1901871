//! A file of settings: a flat map of names to values, as TOML, YAML or JSON.

use std::collections::HashMap;
use std::path::Path;

use super::entry::{BadLine, Entry, MAX_ENTRIES, line_of};
use super::{json, toml, yaml};
use crate::refusal::{Refusal, cause_chain};

/// Longest file, in bytes.
const MAX_LEN: usize = 1 << 20;
/// Most lists and tables within each other. A list in the map of settings is the deepest that has a
/// meaning; parsers that recurse see no more than this.
const MAX_DEPTH: usize = 8;

/// Reads a file in the format that its name ends with. Blocks.
pub(super) fn read(path: &Path) -> Result<Vec<Entry>, Refusal> {
    let parse = match path.extension().and_then(|extension| extension.to_str()) {
        Some("yaml" | "yml") => yaml::parse,
        Some("json") => json::parse,
        Some("toml") => toml::parse,
        _ => {
            let text =
                "a file for --config_path is named .toml, .yaml, .yml or .json, by its format";
            return Err(at(path, None, text.into()));
        }
    };
    let bytes = mc_tls::read_file(path, MAX_LEN).map_err(|error| Refusal::Source {
        place: "--config_path".into(),
        text: cause_chain(&error),
    })?;
    let text = str::from_utf8(&bytes)
        .map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            BadLine::new(line_of(before), "the line is not text in UTF-8")
        })
        .map(|text| text.strip_prefix('\u{feff}').unwrap_or(text));
    let entries = text.and_then(|text| check_depth(text).and_then(|()| parse(text)));
    entries.and_then(check).map_err(|bad| at(path, Some(bad.line), bad.text))
}

/// A refusal that names the file, and the line where there is one.
pub(super) fn at(path: &Path, line: Option<usize>, text: String) -> Refusal {
    Refusal::Source { place: place(path, line), text }
}

pub(super) fn place(path: &Path, line: Option<usize>) -> String {
    let path = path.display();
    line.map_or_else(|| path.to_string(), |line| format!("{path}:{line}"))
}

/// Refuses lists and tables deep within each other. Brackets within quotes do not count.
fn check_depth(text: &str) -> Result<(), BadLine> {
    let (mut depth, mut quote, mut is_escaped) = (0_usize, None, false);
    let bytes = text.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        match (quote, byte) {
            // No text of these formats goes on in the next line, but for some of TOML, which have no
            // brackets that a parser would look at either.
            (_, b'\n') => (quote, is_escaped) = (None, false),
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some(b'"'), b'\\') => is_escaped = true,
            (Some(open), byte) if open == byte => quote = None,
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'[' | b'{') => depth += 1,
            (None, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            let text = format!("more than {MAX_DEPTH} lists and tables are within each other");
            return Err(BadLine::new(line_of(&bytes[..at]), text));
        }
    }
    Ok(())
}

/// Refuses what can be no name of a setting, and a name that is there twice.
fn check(entries: Vec<Entry>) -> Result<Vec<Entry>, BadLine> {
    let mut lines = HashMap::new();
    for Entry { line, name, .. } in &entries {
        let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if !is_name {
            let shown: String = name.chars().take(64).collect();
            let text = format!("{shown:?} is no name of a setting; write one such as rpc_port");
            return Err(BadLine::new(*line, text));
        }
        if lines.len() == MAX_ENTRIES {
            let text = format!("the file has more than {MAX_ENTRIES} settings");
            return Err(BadLine::new(*line, text));
        }
        let name = name.replace('-', "_");
        if let Some(first) = lines.insert(name.clone(), *line) {
            let text = format!("{name} has a value in line {first} already; leave one of them out");
            return Err(BadLine::new(*line, text));
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_bounded_before_a_parser_sees_the_text() {
        for text in [
            "a = \"[[[[[[[[[[\"",
            "a: '{{{{{{{{{{'",
            "{\"a\": [\"\\\"[[[[[[[[[\"]}",
            "[[[[[[[[]]]]]]]]",
        ] {
            assert!(check_depth(text).is_ok(), "{text}");
        }
        for text in ["\na = [[[[[[[[[", "{\n\"a\": {\"b\": {\"c\": [[[[[[1", "'\n[[[[[[[[["] {
            let refused = check_depth(text).unwrap_err();
            assert!(refused.line == 2 && refused.text.contains("more than 8"), "{refused:?}");
        }
        assert!(check_depth(&"[".repeat(1 << 20)).is_err());
    }
}
