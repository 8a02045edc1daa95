//! Cursors: a place in the order of a listing, bound to the filters it was made for. Opaque to callers.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Uuid;

use crate::base::Timestamp;

/// The layout below. Another layout gets another number, so that an old cursor is refused and not misread.
const VERSION: u8 = 1;
const FIXED_BYTES: usize = 1 + 8 + 8 + 4 + 8 + 16;
const TEXT_BYTES_MAX: usize = 512;

/// Why a cursor is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CursorError {
    /// It was not made here.
    #[error("this is not a cursor; pass next_cursor of the page before as it is")]
    Malformed,
    /// Its filters differ from the request's.
    #[error("this cursor belongs to other filters; pass the same filters with it as on the first page")]
    OtherFilters,
}

/// The place of one event in the order of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) recorded_at: Timestamp,
    pub(super) partition: i32,
    pub(super) position: i64,
    pub(super) log_id: Uuid,
    pub(super) topic: String,
}

impl Cursor {
    /// As text, for requests whose filters have `digest`.
    pub(super) fn write(&self, digest: [u8; 8]) -> String {
        let mut bytes = Vec::with_capacity(FIXED_BYTES + self.topic.len());
        bytes.push(VERSION);
        bytes.extend_from_slice(&digest);
        bytes.extend_from_slice(&self.recorded_at.as_micros().to_be_bytes());
        bytes.extend_from_slice(&self.partition.to_be_bytes());
        bytes.extend_from_slice(&self.position.to_be_bytes());
        bytes.extend_from_slice(self.log_id.as_bytes());
        bytes.extend_from_slice(self.topic.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads what [`Cursor::write`] made for the same filters.
    pub(super) fn read(text: &str, digest: [u8; 8]) -> Result<Self, CursorError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(CursorError::Malformed);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| CursorError::Malformed)?;
        let (found, cursor) = Self::parse(&bytes).ok_or(CursorError::Malformed)?;
        if found == digest { Ok(cursor) } else { Err(CursorError::OtherFilters) }
    }

    fn parse(bytes: &[u8]) -> Option<([u8; 8], Self)> {
        let (version, rest) = bytes.split_first()?;
        if *version != VERSION {
            return None;
        }
        let (digest, rest) = rest.split_first_chunk::<8>()?;
        let (recorded_at, rest) = rest.split_first_chunk::<8>()?;
        let (partition, rest) = rest.split_first_chunk::<4>()?;
        let (position, rest) = rest.split_first_chunk::<8>()?;
        let (log_id, topic) = rest.split_first_chunk::<16>()?;
        let topic: crate::event::Topic = std::str::from_utf8(topic).ok()?.parse().ok()?;
        let cursor = Self {
            recorded_at: Timestamp::from_micros(i64::from_be_bytes(*recorded_at)),
            partition: i32::from_be_bytes(*partition),
            position: i64::from_be_bytes(*position),
            log_id: Uuid::from_bytes(*log_id),
            topic: topic.name().to_owned(),
        };
        // Postgres would fail on some of the other times.
        cursor.recorded_at.has_written_form().then_some((*digest, cursor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cursor() -> Cursor {
        Cursor {
            recorded_at: Timestamp::from_micros(1_764_521_228_000_042),
            partition: 15,
            position: 1 << 40,
            log_id: Uuid::from_u128(7),
            topic: "annals.tool-calls".into(),
        }
    }

    #[test]
    fn other_filters_other_versions_and_cut_text_are_refused() {
        let text = cursor().write([1; 8]);
        assert_eq!(Cursor::read(&text, [1; 8]), Ok(cursor()));
        assert_eq!(Cursor::read(&text, [2; 8]), Err(CursorError::OtherFilters));
        let mut bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        bytes[0] = 2;
        assert_eq!(Cursor::read(&URL_SAFE_NO_PAD.encode(&bytes), [1; 8]), Err(CursorError::Malformed));
        assert_eq!(Cursor::read("", [1; 8]), Err(CursorError::Malformed));
        assert_eq!(Cursor::read(text.get(..40).unwrap(), [1; 8]), Err(CursorError::Malformed));
        for micros in [i64::MIN, i64::MAX, -62_167_219_200_000_001, 253_402_300_800_000_000] {
            let forged = Cursor { recorded_at: Timestamp::from_micros(micros), ..cursor() }.write([1; 8]);
            assert_eq!(Cursor::read(&forged, [1; 8]), Err(CursorError::Malformed), "{micros}");
        }
        assert_eq!(Cursor::read(&"A".repeat(9_999), [1; 8]), Err(CursorError::Malformed));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}") {
            prop_assert!(Cursor::read(&text, [0; 8]).is_err());
        }

        #[test]
        fn any_place_round_trips(at in 0..253_402_300_800_000_000_i64, partition in 0..16_i32, position in 0..i64::MAX, id: u128) {
            let cursor = Cursor {
                recorded_at: Timestamp::from_micros(at), partition, position,
                log_id: Uuid::from_u128(id), topic: "annals.system".into(),
            };
            prop_assert_eq!(Cursor::read(&cursor.write([9; 8]), [9; 8]), Ok(cursor));
        }
    }
}
