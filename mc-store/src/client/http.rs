//! A client's port with its health and metrics.

use std::sync::{Arc, Weak};

use mc_http::{HttpPort, MetricsText, Page};

use super::core::Core;

/// Answers at `port` until the client ends.
pub(super) fn serve_pages(core: &Arc<Core>, port: HttpPort) {
    let weak = Arc::downgrade(core);
    let pages = move |path: &str| page(&weak, path);
    // It is ended from outside, with everything in the background.
    core.background.spawn(port.serve(pages, std::future::pending()));
}

fn page(core: &Weak<Core>, path: &str) -> Option<Page> {
    let core = core.upgrade()?;
    match path {
        "/metrics" => {
            let mut process = MetricsText::default();
            process.process(env!("CARGO_PKG_VERSION"));
            Some(Page::prometheus(core.metrics().prometheus() + &process.into_string()))
        }
        "/metrics/summary" => Some(Page::text(core.metrics().summary() + "\n")),
        "/health" | "/ready" => {
            let reason = unready(&core);
            let health = health(&core, reason.as_ref());
            Some(if reason.is_some() { health.unavailable() } else { health })
        }
        // A supervisor that restarts a process because of this page shall not do so because another
        // process does not answer: what this one keeps would be lost.
        "/live" => Some(health(&core, unready(&core).as_ref())),
        _ => None,
    }
}

/// Why a client is not ready.
struct Unready {
    status: &'static str,
    reason: String,
}

/// Why calls of this client would not be answered now; `None` when they would.
fn unready(core: &Core) -> Option<Unready> {
    if core.link.question().is_err() {
        return Some(Unready { status: "closing", reason: "the client is leaving".into() });
    }
    let (silence, pulse) = (core.liveness.heard.ago(), &core.settings.pulse);
    (silence > pulse.patience()).then(|| Unready {
        status: "master_silent",
        reason: format!(
            "the master at {} has not answered for {} s",
            pulse.master,
            silence.as_secs()
        ),
    })
}

fn health(core: &Core, unready: Option<&Unready>) -> Page {
    let mut health = serde_json::json!({
        "status": unready.map_or("ok", |unready| unready.status),
        "service_ready": unready.is_none(),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": core.settings.clock.now().since(core.settings.origin).as_secs(),
        "client_id": core.link.id.to_string(),
        "segments": core.segments.list().len(),
    });
    if let Some(unready) = unready {
        health["reason"] = unready.reason.as_str().into();
    }
    Page::json(health.to_string())
}
