//! The part of YAML that a flat map needs: lines `name: value` with comments and quotes. Anything else is
//! refused, so that no line means another thing here than elsewhere.

use super::entry::{BadLine, Entry, without_value};

/// Characters with which YAML begins something other than a plain text.
const INDICATORS: &str = "[]{},&*!|>%@`?\"'";

/// Reads the settings in the order of their lines.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, BadLine> {
    let mut entries = Vec::new();
    let mut has_begun = false;
    for (number, line) in (1..).zip(text.lines()) {
        let content = line.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        if content == "---" && !has_begun && line.starts_with("---") {
            has_begun = true;
            continue;
        }
        has_begun = true;
        let refused = |text: String| BadLine::new(number, text);
        if line.starts_with([' ', '\t']) {
            return Err(refused("the line is indented; a file of settings is flat".into()));
        }
        let (name, value) = split(line).ok_or_else(|| {
            refused("expected a name and its value, as in rpc_port: 50051".into())
        })?;
        let value = scalar(value).map_err(|bad| refused(bad.text(name)))?;
        entries.push(Entry { line: number, name: name.to_owned(), value });
    }
    Ok(entries)
}

/// The name, and what follows its colon.
fn split(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(':')?;
    (value.is_empty() || value.starts_with([' ', '\t'])).then_some((name.trim_end(), value))
}

/// Why a value is refused.
enum BadValue {
    Missing,
    NotScalar,
    Escape,
    Unclosed,
    Rest,
}

impl BadValue {
    fn text(&self, name: &str) -> String {
        match self {
            Self::Missing => without_value(name),
            Self::NotScalar => {
                format!("the value of {name} is no plain text or number; write it in 'quotes'")
            }
            Self::Escape => format!(
                "the value of {name} has an escape other than \\\" and \\\\; write it in 'quotes'"
            ),
            Self::Unclosed => format!("the value of {name} lacks its closing quote"),
            Self::Rest => {
                format!("there is more after the value of {name}; a comment begins with ' #'")
            }
        }
    }
}

/// The value of a line, without quotes and comment.
fn scalar(text: &str) -> Result<String, BadValue> {
    let value = text.trim_start();
    let (value, rest) = match value.chars().next() {
        Some('"') => double_quoted(&value[1..])?,
        Some('\'') => single_quoted(&value[1..])?,
        _ => return plain(text),
    };
    let comment = rest.trim_start();
    let is_done = comment.is_empty() || (comment.starts_with('#') && comment.len() < rest.len());
    if is_done { Ok(value) } else { Err(BadValue::Rest) }
}

fn plain(text: &str) -> Result<String, BadValue> {
    let comment = text
        .char_indices()
        .zip(text.chars().skip(1))
        .find(|((_, before), at)| *at == '#' && matches!(before, ' ' | '\t'));
    let value = text[..comment.map_or(text.len(), |((at, _), _)| at)].trim();
    if matches!(value, "" | "~" | "null" | "Null" | "NULL") {
        return Err(BadValue::Missing);
    }
    let is_entry = value == "-" || value.starts_with("- ") || value.starts_with("-\t");
    let is_map = value.ends_with(':') || value.contains(": ") || value.contains(":\t");
    if is_entry || is_map || value.starts_with(|first| INDICATORS.contains(first)) {
        return Err(BadValue::NotScalar);
    }
    Ok(value.to_owned())
}

/// The text up to the closing quote, and the rest of the line.
fn double_quoted(text: &str) -> Result<(String, &str), BadValue> {
    let mut value = String::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '"' => return Ok((value, chars.as_str())),
            '\\' => value.push(match chars.next() {
                Some(char @ ('"' | '\\')) => char,
                _ => return Err(BadValue::Escape),
            }),
            char => value.push(char),
        }
    }
    Err(BadValue::Unclosed)
}

/// The same between single quotes, where two of them stand for one.
fn single_quoted(text: &str) -> Result<(String, &str), BadValue> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('\'').ok_or(BadValue::Unclosed)?;
        value.push_str(part);
        match after.strip_prefix('\'') {
            Some(after) => {
                value.push('\'');
                rest = after;
            }
            None => return Ok((value, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(line: &str) -> Result<String, String> {
        let parsed = parse(line).map_err(|bad| bad.text)?;
        let [setting] = &parsed[..] else { panic!("{parsed:?}") };
        assert_eq!(setting.name, "a");
        Ok(setting.value.clone())
    }

    #[test]
    fn values_are_read_as_yaml_reads_them() {
        for (line, expected) in [
            ("a: 1", "1"),
            ("a : 1", "1"),
            ("a:\t-1.5 ", "-1.5"),
            ("a: true # yes", "true"),
            ("a: x#y", "x#y"),
            ("a: tcp://0.0.0.0:5557", "tcp://0.0.0.0:5557"),
            ("a: two words", "two words"),
            ("a: \"\"", ""),
            ("a: ''  # empty", ""),
            ("a: \"x # y\" # z", "x # y"),
            ("a: \"q\\\"\\\\\"", "q\"\\"),
            ("a: 'it''s \\n'", "it's \\n"),
            ("a: \"null\"", "null"),
            ("a: 1\r\n", "1"),
            ("---\n\n# x\n  # y\na: 1\n", "1"),
            ("a: --x", "--x"),
        ] {
            assert_eq!(value(line), Ok(expected.into()), "{line:?}");
        }
        assert_eq!(parse(""), Ok(Vec::new()));
    }

    #[test]
    fn everything_else_is_refused() {
        for (line, says) in [
            ("a", "expected a name"),
            ("a:1", "expected a name"),
            ("- a", "expected a name"),
            ("a:", "has no value"),
            ("a: # x", "has no value"),
            ("a: ~", "has no value"),
            ("a: null", "has no value"),
            ("a:\n  b: 1", "has no value"),
            ("a: [1, 2]", "no plain text"),
            ("a: {b: 1}", "no plain text"),
            ("a: &x 1", "no plain text"),
            ("a: *x", "no plain text"),
            ("a: !!str 1", "no plain text"),
            ("a: |", "no plain text"),
            ("a: >-", "no plain text"),
            ("a: - 1", "no plain text"),
            ("a: b: 1", "no plain text"),
            ("a: \"x", "closing quote"),
            ("a: 'x''", "closing quote"),
            ("a: \"\\n\"", "escape"),
            ("a: \"x\" y", "more after"),
            ("a: \"x\"# y", "more after"),
        ] {
            let refused = value(line).unwrap_err();
            assert!(refused.contains(says), "{line:?}: {refused}");
        }
        for (text, line) in [("a: 1\n b: 2", 2), ("a: 1\n---\nb: 2", 2), ("\na: 1\n\tb: 2", 3)] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_lines_are_counted(text in "[a-b:#'\"\\\\ \t\né\\-{]{0,60}") {
            let lines = text.lines().count();
            match parse(&text) {
                Ok(entries) => prop_assert!(entries.iter().all(|it| (1..=lines).contains(&it.line))),
                Err(bad) => prop_assert!((1..=lines).contains(&bad.line)),
            }
        }

        #[test]
        fn a_quoted_text_is_kept(text in "[a-c#:'\\\\ \"é]{0,20}") {
            let single = format!("a: '{}'", text.replace('\'', "''"));
            prop_assert_eq!(value(&single), Ok(text.clone()));
            let double = text.replace('\\', "\\\\").replace('"', "\\\"");
            prop_assert_eq!(value(&format!("a: \"{double}\" # x")), Ok(text));
        }
    }
}
