//! A page of Prometheus metrics beside the document that lists them.

use std::collections::BTreeMap;

/// Returns the differences between the metrics of `page` (Prometheus' text format) and the rows of
/// `document` below the heading `## section`, one line for each; none when they agree.
///
/// A row begins with the name in backticks, with or without labels in braces, and the kind; its
/// fourth cell is the meaning, which is the page's `# HELP` without the full stop.
///
/// ```
/// let page = "# HELP puts_total Puts ended.\n# TYPE puts_total counter\nputs_total 7\n";
/// let row = "## A\n| `puts_total` | counter | puts | Puts ended | `put.rs` |\n";
/// assert!(mc_testkit::metrics_differences(page, row, "A").is_empty());
/// assert_eq!(mc_testkit::metrics_differences(page, "## A\n", "A").len(), 1);
/// assert_eq!(mc_testkit::metrics_differences("", row, "A").len(), 1);
/// ```
#[must_use]
pub fn metrics_differences(page: &str, document: &str, section: &str) -> Vec<String> {
    let listed = listed(document, section);
    let counted = counted(page);
    let missing = counted.iter().filter(|(name, row)| listed.get(*name) != Some(row)).map(
        |(name, (kind, help))| match listed.get(name) {
            None => format!("not in the document: `{name}`, a {kind}: {help}"),
            Some(row) => format!("`{name}` is a {kind}: {help}; the document has {row:?}"),
        },
    );
    let gone = listed
        .keys()
        .filter(|name| !counted.contains_key(*name))
        .map(|name| format!("in the document alone: `{name}`"));
    missing.chain(gone).collect()
}

/// The kind and the meaning of each metric of a page.
fn counted(page: &str) -> BTreeMap<&str, (&str, &str)> {
    let mut help = BTreeMap::new();
    let mut found = BTreeMap::new();
    for line in page.lines() {
        if let Some((name, text)) =
            line.strip_prefix("# HELP ").and_then(|line| line.split_once(' '))
        {
            help.insert(name, text.trim_end_matches('.'));
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            found.insert(name, (kind, help.get(name).copied().unwrap_or_default()));
        }
    }
    found
}

/// The kind and the meaning of each metric of a section.
fn listed<'a>(document: &'a str, section: &str) -> BTreeMap<&'a str, (&'a str, &'a str)> {
    let lines =
        document.lines().skip_while(|line| line.strip_prefix("## ") != Some(section)).skip(1);
    lines
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let &[_, name, kind, _, meaning, ..] = &cells[..] else { return None };
            let name = name.strip_prefix('`')?.strip_suffix('`')?;
            let name = name.split_once('{').map_or(name, |(name, _)| name);
            Some((name, (kind, meaning)))
        })
        .collect()
}
