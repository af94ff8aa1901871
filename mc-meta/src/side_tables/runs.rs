//! Runs of puts: which objects may share a file.
//!
//! Puts of one client that begin one soon after the other are of one [run](Generation::run), so that the client can
//! write their objects to the shared tier as one file, and readers know its name. What is not to share a file is
//! of no run.

use core::time::Duration;
use std::collections::HashMap;

use mc_types::{ByteSize, ClientId, Generation, Time};

use crate::vocabulary::lock::{Mutex, rank};

/// Bytes of a run's objects: a file that is longer is written and read no faster.
const BYTES: ByteSize = ByteSize::mib(64);

/// The longest object that shares a file.
const LONGEST: ByteSize = ByteSize::mib(8);

/// Most objects of a file.
const PUTS: u32 = 4096;

/// How long puts of one run may begin: the first of them wait so long for their file.
const TIME: Duration = Duration::from_secs(1);

/// Clients from which on runs that are over are looked for.
const FEW: usize = 1024;

/// The runs that puts may join.
#[derive(Debug, Default)]
pub(crate) struct Runs(Mutex<Open, { rank::RUNS }>);

#[derive(Debug, Default)]
struct Open {
    runs: HashMap<ClientId, OpenRun>,
    /// With so many, those that are over are forgotten.
    many: usize,
    /// The run that began last.
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct OpenRun {
    number: u64,
    puts: u32,
    bytes: u64,
    until: Time,
}

impl OpenRun {
    /// Takes a put of so many bytes in, if there is room for it.
    fn join(&mut self, now: Time, window: u64, len: u64) -> bool {
        let bytes = self.bytes.saturating_add(len);
        let has_room = window == window_of(self.number)
            && self.puts < PUTS
            && bytes <= BYTES.as_u64()
            && now < self.until;
        if has_room {
            (self.puts, self.bytes) = (self.puts + 1, bytes);
        }
        has_room
    }
}

/// Returns the number that runs with different marks share.
const fn window_of(run: u64) -> u64 {
    run / Generation::STEP
}

impl Open {
    /// The number of a run that begins; `None` when all marks are given.
    fn begin(&mut self, window: u64) -> Option<u64> {
        self.last = match window_of(self.last) == window {
            // Behind the last mark the numbers are those of the next window.
            true => Some(self.last + 1).filter(|next| window_of(*next) == window)?,
            false => window * Generation::STEP + 1,
        };
        Some(self.last)
    }
}

impl Runs {
    /// The generation of a put whose object gets a file. `draw` draws one of no run that comes after all others.
    pub(crate) fn next(
        &self,
        now: Time,
        client: ClientId,
        len: u64,
        draw: impl Fn() -> Generation,
    ) -> Generation {
        if len > LONGEST.as_u64() {
            return draw();
        }
        let mut open = self.0.lock();
        let drawn = draw();
        let place = drawn.place_in_run();
        // That of the first run that it could be of.
        let window = window_of(Generation::new(drawn.as_u64() | 1).run().unwrap_or_default());
        if let Some(run) = open.runs.get_mut(&client)
            && run.join(now, window, len)
        {
            return Generation::in_run(run.number, place);
        }
        // Until there are new marks, it shares its file with nothing.
        let Some(number) = open.begin(window) else { return drawn };
        if open.runs.len() >= open.many.max(FEW) {
            open.runs.retain(|_, run| now < run.until);
            open.many = open.runs.len() * 2;
        }
        open.runs.insert(client, OpenRun { number, puts: 1, bytes: len, until: now + TIME });
        Generation::in_run(number, place)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;

    use super::*;

    /// Draws one after the other, from some puts before the marks are given anew.
    struct Puts(Runs, Cell<u64>);

    impl Puts {
        fn new(before: u32) -> Self {
            let last = Generation::in_run(7 * Generation::STEP, Generation::PLACES - 1 - before);
            Self(Runs::default(), Cell::new(last.as_u64()))
        }

        /// The window and the mark of a put.
        fn next(&self, at: u64, client: u64, len: u64) -> Option<(u64, u64)> {
            let before = self.1.get();
            let draw = || {
                self.1.set(self.1.get() + Generation::STEP);
                Generation::new(self.1.get())
            };
            let client = ClientId::from_u128(client.into());
            let generation = self.0.next(Time::from_millis(at), client, len, draw);
            assert!(generation.as_u64() > before, "they ascend");
            let run = generation.run()?;
            Some((window_of(run), run % Generation::STEP))
        }
    }

    #[test]
    fn puts_of_one_client_share_a_run_until_it_is_full_or_over() {
        let puts = Puts::new(50);
        let (one, other) = (1, 2);
        assert_eq!(puts.next(0, one, 1000), Some((7, 1)));
        assert_eq!(puts.next(1, other, 1000), Some((7, 2)));
        assert_eq!([2, 999].map(|at| puts.next(at, one, 1000)), [Some((7, 1)); 2]);
        // A long object has a file of its own, and the time is over.
        assert_eq!(puts.next(999, one, LONGEST.as_u64() + 1), None);
        assert_eq!(puts.next(1000, one, 1), Some((7, 3)));
        // As many bytes as there may be.
        (1..8).for_each(|_| assert_eq!(puts.next(1001, one, LONGEST.as_u64()), Some((7, 3))));
        assert_eq!(puts.next(1001, one, LONGEST.as_u64()), Some((7, 4)));
        // Marks are given anew.
        (14..50).for_each(|_| assert_eq!(puts.next(1002, one, 1), Some((7, 4))));
        // As many puts as there may be.
        (0..PUTS).for_each(|_| assert_eq!(puts.next(1003, one, 1), Some((8, 1))));
        assert_eq!(puts.next(1003, one, 1), Some((8, 2)));
    }

    #[test]
    fn without_marks_objects_share_no_files_until_there_are_new_ones() {
        let puts = Puts::new(Generation::PLACES - 1);
        // Each begins a run: there are more puts than marks before they are given anew.
        let many = 200_000_u64;
        let runs: Vec<_> = (0..many).map(|client| puts.next(0, client, 1)).collect();
        let marks = Generation::STEP as usize - 1;
        assert!(runs[..marks].iter().all(Option::is_some));
        assert!(runs[marks..].iter().all(Option::is_none));
        let distinct: BTreeSet<_> = runs.iter().flatten().collect();
        assert_eq!(distinct.len(), marks, "no two clients have one run");
        puts.1.set(Generation::in_run(7 * Generation::STEP, Generation::PLACES - 1).as_u64());
        assert_eq!(puts.next(0, many, 1), Some((8, 1)));
    }

    #[test]
    fn runs_of_clients_that_have_gone_are_forgotten() {
        let puts = Puts::new(0);
        for client in 0..20_000 {
            puts.next(client * 100, client, 1);
            assert!(puts.0.0.lock().runs.len() <= FEW);
        }
    }
}
