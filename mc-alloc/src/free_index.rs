//! Finds a free region of a size in constant time: a list of regions per bin and a
//! two-level bitmap of the bins that have any.
//!
//! Source of the bitmap: Masmano, Ripoll, Crespo, Real, "TLSF: a New Dynamic Memory
//! Allocator for Real-Time Systems", ECRTS 2004.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::bin::{Bin, COLUMNS};
use crate::regions::{NONE, Node, RegionId, RegionTable};

/// Regions of one bin that a search looks at. Only the bin of the wanted size itself
/// mixes regions that fit with regions that do not.
pub(crate) const PROBES: usize = 8;

/// The bins of one power of two.
#[derive(Clone)]
struct Row {
    /// Bit `c` is set while column `c` has a region.
    occupied: u64,
    lists: [List; COLUMNS],
}

/// The regions of one bin.
#[derive(Clone, Copy)]
struct List {
    head: RegionId,
    len: u32,
}

const EMPTY_ROW: Row = Row { occupied: 0, lists: [List { head: NONE, len: 0 }; COLUMNS] };

/// The free regions by size.
pub(crate) struct FreeIndex {
    /// Bit `r` is set while row `r` has a region.
    occupied: u64,
    rows: Vec<Row>,
    /// Holds nothing but its place in memory, which stays when the rows move.
    place: Box<u8>,
}

impl FreeIndex {
    /// An index for regions of at most `largest` bytes.
    pub(crate) fn new(largest: u64) -> Self {
        let rows = vec![EMPTY_ROW; Bin::of(largest).row() + 1];
        Self { occupied: 0, rows, place: Box::new(0) }
    }

    /// Makes room for regions of up to `largest` bytes.
    pub(crate) fn grow(&mut self, largest: u64) {
        let rows = Bin::of(largest).row() + 1;
        if rows > self.rows.len() {
            self.rows.resize(rows, EMPTY_ROW);
        }
    }

    /// An address in memory that no two indexes that exist at the same time share.
    pub(crate) fn address(&self) -> usize {
        core::ptr::from_ref(&*self.place).addr()
    }

    pub(crate) fn clear(&mut self) {
        self.occupied = 0;
        self.rows.fill(EMPTY_ROW);
    }

    /// Links a region that is in no list into that of its bin.
    pub(crate) fn insert(&mut self, regions: &mut RegionTable, id: RegionId) {
        let node = &mut regions[id];
        let bin = Bin::of(node.size);
        let row = &mut self.rows[bin.row()];
        let list = &mut row.lists[bin.column()];
        let next = list.head;
        node.prev = NONE;
        node.next = next;
        if next != NONE {
            regions[next].prev = id;
        }
        list.head = id;
        list.len += 1;
        row.occupied |= 1 << bin.column();
        self.occupied |= 1 << bin.row();
    }

    /// Takes a region out of the list of its bin; what its links say afterwards is up
    /// to the caller.
    pub(crate) fn remove(&mut self, regions: &mut RegionTable, id: RegionId) {
        let Node { size, prev, next, .. } = regions[id];
        let bin = Bin::of(size);
        if next != NONE {
            regions[next].prev = prev;
        }
        let row = &mut self.rows[bin.row()];
        let list = &mut row.lists[bin.column()];
        list.len -= 1;
        if prev != NONE {
            regions[prev].next = next;
            return;
        }
        list.head = next;
        // Without branches for whether the bin and the row are empty now, which is hard to
        // predict: they made random sizes 1 to 5 % slower.
        row.occupied &= !(u64::from(next == NONE) << bin.column());
        self.occupied &= !(u64::from(row.occupied == 0) << bin.row());
    }

    /// Gives a region another size; its place in its list stays while the bin does.
    pub(crate) fn resize(&mut self, regions: &mut RegionTable, id: RegionId, size: u64) {
        let node = &mut regions[id];
        if Bin::of(node.size) == Bin::of(size) {
            node.size = size;
        } else {
            self.remove(regions, id);
            regions[id].size = size;
            self.insert(regions, id);
        }
    }

    /// A region of at least `size` bytes, from the lowest bin in which one is seen.
    ///
    /// A region above the bin of `size` is always found. In that bin itself, where
    /// regions may be up to 1/64 smaller or larger than `size`, the first [`PROBES`]
    /// are looked at.
    pub(crate) fn find(&self, regions: &RegionTable, size: u64) -> Option<RegionId> {
        let bin = Bin::of(size);
        let row = self.rows.get(bin.row())?;
        let fits = |node: &Node| node.size >= size;
        probe(regions, row.lists[bin.column()].head, fits).or_else(|| self.head_above(bin))
    }

    /// A region with `size` bytes behind a multiple of `align`, a power of two.
    ///
    /// One that has `size + align - 1` bytes and lies above the bin of that is always
    /// found. Before, the first [`PROBES`] of the bin of `size`, of the next bin that
    /// has any, and of the bin of that sum are looked at.
    pub(crate) fn find_aligned(
        &self,
        regions: &RegionTable,
        size: u64,
        align: u64,
    ) -> Option<RegionId> {
        let fits = |node: &Node| node.holds(size, align);
        let bin = Bin::of(size);
        let head = self.rows.get(bin.row())?.lists[bin.column()].head;
        if let Some(found) = probe(regions, head, fits) {
            return Some(found);
        }
        let next = self.head_above(bin)?;
        if let Some(found) = probe(regions, next, fits) {
            return Some(found);
        }
        let bin = Bin::of(size.checked_add(align - 1)?);
        let head = self.rows.get(bin.row())?.lists[bin.column()].head;
        probe(regions, head, fits).or_else(|| self.head_above(bin))
    }

    /// A region of the lowest bin above `bin` that has one.
    fn head_above(&self, bin: Bin) -> Option<RegionId> {
        let row = self.rows.get(bin.row())?;
        let columns = row.occupied & above(bin.column());
        if columns != 0 {
            return Some(row.lists[columns.trailing_zeros() as usize].head);
        }
        let rows = self.occupied & above(bin.row());
        if rows == 0 {
            return None;
        }
        let row = &self.rows[rows.trailing_zeros() as usize];
        Some(row.lists[row.occupied.trailing_zeros() as usize % COLUMNS].head)
    }

    /// The largest of the first [`PROBES`] regions of the highest bin; 0 when there is
    /// no region.
    pub(crate) fn largest(&self, regions: &RegionTable) -> u64 {
        let Some(row) = self.occupied.checked_ilog2() else {
            return 0;
        };
        let row = &self.rows[row as usize];
        let column = row.occupied.ilog2() as usize;
        let mut largest = 0;
        let mut probe = row.lists[column % COLUMNS].head;
        for _ in 0..PROBES {
            if probe == NONE {
                break;
            }
            largest = largest.max(regions[probe].size);
            probe = regions[probe].next;
        }
        largest
    }

    /// The bins that have regions, smallest first, and how many each has.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (Bin, u32)> {
        self.rows.iter().enumerate().flat_map(|(row, bins)| {
            let lists = bins.lists.iter().enumerate();
            lists
                .filter(|(_, list)| list.len > 0)
                .map(move |(column, list)| (Bin::at(row, column), list.len))
        })
    }
}

/// The first region that fits among the first [`PROBES`] of a list.
fn probe(regions: &RegionTable, head: RegionId, fits: impl Fn(&Node) -> bool) -> Option<RegionId> {
    let mut probe = head;
    for _ in 0..PROBES {
        if probe == NONE {
            break;
        }
        let node = &regions[probe];
        if fits(node) {
            return Some(probe);
        }
        probe = node.next;
    }
    None
}

/// The bits above bit `bit`, which is at most 63.
const fn above(bit: usize) -> u64 {
    !1 << bit
}
