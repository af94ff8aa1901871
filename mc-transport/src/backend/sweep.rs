//! Connections that prove nothing do not stay.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use mc_places::Places;
use tokio::time::MissedTickBehavior;

use crate::backend::first::{First, first};

/// The interval at which connections that proved nothing in time are looked for.
const SWEEP: Duration = Duration::from_secs(5);

/// Runs `accept`, and meanwhile has connections go that prove nothing for a minute.
pub async fn sweeping(places: Arc<Places>, accept: impl Future<Output = ()>) {
    let sweep = async {
        let mut timer = tokio::time::interval(SWEEP);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            timer.tick().await;
            places.sweep(SWEEP);
        }
    };
    let _: First<(), Infallible> = first(accept, sweep).await;
}
