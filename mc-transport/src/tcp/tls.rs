//! TLS between peers.

mod admit;
mod reach;

pub(super) use self::admit::admit;
pub(super) use self::reach::Settings;
