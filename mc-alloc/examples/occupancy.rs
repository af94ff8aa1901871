//! Draws which parts of a segment are in use while objects come and go.
//!
//! `cargo run -p mc-alloc --example occupancy [SEED]`. One character is 1/64 of the
//! segment: a space is free, `█` is full, and the shades lie between.

use mc_alloc::{AllocateError, Allocation, OffsetAllocator};

const MIB: u64 = 1 << 20;
const CELLS: u64 = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seed = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => 1,
    };
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut space = OffsetAllocator::new(1024 * MIB);
    let mut live: Vec<Allocation> = Vec::new();
    for step in 0..16 {
        let what = match step {
            0..6 => "fill",
            6..11 => "drain",
            _ => "fill",
        };
        let mut refused = None;
        for _ in 0..8 {
            if what == "drain" && !live.is_empty() {
                space.free(live.swap_remove(random.usize(..live.len())))?;
                continue;
            }
            match space.allocate(random.u64(MIB..=48 * MIB)) {
                Ok(allocation) => live.push(allocation),
                Err(error) => refused = Some(error),
            }
        }
        let report = space.report();
        print!(
            "{what:5} [{}] {:3.0} % used, {:3.0} % fragmented",
            strip(&space),
            100.0 * report.utilisation(),
            100.0 * report.fragmentation()
        );
        match refused {
            Some(AllocateError::Fragmented { .. }) => println!(", a gap was too small"),
            Some(AllocateError::Full { .. }) => println!(", too little was free"),
            Some(error) => return Err(error.into()),
            None => println!(),
        }
    }
    Ok(())
}

/// One character per cell, by how much of the cell is in use.
fn strip(space: &OffsetAllocator) -> String {
    let cell = space.capacity() / CELLS;
    let mut used = [0; CELLS as usize];
    for region in space.regions().filter(|region| !region.is_free()) {
        let extent = region.extent();
        for index in extent.offset() / cell..extent.end().div_ceil(cell) {
            let start = extent.offset().max(index * cell);
            let end = extent.end().min((index + 1) * cell);
            used[index as usize] += end - start;
        }
    }
    let shades = [' ', '░', '▒', '▓', '█'];
    used.iter().map(|bytes| shades[(bytes * 4).div_ceil(cell) as usize]).collect()
}
