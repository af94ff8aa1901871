//! Settings that take effect while the master runs.

use std::sync::{Arc, Weak};

use mc_meta::Master;
use parking_lot::Mutex;

use crate::args::Args;

/// The names of the settings that change without a restart.
pub(crate) const LIVE: &[&str] = &["log_level", "eviction_high_watermark_ratio", "eviction_ratio"];

/// The values of these settings, and the state machine that has them: none while this master follows
/// another one.
#[derive(Clone)]
pub(crate) struct Tuning(Arc<Mutex<Inner>>);

struct Inner {
    high: f64,
    ratio: f64,
    master: Weak<Master>,
}

impl Tuning {
    pub(crate) fn new(args: &Args) -> Self {
        let (high, ratio) = (args.eviction_high_watermark_ratio, args.eviction_ratio);
        Self(Arc::new(Mutex::new(Inner { high, ratio, master: Weak::new() })))
    }

    /// Has the settings take effect, now and for the masters of later terms.
    pub(crate) fn apply(&self, args: &Args) {
        args.server.set_levels();
        let mut inner = self.0.lock();
        inner.high = args.eviction_high_watermark_ratio;
        inner.ratio = args.eviction_ratio;
        inner.tune();
    }

    /// Gives the settings of now to a master that begins to serve, and later changes, too.
    pub(crate) fn adopt(&self, master: &Arc<Master>) {
        let mut inner = self.0.lock();
        inner.master = Arc::downgrade(master);
        inner.tune();
    }
}

impl Inner {
    fn tune(&self) {
        if let Some(master) = self.master.upgrade() {
            master.set_watermark(self.high, self.ratio);
        }
    }
}
