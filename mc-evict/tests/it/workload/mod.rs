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
            Self::new("shared_prompts", shared_prompts(random, accesses)),
            Self::new("agents", agents(random, accesses)),
            Self::new("one_shot", one_shot(random, accesses)),
            Self::new("chat_scan", chat_with_scans(random, accesses)),
            Self::new("day_night", day_and_night(random, accesses)),
            Self::new("tenants", tenants(random, accesses)),
            Self::new("sudden", sudden_change(random, accesses)),
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

/// Requests for recently used blocks: the place in the order of recency is drawn, small ones more
/// often; LRU is the best there is.
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

/// New blocks, numbered one after the other.
struct Fresh(u32);

impl Fresh {
    fn take(&mut self, count: usize) -> std::ops::Range<u32> {
        let first = self.0;
        self.0 += count as u32;
        first..self.0
    }
}

/// Prompts of different lengths, of which some are used more often than others.
struct Prompts {
    prompts: Vec<Vec<u32>>,
    popularity: Zipf,
}

impl Prompts {
    fn new(
        random: &mut Random,
        fresh: &mut Fresh,
        count: usize,
        (least, most): (usize, usize),
        exponent: f64,
    ) -> Self {
        let mut prompt = |_| fresh.take(least + random.below(most - least + 1)).collect();
        Self {
            prompts: (0..count).map(&mut prompt).collect(),
            popularity: Zipf::new(count, exponent),
        }
    }

    fn draw(&self, random: &mut Random) -> Vec<u32> {
        self.prompts[self.popularity.draw(random) as usize].clone()
    }
}

/// Things that happen later, the next first.
struct Agenda<T>(std::collections::BTreeMap<(u64, u64), T>, u64);

impl<T> Agenda<T> {
    fn new() -> Self {
        Self(std::collections::BTreeMap::new(), 0)
    }

    fn add(&mut self, at: u64, what: T) {
        self.1 += 1;
        self.0.insert((at, self.1), what);
    }

    fn next(&mut self) -> Option<(u64, T)> {
        let ((at, _), what) = self.0.pop_first()?;
        Some((at, what))
    }
}

/// A pause with this mean, most of them shorter.
fn pause(random: &mut Random, mean: f64) -> u64 {
    (-mean * (1.0 - random.unit()).ln()) as u64
}

/// Applications with a system prompt each, some far more popular than others; a request is the
/// prompt and a question that comes once.
fn shared_prompts(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    let fresh = &mut Fresh(0);
    let prompts = Prompts::new(random, fresh, accesses / 1000 + 20, (2, 24), 1.0);
    let (mut requests, mut done) = (Vec::new(), 0);
    while done < accesses {
        let mut request = prompts.draw(random);
        request.extend(fresh.take(1 + random.below(8)));
        done += request.len();
        requests.push(request);
    }
    requests
}

/// Agents that call tools: each run has instructions of one of a few kinds, a task of its own, and
/// up to 40 steps in quick succession that each add a tool's answer; then it is over.
fn agents(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    let fresh = &mut Fresh(0);
    let kinds = Prompts::new(random, fresh, 12, (10, 40), 0.8);
    let mut agenda = Agenda::new();
    agenda.add(0, None);
    let (mut requests, mut done) = (Vec::new(), 0);
    while done < accesses {
        let Some((now, run)) = agenda.next() else { break };
        let (mut blocks, left) = run.unwrap_or_else(|| {
            agenda.add(now + pause(random, 150.0), None);
            let mut blocks = kinds.draw(random);
            blocks.extend(fresh.take(1 + random.below(4)));
            (blocks, 1 + random.below(40))
        });
        let request = blocks.clone();
        done += request.len();
        requests.push(request);
        blocks.extend(fresh.take(1 + random.below(6)));
        if left > 1 {
            agenda.add(now + 5 + pause(random, 40.0), Some((blocks, left - 1)));
        }
    }
    requests
}

/// Long documents, most of them asked about once; one in four is asked about a few times more,
/// soon after.
fn one_shot(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    let fresh = &mut Fresh(0);
    let mut agenda = Agenda::new();
    agenda.add(0, None);
    let (mut requests, mut done) = (Vec::new(), 0);
    while done < accesses {
        let Some((now, document)) = agenda.next() else { break };
        let document: Vec<u32> = document.unwrap_or_else(|| {
            agenda.add(now + pause(random, 100.0), None);
            let document: Vec<u32> = fresh.take(20 + random.below(120)).collect();
            if random.chance(0.25) {
                for _ in 0..1 + random.below(4) {
                    agenda.add(now + pause(random, 2000.0), Some(document.clone()));
                }
            }
            document
        });
        let mut request = document;
        request.extend(fresh.take(1 + random.below(3)));
        done += request.len();
        requests.push(request);
    }
    requests
}

/// Chats that go on for some turns behind the system prompts given. `between` is the mean time
/// from one chat's beginning to the next one's, `thought` that between two turns of a chat.
fn chats(
    random: &mut Random,
    fresh: &mut Fresh,
    prompts: &Prompts,
    accesses: usize,
    (between, thought, turns): (f64, f64, f64),
) -> Vec<Vec<u32>> {
    let mut agenda = Agenda::new();
    agenda.add(0, None);
    let (mut requests, mut done) = (Vec::new(), 0);
    while done < accesses {
        let Some((now, chat)) = agenda.next() else { break };
        let mut blocks: Vec<u32> = chat.unwrap_or_else(|| {
            agenda.add(now + pause(random, between), None);
            prompts.draw(random)
        });
        blocks.extend(fresh.take(1 + random.below(6)));
        let mut request = blocks.clone();
        // The last block is not full: the next turn's is another one.
        request.extend(fresh.take(1));
        done += request.len();
        requests.push(request);
        blocks.extend(fresh.take(1 + random.below(4)));
        if random.chance(1.0 - 1.0 / turns) && blocks.len() < 200 {
            agenda.add(now + pause(random, thought), Some(blocks));
        }
    }
    requests
}

/// Chats, and from time to time a job that goes over many documents once.
fn chat_with_scans(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    let fresh = &mut Fresh(0);
    let prompts = Prompts::new(random, fresh, 20, (2, 12), 1.0);
    let talk = chats(random, fresh, &prompts, accesses / 3 * 2, (10.0, 1500.0, 5.0));
    let each = talk.len() / 8 + 1;
    let mut requests = Vec::new();
    for (at, request) in talk.into_iter().enumerate() {
        requests.push(request);
        if at % each == each / 2 {
            let mut left = accesses / 24;
            while left > 0 {
                let document: Vec<u32> = fresh.take(10 + random.below(60)).collect();
                left = left.saturating_sub(document.len());
                requests.push(document);
            }
        }
    }
    requests
}

/// Chats by day. By night there are few, and a job that goes over the same documents each night.
fn day_and_night(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    const DAYS: usize = 6;
    let fresh = &mut Fresh(0);
    let prompts = Prompts::new(random, fresh, 30, (2, 12), 1.0);
    let corpus: Vec<Vec<u32>> =
        (0..accesses / 2400 + 1).map(|_| fresh.take(10 + random.below(60)).collect()).collect();
    let mut requests = Vec::new();
    for _ in 0..DAYS {
        let day = chats(random, fresh, &prompts, accesses / 10 * 8 / DAYS, (8.0, 1500.0, 5.0));
        requests.extend(day);
        let night = chats(random, fresh, &prompts, accesses / 10 / DAYS, (80.0, 1500.0, 5.0));
        let mut night = night.into_iter();
        for document in &corpus {
            requests.push(document.clone());
            if random.chance(0.3) {
                requests.extend(night.next());
            }
        }
    }
    requests
}

/// Four tenants: one with a few hot prompts, one with many of about the same popularity, one that
/// chats, and one whose every request is new.
fn tenants(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    let fresh = &mut Fresh(0);
    let hot = Prompts::new(random, fresh, 200, (4, 20), 1.2);
    let flat = Prompts::new(random, fresh, accesses / 300 + 10, (4, 20), 0.3);
    let system = Prompts::new(random, fresh, 6, (2, 12), 1.0);
    let mut talk = chats(random, fresh, &system, accesses, (10.0, 1200.0, 6.0)).into_iter();
    let (mut requests, mut done) = (Vec::new(), 0);
    while done < accesses {
        let request = match random.below(10) {
            0..3 => [hot.draw(random), fresh.take(1 + random.below(4)).collect()].concat(),
            3..5 => [flat.draw(random), fresh.take(1 + random.below(4)).collect()].concat(),
            5..8 => talk.next().unwrap_or_default(),
            _ => fresh.take(5 + random.below(30)).collect(),
        };
        done += request.len();
        requests.push(request);
    }
    requests
}

/// Popular prompts with questions, and chats; three times all prompts and chats give way to others
/// at once, and what is popular turns into what is talked about.
fn sudden_change(random: &mut Random, accesses: usize) -> Vec<Vec<u32>> {
    const PARTS: usize = 4;
    let fresh = &mut Fresh(0);
    let mut requests = Vec::new();
    for part in 0..PARTS {
        let prompts = Prompts::new(random, fresh, accesses / 1500 + 20, (2, 24), 0.9);
        let share = if part % 2 == 0 { 0.2 } else { 0.8 };
        let mut talk =
            chats(random, fresh, &prompts, accesses / PARTS, (10.0, 1000.0, 6.0)).into_iter();
        let mut done = 0;
        while done < accesses / PARTS {
            let request = match talk.next() {
                Some(request) if random.chance(share) => request,
                _ => [prompts.draw(random), fresh.take(1 + random.below(8)).collect()].concat(),
            };
            done += request.len();
            requests.push(request);
        }
    }
    requests
}
