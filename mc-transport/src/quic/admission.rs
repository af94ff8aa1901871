//! Which connections a server takes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Places for connections, in all and for each address.
///
/// Above half of either, a client has to show that its address is its own: who makes
/// addresses up cannot take the places of those that have them.
pub(super) struct Admission {
    max: usize,
    max_per_address: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// What becomes of a connection.
pub(super) enum Verdict {
    /// It is taken.
    Admitted(Place),
    /// Its address has to be shown to be its own first.
    Unproven,
    /// There are too many.
    Full,
}

/// A connection's place, until it is dropped.
pub(super) struct Place {
    admission: Arc<Admission>,
    address: IpAddr,
}

impl Admission {
    pub(super) fn new(max: usize, max_per_address: usize) -> Self {
        Self { max, max_per_address, taken: Mutex::default() }
    }

    /// Looks for a place for a connection from `address`, which is `proven` to be the
    /// client's own or not.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr, proven: bool) -> Verdict {
        // One host has one count, whichever way it is written.
        let address = address.to_canonical();
        let mut taken = self.taken.lock();
        let of_address = taken.by_address.get(&address).copied().unwrap_or(0);
        if taken.all >= self.max || of_address >= self.max_per_address {
            return Verdict::Full;
        }
        if !proven && (taken.all >= self.max / 2 || of_address >= self.max_per_address / 2) {
            return Verdict::Unproven;
        }
        taken.all += 1;
        taken.by_address.insert(address, of_address + 1);
        Verdict::Admitted(Place { admission: Arc::clone(self), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.admission.taken.lock();
        taken.all -= 1;
        if let Some(of_address) = taken.by_address.get_mut(&self.address) {
            *of_address -= 1;
            if *of_address == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(verdict: Verdict) -> Place {
        match verdict {
            Verdict::Admitted(place) => place,
            Verdict::Unproven => panic!("its address is to be shown"),
            Verdict::Full => panic!("there is no place"),
        }
    }

    #[test]
    fn places_are_counted_in_all_and_by_address() {
        let admission = Arc::new(Admission::new(6, 4));
        let [near, far] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        let first = admitted(admission.admit(near, false));
        let second = admitted(admission.admit(mapped, false));
        assert!(matches!(admission.admit(near, false), Verdict::Unproven), "half of its own");
        let third = admitted(admission.admit(near, true));
        assert!(matches!(admission.admit(far, false), Verdict::Unproven), "half of all");
        let fourth = admitted(admission.admit(near, true));
        assert!(matches!(admission.admit(near, true), Verdict::Full), "all of its own");
        let others = [admitted(admission.admit(far, true)), admitted(admission.admit(far, true))];
        assert!(matches!(admission.admit(far, true), Verdict::Full), "all");
        drop((first, second, third, fourth, others));
        let taken = admission.taken.lock();
        assert!(taken.all == 0 && taken.by_address.is_empty());
    }
}
