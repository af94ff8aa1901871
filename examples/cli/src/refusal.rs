//! The one-line message of a refused command line.

use std::error::Error;
use std::num::{IntErrorKind, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Why [`parse_from`](crate::parse_from) returned no arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Refusal {
    /// Not a refusal: the user asked for `--help` or `--version`, and this is it.
    #[error("{text}")]
    Answered {
        /// The text for standard output.
        text: String,
    },
    /// No such flag.
    #[error("unknown flag {flag}{} (--help lists all)", hint(.nearest.as_ref()))]
    UnknownFlag {
        /// As it was written.
        flag: String,
        /// The flag that was probably meant.
        nearest: Option<String>,
    },
    /// An argument that belongs to no flag.
    #[error(
        "unexpected argument '{text}'; every option is written --flag=value (--help lists all)"
    )]
    UnexpectedArgument {
        /// As it was written.
        text: String,
    },
    /// The flag's value cannot be used.
    #[error("{flag}: '{value}' is refused: {why}")]
    BadValue {
        /// Name of the flag, or `<NAME>` of a positional argument.
        flag: String,
        /// As it was written.
        value: String,
        why: String,
    },
    /// A flag of Mooncake's program asks for what this program cannot do.
    #[error("{flag} is not supported: {why}")]
    Unsupported {
        /// The flag with its value.
        flag: String,
        /// The missing ability, and what to use instead.
        why: String,
    },
    /// A setting of a file or a variable is refused, or the whole file.
    #[error("{place}: {text}")]
    Source {
        /// The file, with the line where there is one, `PATH:LINE`, or the variable.
        place: String,
        /// The reason, one line.
        text: String,
    },
    /// Anything else, in the parser's words.
    #[error("{text} (--help lists all flags)")]
    Other {
        /// One line.
        text: String,
    },
}

fn hint(nearest: Option<&String>) -> String {
    nearest.map_or_else(String::new, |flag| format!("; did you mean {flag}?"))
}

impl From<clap::Error> for Refusal {
    fn from(error: clap::Error) -> Self {
        let context = |kind| error.get(kind).map(context_text);
        match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                Self::Answered { text: error.to_string() }
            }
            ErrorKind::UnknownArgument => {
                let flag = context(ContextKind::InvalidArg).unwrap_or_default();
                if flag.starts_with('-') {
                    Self::UnknownFlag { flag, nearest: context(ContextKind::SuggestedArg) }
                } else {
                    Self::UnexpectedArgument { text: flag }
                }
            }
            ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
                let flag = context(ContextKind::InvalidArg).unwrap_or_default();
                let value = context(ContextKind::InvalidValue).unwrap_or_default();
                let flag = flag_name(&flag);
                if value.is_empty() && error.source().is_none() && flag.starts_with('-') {
                    return Self::Other { text: format!("{flag} needs a value") };
                }
                let why = match (error.source(), context(ContextKind::ValidValue)) {
                    (Some(source), _) => expected(source),
                    (None, Some(valid)) => format!("it must be one of {valid}"),
                    (None, None) => "it is not of the right form".into(),
                };
                Self::BadValue { flag, value: one_line(&value), why }
            }
            _ => Self::Other { text: first_paragraph(&error.to_string()) },
        }
    }
}

/// The form that a value must have, in place of what the standard library and clap say of numbers
/// and switches.
fn expected(source: &(dyn Error + 'static)) -> String {
    match source.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => "the number is too large".into(),
        Some(IntErrorKind::Zero) => "expected at least 1".into(),
        Some(_) => "expected a whole number".into(),
        None => match source.to_string().as_str() {
            "value was not a boolean" => "expected true or false".into(),
            text => one_line(text),
        },
    }
}

/// `--size <BYTES>` and `--fast[=<BOOL>]` without their placeholders; the
/// placeholder itself of an argument that has no flag, as in `[SUITE]...`.
fn flag_name(shown: &str) -> String {
    if shown.starts_with('-') {
        shown.split([' ', '[', '=']).next().unwrap_or(shown).to_owned()
    } else {
        shown.trim_matches(['[', ']', '<', '>', '.']).to_owned()
    }
}

fn context_text(value: &ContextValue) -> String {
    match value {
        ContextValue::Strings(values) => values.join(", "),
        other => other.to_string(),
    }
}

/// The parser's message without its usage lines.
fn first_paragraph(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let message = text.split("\n\nUsage:").next().unwrap_or(text);
    let message = message.split("\n\nFor more information").next().unwrap_or(message);
    let words: Vec<&str> = message.split_whitespace().collect();
    words.join(" ")
}

/// `text` with its lines joined by `; ` and without control characters, so that
/// nothing a peer or a file said can move the cursor or add a line.
pub(crate) fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ").chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The error and its sources on one line. A source that the line already quotes
/// is not said twice.
pub fn cause_chain(error: &dyn Error) -> String {
    let mut line = one_line(&error.to_string());
    let mut source = error.source();
    while let Some(cause) = source {
        let text = one_line(&cause.to_string());
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        source = cause.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_and_made_harmless() {
        assert_eq!(one_line("a\n\n  b\t\u{1b}[2Jc\r\n"), "a; b??[2Jc");
        assert_eq!(one_line(""), "");
    }

    #[test]
    fn placeholders_are_dropped() {
        assert_eq!(flag_name("--size <BYTES>"), "--size");
        assert_eq!(flag_name("--fast[=<BOOL>]"), "--fast");
        assert_eq!(flag_name("<KEY>"), "KEY");
        assert_eq!(flag_name("[SUITE]..."), "SUITE");
    }
}
