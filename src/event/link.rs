//! The hash that ties each event of a lane to the one before it.

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::Topic;
use crate::base::Timestamp;

/// A link: SHA-256, 32 bytes.
pub type Link = [u8; 32];

/// What stands for the previous link at `seq` 0.
pub const ZERO_LINK: Link = [0; 32];

/// What one link is computed from.
#[derive(Debug, Clone, Copy)]
pub struct LinkInput<'a> {
    /// The link of `seq - 1`, or [`ZERO_LINK`].
    pub prev: &'a Link,
    /// The process start that wrote the lane.
    pub incarnation: Uuid,
    /// The lane's topic.
    pub topic: Topic,
    /// The lane's partition.
    pub partition: u32,
    /// The event's number in the lane, from 0.
    pub seq: u64,
    /// The lane's clock.
    pub recorded_at: Timestamp,
    /// SHA-256 of the body.
    pub content: &'a [u8; 32],
}

/// The link of an event. Test vectors: `schemas/link-vectors.json`.
#[must_use]
pub fn link(input: &LinkInput<'_>) -> Link {
    let topic = input.topic.name().as_bytes();
    let length = u16::try_from(topic.len()).expect("a topic name is short");
    Sha256::new()
        .chain_update(b"annals.link.v1\0")
        .chain_update(input.prev)
        .chain_update(input.incarnation.as_bytes())
        .chain_update(length.to_be_bytes())
        .chain_update(topic)
        .chain_update(input.partition.to_be_bytes())
        .chain_update(input.seq.to_be_bytes())
        .chain_update(input.recorded_at.as_micros().to_be_bytes())
        .chain_update(input.content)
        .finalize()
        .into()
}
