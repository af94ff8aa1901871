//! Playing a script against the model, and telling where it went wrong.
//!
//! A failed assertion is caught here rather than left to the test harness: while a
//! failure is shrunk, thousands of them would bury the one that matters. What is
//! printed in the end is the seed, the settings, the shortest script, and the step and
//! the assertion that failed.

use core::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use proptest::test_runner::TestCaseError;

thread_local! {
    /// The step under way, and what its panic said; none while nothing is played.
    static PLAYED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `play`, which names each of its steps before it takes it.
pub(crate) fn replay(play: impl FnOnce(&dyn Fn(usize, &dyn core::fmt::Debug))) -> Outcome {
    listen_to_panics();
    PLAYED.set(Some("at the start".to_owned()));
    let step = |number: usize, op: &dyn core::fmt::Debug| {
        PLAYED.set(Some(format!("step {number}, {op:?}")));
    };
    let played = panic::catch_unwind(AssertUnwindSafe(|| play(&step)));
    let told = PLAYED.take().unwrap_or_default();
    played.map_err(|_| TestCaseError::fail(told))
}

pub(crate) type Outcome = Result<(), TestCaseError>;

fn listen_to_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let playing = PLAYED.with_borrow_mut(|played| match played {
                Some(told) => {
                    let place = info.location().map(ToString::to_string).unwrap_or_default();
                    let payload = info.payload();
                    let said = payload
                        .downcast_ref::<String>()
                        .map(String::as_str)
                        .or_else(|| payload.downcast_ref::<&str>().copied())
                        .unwrap_or("a panic without words");
                    *told = format!("{told}, {place}:\n{said}");
                    true
                }
                None => false,
            });
            if !playing {
                others(info);
            }
        }));
    });
}
