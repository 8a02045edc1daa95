//! Named faults for tests that must prove they can fail. Without the cargo feature `planted-bugs` nothing can be armed.
//!
//! Must not change anything in a build without that feature: `armed` is a constant `false` there.

/// Whether the fault `name` is armed.
#[cfg(not(feature = "planted-bugs"))]
#[must_use]
pub const fn armed(_name: &str) -> bool {
    false
}

/// Whether the fault `name` is armed: `ANNALS_PLANTED_BUG` holds its name. Read once.
#[cfg(feature = "planted-bugs")]
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a switch for tests, never part of the configuration")]
pub fn armed(name: &str) -> bool {
    static ARMED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ARMED.get_or_init(|| std::env::var("ANNALS_PLANTED_BUG").ok()).as_deref() == Some(name)
}
