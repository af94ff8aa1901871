//! A client does not survive `fork`: its threads and its connections stay in the parent.

use std::process;

/// The process that made something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home(u32);

impl Home {
    /// This process.
    pub(crate) fn here() -> Self {
        Self(process::id())
    }

    /// Whether this process is another one, forked from the one that made it.
    pub(crate) fn was_left(self) -> bool {
        self.0 != process::id()
    }
}
