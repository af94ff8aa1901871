//! The heartbeat, the log of figures and the sending of reports: begun by the client itself.

use std::io;
use std::sync::Arc;

use super::core::Core;
use super::heartbeat::Heartbeat;
use super::tasks;

impl Core {
    /// Starts the heartbeat unless it runs, or the client is closed.
    pub(super) fn start_heartbeat(self: &Arc<Self>) -> io::Result<()> {
        let mut heartbeat = self.heartbeat.lock();
        // The call that closes it stops the heartbeat after that.
        if heartbeat.is_none() && self.link.admission.question().is_ok() {
            *heartbeat = Some(Heartbeat::start(
                &*self.settings.environment,
                self.settings.pulse.clone(),
                self.link.id,
                Arc::clone(&self.segments),
                Arc::clone(&self.heard),
                |waiting| tasks::run(Arc::downgrade(self), waiting),
            )?);
        }
        Ok(())
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
