//! The removal of objects by a regular expression over their keys, or by what these begin with.

use std::process::ExitCode;

use mc_store::Client;

use crate::error::CtlError;
use crate::text::print;

/// Removes the objects whose keys match.
pub(crate) async fn remove_matching(
    client: &Client,
    pattern: &str,
    force: bool,
) -> Result<ExitCode, CtlError> {
    let removed = client.remove_by_regex(pattern, force).await?;
    print(format!("removed {removed} objects\n").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The letters that have a meaning of their own in a pattern. Others get one by a `\`, as `\<`.
const SPECIAL: &str = r"\.+*?()|[]{}^$#&-~";

/// The pattern of keys that begin with `prefix`.
pub(crate) fn pattern_of(prefix: &str) -> String {
    let mut pattern = String::from("^");
    for letter in prefix.chars() {
        if SPECIAL.contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use mc_meta::Pattern;

    use super::*;

    #[test]
    fn a_prefix_means_itself() {
        for prefix in ["a.b/", "(x)", "[0-9]+", "é\\d{2}|^$", "~!@#%&-_=\"'`:;<>,/?*"] {
            let pattern = Pattern::new(&pattern_of(prefix)).unwrap();
            assert!(pattern.is_match(&format!("{prefix}tail")), "{prefix}");
            assert!(!pattern.is_match(&format!("x{prefix}")), "{prefix}");
        }
        assert!(!Pattern::new(&pattern_of("a.b")).unwrap().is_match("axb"));
    }
}
