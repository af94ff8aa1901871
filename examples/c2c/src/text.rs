//! Output for people.

use std::io::{self, Write};

use mc_c2c::{Identity, LayerMap, Projector};

use crate::error::ToolError;

/// Writes `text` to standard output. A closed pipe is no failure.
pub(crate) fn print(text: &str) -> Result<(), ToolError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(ToolError::WriteOutput(error))
        }
        _ => Ok(()),
    }
}

/// A file's words with control characters written out.
pub(crate) fn visible(text: &str) -> String {
    if text.chars().any(char::is_control) { text.escape_debug().to_string() } else { text.into() }
}

/// The name of a projector's variant.
pub(crate) const fn variant(projector: &Projector) -> &'static str {
    match projector {
        Projector::Simplified(_) => "simplified",
        Projector::Full(_) => "full",
    }
}

/// The layers that a projector connects. A simplified one takes the source's last, counted from 0
/// when their number is not known.
pub(crate) fn map(projector: &Projector, identity: Option<&Identity>) -> Vec<LayerMap> {
    match projector {
        Projector::Full(fuser) => fuser.map().to_vec(),
        Projector::Simplified(simplified) => {
            let layers = simplified.layers();
            let skipped =
                identity.map_or(0, |identity| identity.source_layers.saturating_sub(layers));
            let entry = |layer| LayerMap { target: layer, source: skipped + layer, module: layer };
            (0..layers).map(entry).collect()
        }
    }
}

/// Rows below a heading, in columns as wide as their widest cell, numbers to the right.
pub(crate) fn table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let heading = heading.map(str::to_owned);
    let mut widths = [0; N];
    for row in rows.iter().chain([&heading]) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in [&heading].into_iter().chain(rows) {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["0".into(), "open".into()], ["10".into(), "–".into()]];
        assert_eq!(table(["L", "KEYS"], &rows), " L  KEYS\n 0  open\n10     –\n");
    }

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(visible("Qwen/Qwen3-4B"), "Qwen/Qwen3-4B");
        assert_eq!(visible("a\u{1b}[2J"), "a\\u{1b}[2J");
    }
}
