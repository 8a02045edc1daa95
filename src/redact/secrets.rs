//! What was found in one call, so that it is found again wherever else in that call it stands.

use std::ops::Range;

use super::Rule;

/// Secrets that are remembered; what is found beyond them is replaced where it stands and not looked for elsewhere.
const KNOWN_MAX: usize = 64;
/// A shorter one stands in too many words that have nothing to do with it.
const LENGTH_MIN: usize = 4;
/// From this length on it is looked for inside words too.
const INSIDE_WORDS_MIN: usize = 8;
const LENGTH_MAX: usize = 16 * 1024;

/// The secrets of one call. Lives as long as the call, and is never written anywhere.
#[derive(Clone, Default)]
pub struct Secrets {
    replaced: u32,
    known: Vec<(Rule, String)>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets({} replaced)", self.replaced)
    }
}

impl Secrets {
    /// How many values were replaced.
    #[must_use]
    pub fn replaced(&self) -> u32 {
        self.replaced
    }

    /// Whether something was found that can be looked for elsewhere.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The same secrets, with nothing replaced yet.
    #[must_use]
    pub fn again(self) -> Self {
        Self { replaced: 0, ..self }
    }

    pub(super) fn unreadable(&mut self) {
        self.replaced = self.replaced.saturating_add(1);
    }

    pub(super) fn add(&mut self, rule: &Rule, secret: &str) {
        self.replaced = self.replaced.saturating_add(1);
        self.remember(rule, secret);
    }

    pub(super) fn remember(&mut self, rule: &Rule, secret: &str) {
        let secret = secret.trim();
        let fits = (LENGTH_MIN..=LENGTH_MAX).contains(&secret.len()) && self.known.len() < KNOWN_MAX;
        let common = ["true", "false", "null", "none", "undefined"].contains(&secret);
        if fits && !common && !self.known.iter().any(|(_, known)| known == secret) {
            self.known.push((rule.clone(), secret.to_owned()));
        }
    }

    /// Gives each place in `text` where one of them stands to `found`.
    pub(super) fn find(&self, text: &str, found: &mut impl FnMut(Range<usize>, Rule)) {
        for (rule, secret) in &self.known {
            for (at, _) in text.match_indices(secret.as_str()) {
                let range = at..at + secret.len();
                if secret.len() >= INSIDE_WORDS_MIN || stands_alone(text, &range) {
                    found(range, rule.clone());
                }
            }
        }
    }
}

fn stands_alone(text: &str, range: &Range<usize>) -> bool {
    let before = text.get(..range.start).and_then(|text| text.chars().next_back());
    let after = text.get(range.end..).and_then(|text| text.chars().next());
    !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
}
