//! The event types of this version, one enum to match on.

use std::fmt;
use std::str::FromStr;

use super::Topic;

/// No event type has this name in this version.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown event type {0:?}")]
pub struct UnknownKind(pub String);

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal on $topic:ident;)*) => {
        /// An event type with its version.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $($(#[$doc])* $variant,)* }

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
                match self { $(Self::$variant => concat!("annals.", $name, ".v1"),)* }
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
    ToolCallRequested = "tool_call.requested" on ToolCalls;
    /// The tool gave its result.
    ToolCallCompleted = "tool_call.completed" on ToolCalls;
    /// The tool, its downstream or we failed.
    ToolCallFailed = "tool_call.failed" on ToolCalls;
    /// Refused before an intent.
    ToolCallDenied = "tool_call.denied" on ToolCalls;
    /// The deadline passed.
    ToolCallTimedOut = "tool_call.timed_out" on ToolCalls;
    /// The caller cancelled or vanished, or the process stopped.
    ToolCallCancelled = "tool_call.cancelled" on ToolCalls;
    /// Nobody is left who could say how it ended: its process died, or its outcome could not be recorded.
    ToolCallInterrupted = "tool_call.interrupted" on ToolCalls;
    /// What a tool gave after its call had ended otherwise.
    ToolCallLate = "tool_call.late" on ToolCalls;
    /// A request that is no call was refused.
    RequestRefused = "request.refused" on ToolCalls;
    /// A session began.
    SessionStarted = "session.started" on Sessions;
    /// A session ended.
    SessionEnded = "session.ended" on Sessions;
    /// No or bad credentials.
    AuthFailed = "auth.failed" on Oauth;
    /// An API key was created.
    AdminKeyCreated = "admin.key_created" on Admin;
    /// An API key was revoked.
    AdminKeyRevoked = "admin.key_revoked" on Admin;
    /// The audit was read.
    AdminAuditQueried = "admin.audit_queried" on Admin;
    /// A backup of log and store was taken.
    AdminBackupTaken = "admin.backup_taken" on Admin;
    /// The store follows another log from here on.
    AdminLogAdopted = "admin.log_adopted" on Admin;
    /// An incarnation began.
    SystemStarted = "system.started" on System;
    /// An incarnation stops in good order.
    SystemStopping = "system.stopping" on System;
    /// The last event of one lane.
    SystemLaneClosed = "system.lane_closed" on System;
    /// The heads of all lanes of an incarnation.
    SystemCheckpoint = "system.checkpoint" on System;
    /// Something is dropped for its age.
    SystemRetention = "system.retention" on System;
    /// For a while the log could not write.
    SystemGap = "system.gap" on System;
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

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(type_name: &str) -> Result<Self, UnknownKind> {
        Self::ALL
            .iter()
            .copied()
            .find(|kind| kind.type_name() == type_name)
            .ok_or_else(|| UnknownKind(type_name.to_owned()))
    }
}
