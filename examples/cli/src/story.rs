//! The state of an object in words, for programs and pages that tell it.

use std::time::Duration;

use mc_meta::{EvictionBlocker, KeyEventKind, Removal};

/// `1.25 s`, `3 m`: as much as is worth reading.
#[must_use]
pub fn duration(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..600 => format!("{seconds}.{:02} s", time.subsec_millis() / 10),
        seconds @ 600..36_000 => format!("{} m", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// Returns what keeps an object from being evicted, as the end of a sentence about it.
#[must_use]
pub fn kept_because(reason: &EvictionBlocker) -> String {
    let more = |time: &Duration| format!("{} more", duration(*time));
    match reason {
        EvictionBlocker::Unfinished { age } => {
            format!("its put began {} ago and has not ended", duration(*age))
        }
        EvictionBlocker::Lease { remaining } => format!("under lease for {}", more(remaining)),
        EvictionBlocker::SoftPin { remaining } => {
            format!("soft-pinned for {}: others go before it", more(remaining))
        }
        EvictionBlocker::HardPin => "pinned until it is removed".into(),
        EvictionBlocker::Transfer { kind, remaining } => {
            format!("a {kind} is under way, for {} at the most", more(remaining))
        }
        EvictionBlocker::Group { remaining } => {
            format!("another object of its group is under lease for {}", more(remaining))
        }
        EvictionBlocker::Offload => "a node is to write it to its disk first".into(),
        EvictionBlocker::NoRoomToGain => {
            "its segments take no new objects, so its going would make no room".into()
        }
        // Of a later version.
        _ => "for a reason that this program does not know".into(),
    }
}

/// Returns what became of an object, or of a put, as a clause.
#[must_use]
pub fn became(kind: &KeyEventKind) -> String {
    match kind {
        KeyEventKind::Removed { cause, .. } => cause_of(*cause).into(),
        KeyEventKind::Refused { code } => format!("a put of it was refused ({code})"),
        // Of a later version.
        _ => "an event that this program does not know".into(),
    }
}

const fn cause_of(cause: Removal) -> &'static str {
    match cause {
        Removal::Requested => "it was removed on request",
        Removal::Evicted => "it was evicted to make room",
        Removal::SegmentLost => "its last segment was lost",
        Removal::Replaced => "another value took its place",
        Removal::DiskLost => "all that was left of it was on disks, and went",
        Removal::Expired => "its time after the first read was over",
        Removal::Damaged => "its last replica was found damaged",
        // Of a later version.
        _ => "it went for a reason that this program does not know",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (millis, text) in
            [(0, "0.00 s"), (1_259, "1.25 s"), (1_800_000, "30 m"), (86_400_000, "24 h")]
        {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }
}
