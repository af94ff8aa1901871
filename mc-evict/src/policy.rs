//! The contract between a cache and the order in which it gives things up.

/// A compact name for one cached thing, chosen by the cache: an index into its
/// slab. Policies keep tables as long as the largest handle they have seen, so
/// handles should be reused.
pub type Handle = u32;

/// What the cache says of a victim that the policy offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Taken. The policy forgets it.
    Evict,
    /// Protected for now. The policy forgets it, and the cache
    /// [`readmit`](EvictionPolicy::readmit)s it when its protection ends. So a
    /// protected thing is looked at once for each time it was protected, not
    /// once for each eviction, and the cost of eviction does not grow with the
    /// number of things that are being read.
    SetAside,
    /// Not taken and nothing more is wanted. The policy keeps it where it was.
    Stop,
}

/// An order of eviction.
///
/// All methods cost O(1), [`evict`](Self::evict) O(1) for each offer.
/// A handle that the policy holds is inserted again, or one that it does not
/// hold is accessed or removed, without effect beyond what each method says.
pub trait EvictionPolicy {
    /// A new thing. Known handles are treated as accessed.
    fn insert(&mut self, handle: Handle);

    /// The thing was used. Without effect when the policy does not hold it.
    fn access(&mut self, handle: Handle);

    /// The thing is gone. Without effect when the policy does not hold it.
    fn remove(&mut self, handle: Handle);

    /// A thing set aside is back: it had its turn as a victim, so it is among
    /// the next to be offered unless it is accessed.
    fn readmit(&mut self, handle: Handle);

    /// Offers victims, the least worth keeping first, until `verdict` says
    /// [`Verdict::Stop`] or nothing is left.
    fn evict(&mut self, verdict: &mut dyn FnMut(Handle) -> Verdict);

    /// The thing that would be offered first.
    fn coldest(&self) -> Option<Handle>;

    /// Things held.
    fn len(&self) -> usize;

    /// Whether none is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
