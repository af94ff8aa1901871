//! Doubly linked lists of handles, threaded through one table.

use crate::pages::Pages;
use crate::policy::{Handle, MAX_HANDLE};

/// Marks the end of a list.
const NONE: Handle = Handle::MAX;
/// The value of `hotter` for a link outside any list.
const ABSENT: Handle = Handle::MAX - 1;

#[derive(Clone, Copy, Debug)]
struct Link {
    colder: Handle,
    hotter: Handle,
}

/// The links of all lists: eight bytes for each handle.
#[derive(Clone, Debug)]
pub(crate) struct Links(Pages<Link>);

impl Links {
    pub(crate) const fn new() -> Self {
        Self(Pages::new())
    }

    /// Returns whether the handle is in a list.
    pub(crate) fn holds(&self, handle: Handle) -> bool {
        self.0.get(handle as usize).is_some_and(|link| link.hotter != ABSENT)
    }

    /// Returns whether the handle can be put into a list: it is in range and in none.
    /// Makes room for it.
    pub(crate) fn admits(&mut self, handle: Handle) -> bool {
        if handle > MAX_HANDLE {
            return false;
        }
        let vacant = Link { colder: NONE, hotter: ABSENT };
        self.0.entry(handle as usize, vacant).hotter == ABSENT
    }

    /// The next hotter handle of the list that this one is in.
    pub(crate) fn hotter(&self, handle: Handle) -> Option<Handle> {
        let hotter = self.0.get(handle as usize)?.hotter;
        (hotter < ABSENT).then_some(hotter)
    }

    fn link(&mut self, handle: Handle) -> &mut Link {
        self.0.get_mut(handle as usize).expect("handles in lists have links")
    }
}

/// One list, from the coldest to the hottest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    coldest: Handle,
    hottest: Handle,
    len: usize,
}

impl List {
    pub(crate) const fn new() -> Self {
        Self { coldest: NONE, hottest: NONE, len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn coldest(&self) -> Option<Handle> {
        (self.coldest != NONE).then_some(self.coldest)
    }

    /// Takes out a handle that is in this list.
    pub(crate) fn unlink(&mut self, links: &mut Links, handle: Handle) {
        let Link { colder, hotter } = *links.link(handle);
        match colder {
            NONE => self.coldest = hotter,
            colder => links.link(colder).hotter = hotter,
        }
        match hotter {
            NONE => self.hottest = colder,
            hotter => links.link(hotter).colder = colder,
        }
        links.link(handle).hotter = ABSENT;
        self.len -= 1;
    }

    /// Puts a handle that is in no list at the hot end.
    pub(crate) fn link_hottest(&mut self, links: &mut Links, handle: Handle) {
        *links.link(handle) = Link { colder: self.hottest, hotter: NONE };
        match self.hottest {
            NONE => self.coldest = handle,
            hottest => links.link(hottest).hotter = handle,
        }
        self.hottest = handle;
        self.len += 1;
    }

    /// Puts a handle that is in no list next to one that is in this list, on its colder side.
    pub(crate) fn link_below(&mut self, links: &mut Links, handle: Handle, other: Handle) {
        let colder = core::mem::replace(&mut links.link(other).colder, handle);
        *links.link(handle) = Link { colder, hotter: other };
        match colder {
            NONE => self.coldest = handle,
            colder => links.link(colder).hotter = handle,
        }
        self.len += 1;
    }

    /// Moves a handle that is in this list to the hot end.
    pub(crate) fn refresh(&mut self, links: &mut Links, handle: Handle) {
        if self.hottest != handle {
            self.unlink(links, handle);
            self.link_hottest(links, handle);
        }
    }
}
