//! The promises of every strategy, and the purpose of each.

mod conformance;
mod order;
mod spread;

use std::sync::atomic::{AtomicUsize, Ordering};

use mc_alloc::strategy::{
    DynAllocationStrategy, FreeRatioFirst, LeastFragmented, LocalFirst, RandomStrategy, Request,
    RoundRobin, Segments,
};

/// A segment as the tests describe it.
#[derive(Clone, Debug)]
struct Described {
    capacity: u64,
    available: u64,
    largest_free: u64,
    host: u64,
}

/// Answers from a list, and counts the questions.
#[derive(Debug, Default)]
struct Cluster {
    segments: Vec<Described>,
    near: Vec<Vec<usize>>,
    questions: AtomicUsize,
}

impl Cluster {
    fn asked(&self, segment: usize) -> &Described {
        self.questions.fetch_add(1, Ordering::Relaxed);
        &self.segments[segment]
    }

    /// Questions since the last call.
    fn questions(&self) -> usize {
        self.questions.swap(0, Ordering::Relaxed)
    }
}

impl Segments for Cluster {
    fn capacity(&self, segment: usize) -> u64 {
        self.asked(segment).capacity
    }

    fn available(&self, segment: usize) -> u64 {
        self.asked(segment).available
    }

    fn largest_free(&self, segment: usize) -> u64 {
        self.asked(segment).largest_free
    }

    fn host(&self, segment: usize) -> u64 {
        self.asked(segment).host
    }

    fn near(&self, distance: u32) -> Option<&[usize]> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        self.near.get(distance as usize).map(Vec::as_slice)
    }
}

/// Segments of 1000 bytes with this many free, each on its own host.
fn with_free(free: impl IntoIterator<Item = u64>) -> Cluster {
    let segments = (0..).zip(free).map(|(host, available)| Described {
        capacity: 1000,
        available,
        largest_free: available,
        host,
    });
    Cluster { segments: segments.collect(), ..Cluster::default() }
}

fn order(strategy: &dyn DynAllocationStrategy, request: Request<'_>) -> Vec<usize> {
    strategy.candidates_boxed(request).collect()
}

/// Every strategy, with its name.
fn all() -> [(&'static str, Box<dyn DynAllocationStrategy>); 5] {
    [
        ("random", Box::new(RandomStrategy::default())),
        ("round robin", Box::new(RoundRobin::default())),
        ("free ratio first", Box::new(FreeRatioFirst::default())),
        ("least fragmented", Box::new(LeastFragmented::default())),
        ("local first", Box::new(LocalFirst::default())),
    ]
}
