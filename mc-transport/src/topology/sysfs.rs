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
}
