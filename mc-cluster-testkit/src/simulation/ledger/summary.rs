//! Effects as lines of a history.

use std::fmt;

use mc_meta::{Effect, ObjectView, Placement};

use super::state::places;

/// Shows an effect: its kind, and what it is about.
pub(super) struct Summary<'a>(pub(super) &'a Effect<'a>);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Effect::Began { object } => object_line(f, "began", object),
            Effect::Abandoned { object, .. } => object_line(f, "abandoned", object),
            Effect::Stored { object, .. } => object_line(f, "stored", object),
            Effect::Changed { object, .. } => object_line(f, "changed", object),
            Effect::Pinned { object } => object_line(f, "pinned", object),
            Effect::Transferring { object } => object_line(f, "transferring", object),
            Effect::Removed { object, cause, .. } => {
                object_line(f, "removed", object)?;
                write!(f, " {cause:?}")
            }
            Effect::SpaceKept { space, left } => {
                f.write_str("kept")?;
                space.placements().iter().try_for_each(|place| place_word(f, place))?;
                write!(f, " for {left:?}")
            }
            Effect::SpaceFreed { space } => {
                f.write_str("freed")?;
                space.placements().iter().try_for_each(|place| place_word(f, place))
            }
            Effect::SegmentMounted { segment } => {
                write!(f, "mounted {}", segment.spec().name)
            }
            Effect::SegmentGone { segment } => write!(f, "gone {}", segment.spec().name),
            Effect::SegmentChanged { segment, status } => {
                write!(f, "{} is {status:?}", segment.spec().name)
            }
            Effect::SegmentSuspected { segment, is_suspect } => {
                write!(f, "{} suspect: {is_suspect}", segment.spec().name)
            }
            other => write!(f, "{other:?}"),
        }
    }
}

fn object_line(f: &mut fmt::Formatter<'_>, what: &str, object: &ObjectView<'_>) -> fmt::Result {
    write!(f, "{what} {} {:?}", object.key(), object.generation())?;
    places(object).iter().try_for_each(|place| place_word(f, place))
}

fn place_word(f: &mut fmt::Formatter<'_>, place: &Placement) -> fmt::Result {
    let Placement { segment, extent } = place;
    write!(f, " {}:{}..{}", segment.spec().name, extent.offset(), extent.end())
}
