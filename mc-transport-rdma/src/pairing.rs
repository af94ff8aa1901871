//! Pairs of ports of two nodes that are connected to each other.

use super::wire::PortOffer;

/// A port of this side, and the peer's that it is connected to.
#[derive(Clone, Debug)]
pub(super) struct PortPair {
    /// The port's place in `Ports::ports`.
    pub(super) port: usize,
    pub(super) peer: PortOffer,
    /// Bytes of the longest message.
    pub(super) message: u32,
}

/// Returns the ports to connect: each port of the side that has more of them once, to the one of the
/// other side whose address is most alike, so that ports of one subnet meet.
pub(super) fn pair_ports(ours: &[PortOffer], theirs: &[PortOffer]) -> Vec<PortPair> {
    let pair = |ours: &PortOffer, theirs: &PortOffer| PortPair {
        port: usize::from(ours.index),
        peer: theirs.clone(),
        message: ours.message.min(theirs.message),
    };
    if ours.len() >= theirs.len() {
        let chosen = ours
            .iter()
            .enumerate()
            .filter_map(|(nth, one)| Some(pair(one, most_alike(one, theirs, nth)?)));
        chosen.collect()
    } else {
        let chosen = theirs
            .iter()
            .enumerate()
            .filter_map(|(nth, one)| Some(pair(most_alike(one, ours, nth)?, one)));
        chosen.collect()
    }
}

/// The port of `others` whose address begins as that of `one` for longest; of equal ones they take
/// turns.
fn most_alike<'a>(one: &PortOffer, others: &'a [PortOffer], nth: usize) -> Option<&'a PortOffer> {
    let alike = |other: &PortOffer| match (one.gids.first(), other.gids.first()) {
        (Some(one), Some(other)) => {
            (u128::from_be_bytes(*one) ^ u128::from_be_bytes(*other)).leading_zeros().min(120)
        }
        _ => 0,
    };
    let fitting: Vec<_> =
        others.iter().filter(|other| other.is_infiniband == one.is_infiniband).collect();
    let most = fitting.iter().map(|other| alike(other)).max()?;
    let best: Vec<_> = fitting.into_iter().filter(|other| alike(other) == most).collect();
    best.get(nth % best.len()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(index: u8, address: [u8; 4]) -> PortOffer {
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&address);
        PortOffer {
            index,
            device: index,
            is_infiniband: false,
            mtu: 5,
            lid: 0,
            reads_in: 16,
            reads_out: 16,
            message: 1 << 30,
            gids: vec![gid],
        }
    }

    fn pairs(ours: &[PortOffer], theirs: &[PortOffer]) -> Vec<(usize, u8)> {
        let pairs = pair_ports(ours, theirs).into_iter();
        pairs.map(|pair| (pair.port, pair.peer.index)).collect()
    }

    #[test]
    fn ports_of_one_network_meet() {
        let ours = [offer(0, [10, 1, 0, 1]), offer(1, [10, 2, 0, 1])];
        let theirs = [offer(0, [10, 2, 0, 9]), offer(1, [10, 1, 0, 9])];
        assert_eq!(pairs(&ours, &theirs), [(0, 1), (1, 0)]);
    }

    #[test]
    fn the_side_with_more_ports_uses_each_of_them() {
        let ours = [offer(0, [10, 0, 0, 1])];
        let theirs = [offer(0, [10, 0, 0, 8]), offer(1, [10, 0, 0, 9])];
        assert_eq!(pairs(&ours, &theirs), [(0, 0), (0, 1)]);
        assert_eq!(pairs(&theirs, &ours), [(0, 0), (1, 0)]);
    }

    #[test]
    fn ports_that_are_equally_alike_take_turns() {
        let ours = [offer(0, [10, 1, 0, 1]), offer(1, [10, 1, 0, 2])];
        let theirs = [offer(0, [172, 16, 0, 1]), offer(1, [172, 16, 0, 2])];
        assert_eq!(pairs(&ours, &theirs), [(0, 0), (1, 1)]);
    }

    #[test]
    fn link_layers_do_not_mix() {
        let infiniband = PortOffer { is_infiniband: true, gids: Vec::new(), ..offer(0, [0; 4]) };
        let ethernet = offer(1, [10, 0, 0, 1]);
        let both = [infiniband, ethernet];
        let (infiniband, ethernet) = (&both[..1], &both[1..]);
        assert!(pairs(infiniband, ethernet).is_empty());
        assert_eq!(pairs(&both, ethernet), [(1, 1)]);
        assert!(pairs(&both, &[]).is_empty());
    }

    #[test]
    fn the_smaller_limit_of_a_message_counts() {
        let theirs = PortOffer { message: 1 << 20, ..offer(0, [10, 0, 0, 2]) };
        assert_eq!(pair_ports(&[offer(0, [10, 0, 0, 1])], &[theirs])[0].message, 1 << 20);
    }
}
