//! Spans without size and without code.

use core::fmt::Display;

use crate::{Kind, TraceContext};

/// A span of a program without the feature `otel`: none.
#[derive(Debug, Default)]
pub struct Span(());

impl Span {
    /// No span.
    pub const NONE: Self = Self(());

    /// Begins no span.
    #[inline(always)]
    #[must_use]
    pub fn root(_name: &'static str, _kind: Kind) -> Self {
        Self::NONE
    }

    /// Begins no span.
    #[inline(always)]
    #[must_use]
    pub fn child(_name: &'static str, _kind: Kind) -> Self {
        Self::NONE
    }

    /// Begins no span.
    #[inline(always)]
    #[must_use]
    pub fn remote(_name: &'static str, _kind: Kind, _parent: TraceContext) -> Self {
        Self::NONE
    }

    /// Returns `false`.
    #[inline(always)]
    #[must_use]
    pub const fn is_recording(&self) -> bool {
        false
    }

    /// Returns `None`.
    #[inline(always)]
    #[must_use]
    pub const fn context(&self) -> Option<TraceContext> {
        None
    }

    /// Does nothing.
    #[inline(always)]
    pub fn set(&self, _key: &'static str, _value: impl Into<crate::Value>) {}

    /// Does nothing.
    #[inline(always)]
    pub fn failed(&self, _why: impl Display) {}

    /// Returns `future`.
    #[inline(always)]
    pub fn within<F: Future>(&self, future: F) -> F {
        future
    }

    /// Runs `work`.
    #[inline(always)]
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        work()
    }
}

/// Returns `None`: there are no spans.
#[inline(always)]
#[must_use]
pub const fn current() -> Option<TraceContext> {
    None
}

/// Returns `false`.
#[inline(always)]
#[must_use]
pub const fn is_on() -> bool {
    false
}

/// Runs `work`.
#[inline(always)]
pub fn under<T>(_parent: TraceContext, work: impl FnOnce() -> T) -> T {
    work()
}

/// Returns `future`.
#[inline(always)]
pub fn carried<F: Future>(future: F) -> F {
    future
}
