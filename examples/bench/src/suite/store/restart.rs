//! Traffic while the master is killed and started again.

use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_rpc::ClientConfig;
use mc_store::{Client, PutOutcome};
use tokio::sync::watch;

use super::KIB;
use super::cluster::{Carrier, Plan, connect};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::pattern::Pattern;
use crate::placement::Placement;
use crate::scale::Scale;

/// Tasks, each with one call under way.
const CALLERS: u64 = 8;

/// Bytes of a value.
const VALUE: usize = 64 * KIB;

/// Time limit for one call to the master.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit for a put to wait for room.
const PUT_WAIT: Duration = Duration::from_secs(1);

/// Time limit for a put or a get: a put asks the master three times at most, and waits
/// for room. The last second is for a busy machine.
const DEADLINE: Duration = Duration::from_secs(8);

/// When nothing has succeeded by then, nothing will.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints how soon a put and a get succeed after the master is back.
pub(super) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let runs = scale.pick(5, 1, 1);
    let away = Duration::from_secs_f64(scale.pick(3.0, 1.0, 0.1));
    let mut cluster = Plan::new(Placement::Free, Carrier::Tcp, 64 << 20).start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut rpc = ClientConfig::default();
    rpc.call_timeout = CALL_TIMEOUT;
    let builder = cluster.builder().rpc(rpc).put_wait(PUT_WAIT);
    let client = runtime.block_on(connect(builder))?;
    let (success, mut successes) = watch::channel(None);
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..CALLERS {
        let caller = PutAndGet { client: client.clone(), number, success: success.clone() };
        callers.spawn_on(caller.run(), runtime.handle());
    }
    let mut longest_s: f64 = 0.0;
    for _ in 0..runs {
        runtime.block_on(since(&mut successes, &mut callers, Instant::now()))?;
        cluster.kill_master()?;
        let killed = Instant::now();
        std::thread::sleep(away);
        cluster.start_master_again()?;
        let back = Instant::now();
        let resumed = runtime.block_on(since(&mut successes, &mut callers, killed))?;
        longest_s = longest_s.max(resumed.saturating_duration_since(back).as_secs_f64());
    }
    // Dropped receivers are the callers' sign to end.
    drop(successes);
    let mut longest_call = Duration::ZERO;
    while let Some(ended) = runtime.block_on(callers.join_next()) {
        longest_call = longest_call.max(caller_ended(ended)?);
    }
    runtime.block_on(client.shutdown());
    let with = |figure: Figure| figure.with("runs", runs).with("away_s", away.as_secs_f64());
    report.add(with(Figure::new("resume_after_master_s", longest_s, "s")))?;
    let longest_call = longest_call.as_secs_f64();
    report.add(with(Figure::new("resume_longest_call_s", longest_call, "s")))
}

/// When the first put and get succeeded that began after `moment`.
async fn since(
    successes: &mut watch::Receiver<Option<Success>>,
    callers: &mut tokio::task::JoinSet<Result<Duration, BenchError>>,
    moment: Instant,
) -> Result<Instant, BenchError> {
    let is_later = |success: &Option<Success>| success.is_some_and(|found| found.began >= moment);
    tokio::select! {
        found = successes.wait_for(is_later) => match found.as_deref() {
            Ok(Some(success)) => Ok(success.ended),
            _ => Err(BenchError::wrong("a restart of the master", "all callers ended")),
        },
        // No caller ends by itself but by an error.
        Some(ended) = callers.join_next() => {
            caller_ended(ended)?;
            Err(BenchError::wrong("a restart of the master", "a caller ended early"))
        }
        () = tokio::time::sleep(PATIENCE) => {
            let found = format!("no put and get has succeeded for {PATIENCE:?}");
            Err(BenchError::wrong("a restart of the master", found))
        }
    }
}

fn caller_ended(
    ended: Result<Result<Duration, BenchError>, tokio::task::JoinError>,
) -> Result<Duration, BenchError> {
    ended.map_err(|error| BenchError::wrong("calling", error.to_string()))?
}

/// A put and a get that succeeded.
#[derive(Clone, Copy, Debug)]
struct Success {
    began: Instant,
    ended: Instant,
}

/// Puts a value and gets it back, over and over.
struct PutAndGet {
    client: Client,
    number: u64,
    success: watch::Sender<Option<Success>>,
}

impl PutAndGet {
    /// The duration of the longest call. Calls may fail, but neither last nor lie.
    async fn run(self) -> Result<Duration, BenchError> {
        let pattern = Pattern::new(self.number);
        let value = Bytes::from(pattern.bytes(VALUE));
        let mut longest = Duration::ZERO;
        for turn in 0_u64.. {
            if self.success.is_closed() {
                break;
            }
            let key = format!("resume-{}-{turn}", self.number);
            let began = Instant::now();
            let put = self.client.put(&key, value.clone()).await;
            longest = longest.max(in_time("put", began)?);
            if !matches!(put, Ok(PutOutcome::Stored)) {
                continue;
            }
            let asked = Instant::now();
            let got = self.client.get(&key).await;
            longest = longest.max(in_time("get", asked)?);
            // The master may have been killed between the two.
            let Ok(got) = got else { continue };
            if got.len() != VALUE {
                return Err(BenchError::wrong("get", format!("{} of {VALUE} bytes", got.len())));
            }
            pattern.check("get", 0, &got)?;
            self.success.send_replace(Some(Success { began, ended: Instant::now() }));
        }
        Ok(longest)
    }
}

/// The duration of a call that began then; an error if it was too long.
fn in_time(what: &'static str, began: Instant) -> Result<Duration, BenchError> {
    let took = began.elapsed();
    if took > DEADLINE {
        return Err(BenchError::wrong(what, format!("took {took:?}, more than {DEADLINE:?}")));
    }
    Ok(took)
}
