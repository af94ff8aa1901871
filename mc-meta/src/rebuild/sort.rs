//! A sort of many numbers of which few bits differ.

/// Bits of a key by which one pass sorts.
const DIGIT: u32 = 11;

/// Keys from which on passes over all of them cost less than comparing.
const MANY: usize = 4096;

/// Sorts by the first, and by the second where that is equal; the second are in order before.
///
/// Offsets are multiples of something and below a segment's size, and objects were used within
/// some days, so few of their bits differ: a radix sort takes two or three passes over what is
/// sorted by comparing in twenty.
pub(crate) fn sort(keyed: &mut Vec<(u64, u32)>) {
    if keyed.is_sorted() {
        return;
    }
    if keyed.len() < MANY {
        return keyed.sort_unstable();
    }
    let first = keyed[0].0;
    let mut differ = keyed.iter().fold(0, |bits, (key, _)| bits | (key ^ first));
    let mut sorted = vec![(0, 0); keyed.len()];
    while differ != 0 {
        let shift = differ.trailing_zeros();
        let mask = (1 << DIGIT) - 1;
        let digit = |key: u64| ((key >> shift) & mask) as usize;
        let mut ends = [0usize; 1 << DIGIT];
        keyed.iter().for_each(|(key, _)| ends[digit(*key)] += 1);
        let mut sum = 0;
        for end in &mut ends {
            sum += core::mem::replace(end, sum);
        }
        for &entry in &*keyed {
            let end = &mut ends[digit(entry.0)];
            sorted[*end] = entry;
            *end += 1;
        }
        core::mem::swap(keyed, &mut sorted);
        differ &= !(mask << shift);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::sort;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_radix_sort_sorts(
            seed in any::<u64>(),
            len in 4000usize..9000,
            shift in 0u32..64,
            mask in prop_oneof![Just(u64::MAX), any::<u64>(), Just(0xff_ffff)],
        ) {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut keyed: Vec<(u64, u32)> =
                (0..len as u32).map(|number| ((random.u64(..) & mask) << shift, number)).collect();
            let mut expected = keyed.clone();
            expected.sort_unstable();
            sort(&mut keyed);
            prop_assert_eq!(keyed, expected);
        }
    }
}
