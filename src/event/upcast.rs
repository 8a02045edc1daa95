//! Older versions of event types, read as the current one. The stored bytes stay what they are: this changes what is
//! read from them.
//!
//! A version that is newer than this program is not guessed at, and one without a way up is not either.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::Kind;
use crate::base::planted;

/// The members of a JSON object, each as it was received, so that what a step leaves alone stays exactly as it is.
pub(super) type Members = BTreeMap<String, Box<RawValue>>;

/// What a step may change.
#[derive(Debug, Default)]
pub(super) struct Older {
    /// `data.facts`.
    pub(super) facts: Members,
    /// The personal part; `None` where its text cannot be read.
    pub(super) personal: Option<Members>,
}

/// From one version of a type to the next. A pure function of what is given; what it cannot make good is left, and then
/// refused where the facts are read.
struct Step {
    kind: Kind,
    from: u32,
    change: fn(&mut Older),
}

/// Every step there is. A type at version N has one from each version that was ever released up to N - 1.
const STEPS: &[Step] = &[
    #[cfg(any(test, feature = "planted-bugs"))]
    Step { kind: Kind::ToolCallDenied, from: 0, change: invented::denied_0 },
];

/// Whether version `from` of `kind` can be read as the current one.
pub(super) fn reaches(kind: Kind, from: u32) -> bool {
    (from..kind.version()).all(|version| step(STEPS, kind, version).is_some())
}

/// Makes the current version of `kind` out of version `from`, step by step.
pub(super) fn upcast(kind: Kind, from: u32, older: &mut Older) {
    climb(STEPS, kind, from..kind.version(), older);
}

fn climb(steps: &[Step], kind: Kind, versions: std::ops::Range<u32>, older: &mut Older) {
    for step in versions.filter_map(|version| step(steps, kind, version)) {
        if !planted::armed("upcast_skipped") {
            (step.change)(older);
        }
    }
}

fn step(steps: &[Step], kind: Kind, from: u32) -> Option<&Step> {
    steps.iter().find(|step| step.kind == kind && step.from == from)
}

/// A version that never was, so that the tests can show what a real one will need.
#[cfg(any(test, feature = "planted-bugs"))]
mod invented {
    use super::{Members, Older, RawValue};

    fn rename(members: &mut Members, from: &str, to: &str) {
        if let Some(value) = members.remove(from) {
            members.insert(to.to_owned(), value);
        }
    }

    /// `annals.tool_call.denied.v0` named the tool `tool` and the purpose `reason`, and did not say `authorized`, which
    /// follows from its type.
    pub(super) fn denied_0(older: &mut Older) {
        rename(&mut older.facts, "tool", "tool_name");
        older
            .facts
            .entry("authorized".into())
            .or_insert_with(|| RawValue::from_string("false".into()).expect("false is JSON"));
        if let Some(personal) = &mut older.personal {
            rename(personal, "reason", "purpose");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.into()).unwrap()
    }

    #[test]
    fn every_older_version_of_every_type_has_a_way_up() {
        for &kind in Kind::ALL {
            assert!(kind.version() >= 1, "{kind}");
            assert!(reaches(kind, 1), "{kind}");
        }
        for step in STEPS {
            assert!(step.from < step.kind.version(), "{} from {}", step.kind, step.from);
        }
    }

    #[test]
    fn steps_are_taken_in_order_and_leave_the_rest_as_it_is() {
        fn add(older: &mut Older, name: &str) {
            let seen = format!("[{}]", older.facts.len());
            older.facts.insert(name.into(), RawValue::from_string(seen).unwrap());
        }
        let kind = Kind::SystemStopping;
        let steps = [
            Step { kind, from: 2, change: |older| add(older, "second") },
            Step { kind: Kind::SystemGap, from: 1, change: |older| add(older, "another type's") },
            Step { kind, from: 1, change: |older| add(older, "first") },
            Step { kind, from: 3, change: |older| add(older, "third") },
        ];
        let mut older = Older { facts: Members::from([("n".into(), raw("1.50e2"))]), personal: None };
        climb(&steps, kind, 1..4, &mut older);
        let text = serde_json::to_string(&older.facts).unwrap();
        assert_eq!(text, r#"{"first":[1],"n":1.50e2,"second":[2],"third":[3]}"#);
    }
}
