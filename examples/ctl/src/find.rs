//! `find`, and the removal of what is found: objects by a regular expression over their keys.

use std::process::ExitCode;

use mc_cli::{table, visible};
use mc_meta::ListCursor;
use mc_rpc::MAX_PAGE;
use mc_store::Client;
use mc_types::ByteSize;

use crate::args;
use crate::error::CtlError;
use crate::text::print;

pub(crate) async fn find(client: &Client, find: &args::Find) -> Result<ExitCode, CtlError> {
    let most = find.limit.unwrap_or(usize::MAX);
    let mut found = Vec::new();
    let mut from = Some(ListCursor::default());
    while let Some(cursor) = from
        && found.len() < most
    {
        let page =
            client.find_page(&find.pattern, cursor, MAX_PAGE.min(most - found.len())).await?;
        found.extend(page.objects);
        // A cursor that stands still would look for ever.
        from = page.next.filter(|next| *next != cursor);
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut text = String::new();
    if find.json {
        for (key, list) in &found {
            let segments: Vec<&str> = list.replicas.iter().map(|it| &*it.segment.name).collect();
            let line = serde_json::json!({
                "key": key.as_str(),
                "bytes": list.slices.total_len(),
                "segments": segments,
            });
            text += &line.to_string();
            text.push('\n');
        }
    } else if found.is_empty() {
        text += "no key matches\n";
    } else {
        let rows: Vec<[String; 3]> = found
            .iter()
            .map(|(key, list)| {
                let size = ByteSize::bytes(list.slices.total_len()).to_string();
                [size, list.replicas.len().to_string(), visible(key.as_str())]
            })
            .collect();
        text = table([">SIZE", ">REPLICAS", "KEY"], &rows);
    }
    print(text.as_bytes())?;
    Ok(if found.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Removes the objects whose keys match.
pub(crate) async fn remove(
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
