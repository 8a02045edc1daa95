//! The closed set of error categories that people filter and alert on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why something was refused or failed. The set is closed: a new category is a new event version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// No, bad, revoked or expired credentials.
    Auth,
    /// Known, but not allowed.
    Authz,
    /// The input is wrong.
    Validation,
    /// A limit on rate, size or concurrency.
    RateLimit,
    /// A downstream system failed or refused.
    Upstream,
    /// The deadline passed.
    Timeout,
    /// The caller cancelled.
    Cancelled,
    /// Ours.
    Internal,
}

impl Category {
    /// Every category.
    pub const ALL: [Self; 8] = [
        Self::Auth,
        Self::Authz,
        Self::Validation,
        Self::RateLimit,
        Self::Upstream,
        Self::Timeout,
        Self::Cancelled,
        Self::Internal,
    ];

    /// The category as it is written in events, rows and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Authz => "authz",
            Self::Validation => "validation",
            Self::RateLimit => "rate_limit",
            Self::Upstream => "upstream",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Internal => "internal",
        }
    }
}
