//! Real signals, in a process of their own because they reach all of it.

use std::process::Command;
use std::time::Duration;

use mc_cli::{Shutdown, Signal};
use tokio::signal::unix::{SignalKind, signal};

fn signal_self(name: &str) {
    let pid = std::process::id().to_string();
    let status = Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
    assert!(status.success());
}

/// Sends a signal to this process, and waits until its listeners have heard it.
async fn signal_and_wait(name: &str, kind: SignalKind) {
    let mut heard = signal(kind).expect("the system takes a handler");
    signal_self(name);
    heard.recv().await;
    // Tasks that it has woken take their turns.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn signals_ask_for_shutdown_and_a_second_one_soon_after_says_nothing_new() {
    let mut shutdown = Shutdown::listen().unwrap();
    // A thread that waits for a signal advances no clock: nothing here sleeps.
    tokio::time::pause();
    for (name, kind, signal) in [
        ("TERM", SignalKind::terminate(), Signal::Terminate),
        ("INT", SignalKind::interrupt(), Signal::Interrupt),
    ] {
        signal_and_wait(name, kind).await;
        assert_eq!(shutdown.requested().await, signal);
        assert_eq!(signal.to_string(), format!("SIG{name}"));
        // As `timeout` does: to the process, and to its group.
        tokio::time::advance(Duration::from_millis(2)).await;
        signal_and_wait("TERM", SignalKind::terminate()).await;
        tokio::time::advance(Duration::from_millis(997)).await;
        signal_and_wait("INT", SignalKind::interrupt()).await;
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    signal_and_wait("TERM", SignalKind::terminate()).await;
    assert_eq!(shutdown.requested().await, Signal::Terminate);
}
