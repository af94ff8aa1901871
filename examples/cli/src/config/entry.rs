//! One setting of a file, and why a line is refused.

use serde_json::Value;

/// Most settings of a file, which is many more than there are.
pub(super) const MAX_ENTRIES: usize = 1000;

/// One setting of a file, as it is written there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) value: String,
}

/// A line that is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(super) struct BadLine {
    pub(super) line: usize,
    pub(super) text: String,
}

impl BadLine {
    pub(super) fn new(line: usize, text: impl Into<String>) -> Self {
        Self { line, text: text.into() }
    }
}

/// The number of the line that begins or continues after `before`.
pub(super) fn line_of(before: &[u8]) -> usize {
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

pub(super) fn without_value(name: &str) -> String {
    format!("{name} has no value; write one, such as \"\" for an empty text, or leave the line out")
}

/// The text of a value of JSON or TOML: a list of texts has commas between them, as a flag has.
pub(super) fn text_of(line: usize, name: &str, value: Value) -> Result<String, BadLine> {
    match value {
        Value::String(text) => Ok(text),
        Value::Bool(_) | Value::Number(_) => Ok(value.to_string()),
        Value::Null => Err(BadLine::new(line, without_value(name))),
        Value::Array(list) => {
            let texts: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
            texts.map(|texts| texts.join(",")).ok_or_else(|| not_flat(line, name, "a list"))
        }
        Value::Object(_) => Err(not_flat(line, name, "a table")),
    }
}

fn not_flat(line: usize, name: &str, found: &str) -> BadLine {
    let text = format!(
        "the value of {name} is {found}; write a text, a number, true, false or a list of texts: a file \
         of settings is flat"
    );
    BadLine::new(line, text)
}
