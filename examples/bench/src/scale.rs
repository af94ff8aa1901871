//! The amount of work for a figure.

/// The amount of work for a figure. The meaning is the same at every scale, the
/// confidence is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scale {
    /// Up to five minutes a suite.
    Full,
    /// Under 50 seconds a suite.
    Quick,
    /// A second or two, to see that everything runs; the numbers mean little.
    Smoke,
}

impl Scale {
    pub(crate) fn pick<T>(self, full: T, quick: T, smoke: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
            Self::Smoke => smoke,
        }
    }
}
