//! The bytes of a frame: encoding, decoding, and nothing about files. `docs/log-format.md` describes them.
//!
//! The checksum of a frame also covers the log's id and the frame's position, which are not in its bytes: a frame that
//! was moved, swapped, doubled or brought from another log is as bad as one with a flipped bit.

use uuid::Uuid;

use super::tracker::{Head, LaneKey, Tracker};
use crate::base::{Timestamp, planted};
use crate::event::{PARTITIONS, Topic, TopicPartition};
use crate::log::{Frame, LogId};

/// The version of everything in the directory.
pub(super) const VERSION: u16 = 1;
/// How a frame starts.
pub(super) const MAGIC: [u8; 4] = *b"ANF1";
/// Magic, length and checksum.
pub(super) const PREFIX_BYTES: usize = 12;
/// Everything of an event's frame but its body.
pub(super) const EVENT_OVERHEAD_BYTES: usize = PREFIX_BYTES + 104;
/// One lane in a header.
pub(super) const LANE_BYTES: usize = 67;
/// Everything of a header's frame but its lanes.
const HEADER_BASE_BYTES: usize = PREFIX_BYTES + 8 + 16 + 8 + 8 + 4 + STATE_BASE_BYTES;
const STATE_BASE_BYTES: usize = 2 + 8 * TARGETS + 4;
/// Partitions of all topics.
pub(super) const TARGETS: usize = Topic::ALL.len() * PARTITIONS as usize;

const KIND_EVENT: u8 = 1;
const KIND_CLOSED: u8 = 2;
const KIND_HEADER: u8 = 3;

/// Encodes and decodes the frames of one log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Codec {
    seed: u32,
}

/// Where a frame is going to stand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) position: u64,
    /// Where the write begins that it is part of.
    pub(super) write_start: u64,
}

/// What a frame holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    Event(EventFrame<'a>),
    /// No lane of this incarnation is open any more.
    Closed {
        incarnation: Uuid,
        at: Timestamp,
    },
    Header(Header),
}

impl Item<'_> {
    /// A header names its own place and is a write of its own; anything else may stand anywhere.
    const fn may_stand_at(&self, position: u64, write_start: u64) -> bool {
        match self {
            Self::Header(header) => {
                header.version == VERSION && header.base == position && write_start == position
            }
            Self::Event(_) | Self::Closed { .. } => true,
        }
    }
}

/// An event's frame whose body is still in the buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EventFrame<'a> {
    pub(super) target: TopicPartition,
    pub(super) incarnation: Uuid,
    pub(super) seq: u64,
    pub(super) recorded_at: Timestamp,
    pub(super) content: [u8; 32],
    pub(super) link: [u8; 32],
    pub(super) body: &'a [u8],
}

impl EventFrame<'_> {
    pub(super) fn to_frame(&self) -> Frame {
        Frame {
            target: self.target,
            incarnation: self.incarnation,
            seq: self.seq,
            recorded_at: self.recorded_at,
            content: self.content,
            link: self.link,
            body: bytes::Bytes::copy_from_slice(self.body),
        }
    }
}

/// The first frame of a segment: what stands before it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u16,
    pub(super) log: LogId,
    /// The header's own position.
    pub(super) base: u64,
    /// The base of the segment before; in the first segment its own.
    pub(super) previous: u64,
    /// The rolling checksum of all frames before.
    pub(super) rolling: u32,
    /// Record counts and open lanes before, encoded as [`encode_state`] does.
    pub(super) state: State,
}

/// Record counts of all partitions, and the heads of all open lanes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct State {
    pub(super) counts: Vec<u64>,
    pub(super) lanes: Vec<(LaneKey, Head)>,
}

/// What was found where a frame should start.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded<'a> {
    Whole {
        bytes: usize,
        crc: u32,
        /// Where the write began that this frame was part of. All before it was durable by then.
        write_start: u64,
        item: Item<'a>,
    },
    /// The frame, if it is one, has this many bytes; not all are in the buffer.
    Short {
        bytes: usize,
    },
    Bad(&'static str),
}

impl Codec {
    pub(super) fn new(log: LogId) -> Self {
        Self { seed: crc32c::crc32c(log.0.as_bytes()) }
    }

    fn checksum(self, position: u64, head: &[u8], payload: &[u8]) -> u32 {
        let crc = crc32c::crc32c_append(self.seed, &position.to_be_bytes());
        crc32c::crc32c_append(crc32c::crc32c_append(crc, head), payload)
    }

    /// Appends an event's frame to `out`. Returns its checksum.
    pub(super) fn encode_event(self, place: Place, frame: &Frame, out: &mut Vec<u8>) -> u32 {
        let copied = planted::armed("body_copied_on_the_writer").then(|| frame.body.to_vec());
        self.encode(place, out, |out| {
            out.extend_from_slice(&[KIND_EVENT, frame.target.topic.code()]);
            out.extend_from_slice(&partition_code(frame.target).to_be_bytes());
            out.extend_from_slice(frame.incarnation.as_bytes());
            out.extend_from_slice(&frame.seq.to_be_bytes());
            out.extend_from_slice(&frame.recorded_at.as_micros().to_be_bytes());
            out.extend_from_slice(&frame.content);
            out.extend_from_slice(&frame.link);
            out.extend_from_slice(copied.as_deref().unwrap_or(&frame.body));
        })
    }

    /// Appends the frame that closes an incarnation's lanes.
    pub(super) fn encode_closed(
        self,
        place: Place,
        incarnation: Uuid,
        at: Timestamp,
        out: &mut Vec<u8>,
    ) -> u32 {
        self.encode(place, out, |out| {
            out.extend_from_slice(&[KIND_CLOSED, 0, 0, 0]);
            out.extend_from_slice(incarnation.as_bytes());
            out.extend_from_slice(&at.as_micros().to_be_bytes());
        })
    }

    /// The header of the segment at `base`, behind everything that `tracker` has seen.
    pub(super) fn encode_header(
        self,
        log: LogId,
        base: u64,
        previous: u64,
        tracker: &Tracker,
    ) -> (Vec<u8>, u32) {
        let mut out = Vec::with_capacity(header_bytes(tracker.lanes().len()));
        let crc = self.encode(Place { position: base, write_start: base }, &mut out, |out| {
            out.extend_from_slice(&[KIND_HEADER, 0]);
            out.extend_from_slice(&VERSION.to_be_bytes());
            out.extend_from_slice(log.0.as_bytes());
            out.extend_from_slice(&base.to_be_bytes());
            out.extend_from_slice(&previous.to_be_bytes());
            out.extend_from_slice(&tracker.rolling().to_be_bytes());
            encode_state(tracker, out);
        });
        (out, crc)
    }

    fn encode(self, place: Place, out: &mut Vec<u8>, payload: impl FnOnce(&mut Vec<u8>)) -> u32 {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[0; 8]);
        let back = u32::try_from(place.position - place.write_start).expect("a write is far below 4 GiB");
        out.extend_from_slice(&back.to_be_bytes());
        payload(out);
        let frame = &mut out[start..];
        let length = u32::try_from(frame.len()).expect("reservations keep a frame far below 4 GiB");
        frame[4..8].copy_from_slice(&length.to_be_bytes());
        let crc = self.checksum(place.position, &frame[..8], &frame[PREFIX_BYTES..]);
        frame[8..12].copy_from_slice(&crc.to_be_bytes());
        crc
    }

    /// Makes `frame`, which is longer than [`PREFIX_BYTES`], one whose magic number, length and checksum fit.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn seal(self, position: u64, frame: &mut [u8]) {
        let length = u32::try_from(frame.len()).expect("it is short");
        frame[..4].copy_from_slice(&MAGIC);
        frame[4..8].copy_from_slice(&length.to_be_bytes());
        let crc = self.checksum(position, &frame[..8], &frame[PREFIX_BYTES..]);
        frame[8..12].copy_from_slice(&crc.to_be_bytes());
    }

    /// Decodes the frame that starts `buffer` and stands at `position`.
    pub(super) fn decode(self, position: u64, buffer: &[u8]) -> Decoded<'_> {
        let bytes = match length(buffer) {
            Ok(bytes) => bytes,
            Err(None) => return Decoded::Short { bytes: PREFIX_BYTES },
            Err(Some(cause)) => return Decoded::Bad(cause),
        };
        let Some((head, payload)) =
            buffer.get(..bytes).and_then(|frame| frame.split_at_checked(PREFIX_BYTES))
        else {
            return Decoded::Short { bytes };
        };
        let (lengths, crc) = head.split_at(8);
        let Some(crc) = Fields(crc).u32().filter(|&crc| self.checksum(position, lengths, payload) == crc)
        else {
            return Decoded::Bad("the checksum does not match");
        };
        let mut fields = Fields(payload);
        let back = fields.u32();
        let write_start = back.and_then(|back| position.checked_sub(u64::from(back)));
        match (write_start, decode_item(fields)) {
            (Some(write_start), Some(item)) if item.may_stand_at(position, write_start) => {
                Decoded::Whole { bytes, crc, write_start, item }
            }
            _ => Decoded::Bad("the frame's fields make no sense"),
        }
    }
}

/// The length of the frame that starts `buffer`; else why there is none, or nothing when [`PREFIX_BYTES`] are needed.
pub(super) fn length(buffer: &[u8]) -> Result<usize, Option<&'static str>> {
    let mut fields = Fields(buffer);
    if fields.take::<4>().ok_or(None)? != MAGIC {
        return Err(Some("no record starts here"));
    }
    match usize::try_from(fields.u32().ok_or(None)?) {
        Ok(bytes) if bytes > PREFIX_BYTES => Ok(bytes),
        _ => Err(Some("the length is impossible")),
    }
}

/// The size of a header with that many lanes.
pub(super) const fn header_bytes(lanes: usize) -> usize {
    HEADER_BASE_BYTES + LANE_BYTES * lanes
}

fn partition_code(target: TopicPartition) -> u16 {
    u16::try_from(target.partition).expect("a topic has 16 partitions")
}

fn decode_item(mut fields: Fields<'_>) -> Option<Item<'_>> {
    let [kind, topic] = fields.take::<2>()?;
    match kind {
        KIND_EVENT => Some(Item::Event(EventFrame {
            target: target(topic, fields.u16()?)?,
            incarnation: fields.uuid()?,
            seq: fields.u64()?,
            recorded_at: fields.timestamp()?,
            content: fields.take()?,
            link: fields.take()?,
            body: fields.0,
        })),
        KIND_CLOSED => {
            (topic == 0 && fields.u16()? == 0).then_some(())?;
            let item = Item::Closed { incarnation: fields.uuid()?, at: fields.timestamp()? };
            fields.0.is_empty().then_some(item)
        }
        KIND_HEADER => {
            (topic == 0).then_some(())?;
            let header = Header {
                version: fields.u16()?,
                log: LogId(fields.uuid()?),
                base: fields.u64()?,
                previous: fields.u64()?,
                rolling: fields.u32()?,
                state: decode_state(&mut fields)?,
            };
            fields.0.is_empty().then_some(Item::Header(header))
        }
        _ => None,
    }
}

fn target(topic: u8, partition: u16) -> Option<TopicPartition> {
    let partition = u32::from(partition);
    let topic = Topic::from_code(topic)?;
    (partition < PARTITIONS).then_some(TopicPartition { topic, partition })
}

/// Appends counts and open lanes: u16 number of counts, u64 each; u32 number of lanes, [`LANE_BYTES`] each.
pub(super) fn encode_state(tracker: &Tracker, out: &mut Vec<u8>) {
    let counts = tracker.counts();
    out.extend_from_slice(&u16::try_from(counts.len()).expect("80 partitions").to_be_bytes());
    for count in counts {
        out.extend_from_slice(&count.to_be_bytes());
    }
    let lanes = tracker.lanes();
    out.extend_from_slice(&u32::try_from(lanes.len()).expect("fewer lanes than 4 billion").to_be_bytes());
    for (key, head) in lanes {
        out.extend_from_slice(key.incarnation.as_bytes());
        out.push(key.target.topic.code());
        out.extend_from_slice(&partition_code(key.target).to_be_bytes());
        out.extend_from_slice(&head.seq.to_be_bytes());
        out.extend_from_slice(&head.link);
        out.extend_from_slice(&head.recorded_at.as_micros().to_be_bytes());
    }
}

/// Reads what [`encode_state`] wrote, and nothing that it would have written otherwise: lanes in another order or twice.
/// A version with fewer topics wrote fewer counts.
pub(super) fn decode_state(fields: &mut Fields<'_>) -> Option<State> {
    let mut state = State::default();
    let counts = fields.u16()?;
    (usize::from(counts) <= TARGETS).then_some(())?;
    for _ in 0..counts {
        state.counts.push(fields.u64()?);
    }
    for _ in 0..fields.u32()? {
        let incarnation = fields.uuid()?;
        let [topic] = fields.take::<1>()?;
        let key = LaneKey { incarnation, target: target(topic, fields.u16()?)? };
        let head = Head { seq: fields.u64()?, link: fields.take()?, recorded_at: fields.timestamp()? };
        let in_order = state.lanes.last().is_none_or(|(last, _)| *last < key);
        (in_order || planted::armed("lanes_in_any_order")).then_some(())?;
        state.lanes.push((key, head));
    }
    Some(state)
}

/// Takes big-endian fields from the front of bytes.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    pub(super) fn uuid(&mut self) -> Option<Uuid> {
        self.take().map(Uuid::from_bytes)
    }

    pub(super) fn timestamp(&mut self) -> Option<Timestamp> {
        self.take().map(|bytes| Timestamp::from_micros(i64::from_be_bytes(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let ids = (0..Topic::ALL.len(), 0..PARTITIONS, any::<u128>(), any::<u64>(), any::<i64>());
        let bytes = (any::<[u8; 32]>(), any::<[u8; 32]>(), proptest::collection::vec(any::<u8>(), 0..300));
        (ids, bytes).prop_map(|((topic, partition, incarnation, seq, at), (content, link, body))| Frame {
            target: TopicPartition { topic: Topic::ALL[topic], partition },
            incarnation: Uuid::from_u128(incarnation),
            seq,
            recorded_at: Timestamp::from_micros(at),
            content,
            link,
            body: Bytes::from(body),
        })
    }

    fn codec() -> Codec {
        Codec::new(LogId(Uuid::from_u128(1)))
    }

    proptest! {
        #[test]
        fn a_frame_comes_back_as_it_went_in(
            frame in frames(),
            position in 0..u64::MAX,
            back in 0..1_000_u64,
            behind in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let place = Place { position, write_start: position.saturating_sub(back) };
            let mut out = Vec::new();
            let crc = codec().encode_event(place, &frame, &mut out);
            prop_assert_eq!(out.len(), EVENT_OVERHEAD_BYTES + frame.body.len());
            let bytes = out.len();
            out.extend(behind);
            let Decoded::Whole { bytes: read, crc: crc_read, write_start, item: Item::Event(event) } =
                codec().decode(position, &out)
            else {
                return Err(TestCaseError::fail("it is not whole"));
            };
            prop_assert_eq!((read, crc_read, write_start), (bytes, crc, place.write_start));
            prop_assert_eq!(event.to_frame(), frame);
            for cut in 0..bytes {
                let short = matches!(codec().decode(position, &out[..cut]), Decoded::Short { .. });
                prop_assert!(short, "cut to {} bytes", cut);
            }
        }

        #[test]
        fn a_changed_bit_and_another_place_or_log_are_noticed(
            frame in frames(),
            position in 0..u64::MAX,
            bit in any::<prop::sample::Index>(),
            other in any::<u64>(),
        ) {
            let mut out = Vec::new();
            codec().encode_event(Place { position, write_start: position }, &frame, &mut out);
            let elsewhere = Codec::new(LogId(Uuid::from_u128(2)));
            prop_assert_eq!(elsewhere.decode(position, &out), Decoded::Bad("the checksum does not match"));
            if other != position {
                prop_assert_eq!(codec().decode(other, &out), Decoded::Bad("the checksum does not match"));
            }
            let bit = bit.index(out.len() * 8);
            out[bit / 8] ^= 1 << (bit % 8);
            let whole = matches!(codec().decode(position, &out), Decoded::Whole { .. });
            prop_assert!(!whole, "bit {} is not noticed", bit);
        }

        #[test]
        fn nonsense_is_never_a_frame_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let whole = matches!(codec().decode(0, &bytes), Decoded::Whole { .. });
            prop_assert!(!whole, "taken for a frame");
            // Past the checksum, where only a forger gets.
            decode_item(Fields(&bytes));
        }
    }

    #[test]
    fn a_header_and_a_closing_come_back_and_have_the_promised_size() {
        let mut tracker = Tracker::new();
        let head = Head { seq: 3, link: [9; 32], recorded_at: Timestamp::from_micros(-1) };
        for partition in 0..3 {
            let target = TopicPartition { topic: Topic::System, partition };
            tracker.event(5, 1, LaneKey { incarnation: Uuid::from_u128(4), target }, head);
        }
        let log = LogId(Uuid::from_u128(1));
        let (out, crc) = codec().encode_header(log, 77, 33, &tracker);
        assert_eq!(out.len(), header_bytes(3));
        let header = Header {
            version: VERSION,
            log,
            base: 77,
            previous: 33,
            rolling: tracker.rolling(),
            state: tracker.state(),
        };
        let item = Item::Header(header);
        assert_eq!(codec().decode(77, &out), Decoded::Whole { bytes: out.len(), crc, write_start: 77, item });

        let mut out = Vec::new();
        let (incarnation, at) = (Uuid::from_u128(4), Timestamp::from_micros(8));
        let crc = codec().encode_closed(Place { position: 9, write_start: 2 }, incarnation, at, &mut out);
        assert!(out.len() <= EVENT_OVERHEAD_BYTES);
        let item = Item::Closed { incarnation, at };
        assert_eq!(codec().decode(9, &out), Decoded::Whole { bytes: out.len(), crc, write_start: 2, item });
    }
}
