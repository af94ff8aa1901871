//! The randomness of a client: the system's, or its environment's.

pub use mc_environment::{ClientEnvironment, Connecting};

use super::config::ClientConfig;

impl ClientConfig {
    /// Fills `bytes` with random ones; returns whether there were any.
    pub(super) fn random(&self, bytes: &mut [u8]) -> bool {
        match &self.environment {
            None => getrandom::fill(bytes).is_ok(),
            Some(environment) => environment.random(bytes).is_ok(),
        }
    }

    /// Returns a random number from 0 to 1, for the pauses between attempts.
    pub(super) fn fraction(&self) -> f64 {
        let Some(environment) = &self.environment else { return fastrand::f64() };
        let mut bytes = [0; 4];
        // Without randomness the pause is the shortest.
        drop(environment.random(&mut bytes));
        f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
    }
}
