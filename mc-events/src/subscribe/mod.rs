//! Subscribers of the encoding `s4`: who holds which object, kept up to date.
//!
//! [`EventSubscriber`] connects, asks for what it missed, and connects again. [`Index`] is what most
//! subscribers make of its updates. [`Follower`] is the protocol without sockets, for programs that
//! have their own. [`EventTail`] only tells what is published. `docs/events.md` describes the bytes.

mod client;
mod decode;
mod follow;
mod index;
mod tail;

pub use crate::error::{Malformed, SubscribeError};
pub use client::{EventSubscriber, SubscriberConfig};
pub use decode::{Info, Page, decode_batch};
pub use follow::{Action, Follower, Update};
pub use index::{Index, IndexFull};
pub use tail::{EventBatch, EventTail};
