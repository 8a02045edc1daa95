//! The event types of this version, one enum to match on.

use std::fmt;
use std::str::FromStr;

use super::Topic;

/// No event type has this name in this version.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown event type {0:?}")]
pub struct UnknownKind(pub String);

/// The CloudEvents `type` of a stored event: which type, and which version of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredType {
    /// The type.
    pub kind: Kind,
    /// Its version, from 0.
    pub version: u32,
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "annals.{}.v{}", self.kind.name(), self.version)
    }
}

impl FromStr for StoredType {
    type Err = UnknownKind;

    fn from_str(type_name: &str) -> Result<Self, UnknownKind> {
        let unknown = || UnknownKind(type_name.to_owned());
        let (name, version) =
            type_name.strip_prefix("annals.").and_then(|rest| rest.rsplit_once(".v")).ok_or_else(unknown)?;
        let read = Self {
            kind: Kind::from_name(name).map_err(|_| unknown())?,
            version: version.parse().map_err(|_| unknown())?,
        };
        // One way to write each: no sign, no leading zeros.
        if read.to_string() == type_name { Ok(read) } else { Err(unknown()) }
    }
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal version $version:literal on $topic:ident;)*) => {
        /// An event type with its version.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $($(#[doc = $doc])* $variant,)* }

        impl Kind {
            /// Every type.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// `<family>.<fact>`, as `event_kind` shows it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The CloudEvents `type`: `annals.<family>.<fact>.v<N>`.
            #[must_use]
            pub const fn type_name(self) -> &'static str {
                match self { $(Self::$variant => concat!("annals.", $name, ".v", $version),)* }
            }

            /// The version that is written; older ones are read.
            #[must_use]
            pub const fn version(self) -> u32 {
                match self { $(Self::$variant => $version,)* }
            }

            /// What it means, in a sentence.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc,)*).trim_ascii(),)* }
            }

            /// The topic it is published on.
            #[must_use]
            pub const fn topic(self) -> Topic {
                match self { $(Self::$variant => Topic::$topic,)* }
            }
        }
    };
}

kinds! {
    /// The intent: a call is about to start.
    ToolCallRequested = "tool_call.requested" version 1 on ToolCalls;
    /// The tool gave its result.
    ToolCallCompleted = "tool_call.completed" version 1 on ToolCalls;
    /// The tool, its downstream or we failed.
    ToolCallFailed = "tool_call.failed" version 1 on ToolCalls;
    /// Refused before an intent.
    ToolCallDenied = "tool_call.denied" version 1 on ToolCalls;
    /// The deadline passed.
    ToolCallTimedOut = "tool_call.timed_out" version 1 on ToolCalls;
    /// The caller cancelled or vanished, or the process stopped.
    ToolCallCancelled = "tool_call.cancelled" version 1 on ToolCalls;
    /// Nobody is left who could say how it ended: its process died, or its outcome could not be recorded.
    ToolCallInterrupted = "tool_call.interrupted" version 1 on ToolCalls;
    /// What a tool gave after its call had ended otherwise.
    ToolCallLate = "tool_call.late" version 1 on ToolCalls;
    /// A request that is no call was refused.
    RequestRefused = "request.refused" version 1 on ToolCalls;
    /// A session began.
    SessionStarted = "session.started" version 1 on Sessions;
    /// A session ended.
    SessionEnded = "session.ended" version 1 on Sessions;
    /// No or bad credentials.
    AuthFailed = "auth.failed" version 1 on Oauth;
    /// An API key was created.
    AdminKeyCreated = "admin.key_created" version 1 on Admin;
    /// An API key was revoked.
    AdminKeyRevoked = "admin.key_revoked" version 1 on Admin;
    /// The audit was read.
    AdminAuditQueried = "admin.audit_queried" version 1 on Admin;
    /// A backup of log and store was taken.
    AdminBackupTaken = "admin.backup_taken" version 1 on Admin;
    /// The store follows another log from here on.
    AdminLogAdopted = "admin.log_adopted" version 1 on Admin;
    /// An incarnation began.
    SystemStarted = "system.started" version 1 on System;
    /// An incarnation stops in good order.
    SystemStopping = "system.stopping" version 1 on System;
    /// The last event of one lane.
    SystemLaneClosed = "system.lane_closed" version 1 on System;
    /// The heads of all lanes of an incarnation.
    SystemCheckpoint = "system.checkpoint" version 1 on System;
    /// Something is dropped for its age.
    SystemRetention = "system.retention" version 1 on System;
    /// For a while the log could not write.
    SystemGap = "system.gap" version 1 on System;
}

impl Kind {
    /// Whether it ends a call.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::ToolCallCompleted
                | Self::ToolCallFailed
                | Self::ToolCallDenied
                | Self::ToolCallTimedOut
                | Self::ToolCallCancelled
                | Self::ToolCallInterrupted
        )
    }

    /// The kind whose [`Kind::name`] is `name`.
    ///
    /// # Errors
    /// [`UnknownKind`] when there is none.
    pub fn from_name(name: &str) -> Result<Self, UnknownKind> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name).ok_or_else(|| UnknownKind(name.to_owned()))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_type_is_written_in_one_way() {
        for &kind in Kind::ALL {
            let read: StoredType = kind.type_name().parse().unwrap();
            assert_eq!(read, StoredType { kind, version: kind.version() });
            assert!(kind.meaning().ends_with('.'), "{kind}");
        }
        let read: StoredType = "annals.system.gap.v12".parse().unwrap();
        assert_eq!((read.kind, read.version), (Kind::SystemGap, 12));
        for text in [
            "",
            "annals.system.gap",
            "annals.system.gap.v",
            "annals.system.gap.v01",
            "annals.system.gap.v+1",
            "annals.system.gap.v1.v1",
            "annals.system.gap.v4294967296",
            "annals.system.gap.vv1",
            "annals.nothing.v1",
            "system.gap.v1",
        ] {
            assert_eq!(text.parse::<StoredType>(), Err(UnknownKind(text.into())));
        }
    }
}
