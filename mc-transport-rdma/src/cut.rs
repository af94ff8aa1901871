//! Divides an operation into requests.

/// The limits of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes.
    pub(super) len: u64,
    /// Bytes that have to be copied through staging memory.
    pub(super) staged: u64,
    /// Pieces of local memory.
    pub(super) pieces: usize,
    /// The remote region is registered in chunks of so many bytes, counted from its first; a
    /// request touches one.
    pub(super) chunk: u64,
}

/// A request's share of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The first byte in the remote region.
    pub(super) remote: u64,
    pub(super) len: u64,
    pub(super) is_staged: bool,
    /// The local pieces: index, first byte in it, bytes.
    pub(super) parts: Vec<(usize, usize, usize)>,
}

/// Divides an operation that begins at byte `remote` of its region and whose local pieces have
/// these lengths; the flag says whether a piece has to be staged.
pub(super) fn cut(remote: u64, pieces: &[(usize, bool)], limits: Limits) -> Vec<Cut> {
    let mut cuts: Vec<Cut> = Vec::new();
    let mut at = remote;
    for (index, &(len, is_staged)) in pieces.iter().enumerate() {
        let most = if is_staged { limits.staged } else { limits.len }.max(1);
        let mut start = 0;
        while start < len {
            let chunk_left = limits.chunk - at % limits.chunk;
            let current = cuts.last_mut().filter(|cut| {
                cut.is_staged == is_staged
                    && cut.len < most
                    && !at.is_multiple_of(limits.chunk)
                    && (is_staged || cut.parts.len() < limits.pieces)
            });
            let room = current.as_ref().map_or(most, |cut| most - cut.len).min(chunk_left);
            let take = usize::try_from(room).unwrap_or(usize::MAX).min(len - start);
            match current {
                Some(cut) => {
                    cut.parts.push((index, start, take));
                    cut.len += take as u64;
                }
                None => {
                    let parts = vec![(index, start, take)];
                    cuts.push(Cut { remote: at, len: take as u64, is_staged, parts });
                }
            }
            (start, at) = (start + take, at + take as u64);
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(len: u64, staged: u64, pieces: usize, chunk: u64) -> Limits {
        Limits { len, staged, pieces, chunk }
    }

    #[test]
    fn a_small_operation_is_one_request() {
        let cuts = cut(7, &[(10, false), (20, false)], limits(100, 50, 4, 1 << 30));
        let parts = vec![(0, 0, 10), (1, 0, 20)];
        assert_eq!(cuts, [Cut { remote: 7, len: 30, is_staged: false, parts }]);
        assert!(cut(7, &[(0, false)], limits(100, 50, 4, 1 << 30)).is_empty());
    }

    #[test]
    fn requests_end_with_the_chunks_of_the_region() {
        let cuts = cut(90, &[(25, false)], limits(1000, 50, 4, 100));
        let ends: Vec<_> = cuts.iter().map(|cut| (cut.remote, cut.len)).collect();
        assert_eq!(ends, [(90, 10), (100, 15)]);
    }

    proptest! {
        #[test]
        fn every_byte_goes_once_and_every_limit_is_kept(
            remote in 0_u64..5_000,
            pieces in prop::collection::vec((0_usize..3_000, any::<bool>()), 0..20),
            (len, staged, most, chunk) in (1_u64..2_000, 1_u64..500, 1_usize..6, 1_u64..4_000),
        ) {
            let limits = limits(len, staged, most, chunk);
            let cuts = cut(remote, &pieces, limits);
            let mut at = remote;
            let mut seen = vec![0; pieces.len()];
            for cut in &cuts {
                prop_assert_eq!(cut.remote, at);
                prop_assert!(cut.len > 0);
                let longest = if cut.is_staged { staged } else { len };
                prop_assert!(cut.len <= longest, "{} of {longest}", cut.len);
                prop_assert!(cut.is_staged || cut.parts.len() <= most);
                prop_assert_eq!(cut.remote / chunk, (cut.remote + cut.len - 1) / chunk);
                let mut sum = 0;
                for &(index, start, len) in &cut.parts {
                    prop_assert_eq!(pieces[index].1, cut.is_staged);
                    prop_assert_eq!(seen[index], start);
                    seen[index] += len;
                    sum += len as u64;
                }
                prop_assert_eq!(sum, cut.len);
                at += cut.len;
            }
            for (seen, (len, _)) in seen.iter().zip(&pieces) {
                prop_assert_eq!(seen, len);
            }
        }
    }
}
