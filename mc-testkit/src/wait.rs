//! Waiting for a condition without a notification.

use std::fmt::{Debug, Display};
use std::panic::Location;
use std::time::{Duration, Instant};

/// The first pause between two looks; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// The result of one look at a condition.
pub trait Check {
    /// The value of a condition that holds.
    type Value;

    /// Returns the value when the condition holds, and otherwise what was seen instead, which
    /// may be nothing.
    ///
    /// # Errors
    /// The condition does not hold.
    fn check(self) -> Result<Self::Value, String>;
}

impl Check for bool {
    type Value = ();

    fn check(self) -> Result<(), String> {
        if self { Ok(()) } else { Err(String::new()) }
    }
}

impl<T> Check for Option<T> {
    type Value = T;

    fn check(self) -> Result<T, String> {
        self.ok_or_else(String::new)
    }
}

/// The error is shown when the time is up.
impl<T, E: Debug> Check for Result<T, E> {
    type Value = T;

    fn check(self) -> Result<T, String> {
        self.map_err(|error| format!(": {error:?}"))
    }
}

/// Waits until `condition` holds, and returns what it yields.
///
/// Looks again every few milliseconds of Tokio's time.
///
/// # Panics
/// When it does not hold within `limit`, with the caller's place and `what`.
#[track_caller]
pub fn eventually<C: Check>(
    limit: Duration,
    what: impl Display,
    mut condition: impl FnMut() -> C,
) -> impl Future<Output = C::Value> {
    wait(limit, what, async move || condition(), Location::caller())
}

/// Waits as [`eventually`] for a condition that takes calls to find out.
///
/// A look that is under way when the time is up is waited for.
///
/// # Panics
/// As [`eventually`].
#[track_caller]
pub fn eventually_async<C: Check>(
    limit: Duration,
    what: impl Display,
    condition: impl AsyncFnMut() -> C,
) -> impl Future<Output = C::Value> {
    wait(limit, what, condition, Location::caller())
}

async fn wait<C: Check>(
    limit: Duration,
    what: impl Display,
    mut condition: impl AsyncFnMut() -> C,
    caller: &'static Location<'static>,
) -> C::Value {
    let (begin, mut pause) = (tokio::time::Instant::now(), FIRST_PAUSE);
    loop {
        match condition().await.check() {
            Ok(value) => return value,
            Err(seen) => assert!(begin.elapsed() < limit, "{}", late(caller, limit, &what, &seen)),
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Waits as [`eventually`] on a thread that may block.
///
/// # Panics
/// As [`eventually`].
#[track_caller]
pub fn eventually_blocking<C: Check>(
    limit: Duration,
    what: impl Display,
    mut condition: impl FnMut() -> C,
) -> C::Value {
    let (begin, mut pause, caller) = (Instant::now(), FIRST_PAUSE, Location::caller());
    loop {
        match condition().check() {
            Ok(value) => return value,
            Err(seen) => assert!(begin.elapsed() < limit, "{}", late(caller, limit, &what, &seen)),
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

fn late(caller: &Location<'_>, limit: Duration, what: &impl Display, seen: &str) -> String {
    format!("{caller}: not within {limit:?}: {what}{seen}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn waits_until_it_holds_and_returns_the_value() {
        let mut looks = 0;
        eventually(LIMIT, "three looks", || {
            looks += 1;
            looks == 3
        })
        .await;
        assert_eq!(eventually_async(LIMIT, "a value", async || Some(7)).await, 7);
        assert_eq!(eventually_blocking(LIMIT, "a value", || Ok::<_, ()>(8)), 8);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "wait.rs")]
    async fn a_failure_names_the_place_of_the_caller() {
        eventually(LIMIT, "never", || false).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "not within 30s: it works: \"broken\"")]
    async fn a_failure_shows_the_last_error() {
        eventually(LIMIT, "it works", || Err::<(), _>("broken")).await;
    }
}
