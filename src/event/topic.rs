//! Topics, and the partition of a key, both frozen for topic generation `g1`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::base::sha256;

/// Partitions of every topic. The count never changes within a topic generation.
pub const PARTITIONS: u32 = 16;

/// A logical topic, without tenant and generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// `annals.tool-calls`
    ToolCalls,
    /// `annals.sessions`
    Sessions,
    /// `annals.oauth`
    Oauth,
    /// `annals.admin`
    Admin,
    /// `annals.system`
    System,
}

/// No topic has this name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown topic {0:?}")]
pub struct UnknownTopic(pub String);

impl Topic {
    /// Every topic, in the order of [`Topic::code`].
    pub const ALL: [Self; 5] = [Self::ToolCalls, Self::Sessions, Self::Oauth, Self::Admin, Self::System];

    /// The name under the link hash.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ToolCalls => "annals.tool-calls",
            Self::Sessions => "annals.sessions",
            Self::Oauth => "annals.oauth",
            Self::Admin => "annals.admin",
            Self::System => "annals.system",
        }
    }

    /// The number that the embedded log writes for it. Never reused.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::ToolCalls => 0,
            Self::Sessions => 1,
            Self::Oauth => 2,
            Self::Admin => 3,
            Self::System => 4,
        }
    }

    /// The topic with this [`Topic::code`].
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Topic {
    type Err = UnknownTopic;

    fn from_str(name: &str) -> Result<Self, UnknownTopic> {
        Self::ALL.into_iter().find(|topic| topic.name() == name).ok_or_else(|| UnknownTopic(name.to_owned()))
    }
}

impl Serialize for Topic {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Topic {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// One partition of one topic: the unit of order, ownership and checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic.
    pub topic: Topic,
    /// From 0 to [`PARTITIONS`] - 1.
    pub partition: u32,
}

impl TopicPartition {
    /// Every partition of every topic, ordered by topic and partition.
    pub fn all() -> impl Iterator<Item = Self> {
        Topic::ALL
            .into_iter()
            .flat_map(|topic| (0..PARTITIONS).map(move |partition| Self { topic, partition }))
    }

    /// A dense number from 0, for tables indexed by partition.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.topic.code()) * PARTITIONS as usize + self.partition as usize
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// The partition of `key`: the first eight bytes of its SHA-256, big-endian, modulo [`PARTITIONS`].
#[must_use]
pub fn partition_of(key: &str) -> u32 {
    let digest = sha256(key.as_bytes());
    let (head, _) = digest.split_first_chunk::<8>().expect("a SHA-256 has 32 bytes");
    u32::try_from(u64::from_be_bytes(*head) % u64::from(PARTITIONS)).expect("below PARTITIONS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_frozen() {
        // Computed once by hand from SHA-256; a change here would break the order of every existing key.
        assert_eq!(u64::from(partition_of("")), 0xe3b0_c442_98fc_1c14 % 16);
        assert_eq!(u64::from(partition_of("abc")), 0xba78_16bf_8f01_cfea % 16);
    }

    #[test]
    fn codes_and_names_round_trip() {
        for topic in Topic::ALL {
            assert_eq!(Topic::from_code(topic.code()), Some(topic));
            assert_eq!(topic.name().parse(), Ok(topic));
        }
        assert_eq!(Topic::from_code(5), None);
    }

    #[test]
    fn indexes_are_dense() {
        let indexes: Vec<usize> = TopicPartition::all().map(TopicPartition::index).collect();
        assert_eq!(indexes, (0..80).collect::<Vec<_>>());
    }
}
