//! Words of names and comments, and which entries they lead to: an inverted index, ranked by how rare a word is.
//!
//! Knows no tool and no persona: whoever asks brings only indexes that the caller reaches, so that neither hits nor weights
//! tell of anything else.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

/// Words of one question; more are left out.
const QUERY_WORDS_MAX: usize = 32;
/// A word that only begins like the one that was asked for counts so much of it.
const PREFIX_FACTOR: f64 = 0.5;
/// Characters that two words must share at their beginning, to be taken for alike.
const PREFIX_CHARS_MIN: usize = 4;

/// Where entries come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Source {
    Tools,
    Connections,
    Tables,
    Columns,
}

impl Source {
    /// Every source that is built.
    pub(super) const ALL: [Self; 4] = [Self::Tools, Self::Connections, Self::Tables, Self::Columns];
}

/// Where an entry stands in what it is made of: a tool or table, and a column of it.
pub(super) type Place = (usize, usize);

/// Words and the entries that have them.
#[derive(Default)]
pub(super) struct Index {
    entries: Vec<(Source, Place)>,
    /// By word: the entry, and how much the word weighs there.
    words: BTreeMap<String, Vec<(usize, f64)>>,
}

/// An entry that fits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Hit {
    /// Of which index.
    pub(super) index: usize,
    /// Where from.
    pub(super) source: Source,
    /// Which entry.
    pub(super) place: Place,
    /// From 1 to 1,000: how much of the question's weight it carries, thousandths.
    pub(super) score: u32,
}

impl Index {
    /// Adds an entry with the words of `fields`, each with its weight; a word that stands in several counts where it weighs most.
    pub(super) fn add(&mut self, source: Source, place: Place, fields: &[(&str, f64)]) {
        let entry = self.entries.len();
        self.entries.push((source, place));
        let mut weights: BTreeMap<String, f64> = BTreeMap::new();
        for (text, weight) in fields {
            for word in words(text) {
                let known = weights.entry(word).or_insert(0.0);
                *known = known.max(*weight);
            }
        }
        for (word, weight) in weights {
            self.words.entry(word).or_default().push((entry, weight));
        }
    }

    fn count(&self, sources: &[Source]) -> usize {
        self.entries.iter().filter(|(source, _)| sources.contains(source)).count()
    }

    /// The entries that have `asked` or a word that begins like it, with its weight there.
    fn entries_with(&self, asked: &str, sources: &[Source]) -> BTreeMap<usize, f64> {
        let mut found: BTreeMap<usize, f64> = BTreeMap::new();
        let mut take = |postings: &[(usize, f64)], factor: f64| {
            for (entry, weight) in postings {
                if self.entries.get(*entry).is_some_and(|(source, _)| sources.contains(source)) {
                    let known = found.entry(*entry).or_insert(0.0);
                    *known = known.max(weight * factor);
                }
            }
        };
        if let Some(postings) = self.words.get(asked) {
            take(postings, 1.0);
        }
        if asked.chars().count() < PREFIX_CHARS_MIN {
            return found;
        }
        let longer = self.words.range(asked.to_owned()..).take_while(|(word, _)| word.starts_with(asked));
        for (_, postings) in longer.skip_while(|(word, _)| *word == asked) {
            take(postings, PREFIX_FACTOR);
        }
        for (end, _) in asked.char_indices().skip(PREFIX_CHARS_MIN) {
            if let Some(postings) = asked.get(..end).and_then(|shorter| self.words.get(shorter)) {
                take(postings, PREFIX_FACTOR);
            }
        }
        found
    }
}

/// All entries of `sources` that have words of `intent`, unordered: who makes their ids orders them by score and id.
pub(super) fn search(indexes: &[&Index], intent: &str, sources: &[Source]) -> Vec<Hit> {
    let asked: BTreeSet<String> = words(intent).take(QUERY_WORDS_MAX).collect();
    let entries: usize = indexes.iter().map(|index| index.count(sources)).sum();
    let mut scores: HashMap<(usize, usize), f64> = HashMap::new();
    let mut weight_asked = 0.0;
    for word in &asked {
        let found: Vec<_> = indexes.iter().map(|index| index.entries_with(word, sources)).collect();
        let having: usize = found.iter().map(BTreeMap::len).sum();
        if having == 0 {
            continue;
        }
        let rare = (1.0 + as_f64(entries) / as_f64(having)).ln();
        weight_asked += rare * FIELD_WEIGHT_MAX;
        for (index, found) in found.iter().enumerate() {
            for (entry, weight) in found {
                *scores.entry((index, *entry)).or_insert(0.0) += rare * weight;
            }
        }
    }
    let hits = scores.into_iter().filter_map(|((index, entry), score)| {
        let (source, place) = *indexes.get(index)?.entries.get(entry)?;
        Some(Hit { index, source, place, score: thousandths(score / weight_asked) })
    });
    hits.collect()
}

/// The weight of a word in the best field that there is.
const FIELD_WEIGHT_MAX: f64 = 3.0;

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn as_f64(count: usize) -> f64 {
    count as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped before")]
fn thousandths(share: f64) -> u32 {
    (share * 1_000.0).round().clamp(1.0, 1_000.0) as u32
}

/// The words of a text: letters and digits between anything else, in lower case, without the ending of a plural.
/// `orderItems`, `order_items` and `Order item` have the same.
pub(super) fn words(text: &str) -> impl Iterator<Item = String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut after_small = false;
    for c in text.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && after_small) {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        after_small = c.is_lowercase();
    }
    words.push(word);
    words.into_iter().filter(|word| word.chars().nth(1).is_some()).map(singular)
}

fn singular(word: String) -> String {
    let stem = |ending: &str| word.strip_suffix(ending).filter(|stem| stem.len() >= 2);
    if let Some(stem) = stem("ies") {
        return format!("{stem}y");
    }
    for ending in ["sses", "xes", "ches", "shes"] {
        if let Some(stem) = stem(ending) {
            return format!("{stem}{}", ending.strip_suffix("es").unwrap_or_default());
        }
    }
    if ["ss", "us", "is"].iter().any(|ending| word.ends_with(ending)) {
        return word;
    }
    stem("s").map_or_else(|| word.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_same_however_a_name_is_written() {
        for text in ["order_items", "orderItems", "Order ITEM", "\"order\".items!"] {
            assert_eq!(words(text).collect::<Vec<_>>(), ["order", "item"], "{text}");
        }
        let plurals: Vec<_> =
            words("categories boxes branches classes status analysis refunds gas a 7").collect();
        assert_eq!(plurals, ["category", "box", "branch", "class", "status", "analysis", "refund", "ga"]);
        assert_eq!(words("Größe_ΜΈΤΡΟ").collect::<Vec<_>>(), ["größe", "μέτρο"]);
    }

    fn scores(index: &Index, intent: &str) -> Vec<(usize, u32)> {
        let mut hits: Vec<_> =
            search(&[index], intent, &Source::ALL).iter().map(|hit| (hit.place.0, hit.score)).collect();
        hits.sort_by_key(|(place, score)| (std::cmp::Reverse(*score), *place));
        hits
    }

    #[test]
    fn rare_words_and_names_weigh_most_and_endings_count_half() {
        let mut index = Index::default();
        index.add(Source::Tables, (0, 0), &[("returns", 3.0), ("Order lines that came back.", 1.0)]);
        index.add(Source::Tables, (1, 0), &[("orders", 3.0), ("One row per order.", 1.0)]);
        index.add(Source::Columns, (2, 0), &[("returned_on", 3.0)]);
        index.add(Source::Tables, (3, 0), &[("order_items", 3.0)]);
        assert_eq!(scores(&index, "return"), [(0, 1_000), (2, 500)]);
        assert_eq!(scores(&index, "returned"), [(2, 1_000), (0, 500)]);
        let both = scores(&index, "returns of an order");
        assert_eq!(both.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [0, 1, 3, 2]);
        assert_eq!(scores(&index, "nothing like it"), []);
        assert_eq!(search(&[&index], "returned", &[Source::Columns]).len(), 1);
    }
}
