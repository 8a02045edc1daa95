//! What is synced and what is only cached, for the bytes of a file and for names, and what a power cut leaves of it.

use std::collections::BTreeMap;

/// Seeded numbers (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `limit` - 1.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }
}

/// A file.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    pub(super) durable: Vec<u8>,
    pub(super) seen: Vec<u8>,
    pub(super) pending: Vec<Change>,
    /// A sync failed: what is seen may never become durable, whatever a later sync says.
    pub(super) betrayed: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    /// The directory itself is there.
    pub(super) made: bool,
    pub(super) made_durably: bool,
    pub(super) seen: BTreeMap<String, usize>,
    pub(super) durable: BTreeMap<String, usize>,
    pub(super) pending: Vec<Renaming>,
}

/// `file` loses its name `from` and gets the name `to`.
#[derive(Debug, Clone)]
pub(super) struct Renaming {
    pub(super) file: usize,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
}

/// How much of what was not synced a power cut leaves.
#[derive(Debug, Clone, Copy)]
pub(super) enum Survival {
    Nothing,
    All,
    Any,
}

impl Survival {
    /// Of `count` changes, how many the reader of one place sees.
    fn pick(self, random: &mut Random, count: usize) -> usize {
        match self {
            Self::Nothing => 0,
            Self::All => count,
            Self::Any => random.below(count + 1),
        }
    }
}

impl Names {
    pub(super) fn change(&mut self, renaming: Renaming) {
        renaming.apply(&mut self.seen);
        self.pending.push(renaming);
    }

    pub(super) fn cut(&mut self, random: &mut Random, survival: Survival) {
        if !self.made_durably && survival.pick(random, 1) == 0 {
            *self = Self::default();
            return;
        }
        self.made_durably = self.made;
        let mut names = std::mem::take(&mut self.durable);
        for renaming in self.pending.drain(..) {
            if survival.pick(random, 1) == 1 {
                renaming.apply(&mut names);
            }
        }
        self.seen.clone_from(&names);
        self.durable = names;
    }
}

impl Renaming {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        if let Some(from) = &self.from
            && names.get(from) == Some(&self.file)
        {
            names.remove(from);
        }
        if let Some(to) = &self.to {
            names.insert(to.clone(), self.file);
        }
    }
}

impl Content {
    pub(super) fn change(&mut self, change: Change) {
        change.apply(&mut self.seen);
        self.pending.push(change);
    }

    /// A sync fails: each write reached the disk or never will, for the system takes its pages for clean from now on.
    pub(super) fn fail(&mut self, random: &mut Random) {
        self.betrayed = true;
        let Self { durable, pending, .. } = self;
        pending.retain(|change| {
            if matches!(change, Change::Write { .. }) && random.below(2) == 0 {
                change.apply(durable);
            }
            matches!(change, Change::Length(_))
        });
    }

    pub(super) fn cut(&mut self, random: &mut Random, survival: Survival, grain: usize) {
        if self.pending.is_empty() && !self.betrayed {
            return;
        }
        self.betrayed = false;
        let mut versions = vec![std::mem::take(&mut self.durable)];
        for change in self.pending.drain(..) {
            let mut next = versions.last().cloned().unwrap_or_default();
            change.apply(&mut next);
            versions.push(next);
        }
        let changes = versions.len() - 1;
        let mut bytes = vec![0; versions[survival.pick(random, changes)].len()];
        for (index, place) in bytes.chunks_mut(grain).enumerate() {
            let version = &versions[survival.pick(random, changes)];
            let there = version.get(index * grain..).unwrap_or_default();
            let there = there.get(..place.len()).unwrap_or(there);
            place[..there.len()].copy_from_slice(there);
        }
        self.seen.clone_from(&bytes);
        self.durable = bytes;
    }
}

impl Change {
    pub(super) fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Length(bytes) => {
                // Quick without optimisation too, which `resize` is not.
                let mut resized = vec![0; *bytes];
                let kept = content.len().min(*bytes);
                resized[..kept].copy_from_slice(&content[..kept]);
                *content = resized;
            }
            Self::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset..end].copy_from_slice(bytes);
            }
        }
    }
}
