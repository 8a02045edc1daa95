//! A table's rows as the text that COPY reads.
//!
//! Values are written without escapes: the generator's own texts hold none of the characters that need one.

use std::fmt::{Display, Write};

use time::{Date, Duration, OffsetDateTime};

/// 2024-01-01T00:00:00Z, seconds since the Unix epoch: day 0 of the sample's two years.
const START_SECONDS: i64 = 1_704_067_200;

/// Rows of one table.
pub(super) struct Table {
    pub(super) name: &'static str,
    /// Tab-separated, one line per row, `\N` for null.
    pub(super) text: String,
    pub(super) rows: u64,
}

/// A day, counted from 2024-01-01; may be negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Day(pub(super) i32);

/// A second, counted from 2024-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(pub(super) i64);

/// Cents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cents(pub(super) u64);

impl Table {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, text: String::new(), rows: 0 }
    }

    pub(super) fn row(&mut self, values: &[&dyn Display]) {
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                self.text.push('\t');
            }
            write!(self.text, "{value}").expect("a string takes all text");
        }
        self.text.push('\n');
        self.rows += 1;
    }

    pub(super) fn next_id(&self) -> u64 {
        self.rows + 1
    }
}

/// A value that may be null.
pub(super) struct Nullable<T>(pub(super) Option<T>);

impl<T: Display> Display for Nullable<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(formatter),
            None => formatter.write_str("\\N"),
        }
    }
}

impl Day {
    pub(super) fn date(self) -> Date {
        (OffsetDateTime::from_unix_timestamp(START_SECONDS).expect("2024 is a year")
            + Duration::days(i64::from(self.0)))
        .date()
    }

    /// 1 to 12.
    pub(super) fn month(self) -> u8 {
        u8::from(self.date().month())
    }

    pub(super) fn year(self) -> i32 {
        self.date().year()
    }

    pub(super) fn plus(self, days: u32) -> Self {
        Self(self.0.saturating_add_unsigned(days))
    }
}

impl Display for Day {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let date = self.date();
        write!(formatter, "{:04}-{:02}-{:02}", date.year(), u8::from(date.month()), date.day())
    }
}

impl Moment {
    pub(super) fn day(self) -> Day {
        Day(i32::try_from(self.0.div_euclid(86_400)).expect("two years have few days"))
    }

    pub(super) fn plus_seconds(self, seconds: u32) -> Self {
        Self(self.0 + i64::from(seconds))
    }
}

impl Display for Moment {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let second = self.0.rem_euclid(86_400);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        write!(formatter, "{} {hour:02}:{minute:02}:{second:02}+00", self.day())
    }
}

impl Display for Cents {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_postgres_reads_them() {
        let mut table = Table::new("t");
        table.row(&[&Day(-1), &Moment(86_399), &Cents(12_305), &Nullable::<u8>(None), &Nullable(Some("a"))]);
        assert_eq!(table.text, "2023-12-31\t2024-01-01 23:59:59+00\t123.05\t\\N\ta\n");
        assert_eq!((table.rows, table.next_id()), (1, 2));
    }
}
