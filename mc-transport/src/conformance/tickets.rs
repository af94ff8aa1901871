//! Regions that ask for tickets, and operations that run out of time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_environment::BootTime;
use mc_memory::Access;
use mc_ticket::{ClockEpoch, Rights, Ticket, TicketKey};
use mc_types::{Extent, Time};

use super::Pair;
use super::rig::{Rig, allocate, endpoint};
use crate::error::{RegisterError, TransferError};
use crate::operation::{Operation, RemoteSpan};
use crate::region::{MasterClock, Tickets};

const EPOCH: ClockEpoch = ClockEpoch::new(7);
const LEN: u64 = 1 << 20;

/// A region that asks for tickets, by a master's clock that stands at 1 s.
struct Ticketed {
    rig: Rig,
    key: TicketKey,
    clock: Arc<MasterClock>,
}

impl Ticketed {
    /// `None` for a transport that does not verify tickets.
    async fn new(pair: Pair) -> Option<Self> {
        let (key, clock) = (TicketKey::from_bytes([9; 16]), Arc::new(MasterClock::new()));
        clock.observe(BootTime::now(), EPOCH, Time::from_millis(1_000));
        let memory = pair.owner.allocate(LEN as usize).expect("the suite needs little memory");
        let tickets = Tickets { key, clock: Arc::clone(&clock) };
        let region = match pair.owner.register_with_tickets(&memory, Access::ReadWrite, tickets) {
            Err(RegisterError::NoTickets) => return None,
            region => region.expect("memory can be registered"),
        };
        let link = pair.peer.connect(endpoint(&pair)).await.expect("the owner can be reached");
        let verified = link.capabilities().tickets;
        verified.then(|| Self { rig: Rig { pair, region, link }, key, clock })
    }

    fn ticket(&self, offset: u64, len: u64, rights: Rights, until: u64) -> Ticket {
        let (region, until) = (self.rig.region.key(), Time::from_millis(until));
        let extent = Extent::new(offset, len).expect("the suite's extents do not overflow");
        self.key.sign(EPOCH, region, extent, rights, until)
    }

    fn span(&self, offset: u64, len: u64, ticket: Option<Ticket>) -> RemoteSpan {
        self.rig.span(offset, len).with_ticket(ticket)
    }

    async fn read(
        &self,
        offset: u64,
        len: u64,
        ticket: Option<Ticket>,
    ) -> Result<(), TransferError> {
        let target = allocate(len as usize).whole();
        self.rig.one(Operation::read(self.span(offset, len, ticket), target)).await
    }

    async fn write(
        &self,
        offset: u64,
        len: u64,
        ticket: Option<Ticket>,
    ) -> Result<(), TransferError> {
        let bytes = Bytes::from(vec![0xee; len as usize]);
        self.rig.one(Operation::write(bytes, self.span(offset, len, ticket))).await
    }
}

pub(super) async fn a_ticket_opens_its_extent_in_its_direction(pair: Pair) {
    let Some(ticketed) = Ticketed::new(pair).await else { return };
    let read = Some(ticketed.ticket(100, 70_000, Rights::Read, 60_000));
    let write = Some(ticketed.ticket(100, 70_000, Rights::Write, 60_000));
    for (offset, len) in [(100, 70_000), (100, 1), (70_099, 1), (40_000, 20_000), (100, 0)] {
        ticketed.read(offset, len, read).await.expect("it lies in the ticket's extent");
        ticketed.write(offset, len, write).await.expect("it lies in the ticket's extent");
    }
    for (offset, len) in [(99, 2), (0, 100), (70_099, 2), (70_100, 1), (0, LEN)] {
        for outcome in
            [ticketed.read(offset, len, read).await, ticketed.write(offset, len, write).await]
        {
            let refused = matches!(outcome, Err(TransferError::OutOfBounds { .. }));
            assert!(refused, "{len} bytes at {offset}: {outcome:?}");
        }
    }
    let forged = read.map(|ticket| Ticket { until: Time::from_millis(70_000), ..ticket });
    for outcome in [
        ticketed.read(100, 1, write).await,
        ticketed.write(100, 1, read).await,
        ticketed.read(100, 1, forged).await,
        ticketed.read(100, 1, None).await,
        ticketed.write(100, 70_000, None).await,
    ] {
        assert!(matches!(outcome, Err(TransferError::KeyRefused)), "{outcome:?}");
    }
    // Nothing of what was refused spoils the link.
    ticketed.write(100, 70_000, write).await.expect("the ticket is still good");
    let memory = ticketed.rig.region.memory().whole().to_vec();
    assert!(memory[..100].iter().all(|&byte| byte == 0), "before the extent");
    assert!(memory[70_100..].iter().all(|&byte| byte == 0), "behind the extent");
}

pub(super) async fn a_ticket_ends_with_its_time(pair: Pair) {
    let Some(ticketed) = Ticketed::new(pair).await else { return };
    let over = |rights| Some(ticketed.ticket(0, LEN, rights, 1_000));
    for outcome in [
        ticketed.read(0, 10, over(Rights::Read)).await,
        ticketed.write(0, 10, over(Rights::Write)).await,
        ticketed.write(0, LEN, over(Rights::Write)).await,
    ] {
        assert!(matches!(outcome, Err(TransferError::GrantEnded)), "{outcome:?}");
    }
    let short = ticketed.ticket(0, LEN, Rights::Write, 1_300);
    let mut last_good = None;
    loop {
        match ticketed.write(0, 4096, Some(short)).await {
            Ok(()) => last_good = Some(BootTime::now()),
            Err(TransferError::GrantEnded) => break,
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(last_good.is_some(), "it was good at first");
    let memory = ticketed.rig.region.memory().whole().to_vec();
    assert!(memory[4096..].iter().all(|&byte| byte == 0), "what was refused was not written");
}

pub(super) async fn what_a_former_master_granted_is_over_after_an_interruption(pair: Pair) {
    let Some(ticketed) = Ticketed::new(pair).await else { return };
    let Ticketed { rig, clock, .. } = &ticketed;
    let ticket = Some(ticketed.ticket(0, LEN, Rights::Write, 60_000));
    let bytes = Bytes::from(vec![0xee; LEN as usize]);
    let writes = (0..64).map(|_| Operation::write(bytes.clone(), ticketed.span(0, LEN, ticket)));
    let mut writes = rig.link.submit(writes.collect());
    let (_, first) = writes.next().await.expect("there are many");
    first.expect("the ticket is good");
    clock.observe(BootTime::now(), ClockEpoch::new(8), Time::from_millis(1));
    rig.region.interrupt().await;
    let memory = rig.region.memory();
    let next = vec![0x11; LEN as usize];
    if !memory.was_lent() {
        memory.whole().copy_from(0, &next).expect("as long as the bytes");
    }
    while let Some((_, outcome)) = writes.next().await {
        let is_expected = |error: &TransferError| {
            error.is_retryable()
                || matches!(error, TransferError::KeyRefused | TransferError::GrantEnded)
        };
        assert!(outcome.as_ref().err().is_none_or(is_expected), "{outcome:?}");
    }
    if !memory.was_lent() {
        assert!(memory.whole().to_vec() == next, "an old write reached the memory's next life");
    }
    let refused = ticketed.write(0, 1, ticket).await;
    assert!(matches!(refused, Err(TransferError::KeyRefused)), "{refused:?}");
}

pub(super) async fn a_plain_key_needs_no_ticket(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    let key = TicketKey::from_bytes([1; 16]);
    let extent = Extent::new(0, 1).expect("it does not overflow");
    let foreign = key.sign(EPOCH, rig.region.key(), extent, Rights::Read, Time::ORIGIN);
    let span = rig.span(0, 4096).with_ticket(Some(foreign));
    rig.one(Operation::read(span, allocate(4096).whole())).await.expect("the key opens it");
    rig.still_works().await;
}

pub(super) async fn operations_end_with_the_time_of_this_side(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    let over = rig.span(0, 4096).until(BootTime::now());
    let write = Operation::write(Bytes::from(vec![1; 4096]), over);
    for operation in [write, Operation::read(over, allocate(4096).whole())] {
        let outcome = rig.one(operation).await;
        assert!(matches!(outcome, Err(TransferError::GrantEnded)), "{outcome:?}");
    }
    let memory = rig.region.memory().whole().to_vec();
    assert!(memory.iter().all(|&byte| byte == 0), "nothing was written");
    let in_time = rig.span(0, 4096).until(BootTime::now() + Duration::from_secs(60));
    rig.one(Operation::read(in_time, allocate(4096).whole())).await.expect("there is time");
}
