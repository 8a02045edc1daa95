//! Time as a value that is passed in, in whole microseconds.

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Microseconds since 1970-01-01T00:00:00Z; written as RFC 3339 with six decimals and `Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

/// The text is not an RFC 3339 time within the years 0 to 9999.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is not a time like 2026-01-31T09:30:00Z")]
pub struct TimestampError {
    /// What was given, clipped.
    pub text: String,
}

impl Timestamp {
    /// From microseconds since the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This time moved by `micros`, saturating at the ends of the range.
    #[must_use]
    pub const fn plus_micros(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// Whole milliseconds from `earlier` to this, 0 when the clock went backwards.
    #[must_use]
    pub fn millis_since(self, earlier: Self) -> u64 {
        u64::try_from((self.0 - earlier.0) / 1_000).unwrap_or(0)
    }

    /// Whether it lies in the years 0 to 9999; others can neither be written nor be stored.
    #[must_use]
    pub const fn has_written_form(self) -> bool {
        -62_167_219_200_000_000 <= self.0 && self.0 < 253_402_300_800_000_000
    }

    /// For Postgres. A time without written form becomes the epoch.
    #[must_use]
    pub fn to_offset(self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// From Postgres, which keeps microseconds too.
    #[must_use]
    pub fn from_offset(at: OffsetDateTime) -> Self {
        Self(i64::try_from(at.unix_timestamp_nanos() / 1_000).unwrap_or(0))
    }
}

impl Timestamp {
    /// Reads what people write for a time: RFC 3339, `now`, or `-` and a whole number of `s`, `m`, `h` or `d` before `now`.
    ///
    /// # Errors
    /// [`TimestampError`] when it is none of these, or lies outside the years 0 to 9999.
    pub fn read(text: &str, now: Self) -> Result<Self, TimestampError> {
        let ago = match text {
            "now" => Some(0),
            _ => text.strip_prefix('-').and_then(micros_of),
        };
        let Some(ago) = ago else { return text.parse() };
        let at = now.0.checked_sub(ago).map(Self).filter(|at| at.has_written_form());
        at.ok_or_else(|| TimestampError { text: super::whole(text, 64).into_owned() })
    }
}

/// The microseconds of a span like `24h`.
fn micros_of(span: &str) -> Option<i64> {
    let seconds = match span.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    let number =
        span.get(..span.len() - 1).filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))?;
    number.parse::<i64>().ok()?.checked_mul(seconds)?.checked_mul(1_000_000)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.to_offset();
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
            at.year(),
            u8::from(at.month()),
            at.day(),
            at.hour(),
            at.minute(),
            at.second(),
            at.microsecond()
        )
    }
}

impl FromStr for Timestamp {
    type Err = TimestampError;

    fn from_str(text: &str) -> Result<Self, TimestampError> {
        OffsetDateTime::parse(text, &Rfc3339)
            .map(Self::from_offset)
            .ok()
            .filter(|at| at.has_written_form())
            .ok_or_else(|| TimestampError { text: super::whole(text, 64).into_owned() })
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// Where time comes from.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock.
    fn now(&self) -> Timestamp;
    /// A clock that never goes back, for durations and deadlines.
    fn monotonic(&self) -> Instant;
}

/// The operating system's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[expect(clippy::disallowed_methods, reason = "this is the one place that asks the operating system")]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_offset(OffsetDateTime::now_utc())
    }

    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_to_the_microsecond() {
        let at = Timestamp::from_micros(1_764_521_228_000_042);
        assert_eq!(at.to_string(), "2025-11-30T16:47:08.000042Z");
        assert_eq!(at.to_string().parse(), Ok(at));
        assert_eq!("2025-11-30T17:47:08.000042+01:00".parse(), Ok(at));
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        let now: Timestamp = "2026-01-31T09:30:00Z".parse().unwrap();
        let read = |text: &str| Timestamp::read(text, now).map(|at| at.to_string()).ok();
        for (text, at) in [
            ("now", "2026-01-31T09:30:00.000000Z"),
            ("-24h", "2026-01-30T09:30:00.000000Z"),
            ("-90s", "2026-01-31T09:28:30.000000Z"),
            ("-30m", "2026-01-31T09:00:00.000000Z"),
            ("-7d", "2026-01-24T09:30:00.000000Z"),
            ("2026-01-31T10:30:00+01:00", "2026-01-31T09:30:00.000000Z"),
        ] {
            assert_eq!(read(text).as_deref(), Some(at), "{text}");
        }
        for text in
            ["", "-", "-h", "24h", "-1w", "--1h", "-+1h", "-1.5h", "-é", "-99999999999d", "-800000d", "Now"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        // In UTC these are of the years 10000 and -1.
        for beyond in ["9999-12-31T23:59:59-00:01", "0000-01-01T00:00:00+00:01"] {
            assert_eq!(beyond.parse::<Timestamp>(), Err(TimestampError { text: beyond.into() }));
        }
        for edge in ["9999-12-31T23:59:59.999999Z", "0000-01-01T00:00:00.000000Z"] {
            assert_eq!(edge.parse::<Timestamp>().unwrap().to_string(), edge);
        }
        assert_eq!("yesterday".parse::<Timestamp>(), Err(TimestampError { text: "yesterday".into() }));
    }
}
