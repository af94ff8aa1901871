//! The conversions for other models that a master asks of clients.

/// The conversions of clients, as an operator configured them at the master.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct C2cSettings {
    /// Threads for conversions in each client.
    pub workers: u32,
    /// The models and rules, as JSON. The crate `mc-c2c` reads it.
    pub config_json: Box<str>,
}

impl C2cSettings {
    /// Rules, and the threads that each client follows them with.
    #[must_use]
    pub fn new(workers: u32, config_json: impl Into<Box<str>>) -> Self {
        Self { workers, config_json: config_json.into() }
    }
}
