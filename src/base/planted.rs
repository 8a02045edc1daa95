//! Named faults that tests arm to prove that they can fail. Without the feature `planted-bugs` nothing is ever armed.

/// Whether the fault `name` is armed by `ANNALS_PLANTED_BUG`.
#[cfg(feature = "planted-bugs")]
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the variable arms a fault for one test run; it is no setting")]
pub fn armed(name: &str) -> bool {
    static ARMED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ARMED.get_or_init(|| std::env::var("ANNALS_PLANTED_BUG").ok()).as_deref() == Some(name)
}

/// Whether the fault `name` is armed: never in this build.
#[cfg(not(feature = "planted-bugs"))]
#[must_use]
pub const fn armed(_name: &str) -> bool {
    false
}
