//! A client's port with its health and metrics.

use std::sync::{Arc, Weak};

use mc_http::{HttpPort, Page};
use mc_transport::BootTime;

use super::Core;

impl Core {
    /// Answers at `port` until the client ends.
    pub(super) fn serve_pages(self: &Arc<Self>, port: HttpPort) {
        let core = Arc::downgrade(self);
        let pages = move |path: &str| page(&core, path);
        // It is ended from outside, with everything in the background.
        self.background.lock().spawn(port.serve(pages, std::future::pending()));
    }
}

fn page(core: &Weak<Core>, path: &str) -> Option<Page> {
    let core = core.upgrade()?;
    match path {
        "/metrics" => Some(Page::prometheus(core.metrics().prometheus())),
        "/metrics/summary" => Some(Page::text(core.metrics().summary() + "\n")),
        "/health" => {
            let ready = core.question().is_ok();
            let health = serde_json::json!({
                "status": if ready { "ok" } else { "closing" },
                "service_ready": ready,
                "version": env!("CARGO_PKG_VERSION"),
                "uptime_seconds": BootTime::now().since(core.settings.origin).as_secs(),
                "client_id": core.id.to_string(),
                "segments": core.segments.list().len(),
            });
            let page = Page::json(health.to_string());
            Some(if ready { page } else { page.unavailable() })
        }
        _ => None,
    }
}
