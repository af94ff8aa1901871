//! The transfer of one file: attempts, the ranges of each, and the threads that fetch them.

use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::error::FetchError;
use super::http::{Answer, Client, Settings};
use super::part::{Part, Plan, Span};
use super::url::Url;

/// A file of at least this many bytes is fetched in parallel ranges, as by Mooncake.
const PARALLEL_FROM: u64 = 8 << 20;
/// Bytes that are read and written at a time.
const PIECE: usize = 128 << 10;
/// Events of all threads that wait.
const EVENTS: usize = 32;
/// The plan is saved each time so many bytes have come.
const SAVED_EACH: u64 = 64 << 20;
/// How often a transfer is tried again without [`PROGRESS`].
const RETRIES: u32 = 4;
/// The pause before the first of them; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// More bytes than there ever were, by so many, earn all retries again.
const PROGRESS: u64 = 1 << 20;
/// Fewer bytes within the idle timeout are a stall, too: a trickle would never end.
const TRICKLE: u64 = 4096;

/// Receives the bytes that are there, and the file's length if it is known.
pub(super) type Progress<'a> = &'a mut dyn FnMut(u64, Option<u64>);

/// The fetching of a URL into a file.
pub(super) struct Transfer<'a> {
    pub(super) settings: &'a Settings,
    pub(super) url: &'a Url,
    pub(super) part: &'a Part,
    /// Most bytes of the file.
    pub(super) limit: u64,
    /// Most ranges at a time.
    pub(super) parallel: usize,
    /// Whether a checksum will tell a file that is not whole or not one.
    pub(super) is_verified: bool,
}

/// A report of a thread.
enum Event {
    Progress,
    Failed(FetchError),
}

impl Transfer<'_> {
    /// Fetches what is not there yet, with retries, and returns the file's length.
    pub(super) fn run(&self, progress: Progress<'_>) -> Result<u64, FetchError> {
        let mut plan = self.part.saved(self.limit);
        let (mut failures, mut most) = (0, 0);
        loop {
            let error = match self.attempt(&mut plan, self.parallel >> failures, progress) {
                Ok(len) => return Ok(len),
                Err(error) => error,
            };
            let done = plan.as_ref().map_or(0, Plan::done);
            if done >= most + PROGRESS {
                (failures, most) = (0, done);
            }
            if matches!(error, FetchError::Changed { .. }) {
                plan = None;
                self.part.truncate(0)?;
            }
            // Without a validator the rest may be of another file.
            plan = plan.filter(Plan::is_resumable);
            if failures == RETRIES || !is_momentary(&error) {
                return Err(error);
            }
            thread::sleep(FIRST_PAUSE * 2_u32.pow(failures));
            failures += 1;
        }
    }

    fn attempt(
        &self,
        plan: &mut Option<Plan>,
        parallel: usize,
        progress: Progress<'_>,
    ) -> Result<u64, FetchError> {
        let client = Client::new(self.settings)?;
        let first = match &*plan {
            None => client.get(self.url, (0, None), None)?,
            Some(plan) => match plan.open().first() {
                None => return Ok(plan.done()),
                Some(span) => self.get(&client, plan, span)?,
            },
        };
        let current = match plan {
            Some(plan) if first.is_part => plan,
            // All of it: nothing was there, the file changed, or the server knows no ranges.
            _ => plan.insert(self.begin(&first, parallel)?),
        };
        progress(current.done(), current.total);
        let outcome = self.fetch(&client, current, first, parallel, progress);
        if outcome.is_err() {
            // A plan that cannot be saved is older than the file, and still true.
            let _ = self.part.save(current);
        }
        outcome.map(|()| current.done())
    }

    /// Begins a file of which nothing is there.
    fn begin(&self, first: &Answer, parallel: usize) -> Result<Plan, FetchError> {
        let url = || first.url.shown();
        if let Some(at_least) = first.total.filter(|total| *total > self.limit) {
            return Err(FetchError::TooLarge { url: url(), at_least, limit: self.limit });
        }
        if first.total.is_none() && !first.is_chunked && !self.is_verified {
            return Err(FetchError::NoLength { url: url() });
        }
        // Ranges of different files must not be mixed unseen.
        let is_safe = first.validator.is_some() || self.is_verified;
        let is_long = first.total.is_some_and(|total| total >= PARALLEL_FROM);
        let parts = if first.is_part && is_safe && is_long { parallel } else { 1 };
        let plan = Plan::new(first.total, first.validator.clone(), parts);
        self.part.truncate(0)?;
        self.part.save(&plan)?;
        Ok(plan)
    }

    /// Asks for the rest of a span. A part that is answered is one of the file of the plan.
    fn get(&self, client: &Client<'_>, plan: &Plan, span: &Span) -> Result<Answer, FetchError> {
        let validator = plan.validator.as_deref();
        let changed = || FetchError::Changed { url: self.url.shown() };
        match client.get(self.url, (span.next(), Some(span.end)), validator) {
            // The file has become shorter.
            Err(FetchError::Status { status: 416, .. }) => Err(changed()),
            Ok(answer) if answer.is_part => {
                let is_other = match (&plan.validator, &answer.validator) {
                    (Some(ours), Some(theirs)) => ours != theirs,
                    _ => false,
                };
                if is_other || answer.total != plan.total { Err(changed()) } else { Ok(answer) }
            }
            other => other,
        }
    }

    /// Fetches all open spans of the plan. `first` is an answer for the first of them.
    fn fetch(
        &self,
        client: &Client<'_>,
        plan: &Plan,
        first: Answer,
        parallel: usize,
        progress: Progress<'_>,
    ) -> Result<(), FetchError> {
        let open = plan.open();
        let next = AtomicUsize::new(0);
        let mut failure = None;
        let mut fail = |error| {
            if failure.is_none() {
                failure = Some(error);
                // Wakes the other threads, whose errors say less.
                client.shut_down();
            }
        };
        thread::scope(|scope| {
            let (events, received) = sync_channel(EVENTS);
            let mut first = Some(first);
            for _ in 0..parallel.clamp(1, open.len().max(1)) {
                let (events, open, next) = (events.clone(), &open, &next);
                // The first thread takes the first span before there is a second thread.
                let begun = first.take().zip(open.first());
                if begun.is_some() {
                    next.fetch_add(1, Ordering::Relaxed);
                }
                let work = move || {
                    let taken =
                        std::iter::from_fn(|| open.get(next.fetch_add(1, Ordering::Relaxed)));
                    let begun = begun.map(|(answer, span)| (Some(answer), span));
                    for (answer, span) in begun.into_iter().chain(taken.map(|span| (None, span))) {
                        if let Err(error) = self.fetch_span(client, plan, span, answer, &events) {
                            // The receiver is gone after a panic of the caller's callback.
                            let _ = events.send(Event::Failed(error));
                            return;
                        }
                    }
                };
                let builder = thread::Builder::new().name("c2c-fetch".to_owned());
                if let Err(error) = builder.spawn_scoped(scope, work) {
                    fail(FetchError::Thread(error));
                    break;
                }
            }
            drop(events);
            let mut saved = plan.done();
            for event in received {
                match event {
                    Event::Failed(error) => fail(error),
                    Event::Progress => {
                        let done = plan.done();
                        progress(done, plan.total);
                        if done >= saved + SAVED_EACH {
                            saved = done;
                            self.part.save(plan).unwrap_or_else(&mut fail);
                        }
                    }
                }
            }
        });
        failure.map_or(Ok(()), Err)
    }

    /// Fetches the rest of a span, of which the server may send less at a time than it is asked for.
    fn fetch_span(
        &self,
        client: &Client<'_>,
        plan: &Plan,
        span: &Span,
        mut begun: Option<Answer>,
        events: &SyncSender<Event>,
    ) -> Result<(), FetchError> {
        while span.next() < span.end {
            let answer = match begun.take() {
                Some(answer) => answer,
                None => match self.get(client, plan, span)? {
                    answer if answer.is_part => answer,
                    answer => return Err(FetchError::Changed { url: answer.url.shown() }),
                },
            };
            let is_last = answer.end.is_none();
            self.copy(client, span, answer, events)?;
            if is_last {
                break;
            }
        }
        Ok(())
    }

    fn copy(
        &self,
        client: &Client<'_>,
        span: &Span,
        mut answer: Answer,
        events: &SyncSender<Event>,
    ) -> Result<(), FetchError> {
        let end = answer.end.unwrap_or(u64::MAX).min(span.end);
        // Without the time that the disk and the caller's callback take.
        let (mut waited, mut came) = (Duration::ZERO, 0);
        let mut piece = vec![0; PIECE];
        loop {
            let next = span.next();
            let room = usize::try_from(end - next).map_or(PIECE, |room| room.min(PIECE));
            if room == 0 {
                return Ok(());
            }
            let short = |announced| FetchError::Short {
                url: answer.url.shown(),
                announced,
                received: next,
            };
            let begin = Instant::now();
            let read = answer.body.read(&mut piece[..room]);
            waited += begin.elapsed();
            let read = match read {
                Ok(0) => return answer.end.map_or(Ok(()), |end| Err(short(end))),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(match (ureq::Error::from(error), answer.end) {
                        (ureq::Error::Io(error), Some(end))
                            if error.kind() == io::ErrorKind::UnexpectedEof =>
                        {
                            short(end)
                        }
                        (error, _) => client.broken(&answer.url, error),
                    });
                }
            };
            let at_least = next + read as u64;
            if at_least > self.limit {
                let (url, limit) = (answer.url.shown(), self.limit);
                return Err(FetchError::TooLarge { url, at_least, limit });
            }
            self.part.write(&piece[..read], next)?;
            span.advance(read);
            if events.send(Event::Progress).is_err() {
                return Ok(());
            }
            came += read as u64;
            let timeout = self.settings.idle_timeout;
            if waited >= timeout {
                if came < TRICKLE && span.next() < end {
                    return Err(FetchError::Stalled { url: answer.url.shown(), timeout });
                }
                (waited, came) = (Duration::ZERO, 0);
            }
        }
    }
}

/// Returns whether the next attempt may follow at once. A stall has taken its time already.
fn is_momentary(error: &FetchError) -> bool {
    let is_local = matches!(error, FetchError::DiskFull { .. } | FetchError::Thread(_));
    error.is_retryable() && !is_local && !matches!(error, FetchError::Stalled { .. })
}
