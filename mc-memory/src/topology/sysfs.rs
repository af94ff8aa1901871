//! Small files and folders, read within bounds.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

/// Most bytes of a file: what the kernel gives for one attribute.
const MAX_BYTES: u64 = 4096;

/// Most entries of a folder.
const MAX_ENTRIES: usize = 4096;

/// The text of the file at `path`, without blanks around it; `None` when there is
/// none.
pub(super) fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    // An attribute that means nothing for its device refuses to be read.
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The number in the file at `path`.
pub(super) fn number<T: FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// The number of a text like `0x1003` in the file at `path`.
pub(super) fn hex(path: &Path) -> Option<u32> {
    let text = text(path)?;
    let digits = text.strip_prefix("0x")?;
    // The parser takes a sign.
    let is_digits = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u32::from_str_radix(digits, 16).ok().filter(|_| is_digits)
}

/// The name of a network interface in the file at `path`; `None` when it is no such name.
pub(super) fn interface_name(path: &Path) -> Option<String> {
    /// `IFNAMSIZ` of the kernel, less the zero byte.
    const MAX_LEN: usize = 15;
    let is_allowed = |c: char| !c.is_whitespace() && !c.is_control() && c != '/' && c != ':';
    text(path).filter(|name| name.len() <= MAX_LEN && name.chars().all(is_allowed))
}

/// The numbers that are names in the folder at `path`, sorted.
pub(super) fn numbers(path: &Path) -> Vec<u8> {
    // The parser takes a sign and leading zeros, which the kernel does not write.
    let parse = |name: &String| name.parse().ok().filter(|number: &u8| number.to_string() == *name);
    let mut numbers: Vec<u8> = names(path).iter().filter_map(parse).collect();
    numbers.sort_unstable();
    numbers
}

/// The NUMA node of the device at `path`; the kernel says -1 when there is none.
pub(super) fn numa_node(device: &Path) -> Option<u32> {
    number(&device.join("numa_node"))
}

/// The names in the folder at `path`, sorted.
pub(super) fn names(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let entries = entries.take(MAX_ENTRIES).filter_map(Result::ok);
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// A made-up tree for tests.
#[cfg(test)]
pub(super) struct Tree(tempfile::TempDir);

#[cfg(test)]
impl Tree {
    /// A tree of these files, each with a text.
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }

    pub(super) fn root(&self) -> &Path {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_is_bounded() {
        let tree = Tree::new(&[("endless", &"7".repeat(10_000)), ("blank", " \n"), ("n", " -1\n")]);
        let path = |name| tree.root().join(name);
        assert_eq!(text(&path("endless")).unwrap().len(), 4096);
        assert_eq!(number::<u64>(&path("endless")), None);
        assert_eq!(text(&path("blank")), None);
        assert_eq!(number::<i32>(&path("n")), Some(-1));
        assert_eq!(number::<u32>(&path("n")), None);
        assert_eq!(text(tree.root()), None, "a folder has no text");
        assert_eq!(names(tree.root()), ["blank", "endless", "n"]);
        assert!(names(&path("n")).is_empty());
    }

    #[test]
    fn numbers_are_those_that_the_kernel_writes() {
        let names = ["10", "9", "255", "256", "-1", "+1", "01", "x", "1 "];
        let tree = Tree::new(&names.map(|name| (name, "0x1f")));
        assert_eq!(numbers(tree.root()), [9, 10, 255]);
        assert_eq!(hex(&tree.root().join("9")), Some(0x1f));
        for text in ["1f", "0x", "0x+1", "0x-1", "0x1g", "0x1ffffffff", "0X1", ""] {
            let tree = Tree::new(&[("number", text)]);
            assert_eq!(hex(&tree.root().join("number")), None, "{text}");
        }
    }

    #[test]
    fn names_of_interfaces_are_those_that_the_kernel_allows() {
        let name = |text| {
            let tree = Tree::new(&[("name", text)]);
            interface_name(&tree.root().join("name"))
        };
        for allowed in ["eth0", "eth0.100", "enp1s0f0np0", "fifteen-letters"] {
            assert_eq!(name(allowed).as_deref(), Some(allowed));
        }
        for refused in ["", "../eth0", "eth0:1", "eth 0", "eth\u{7}", "sixteen-letters-"] {
            assert_eq!(name(refused), None, "{refused}");
        }
    }
}
