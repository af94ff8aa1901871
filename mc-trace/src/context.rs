//! The context of a trace as it travels.

use core::fmt;
use core::num::{NonZeroU64, NonZeroU128};
use core::str::FromStr;

/// Set where the trace is recorded.
const SAMPLED: u8 = 1;

/// The trace and the span that a message belongs to, and its flags, as W3C's *Trace Context*
/// (level 1) defines them.
///
/// ```
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context: mc_trace::TraceContext = text.parse()?;
/// assert!(context.is_sampled());
/// assert_eq!(context.to_string(), text);
/// # Ok::<(), mc_trace::NotATraceParent>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace: NonZeroU128,
    span: NonZeroU64,
    flags: u8,
}

impl TraceContext {
    /// Bytes of a context in a frame.
    pub const LEN: usize = 25;

    /// Returns the context of this span; `None` when one of the numbers is zero, which means none.
    #[must_use]
    pub fn new(trace: u128, span: u64, is_sampled: bool) -> Option<Self> {
        let (trace, span) = (NonZeroU128::new(trace)?, NonZeroU64::new(span)?);
        Some(Self { trace, span, flags: u8::from(is_sampled) * SAMPLED })
    }

    /// Returns the number of the trace.
    #[must_use]
    pub const fn trace(&self) -> u128 {
        self.trace.get()
    }

    /// Returns the number of the span that the message was sent from.
    #[must_use]
    pub const fn span(&self) -> u64 {
        self.span.get()
    }

    /// Returns whether the trace is recorded.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Returns its bytes: the numbers of the trace and of the span, with the most significant byte first,
    /// as in a `traceparent`, and the flags.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.trace.get().to_be_bytes());
        bytes[16..24].copy_from_slice(&self.span.get().to_be_bytes());
        bytes[24] = self.flags;
        bytes
    }

    /// Returns the context with these bytes; `None` when a number is zero. Flags that are not known are
    /// left out.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let (trace, rest) = bytes.split_first_chunk()?;
        let (span, flags) = rest.split_first_chunk()?;
        let is_sampled = flags.first()? & SAMPLED != 0;
        Self::new(u128::from_be_bytes(*trace), u64::from_be_bytes(*span), is_sampled)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// A text is no `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotATraceParent;

impl fmt::Display for NotATraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a traceparent of W3C, which reads 00-<32 hex digits>-<16 hex digits>-<2 hex digits>")
    }
}

impl core::error::Error for NotATraceParent {}

impl FromStr for TraceContext {
    type Err = NotATraceParent;

    /// Reads a `traceparent`: of version 00, or what later versions begin with.
    fn from_str(text: &str) -> Result<Self, NotATraceParent> {
        let mut parts = text.split('-');
        let mut part = |len: usize| {
            let part = parts.next().filter(|part| part.len() == len)?;
            let is_lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            let digits = part.bytes().all(is_lower_hex);
            u128::from_str_radix(part, 16).ok().filter(|_| digits)
        };
        let mut read = || Some((part(2)?, part(32)?, part(16)?, part(2)?));
        let (version, trace, span, flags) = read().ok_or(NotATraceParent)?;
        let may_go_on = version != 0;
        if version == 0xff || (!may_go_on && parts.next().is_some()) {
            return Err(NotATraceParent);
        }
        // The digits of each have room.
        let is_sampled = flags as u8 & SAMPLED != 0;
        Self::new(trace, span as u64, is_sampled).ok_or(NotATraceParent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_traceparent_is_refused() {
        for text in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        ] {
            assert_eq!(text.parse::<TraceContext>(), Err(NotATraceParent), "{text}");
        }
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff-more";
        assert!(later.parse::<TraceContext>().unwrap().is_sampled());
        assert_eq!(TraceContext::decode(&[0; TraceContext::LEN]), None);
    }

    proptest! {
        #[test]
        fn both_forms_give_the_context_back(trace in 1_u128.., span in 1_u64.., is_sampled: bool) {
            let context = TraceContext::new(trace, span, is_sampled).unwrap();
            prop_assert_eq!(TraceContext::decode(&context.encode()), Some(context));
            prop_assert_eq!(context.to_string().parse(), Ok(context));
            prop_assert_eq!((context.trace(), context.span()), (trace, span));
            prop_assert_eq!(context.is_sampled(), is_sampled);
        }

        #[test]
        fn no_text_is_too_strange(text in "\\PC{0,80}") {
            let _ = text.parse::<TraceContext>();
        }
    }
}
