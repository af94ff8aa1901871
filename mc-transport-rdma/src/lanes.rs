//! Sets up the queue pairs of a link, tries them, and replaces those that failed.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use super::control::Control;
use super::flow::{Flight, Flow, LaneSpec};
use super::pairing::PortPair;
use super::ports::MAX_GIDS;
use super::shared::Shared;
use super::verbs::{CompletionQueue, Done, Path, PathAddress, QueuePair, SendQueue, VerbsError};
use super::wire::{Answer, LaneAnswer, LaneOffer, MAX_LANES, Request};

/// Bytes that a write may carry inside of its request, where the device allows it.
const INLINE: u32 = 220;

/// Pieces of local memory of a request.
const PIECES: u32 = 16;

/// The pause between two looks for the completion of a probe.
const PROBE_EVERY: Duration = Duration::from_micros(200);

/// The queue pairs of a link, before the peer knows of them.
#[derive(Default)]
struct Prepared {
    specs: Vec<LaneSpec>,
    queues: Vec<(Arc<CompletionQueue>, u64)>,
    made: Vec<QueuePair>,
    offers: Vec<LaneOffer>,
}

/// The queue pairs of a link, each with what became of the first request over it.
pub(super) struct Lanes {
    specs: Vec<LaneSpec>,
    queues: Vec<(Arc<CompletionQueue>, u64)>,
    tried: Vec<io::Result<SendQueue<Flight>>>,
}

/// Why there are no queue pairs.
pub(super) enum SetUpError {
    /// Nothing came through. Other addresses may do.
    NotCarried(io::Error),
    /// The peer, or a device, is lost.
    Lost(io::Error),
    /// The peer's answer does not fit the question.
    Misunderstood,
}

/// The context in which a queue pair of a link is replaced.
pub(super) struct Recovery {
    pub(super) flow: Arc<Flow>,
    pub(super) control: Arc<Control>,
    /// The rank of the addresses that carried the link's first requests.
    pub(super) rank: usize,
}

impl Shared {
    /// Returns how many of the ranked addresses can be tried.
    pub(super) fn ranks(&self, pairs: &[PortPair]) -> usize {
        let most =
            |pair: &PortPair| self.ports.ports[pair.port].gids.len().max(pair.peer.gids.len());
        pairs.iter().map(most).max().unwrap_or(0).clamp(1, MAX_GIDS)
    }

    /// Makes queue pairs between the ports of each pair, from the addresses of this rank, and
    /// sends something over each.
    ///
    /// # Errors
    /// [`SetUpError`] when none of them carries anything.
    pub(super) async fn set_up(
        self: &Arc<Self>,
        control: &Control,
        pairs: &Arc<[PortPair]>,
        rank: usize,
    ) -> Result<Lanes, SetUpError> {
        let (shared, chosen) = (Arc::clone(self), Arc::clone(pairs));
        let prepared = blocking(move || shared.prepare(&chosen, rank)).await;
        let prepared = prepared.map_err(|error| SetUpError::Lost(io::Error::other(error)))?;
        let asked = control.ask(&Request::Lanes(prepared.offers.clone())).await;
        let answers = match asked.map_err(|error| SetUpError::Lost(io::Error::other(error)))? {
            Answer::Lanes(answers) if answers.len() == prepared.specs.len() => answers,
            _ => return Err(SetUpError::Misunderstood),
        };
        let (shared, chosen) = (Arc::clone(self), Arc::clone(pairs));
        let mut lanes = blocking(move || shared.try_lanes(prepared, &chosen, &answers)).await;
        if lanes.tried.iter().all(Result::is_err) {
            let none = || io::Error::other("there are no queue pairs");
            let error = lanes.tried.drain(..).find_map(Result::err).unwrap_or_else(none);
            return Err(SetUpError::NotCarried(error));
        }
        Ok(lanes)
    }

    /// Has the queue pairs carry requests. Those to be replaced go to `recoveries`.
    pub(super) fn flow(&self, lanes: Lanes, recoveries: UnboundedSender<usize>) -> Arc<Flow> {
        let Lanes { specs, queues, tried } = lanes;
        let flow = Flow::new(
            Arc::clone(&self.ports),
            Arc::clone(&self.local),
            Arc::clone(&self.poller),
            queues,
            specs,
            self.config.stall_timeout,
            recoveries,
        );
        for (lane, tried) in tried.into_iter().enumerate() {
            match tried {
                Ok(queue) => flow.install(lane, queue),
                Err(cause) => flow.give_up(lane, cause),
            }
        }
        flow
    }

    /// Pieces of local memory that a request may have.
    pub(super) fn pieces(&self) -> usize {
        let devices = self.ports.devices.iter();
        let least = devices.map(|open| open.device.limits().pieces).min();
        least.unwrap_or(1).min(PIECES) as usize
    }

    /// Requests that a queue pair of a device may have under way.
    fn depth(&self, device: usize) -> u32 {
        self.config.queue_depth.clamp(2, self.ports.devices[device].device.limits().queue.max(2))
    }

    /// Makes completion queues and queue pairs.
    fn prepare(&self, pairs: &[PortPair], rank: usize) -> Result<Prepared, VerbsError> {
        let of_pair = self.config.queue_pairs_per_path.get().clamp(1, MAX_LANES / pairs.len());
        let mut prepared = Prepared::default();
        // The devices of the completion queues, in their order.
        let mut devices: Vec<usize> = Vec::new();
        for (nth, pair) in pairs.iter().enumerate() {
            let device = self.ports.ports[pair.port].device;
            let known = devices.iter().position(|&known| known == device);
            let queue = known.unwrap_or(devices.len());
            if known.is_none() {
                let is_on = |it: &&PortPair| self.ports.ports[it.port].device == device;
                let lanes = pairs.iter().filter(is_on).count() * of_pair;
                prepared.queues.push(self.completion_queue(device, lanes)?);
                devices.push(device);
            }
            for _ in 0..of_pair {
                let peer_device = usize::from(pair.peer.device);
                let lane = prepared.specs.len();
                let spec = LaneSpec { pair: nth, port: pair.port, device, queue, peer_device };
                prepared.specs.push(spec);
                let (made, offer) = self.offer(&prepared.queues[queue].0, pair, lane, rank)?;
                prepared.made.push(made);
                prepared.offers.push(offer);
            }
        }
        Ok(prepared)
    }

    /// Makes the completion queue of `lanes` queue pairs of a device, and the number by which the
    /// device's channel reports it.
    fn completion_queue(
        &self,
        device: usize,
        lanes: usize,
    ) -> Result<(Arc<CompletionQueue>, u64), VerbsError> {
        let open = &self.ports.devices[device];
        // Each request may complete with an error, and a lane may be replaced before these were
        // taken.
        let len = 2 * lanes as u32 * self.depth(device) + 16;
        let len = len.min(open.device.limits().completions);
        let number = self.poller.number();
        let queue = CompletionQueue::new(&open.device, len, Some((&open.channel, number)))?;
        Ok((queue, number))
    }

    /// Makes this side's queue pair of a lane.
    fn offer(
        &self,
        queue: &Arc<CompletionQueue>,
        ports: &PortPair,
        lane: usize,
        rank: usize,
    ) -> Result<(QueuePair, LaneOffer), VerbsError> {
        let port = &self.ports.ports[ports.port];
        let open = self.ports.device_of(port);
        let state = open.device.port(port.number)?;
        let limits = open.device.limits();
        let pieces = self.pieces() as u32;
        let pair = QueuePair::new(queue, self.depth(port.device), pieces, INLINE)?;
        let address = port.address(rank.min(port.gids.len().saturating_sub(1)), state.lid);
        let offer = LaneOffer {
            lane: lane as u16,
            port: ports.peer.index,
            gid: rank.min(ports.peer.gids.len().saturating_sub(1)) as u8,
            address: address.gid,
            lid: address.lid,
            mtu: state.mtu,
            reads_in: limits.reads_in,
            reads_out: limits.reads_out,
            number: pair.number(),
            first: pair.random_packet_number()?,
        };
        Ok((pair, offer))
    }

    /// Connects this side's queue pair of a lane to the peer's.
    fn connect_lane(
        &self,
        pair: &QueuePair,
        ports: &PortPair,
        offer: &LaneOffer,
        answer: &LaneAnswer,
    ) -> io::Result<()> {
        let (number, first, mtu) = match answer {
            LaneAnswer::Made { number, first, mtu } => (*number, *first, *mtu),
            LaneAnswer::Failed(reason) => {
                return Err(io::Error::other(format!("the peer has no queue pair: {reason}")));
            }
        };
        let port = &self.ports.ports[ports.port];
        let peer = ports.peer.gids.get(usize::from(offer.gid)).copied().unwrap_or([0; 16]);
        let index = port.gids.iter().find(|(_, gid)| *gid == offer.address);
        let path = Path {
            port: port.number,
            gid_index: index.map_or(0, |&(index, _)| index),
            gid: offer.address,
            is_infiniband: ports.peer.is_infiniband,
            mtu: mtu.min(offer.mtu),
            peer: PathAddress { gid: peer, lid: ports.peer.lid },
            peer_number: number,
            peer_first: first,
            first: offer.first,
            reads_in: 1,
            reads_out: offer.reads_out.min(ports.peer.reads_in).max(1),
        };
        let (marks, timing) = (self.config.marks(), self.config.timing());
        pair.connect(&path, &marks, timing).map_err(io::Error::other)
    }

    /// Connects the queue pairs, and sends something over each.
    fn try_lanes(&self, prepared: Prepared, pairs: &[PortPair], answers: &[LaneAnswer]) -> Lanes {
        let Prepared { specs, queues, made, offers } = prepared;
        let mut lanes: Vec<io::Result<(SendQueue<Flight>, Option<u64>)>> = Vec::new();
        for (lane, pair) in made.into_iter().enumerate() {
            let (spec, offer) = (specs[lane], &offers[lane]);
            let depth = self.depth(spec.device) as usize;
            let connected = self.connect_lane(&pair, &pairs[spec.pair], offer, &answers[lane]);
            lanes.push(connected.and_then(|()| {
                let tag = (lane as u32) << 16;
                let mut queue = SendQueue::new(pair, depth, self.pieces(), tag);
                let probe = queue.post_probe().map_err(io::Error::other)?;
                Ok((queue, Some(probe)))
            }));
        }
        let deadline = Instant::now() + self.config.connect_timeout;
        loop {
            let mut done = Vec::new();
            for (queue, _) in &queues {
                let _ = queue.take(&mut done);
            }
            for Done { number, result } in done {
                let lane = (number >> 48) as usize;
                let Some(one) = lanes.get_mut(lane) else { continue };
                match result {
                    Ok(()) => {
                        if let Ok((_, probe)) = one {
                            *probe = None;
                        }
                    }
                    Err(error) => *one = Err(io::Error::other(error)),
                }
            }
            let waiting = lanes.iter().flatten().any(|(_, probe)| probe.is_some());
            if !waiting || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(PROBE_EVERY);
        }
        let tried = lanes.into_iter().map(|lane| match lane {
            Ok((queue, None)) => Ok(queue),
            Ok((_, Some(_))) => Err(io::ErrorKind::TimedOut.into()),
            Err(error) => Err(error),
        });
        Lanes { specs, queues, tried: tried.collect() }
    }

    /// Sets a lane up again.
    pub(super) async fn recover(
        self: &Arc<Self>,
        recovery: &Recovery,
        pairs: &[PortPair],
        lane: usize,
    ) {
        let Recovery { flow, control, rank } = recovery;
        if flow.failure().is_some() {
            return;
        }
        let (spec, rank) = (flow.lanes[lane], *rank);
        let ports = pairs[spec.pair].clone();
        let queue = Arc::clone(&flow.queues[spec.queue].0);
        let (shared, theirs) = (Arc::clone(self), ports.clone());
        let made = blocking(move || shared.offer(&queue, &theirs, lane, rank)).await;
        let is_usable = self.ports.is_usable(&self.ports.ports[spec.port]);
        let (pair, offer) = match made {
            Ok((pair, offer)) if is_usable => (Some(pair), offer),
            made => {
                // The peer is asked all the same: it destroys the queue pair of before.
                if let Err(error) = &made {
                    tracing::debug!(%error, "no queue pair to replace one");
                }
                (None, dead_offer(lane, &ports))
            }
        };
        let answer = match control.ask(&Request::Lanes(vec![offer])).await {
            Ok(Answer::Lanes(answers)) if answers.len() == 1 => answers.into_iter().next(),
            Ok(_) => None,
            Err(error) => return flow.fail(&error),
        };
        let (Some(answer), Some(pair)) = (answer, pair) else {
            return flow.give_up(lane, io::Error::other("the RDMA port is down"));
        };
        let (shared, depth, tag) = (Arc::clone(self), self.depth(spec.device), flow.next_tag(lane));
        let connected = blocking(move || {
            shared.connect_lane(&pair, &ports, &offer, &answer)?;
            Ok(SendQueue::new(pair, depth as usize, shared.pieces(), tag))
        });
        match connected.await {
            Ok(queue) => flow.install(lane, queue),
            Err(cause) => flow.give_up(lane, cause),
        }
    }
}

/// An offer that the peer cannot connect to.
fn dead_offer(lane: usize, ports: &PortPair) -> LaneOffer {
    LaneOffer {
        lane: lane as u16,
        port: ports.peer.index,
        gid: 0,
        address: [0; 16],
        lid: 0,
        mtu: 1,
        reads_in: 1,
        reads_out: 1,
        number: 0,
        first: 0,
    }
}

/// Runs calls of the system that take up to milliseconds.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and drops this task, too.
            Err(_) => std::future::pending().await,
        },
    }
}
