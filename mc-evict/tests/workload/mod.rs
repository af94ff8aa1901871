//! Made-up sequences of requests, each of one kind, to judge policies by.

/// Requests, each a sequence of blocks that are numbered from 0.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) requests: Vec<Vec<u32>>,
    /// Different blocks.
    pub(crate) unique: usize,
}

impl Workload {
    fn new(name: &'static str, requests: Vec<Vec<u32>>) -> Self {
        let mut numbers = std::collections::HashMap::new();
        let requests: Vec<Vec<u32>> = requests
            .into_iter()
            .map(|request| {
                request
                    .into_iter()
                    .map(|block| {
                        let next = numbers.len() as u32;
                        *numbers.entry(block).or_insert(next)
                    })
                    .collect()
            })
            .collect();
        Self { name, requests, unique: numbers.len() }
    }

    /// Every kind, of about `accesses` accesses each.
    pub(crate) fn all(seed: u64, accesses: usize) -> Vec<Self> {
        let mut random = Random(seed);
        let random = &mut random;
        vec![
            Self::new("zipf", zipf(random, accesses)),
            Self::new("loop", scan_again(accesses)),
            Self::new("zipf_scan", zipf_with_scans(random, accesses)),
            Self::new("recent", recent(random, accesses)),
            Self::new("shifting", shifting(random, accesses)),
            Self::new("drifting", drifting(random, accesses)),
            Self::new("one_hit", one_hit_wonders(random, accesses)),
            Self::new("chat", conversations(random, accesses, 4)),
            Self::new("long_chat", conversations(random, accesses, 24)),
            Self::new("documents", documents(random, accesses)),
            Self::new("bursts", bursts(random, accesses)),
            Self::new("phases", phases(random, accesses)),
        ]
    }
}

/// SplitMix64: a fixed sequence for each seed. mc-bench compiles this file, too, and its figures
/// are published, so it keeps a generator of its own.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// In `0.0..1.0`.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

/// Ranks drawn in proportion to `1 / rank^exponent`.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(items: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=items.max(1)).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self(sums.collect())
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let at = random.unit() * self.0[self.0.len() - 1];
        self.0.partition_point(|sum| *sum <= at).min(self.0.len() - 1) as u32
    }
}

fn zipf(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    let zipf = Zipf::new(accesses / 8, 0.9);
    (0..accesses).map(|_| vec![zipf.draw(random)]).collect()
}

/// The same blocks in the same order, again and again.
fn scan_again(accesses: usize) -> Vec<Vec<u32>> {
    let length = (accesses / 20).max(1);
    (0..accesses).map(|at| vec![(at % length) as u32]).collect()
}

/// Popular blocks, and now and then a long run of blocks that are used once.
fn zipf_with_scans(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    let items = accesses / 10;
    let zipf = Zipf::new(items, 0.8);
    let mut fresh = items as u32;
    let mut requests = Vec::new();
    while requests.len() < accesses {
        for _ in 0..items / 2 {
            requests.push(vec![zipf.draw(random)]);
        }
        for _ in 0..items / 2 {
            requests.push(vec![fresh]);
            fresh += 1;
        }
    }
    requests
}

/// What was used lately is used again: the place in the order of recency is drawn,
/// small ones more often; LRU is the best there is.
fn recent(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    let items = (accesses / 40).max(2);
    let mut order: Vec<u32> = (0..items as u32).collect();
    let depth = Zipf::new(items, 1.0);
    let mut fresh = items as u32;
    (0..accesses)
        .map(|_| {
            // The coldest is at the front.
            let place = order.len() - 1 - depth.draw(random) as usize;
            let mut block = order.remove(place);
            if random.chance(0.1) {
                block = fresh;
                fresh += 1;
            }
            order.push(block);
            vec![block]
        })
        .collect()
}

/// A set of blocks, all used alike, that is another one from time to time.
fn shifting(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    let set = accesses / 80;
    (0..accesses)
        .map(|at| vec![(at / (accesses / 16).max(1) * set + random.below(set)) as u32])
        .collect()
}

/// A window that moves over the blocks.
fn drifting(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    let window = accesses / 40;
    (0..accesses).map(|at| vec![(at / 8 + random.below(window)) as u32]).collect()
}

/// Popular blocks among as many that are used once.
fn one_hit_wonders(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    let items = accesses / 20;
    let zipf = Zipf::new(items, 0.7);
    (0..accesses)
        .map(
            |at| {
                if random.chance(0.5) { vec![(items + at) as u32] } else { vec![zipf.draw(random)] }
            },
        )
        .collect()
}

/// Conversations of several turns: each repeats what was said and adds to it, behind
/// one of a few system prompts. `turns` is the mean.
fn conversations(random: &mut Random, accesses: usize, turns: usize) -> Vec<Vec<u32>> {
    let prompts = Zipf::new(8, 1.0);
    let mut fresh = 8 * 4;
    let mut open: Vec<Vec<u32>> = Vec::new();
    let mut requests = Vec::new();
    let mut done = 0;
    while done < accesses {
        if open.len() < 60 || random.chance(1.0 / turns as f64) {
            let prompt = prompts.draw(random) * 4;
            open.push((prompt..prompt + 4).collect());
        }
        let at = random.below(open.len());
        for _ in 0..=random.below(12) {
            open[at].push(fresh);
            fresh += 1;
        }
        // The last block is not full: the next turn's is another one.
        let mut request = open[at].clone();
        request.push(fresh);
        fresh += 1;
        done += request.len();
        requests.push(request);
        if random.chance(1.0 / turns as f64) || open[at].len() > 120 {
            open.swap_remove(at);
        }
    }
    requests
}

/// Questions about documents, of which some are asked about often.
fn documents(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    const LENGTH: u32 = 20;
    let count = accesses / 200;
    let popularity = Zipf::new(count, 0.8);
    let mut fresh = count as u32 * LENGTH;
    let mut requests = Vec::new();
    for _ in 0..accesses / (LENGTH as usize + 3) {
        let first = popularity.draw(random) * LENGTH;
        let mut request: Vec<u32> = (first..first + LENGTH).collect();
        for _ in 0..1 + random.below(3) {
            request.push(fresh);
            fresh += 1;
        }
        requests.push(request);
    }
    requests
}

/// Blocks that are used four times in a row and never again, among others that are
/// used with long pauses: frequency misleads.
fn bursts(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    let steady = accesses / 40;
    let mut fresh = steady as u32;
    let mut requests = Vec::new();
    while requests.len() < accesses {
        if random.chance(0.3) {
            requests.extend([[fresh]; 6].map(Vec::from));
            fresh += 1;
        } else {
            requests.push(vec![random.below(steady) as u32]);
        }
    }
    requests
}

/// One kind after another, so that what was learned is wrong.
fn phases(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    let part = accesses / 6;
    let mut requests = Vec::new();
    for phase in 0..6u32 {
        let blocks = match phase % 3 {
            0 => scan_again(part),
            1 => recent(random, part),
            _ => zipf(random, part),
        };
        // Each phase has blocks of its own.
        requests
            .extend(blocks.into_iter().map(|r| r.into_iter().map(|b| b + (phase << 24)).collect()));
    }
    requests
}
