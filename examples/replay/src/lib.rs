//! The request traces that `mc-replay` replays, for other programs that want such a load.

pub mod trace;
