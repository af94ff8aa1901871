//! The futures of calls whose code is compiled once.

use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;

/// A future on the heap, whose type names no code.
///
/// An `async fn` is compiled again in every crate that polls it, with all that it awaits. The public
/// functions which stand before much code return this type instead: their code is compiled in their
/// own crate, for one allocation a call.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
