//! The connections there are, and which of them makes room for another.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::{AbortHandle, Id};

/// One in this many places is for connections that have asked nothing yet: they do not make
/// room for each other alone.
const SILENT_PART: usize = 4;

/// Every connection, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Crowd(Vec<Open>);

#[derive(Debug)]
struct Open {
    source: IpAddr,
    /// Whether it has asked for something.
    asked: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Crowd {
    pub(crate) fn add(&mut self, source: IpAddr, asked: Arc<AtomicBool>, task: AbortHandle) {
        self.0.push(Open { source: source.to_canonical(), asked, task });
    }

    pub(crate) fn remove(&mut self, task: Id) {
        self.0.retain(|open| open.task.id() != task);
    }

    /// Ends connections until there are fewer than `max`: of the address that has most the
    /// oldest that has asked nothing, unless few have asked nothing.
    pub(crate) fn make_room(&mut self, max: usize) {
        while self.0.len() >= max.max(1) {
            let mut of_source: HashMap<IpAddr, usize> = HashMap::new();
            for open in &self.0 {
                *of_source.entry(open.source).or_default() += 1;
            }
            let asked = |open: &Open| open.asked.load(Ordering::Relaxed);
            let silent = self.0.iter().filter(|open| !asked(open)).count();
            let silent_first = silent > max / SILENT_PART;
            let goes = self.0.iter().enumerate().min_by_key(|(at, open)| {
                let many = usize::MAX - of_source[&open.source];
                (many, asked(open) == silent_first, *at)
            });
            let Some((at, _)) = goes else { return };
            self.0.remove(at).task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> AbortHandle {
        tokio::spawn(std::future::pending::<()>()).abort_handle()
    }

    #[tokio::test]
    async fn the_oldest_silent_one_of_the_address_with_most_makes_room() {
        let mut crowd = Crowd::default();
        let mut add = |last: u8, asked: bool| {
            let task = task();
            let source = IpAddr::from([10, 0, 0, last]);
            crowd.add(source, Arc::new(AtomicBool::new(asked)), task.clone());
            task.id()
        };
        let ids = [
            add(1, false),
            add(2, true),
            add(2, false),
            add(2, false),
            add(2, false),
            add(3, true),
        ];
        let mut left = |max: usize| -> Vec<Id> {
            crowd.make_room(max);
            crowd.0.iter().map(|open| open.task.id()).collect()
        };
        assert_eq!(left(6), [ids[0], ids[1], ids[3], ids[4], ids[5]]);
        assert_eq!(left(5), [ids[0], ids[1], ids[4], ids[5]]);
        assert_eq!(left(4), [ids[0], ids[1], ids[5]]);
    }
}
