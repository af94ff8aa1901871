//! Warnings about failed calls: one line for each cause in a call, however many objects the call is about,
//! and one a second for a cause that repeats. What is left out is counted, and logged at level debug.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use mc_store::ErrorCode;
use parking_lot::Mutex;

/// The time in which a line is not repeated.
const WINDOW: Duration = Duration::from_secs(1);

/// Lines with different texts for one code in that time.
const TEXTS: usize = 5;

/// The causes that were logged lately, by error code.
static TOLD: Mutex<Option<HashMap<Option<ErrorCode>, Window>>> = Mutex::new(None);

thread_local! {
    /// The causes of the call that this thread is in.
    static CALL: RefCell<Option<Vec<Cause>>> = const { RefCell::new(None) };
}

/// A cause of failures in one call.
#[derive(Debug)]
struct Cause {
    code: Option<ErrorCode>,
    /// The text of the first failure.
    text: String,
    failures: u64,
}

/// The lines of one code since a time.
#[derive(Debug)]
struct Window {
    began: Instant,
    /// Their texts without numbers.
    shapes: Vec<u64>,
    left_out: u64,
}

/// Runs a call; warnings about its objects become one line for each cause when it ends.
pub(crate) fn one_call<T>(work: impl FnOnce() -> T) -> T {
    /// Tells of the causes also when `work` panics.
    struct Ends(bool);
    impl Drop for Ends {
        fn drop(&mut self) {
            let causes = if self.0 { CALL.take() } else { None };
            causes.into_iter().flatten().for_each(tell);
        }
    }
    let is_outermost = CALL.with_borrow_mut(|call| {
        let is_outermost = call.is_none();
        call.get_or_insert_default();
        is_outermost
    });
    let _ends = Ends(is_outermost);
    work()
}

/// Warns of a failure, now or at the end of the call.
pub(crate) fn warn(code: Option<ErrorCode>, text: String) {
    let cause = Cause { code, text, failures: 1 };
    let alone = CALL.with_borrow_mut(|call| {
        let Some(causes) = call else { return Some(cause) };
        match causes.iter_mut().find(|other| other.code == code) {
            Some(other) => {
                tracing::debug!("{}", cause.text);
                other.failures += 1;
            }
            None => causes.push(cause),
        }
        None
    });
    if let Some(cause) = alone {
        tell(cause);
    }
}

fn tell(cause: Cause) {
    let now = Instant::now();
    let left_out = {
        let mut told = TOLD.lock();
        let windows = told.get_or_insert_default();
        let window = windows.entry(cause.code).or_insert_with(|| Window::new(now));
        window.take(now, &cause)
    };
    let Some(left_out) = left_out else {
        tracing::debug!("{}", cause.text);
        return;
    };
    let mut text = cause.text;
    if cause.failures > 1 {
        text += &format!(" ({} failures of this kind in this call)", cause.failures);
    }
    if left_out > 0 {
        text += &format!(" (and {left_out} since the last line of this kind)");
    }
    match cause.code {
        Some(code) => tracing::warn!(%code, "{text}"),
        None => tracing::warn!("{text}"),
    }
}

impl Window {
    const fn new(began: Instant) -> Self {
        Self { began, shapes: Vec::new(), left_out: 0 }
    }

    /// Returns whether a line may be written now, and how many failures were left out since the last.
    fn take(&mut self, now: Instant, cause: &Cause) -> Option<u64> {
        if now.saturating_duration_since(self.began) >= WINDOW {
            self.began = now;
            self.shapes.clear();
        }
        let shape = shape(&cause.text);
        if self.shapes.len() == TEXTS || self.shapes.contains(&shape) {
            self.left_out += cause.failures;
            return None;
        }
        self.shapes.push(shape);
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Texts that differ in numbers only have one shape.
fn shape(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    for char in text.chars().filter(|char| !char.is_ascii_digit()) {
        char.hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(text: &str, failures: u64) -> Cause {
        Cause { code: Some(ErrorCode::TenantQuotaExceeded), text: text.into(), failures }
    }

    #[test]
    fn a_repeated_line_is_told_once_a_second_with_its_count() {
        let begin = Instant::now();
        let mut window = Window::new(begin);
        let at = |millis| begin + Duration::from_millis(millis);
        assert_eq!(window.take(at(0), &cause("tenant a has 10 bytes", 4950)), Some(0));
        for n in 0..5000 {
            let text = format!("tenant a has {n} bytes");
            assert_eq!(window.take(at(n / 6), &cause(&text, 1)), None);
        }
        assert_eq!(window.take(at(900), &cause("another one", 2)), Some(5000));
        assert_eq!(window.take(at(999), &cause("another one", 2)), None);
        assert_eq!(window.take(at(1000), &cause("another one", 1)), Some(2));
    }

    #[test]
    fn many_different_lines_are_few() {
        let begin = Instant::now();
        let mut window = Window::new(begin);
        let texts: Vec<String> = ('a'..='z').map(|key| format!("key {key}")).collect();
        let told = texts.iter().filter(|text| window.take(begin, &cause(text, 1)).is_some());
        assert_eq!(told.count(), TEXTS);
    }

    #[test]
    fn a_call_collects_its_causes() {
        let causes = one_call(|| {
            for n in 0..3 {
                warn(Some(ErrorCode::TenantQuotaExceeded), format!("key {n}"));
            }
            one_call(|| warn(None, "rejected".into()));
            CALL.with_borrow(|call| {
                let causes = call.iter().flatten();
                causes.map(|cause| (cause.text.clone(), cause.failures)).collect::<Vec<_>>()
            })
        });
        assert_eq!(causes, [("key 0".to_owned(), 3), ("rejected".to_owned(), 1)]);
        assert!(CALL.with_borrow(Option::is_none));
    }
}
