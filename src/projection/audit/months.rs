//! The months that the rows stand in, and how the oldest of them go: whole, and only as the owner.

use sqlx::{AssertSqlSafe, PgPool};

use super::{Audit, first_of};
use crate::base::Timestamp;

/// A month of rows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Month {
    /// As `2026-01`.
    pub name: String,
    /// The first moment behind it.
    pub ends: Timestamp,
}

impl Month {
    /// Of the partition table `name`: `audit_events_2026_01`.
    fn of_table(name: &str) -> Option<Self> {
        let (year, month) = name.strip_prefix("audit_events_")?.split_once('_')?;
        let (year, month): (i32, u8) = (year.parse().ok()?, month.parse().ok()?);
        let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
        let name = format!("{year:04}-{month:02}");
        Some(Self { name, ends: Timestamp::from_offset(first_of(next_year, next_month)) })
    }
}

impl Audit {
    /// The months that have rows and ended at or before `older_than`, in order. None before the schema is there.
    ///
    /// # Errors
    /// When Postgres fails.
    pub async fn months_before(owner: &PgPool, older_than: Timestamp) -> Result<Vec<Month>, sqlx::Error> {
        let tables: Vec<String> = sqlx::query_scalar(
            "SELECT c.relname::text FROM pg_inherits i
             JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent
             JOIN pg_namespace n ON n.oid = p.relnamespace
             WHERE n.nspname = $1 AND p.relname = 'audit_events' ORDER BY c.relname",
        )
        .bind(Self::SCHEMA)
        .fetch_all(owner)
        .await?;
        let months = tables.iter().filter_map(|table| Month::of_table(table));
        Ok(months.filter(|month| month.ends <= older_than).collect())
    }

    /// Drops the rows of every month that ended at or before `before`, the first moment of a month. Waits a few seconds at
    /// most for those who read them.
    ///
    /// # Errors
    /// When Postgres fails, or somebody reads for too long; nothing is dropped then.
    pub async fn drop_months(owner: &PgPool, before: Timestamp) -> Result<(), sqlx::Error> {
        let sql = format!("SELECT {}.drop_months($1)", Self::SCHEMA);
        sqlx::query(AssertSqlSafe(sql)).bind(before.to_offset()).execute(owner).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_is_known_by_its_table() {
        let month = |table| Month::of_table(table).map(|month| (month.name, month.ends.to_string()));
        let december = ("2025-12".to_owned(), "2026-01-01T00:00:00.000000Z".to_owned());
        assert_eq!(month("audit_events_2025_12"), Some(december));
        assert_eq!(month("audit_events_2026_02").unwrap().1, "2026-03-01T00:00:00.000000Z");
        assert_eq!(month("audit_events"), None);
        assert_eq!(month("audit_personal_2026_02"), None);
    }
}
