//! Simulations, by the library and by `mc-sim`.

mod program;
mod simulation;
