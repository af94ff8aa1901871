//! Random transfers, every byte of which is compared.
//!
//! The variable `MC_TEST_RDMA_MIB` is the number of MiB moved: 128 unless it is set, since RDMA in
//! software in a guest moves 60 MiB a second; 1024 is the long form. `MC_TEST_RDMA_SEED` repeats a
//! run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use mc_testkit::Random;
use mc_transport::{Memory, Operation, Source};
use mc_transport_rdma::RdmaLink;
use mc_types::RemoteKey;

use crate::rig::{Rig, alone, one, span};

/// Tasks that transfer at the same time, each in a stripe of the region of its own.
const TASKS: usize = 4;

/// Bytes of a task's stripe.
const STRIPE: usize = 8 << 20;

/// Bytes of the largest transfer.
const LARGEST: usize = 4 << 20;

/// Bytes around the target of a read, on either side, that must stay as they are.
const GUARD: usize = 64;

/// A byte that guards are made of.
const GUARD_BYTE: u8 = 0xA5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_transfers_move_every_byte_and_no_other() {
    let Some(_alone) = alone() else { return };
    let mib = std::env::var("MC_TEST_RDMA_MIB").map_or(128, |mib| mib.parse::<u64>().unwrap());
    let mut random = Random::seeded("MC_TEST_RDMA_SEED");
    let rig = Rig::new(TASKS * STRIPE).await;
    let (moved, wrong) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let begun = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|index| {
            let mut worker = Worker {
                link: Arc::clone(&rig.link),
                key: rig.region.key(),
                start: index * STRIPE,
                random: Random::new(random.next_u64()),
                expected: vec![0; STRIPE],
                local: Memory::allocate(LARGEST + 2 * GUARD + 64).unwrap(),
                wrong: Arc::clone(&wrong),
            };
            let moved = Arc::clone(&moved);
            tokio::spawn(async move {
                while moved.load(Ordering::Relaxed) < mib << 20 {
                    moved.fetch_add(worker.step().await as u64, Ordering::Relaxed);
                }
                worker.expected
            })
        })
        .collect();
    let mut expected = Vec::new();
    for task in tasks {
        expected.extend(task.await.unwrap());
    }
    // What the owner itself sees.
    let now = rig.memory.whole().to_vec();
    let differing = now.iter().zip(&expected).filter(|(now, expected)| now != expected).count();
    let wrong = wrong.load(Ordering::Relaxed) + differing as u64;
    let moved = moved.load(Ordering::Relaxed) >> 20;
    println!("{moved} MiB in {:?}, {wrong} wrong bytes", begun.elapsed());
    assert_eq!(wrong, 0);
    rig.shutdown().await;
}

struct Worker {
    link: Arc<RdmaLink>,
    key: RemoteKey,
    /// The first byte of the stripe.
    start: usize,
    random: Random,
    /// The bytes of the stripe.
    expected: Vec<u8>,
    local: Memory,
    wrong: Arc<AtomicU64>,
}

impl Worker {
    /// Makes one transfer of any size, and returns its bytes.
    async fn step(&mut self) -> usize {
        // Small ones are as common as large ones.
        let limit = [LARGEST, 256 << 10, 4096, 300][self.random.below(4)];
        let len = self.random.below(limit + 1);
        let offset = self.random.below(STRIPE - len + 1);
        let skew = self.random.below(64);
        if self.random.below(2) == 0 {
            self.write(offset, len, skew).await;
        } else {
            self.read(offset, len, skew).await;
        }
        len
    }

    async fn write(&mut self, offset: usize, len: usize, skew: usize) {
        let target = &mut self.expected[offset..offset + len];
        for word in target.chunks_mut(8) {
            word.copy_from_slice(&self.random.next_u64().to_le_bytes()[..word.len()]);
        }
        let bytes = &self.expected[offset..offset + len];
        let source = |bytes: &[u8], at: usize| {
            let slice = self.local.slice(at, bytes.len()).unwrap();
            slice.copy_from(0, bytes).unwrap();
            Source::Memory(slice)
        };
        // From memory, from bytes, and from both.
        let sources = match self.random.below(3) {
            0 => vec![source(bytes, skew)],
            1 => vec![Source::Bytes(Bytes::copy_from_slice(bytes))],
            _ => {
                let (first, rest) = bytes.split_at(self.random.below(len + 1));
                vec![Source::Bytes(Bytes::copy_from_slice(first)), source(rest, skew)]
            }
        };
        let to = span(self.key, self.start + offset, len);
        one(&self.link, Operation::write(sources, to)).await.unwrap();
    }

    async fn read(&mut self, offset: usize, len: usize, skew: usize) {
        let around = self.local.slice(skew, len + 2 * GUARD).unwrap();
        around.copy_from(0, &[GUARD_BYTE; GUARD]).unwrap();
        around.copy_from(GUARD + len, &[GUARD_BYTE; GUARD]).unwrap();
        let target = around.part(GUARD, len).unwrap();
        let into = match self.random.below(2) {
            0 => vec![target],
            _ => {
                let first = self.random.below(len + 1);
                vec![target.part(0, first).unwrap(), target.part(first, len - first).unwrap()]
            }
        };
        let from = span(self.key, self.start + offset, len);
        one(&self.link, Operation::read(from, into)).await.unwrap();
        let seen = around.to_vec();
        let expected = self.expected[offset..offset + len].iter();
        let guard = [GUARD_BYTE; GUARD];
        let expected = guard.iter().chain(expected).chain(&guard);
        let wrong = seen.iter().zip(expected).filter(|(seen, expected)| seen != expected).count();
        self.wrong.fetch_add(wrong as u64, Ordering::Relaxed);
    }
}
