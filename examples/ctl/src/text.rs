//! Output for people.

use std::io::{self, Write};

use mc_cli::visible;

use crate::error::CtlError;

/// Writes `text` to standard output. A closed pipe is no failure.
pub(crate) fn print(text: &[u8]) -> Result<(), CtlError> {
    print_while_read(text).map(|_| ())
}

/// [`print`], which returns whether the reader is still there.
pub(crate) fn print_while_read(text: &[u8]) -> Result<bool, CtlError> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(CtlError::WriteOutput(error)),
    }
}

/// Most letters of a list of names in a table, unless the first name alone has more.
const NAMES_WIDTH: usize = 60;

/// The first names, and how many there are beside.
pub(crate) fn names(names: &[impl AsRef<str>]) -> String {
    let mut text = String::new();
    for (shown, name) in names.iter().enumerate() {
        let name = visible(name.as_ref());
        if shown > 0 {
            if text.chars().count() + name.chars().count() >= NAMES_WIDTH {
                return text + &format!(" and {} more", names.len() - shown);
            }
            text.push(' ');
        }
        text += &name;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_are_counted() {
        assert_eq!(names(&[] as &[&str]), "");
        assert_eq!(names(&["a", "b\n"]), "a b\\n");
        let many: Vec<String> = (0..1000).map(|number| format!("node-{number:04}")).collect();
        let text = names(&many);
        assert!(
            text.starts_with("node-0000 node-0001 ") && text.ends_with(" and 994 more"),
            "{text}"
        );
        assert_eq!(names(&["a".repeat(300), "b".to_owned()]), "a".repeat(300) + " and 1 more");
    }
}
