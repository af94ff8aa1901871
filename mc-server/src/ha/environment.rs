//! An environment as mc-ha takes one.

use std::io;
use std::sync::Arc;

use mc_environment::{BootTime, Environment};
use mc_ha::election::Clock;
use mc_ha::{Executor, Work};
use mc_types::Time;

/// The [`Executor`] and the [`Clock`] of an [`Environment`], for what is used of mc-ha beside a
/// [`Master`](crate::Master) that lives there. The clock shows the time since this was made.
#[derive(Clone, Debug)]
pub struct HaEnvironment {
    environment: Arc<dyn Environment>,
    start: BootTime,
}

impl HaEnvironment {
    /// Begins at [`Time::ORIGIN`].
    #[must_use]
    pub fn new(environment: Arc<dyn Environment>) -> Self {
        let start = environment.clock().now();
        Self { environment, start }
    }
}

impl Executor for HaEnvironment {
    fn spawn_apart(&self, name: &str, work: Work) -> io::Result<()> {
        self.environment.spawn_apart(name, work)
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        self.environment.run_blocking(work);
    }

    fn may_block(&self) -> bool {
        self.environment.may_block()
    }
}

impl Clock for HaEnvironment {
    fn now(&self) -> Time {
        Time::ORIGIN + self.start.clock().now().since(self.start)
    }
}
