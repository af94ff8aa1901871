//! Pages of the list of objects, for several subscribers.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The most bytes of pages that are kept for other subscribers.
const MAX_BYTES: usize = 32 << 20;
/// The most pages that are kept: so many are looked through for each page asked for.
const MAX_PAGES: usize = 4096;
/// How long a page is kept.
const MAX_AGE: Duration = Duration::from_secs(10);
/// Memory of a page beside its bytes.
const PAGE_SIZE: usize = 128;

/// A page as it is sent.
#[derive(Clone, Debug)]
pub(crate) struct MadePage {
    /// The number from which on messages may change the page.
    pub(crate) number: u64,
    pub(crate) payload: Bytes,
    /// The next page's cursor.
    pub(crate) next: Bytes,
}

/// The latest pages. Subscribers that list together, as after a failover, take the pages that were
/// made for the first of them.
#[derive(Debug, Default)]
pub(crate) struct RecentPages {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// In the order in which they were made.
    pages: VecDeque<KeptPage>,
    bytes: usize,
    /// Whether a task waits to drop those that are too old.
    expires: bool,
}

#[derive(Debug)]
struct KeptPage {
    cursor: Bytes,
    page: MadePage,
    made: Instant,
}

impl KeptPage {
    fn size(&self) -> usize {
        PAGE_SIZE + self.cursor.len() + self.page.payload.len() + self.page.next.len()
    }
}

impl RecentPages {
    /// The page that begins at the cursor, if one is kept with this number or a higher one.
    pub(crate) fn find(&self, cursor: &[u8], number: u64) -> Option<MadePage> {
        let kept = self.kept.lock();
        // The latest of them: the pages behind it are kept for longest.
        let mut pages = kept.pages.iter().rev();
        let found = pages.find(|kept| kept.page.number >= number && kept.cursor == cursor)?;
        Some(found.page.clone())
    }

    /// Keeps a page for a while.
    pub(crate) fn keep(self: &Arc<Self>, cursor: &[u8], page: &MadePage) {
        let made = Instant::now();
        let page = KeptPage { cursor: Bytes::copy_from_slice(cursor), page: page.clone(), made };
        let mut kept = self.kept.lock();
        kept.bytes += page.size();
        kept.pages.push_back(page);
        while (kept.bytes > MAX_BYTES || kept.pages.len() > MAX_PAGES) && kept.drop_oldest() {}
        if !std::mem::replace(&mut kept.expires, true) {
            tokio::spawn(Self::expire(Arc::downgrade(self)));
        }
    }

    fn expire_at(&self, now: Instant) -> Option<Instant> {
        self.kept.lock().expire(now)
    }

    async fn expire(pages: Weak<Self>) {
        while let Some(next) = pages.upgrade().and_then(|pages| pages.expire_at(Instant::now())) {
            tokio::time::sleep_until(next).await;
        }
    }
}

impl Kept {
    /// Drops what is too old; when the next page is.
    fn expire(&mut self, now: Instant) -> Option<Instant> {
        while let Some(oldest) = self.pages.front() {
            let end = oldest.made + MAX_AGE;
            if end > now {
                return Some(end);
            }
            self.drop_oldest();
        }
        self.expires = false;
        None
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.pages.pop_front() else { return false };
        self.bytes -= oldest.size();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u64, len: usize) -> MadePage {
        MadePage { number, payload: vec![7; len].into(), next: Bytes::from_static(b"next") }
    }

    #[tokio::test]
    async fn pages_are_kept_within_bounds() {
        let pages = Arc::new(RecentPages::default());
        pages.keep(b"", &page(5, 100));
        pages.keep(b"next", &page(6, 100));
        assert_eq!(pages.find(b"", 5).unwrap().number, 5);
        assert!(pages.find(b"", 6).is_none(), "it lacks message 5");
        assert!(pages.find(b"other", 0).is_none());
        pages.keep(b"", &page(9, MAX_BYTES - 2 * (PAGE_SIZE + 104)));
        assert_eq!(pages.find(b"", 0).unwrap().number, 9, "the oldest gave way");
        for number in 10..10 + 2 * MAX_PAGES as u64 {
            pages.keep(b"many", &page(number, 1));
        }
        assert_eq!(pages.kept.lock().pages.len(), MAX_PAGES);
        pages.keep(b"", &page(9, 1));
        let now = Instant::now();
        assert!(pages.expire_at(now).is_some_and(|next| next > now));
        assert!(pages.find(b"", 0).is_some());
        assert_eq!(pages.expire_at(now + MAX_AGE), None);
        let kept = pages.kept.lock();
        assert_eq!((kept.pages.len(), kept.bytes, kept.expires), (0, 0, false));
    }
}
