//! A table that grows by pages, so that no call copies what is there, and a large
//! index costs a page rather than everything before it.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Pages of so many entries.
#[derive(Clone, Debug)]
pub(crate) struct Pages<T, const PAGE: usize = 256>(Vec<Option<Box<[T; PAGE]>>>);

impl<T: Copy, const PAGE: usize> Pages<T, PAGE> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// The entry, if its page is there.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index / PAGE)?.as_ref().map(|page| &page[index % PAGE])
    }

    /// The entry, if its page is there.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.0.get_mut(index / PAGE)?.as_mut().map(|page| &mut page[index % PAGE])
    }

    /// The entry, on a page that is filled with `fill` when it was not there.
    #[inline]
    pub(crate) fn entry(&mut self, index: usize, fill: T) -> &mut T {
        if !matches!(self.0.get(index / PAGE), Some(Some(_))) {
            self.add(index / PAGE, fill);
        }
        self.get_mut(index).expect("its page is there")
    }

    #[cold]
    fn add(&mut self, page: usize, fill: T) {
        if self.0.len() <= page {
            self.0.resize_with(page + 1, || None);
        }
        self.0[page] = Box::<[T]>::try_into(alloc::vec![fill; PAGE].into()).ok();
    }

    /// Gives up the pages behind the first `len` entries.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.0.truncate(len.div_ceil(PAGE));
    }
}

/// A hash table of buckets that grows and shrinks one bucket at a time (linear hashing,
/// Litwin 1980). What is in it are hints, which may be lost or found twice: a bucket
/// that is split is copied, and what is never found in one of the copies ages there.
#[derive(Clone, Debug)]
pub(crate) struct Buckets<T> {
    /// Small ones: buckets are cache lines, and there are many small tables of them.
    pages: Pages<T, 16>,
    len: usize,
    empty: T,
}

impl<T: Copy> Buckets<T> {
    pub(crate) const fn new(empty: T) -> Self {
        Self { pages: Pages::new(), len: 0, empty }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// One bucket more when there are fewer than `target`, one less when there are
    /// more than twice as many.
    pub(crate) fn step_towards(&mut self, target: usize) {
        let target = target.max(1);
        if self.len < target {
            let new = self.len;
            self.len += 1;
            if new > 0 {
                let split = new - (1 << new.ilog2());
                let copy = self.pages.get(split).copied().unwrap_or(self.empty);
                *self.pages.entry(new, self.empty) = copy;
            }
        } else if self.len > 2 * target {
            self.len -= 1;
            self.pages.truncate(self.len);
        }
    }

    /// The bucket for a mark, when there is any.
    pub(crate) fn get(&self, mark: u32) -> Option<&T> {
        self.pages.get(self.index(mark)?)
    }

    /// The bucket for a mark, when there is any.
    pub(crate) fn get_mut(&mut self, mark: u32) -> Option<&mut T> {
        let index = self.index(mark)?;
        Some(self.pages.entry(index, self.empty))
    }

    /// A bucket by its number.
    pub(crate) fn nth_mut(&mut self, index: usize) -> Option<&mut T> {
        if index < self.len { self.pages.get_mut(index) } else { None }
    }

    fn index(&self, mark: u32) -> Option<usize> {
        let whole = 1 << self.len.checked_ilog2()?;
        let index = mark as usize & (2 * whole - 1);
        Some(if index < self.len { index } else { index & (whole - 1) })
    }
}
