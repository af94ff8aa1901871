//! Output for people: aligned columns, and keys that cannot move the cursor.

use std::io::{self, Write};
use std::time::Duration;

use crate::error::CtlError;

/// Writes `text` to standard output. A closed pipe is no failure.
pub(crate) fn print(text: &[u8]) -> Result<(), CtlError> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CtlError::WriteOutput(error))
        }
        _ => Ok(()),
    }
}

/// A peer's words with control characters written out.
pub(crate) fn visible(text: &str) -> String {
    if text.chars().any(char::is_control) { text.escape_debug().to_string() } else { text.into() }
}

/// `1.25 s`, `3 m`: as much as is worth reading.
pub(crate) fn duration(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..600 => format!("{seconds}.{:02} s", time.subsec_millis() / 10),
        seconds @ 600..36_000 => format!("{} m", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// Rows below a heading, in columns as wide as their widest cell. Columns whose
/// heading begins with `>` are aligned to the right.
pub(crate) fn table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
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

    #[test]
    fn durations_are_short() {
        for (millis, text) in
            [(0, "0.00 s"), (1_259, "1.25 s"), (1_800_000, "30 m"), (86_400_000, "24 h")]
        {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }
}
