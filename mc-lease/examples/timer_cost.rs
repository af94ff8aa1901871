//! The cost of a timer: time to set and cancel or to set and come, with few and with
//! many others live. Run with `--release`, on one processor (`taskset -c 0`).

use std::hint::black_box;
use std::time::Instant;

use mc_lease::TimerWheel;
use mc_types::Time;

/// Timers are set for this long ahead, give or take a quarter.
const TERM_MILLIS: u64 = 5_000;
const ROUNDS: u64 = 10_000_000;

fn main() {
    for live in [1_000, 1_000_000] {
        println!(
            "live={live} schedule_cancel_ns={:.1} schedule_expire_ns={:.1}",
            schedule_and_cancel(live),
            schedule_and_expire(live),
        );
    }
}

fn schedule_and_cancel(live: u64) -> f64 {
    let (mut wheel, mut draws) = filled(live);
    let begun = Instant::now();
    for token in 0..ROUNDS {
        let key = wheel.schedule(Time::from_millis(draws.term()), token);
        black_box(wheel.cancel(key));
    }
    nanos_per_round(begun)
}

/// Every timer that comes is set again, while the clock moves as fast as keeps `live`
/// of them: a master whose objects are read again when their lease ends.
fn schedule_and_expire(live: u64) -> f64 {
    let (mut wheel, mut draws) = filled(live);
    let begun = Instant::now();
    let mut now = 0;
    let mut rounds = 0;
    while rounds < ROUNDS {
        now += 1;
        while let Some((_, token)) = wheel.pop_due(Time::from_millis(now)) {
            wheel.schedule(Time::from_millis(now + draws.term()), token);
            rounds += 1;
        }
    }
    nanos_per_round(begun)
}

fn filled(live: u64) -> (TimerWheel<u64>, Draws) {
    let mut wheel = TimerWheel::new();
    let mut draws = Draws(1);
    for token in 0..live {
        wheel.schedule(Time::from_millis(draws.term()), token);
    }
    (wheel, draws)
}

fn nanos_per_round(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e9 / ROUNDS as f64
}

/// Marsaglia's xorshift generator.
struct Draws(u64);

impl Draws {
    fn term(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        TERM_MILLIS * 3 / 4 + self.0 % (TERM_MILLIS / 2)
    }
}
