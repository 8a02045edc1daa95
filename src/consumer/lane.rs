//! The rule by which a reader accepts the events of a lane.
//!
//! Pure: the consumer and `verify` both decide with it.

use crate::event::Link;

/// The last event that was accepted of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Its number.
    pub seq: u64,
    /// Its link.
    pub link: Link,
}

/// What an event is to a lane with a given head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The next one: accept.
    Next,
    /// Events are missing before it: accept it, and record the range.
    Gap {
        /// First missing number.
        from: u64,
        /// Last missing number.
        to: u64,
    },
    /// The head itself again: drop.
    Duplicate,
    /// Another event with the head's number: keep it aside and flag it.
    Conflict,
    /// Numbered below the head: a duplicate when the same link was accepted before, else a conflict.
    Behind,
}

/// Judges the event `seq` with `link` against `head`; lanes begin at 0.
#[must_use]
pub fn judge(head: Option<Head>, seq: u64, link: &Link) -> Verdict {
    let expected = head.map_or(0, |head| head.seq.saturating_add(1));
    match head {
        _ if seq == expected => Verdict::Next,
        _ if seq > expected => Verdict::Gap { from: expected, to: seq - 1 },
        Some(head) if seq == head.seq && head.link == *link => Verdict::Duplicate,
        Some(head) if seq == head.seq => Verdict::Conflict,
        _ => Verdict::Behind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_next_number_is_accepted_silently() {
        let head = Some(Head { seq: 7, link: [1; 32] });
        assert_eq!(judge(head, 8, &[2; 32]), Verdict::Next);
        assert_eq!(judge(head, 9, &[2; 32]), Verdict::Gap { from: 8, to: 8 });
        assert_eq!(judge(head, 12, &[2; 32]), Verdict::Gap { from: 8, to: 11 });
        assert_eq!(judge(head, 7, &[1; 32]), Verdict::Duplicate);
        assert_eq!(judge(head, 7, &[2; 32]), Verdict::Conflict);
        assert_eq!(judge(head, 6, &[1; 32]), Verdict::Behind);
    }

    #[test]
    fn a_lane_begins_at_zero() {
        assert_eq!(judge(None, 0, &[2; 32]), Verdict::Next);
        assert_eq!(judge(None, 3, &[2; 32]), Verdict::Gap { from: 0, to: 2 });
    }
}
