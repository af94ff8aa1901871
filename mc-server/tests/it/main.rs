//! A master by itself: its own work, and its events.

mod events;
mod ticker;
