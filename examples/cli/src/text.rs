//! Text for people: aligned columns, and words that cannot move the cursor.

/// Returns a peer's or a file's words with control characters written out.
pub fn visible(text: &str) -> String {
    if text.chars().any(char::is_control) { text.escape_debug().to_string() } else { text.into() }
}

/// Returns rows below a heading, in columns as wide as their widest cell. Columns whose
/// heading begins with `>` are aligned to the right.
pub fn table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let right = heading.map(|title| title.starts_with('>'));
    let heading = heading.map(|title| title.trim_start_matches('>').to_owned());
    let mut widths = [0; N];
    for row in rows.iter().chain([&heading]) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in [&heading].into_iter().chain(rows) {
        let mut line = String::new();
        for ((cell, width), right) in row.iter().zip(widths).zip(right) {
            let gap = " ".repeat(width - cell.chars().count());
            let (before, after) = if right { (&*gap, "") } else { ("", &*gap) };
            line = line + before + cell + after + "  ";
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["a".into(), "10".into()], ["käse".into(), "7".into()]];
        assert_eq!(table(["KEY", ">SIZE"], &rows), "KEY   SIZE\na       10\nkäse     7\n");
    }

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(visible("plain é"), "plain é");
        assert_eq!(visible("a\n\u{1b}[2J"), "a\\n\\u{1b}[2J");
    }
}
