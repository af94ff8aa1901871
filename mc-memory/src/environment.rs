//! Variables of the environment that say how memory and networks are used.

use std::ffi::OsString;

/// Most characters of a value that an error repeats.
const SHOWN: usize = 64;

/// A variable of the environment that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the variable {variable} is {value:?}; it must be {expected}")]
#[non_exhaustive]
pub struct BadVariable {
    /// The variable's name.
    pub variable: &'static str,
    /// Its value; the beginning, when it is long.
    pub value: String,
    /// The values that are accepted.
    pub expected: &'static str,
}

/// Returns whether `variable` switches something on; `false` when it is unset or empty.
pub(crate) fn flag(
    lookup: impl Fn(&str) -> Option<OsString>,
    variable: &'static str,
) -> Result<bool, BadVariable> {
    let parse = |value: &str| match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    };
    let expected = "1, true, yes or on, or 0, false, no or off";
    Ok(value(lookup, variable, expected, parse)?.unwrap_or(false))
}

/// Parses the value of `variable` without the blanks around it;
/// `None` when the variable is unset or empty.
pub(crate) fn value<T>(
    lookup: impl Fn(&str) -> Option<OsString>,
    variable: &'static str,
    expected: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, BadVariable> {
    let Some(raw) = lookup(variable) else { return Ok(None) };
    let text = raw.to_string_lossy();
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    // Bytes that are no text were replaced by characters that nothing contains.
    let value = || text.chars().take(SHOWN).collect();
    parse(text).map(Some).ok_or_else(|| BadVariable { variable, value: value(), expected })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn flags_have_many_names() {
        let read = |value: &str| flag(|name| (name == "X").then(|| value.into()), "X");
        for yes in ["1", "true", "TRUE", "Yes", "on", " 1 "] {
            assert_eq!(read(yes), Ok(true), "{yes}");
        }
        for no in ["0", "false", "No", "OFF", "", "  "] {
            assert_eq!(read(no), Ok(false), "{no}");
        }
        assert_eq!(flag(|_| None, "X"), Ok(false));
        let error = read("maybe").unwrap_err();
        assert_eq!((error.variable, error.value.as_str()), ("X", "maybe"));
        assert!(error.to_string().contains("X is \"maybe\""), "{error}");
    }

    #[test]
    fn errors_stay_short_and_printable() {
        let hostile = OsString::from_vec(vec![0xff; 1 << 20]);
        let error = flag(|_| Some(hostile.clone()), "X").unwrap_err();
        assert_eq!(error.value.chars().count(), SHOWN);
    }
}
