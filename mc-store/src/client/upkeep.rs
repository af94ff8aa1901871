//! The heartbeat, the log of figures and the sending of reports: begun by the client itself.

use std::io;
use std::sync::Arc;

use super::core::Core;
use super::own_load::OwnLoad;
use super::tasks;

impl Core {
    /// Starts the heartbeat unless it runs, or the client is closed.
    pub(super) fn start_heartbeat(self: &Arc<Self>) -> io::Result<()> {
        let work = |waiting| tasks::run(Arc::downgrade(self), waiting);
        let (transport, loads) = (&self.transfers.transport, &self.transfers.health.loads);
        let load = OwnLoad::new(Arc::clone(transport), Arc::clone(loads));
        self.liveness.start(&self.link, &self.settings, &self.segments, load, work)
    }

    /// Logs the figures at each interval until the client ends, if that is wanted.
    pub(super) fn log_figures(self: &Arc<Self>) {
        let interval = self.settings.metrics_interval;
        if interval.is_zero() {
            return;
        }
        let core = Arc::downgrade(self);
        self.background.spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                let Some(core) = core.upgrade() else { return };
                tracing::info!("{}", core.metrics().summary());
            }
        });
    }

    /// Starts the task that sends reports; it ends with the client.
    pub(super) fn send_reports(&self) {
        if let Some(task) = self.reports.sending(self.link.master.clone(), self.link.id) {
            self.background.spawn(task);
        }
    }
}
