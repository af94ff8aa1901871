//! Real signals, in a process of their own because they reach all of it.

use std::process::Command;
use std::time::Duration;

use mc_cli::{Shutdown, Signal};

fn signal_self(name: &str) {
    let pid = std::process::id().to_string();
    let status = Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
    assert!(status.success());
}

#[tokio::test]
async fn both_signals_ask_for_shutdown() {
    let mut shutdown = Shutdown::listen().unwrap();
    for (name, signal) in [("TERM", Signal::Terminate), ("INT", Signal::Interrupt)] {
        signal_self(name);
        let arrived = tokio::time::timeout(Duration::from_secs(10), shutdown.requested()).await;
        assert_eq!(arrived, Ok(signal));
        assert_eq!(signal.to_string(), format!("SIG{name}"));
    }
}
