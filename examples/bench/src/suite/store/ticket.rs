//! The cost of verifying a ticket.

use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use mc_ticket::{ClockEpoch, Rights, TicketKey};
use mc_transport::{Access, BootTime, MasterClock, Memory, RegionTable, Tickets};
use mc_types::{Extent, Time};

use super::MIB;
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::scale::Scale;

/// Prints by how much longer an operation takes to be let in by its ticket than by a plain
/// key; the least of several rounds, which take turns.
pub(super) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let (epoch, key) = (ClockEpoch::new(7), TicketKey::from_bytes([7; 16]));
    let clock = Arc::new(MasterClock::new());
    clock.observe(BootTime::now(), epoch, Time::from_millis(1_000));
    let (memory, table) = (Memory::allocate(MIB)?, RegionTable::new());
    let plain = table.register(&memory, Access::ReadWrite)?;
    let tickets = Tickets { key, clock };
    let ticketed = table.register_with_tickets(&memory, Access::ReadWrite, tickets)?;
    let granted = Extent::new(4096, 65_536).expect("it does not overflow");
    let until = Time::from_millis(1 << 40);
    let ticket = key.sign(epoch, ticketed.key(), granted, Rights::Write, until);
    let calls = scale.pick(1_000_000, 300_000, 50_000);
    let mut best = [f64::INFINITY; 2];
    for _ in 0..15 {
        for (at, (region, ticket)) in
            [(&plain, None), (&ticketed, Some(&ticket))].into_iter().enumerate()
        {
            let begun = Instant::now();
            for _ in 0..calls {
                let admitted = table.admit(region.key(), 8192, 4096, Access::Write, ticket);
                let admitted = black_box(admitted);
                drop(admitted.map_err(|error| BenchError::wrong("admit", error.to_string()))?);
            }
            let each = begun.elapsed().as_secs_f64() * 1e9 / f64::from(calls);
            best[at] = best[at].min(each);
        }
    }
    report.add(Figure::new("ticket_ns", best[1] - best[0], "ns"))
}
