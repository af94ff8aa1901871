//! `fetch`: weights from a URL into the cache.

use std::error::Error;

use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Fetch;
use crate::text;

pub(crate) fn fetch(args: &Fetch) -> Result<(), Box<dyn Error>> {
    let bar = bar();
    let path = args.network.fetcher().projector(&args.url, args.sha256, |done, whole| {
        show(&bar, done, whole);
    });
    bar.finish_and_clear();
    Ok(text::print(&format!("{}\n", path?.display()))?)
}

/// A bar on standard error, if that is a terminal.
pub(crate) fn bar() -> ProgressBar {
    ProgressBar::no_length()
}

/// Shows the bytes that have arrived, and their number once it is known.
pub(crate) fn show(bar: &ProgressBar, done: u64, whole: Option<u64>) {
    if let Some(whole) = whole
        && bar.length().is_none()
    {
        let form = "{bytes} of {total_bytes} {wide_bar} {bytes_per_sec}, {eta} left";
        // Without the form, the plain one is shown.
        bar.set_style(ProgressStyle::with_template(form).unwrap_or(ProgressStyle::default_bar()));
        bar.set_length(whole);
    }
    bar.set_position(done);
}
