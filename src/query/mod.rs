//! Reading the audit from Postgres: pages of events and one event with its proof.
//!
//! It reads the public audit views as `annals_auditor` and nothing else. It never touches the log, and an audit that
//! cannot be read is an error, never an empty answer.

mod cursor;
mod error;
mod filter;
mod overview;
mod row;

pub use error::Error;
pub use filter::{Filter, FilterError, LIMIT_DEFAULT, LIMIT_MAX, PARAMETERS};
pub use overview::{Group, NAMES_MAX, Overview, Share};
pub use row::{Detail, EventRow, Proof};

use std::sync::OnceLock;

use futures::TryStreamExt;
use serde::Serialize;
use sqlx::postgres::PgPool;
use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

use cursor::Cursor;
use row::{DETAIL_COLUMNS, DetailRow, LISTED_COLUMNS, ListedRow};

/// The intent of a call. Its terminal event says all that it says, so lists leave it out.
const UNLISTED_KIND: &str = "tool_call.requested";
/// A page ends early once its rows hold this much, so that large arguments do not make an answer without bound.
const PAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Events, newest first.
#[derive(Debug, Serialize)]
pub struct Page {
    /// At most [`Filter::limit`] events; fewer when they are large, even where more follow.
    pub data: Vec<EventRow>,
    /// Pass it as `cursor`, with the same filters, for the next page; none on the last one.
    pub next_cursor: Option<String>,
}

/// How many events there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Events found; the cap where there are more.
    pub total: u64,
    /// Whether there are more than the cap, so that `total` is no exact number.
    pub capped: bool,
}

/// The reader of the audit.
#[derive(Debug)]
pub struct Query {
    pool: OnceLock<PgPool>,
    tenant: Option<String>,
}

impl Query {
    /// Reads through `pool`, a pool of [`crate::db::Role::Auditor`], the events of all tenants.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self { pool: OnceLock::from(pool), tenant: None }
    }

    /// Refuses as unavailable until [`Query::open`]: the store is brought up beside the listeners.
    #[must_use]
    pub const fn closed() -> Self {
        Self { pool: OnceLock::new(), tenant: None }
    }

    /// Reads through `pool` from now on, as in [`Query::new`]. The first pool stays.
    pub fn open(&self, pool: PgPool) {
        self.pool.set(pool).unwrap_or(());
    }

    fn pool(&self) -> Result<&PgPool, Error> {
        self.pool.get().ok_or(Error::Starting)
    }

    /// Reads the events of `tenant` only.
    #[must_use]
    pub fn of_tenant(self, tenant: String) -> Self {
        Self { tenant: Some(tenant), ..self }
    }

    /// The events that `filter` asks for, newest first by the time they were recorded; calls by their terminal event.
    ///
    /// # Errors
    /// [`Error::Cursor`] for a cursor that was not given for these filters, [`Error::Unavailable`] when the store is
    /// away or too slow, [`Error::Internal`] otherwise.
    pub async fn events(&self, filter: &Filter) -> Result<Page, Error> {
        let after = match &filter.cursor {
            Some(text) => Some(Cursor::read(text, filter.digest())?),
            None => None,
        };
        let mut query = self.listing(filter, after.as_ref());
        let mut rows = query.build_query_as::<ListedRow>().fetch(self.pool()?);
        let mut data: Vec<EventRow> = Vec::new();
        let mut last: Option<Cursor> = None;
        let mut bytes = 0;
        let limit = usize::try_from(filter.limit).unwrap_or(usize::MAX);
        while let Some(row) = rows.try_next().await? {
            if data.len() >= limit || bytes >= PAGE_BYTES_MAX {
                let next_cursor = last.map(|cursor| cursor.write(filter.digest()));
                return Ok(Page { data, next_cursor });
            }
            bytes += row.event.bytes();
            last = Some(row.place);
            data.push(row.event);
        }
        Ok(Page { data, next_cursor: None })
    }

    /// How many events `filter` asks for, all pages together: its size of a page and its cursor count for nothing. With
    /// `cap` nothing is looked at beyond that many and one.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store is away or too slow, [`Error::Internal`] otherwise.
    pub async fn count(&self, filter: &Filter, cap: Option<u64>) -> Result<Count, Error> {
        let mut query = QueryBuilder::<Postgres>::new("SELECT count(*) FROM (SELECT 1");
        self.push_conditions(&mut query, filter);
        if let Some(cap) = cap {
            query.push(" LIMIT ").push_bind(i64::try_from(cap.saturating_add(1)).unwrap_or(i64::MAX));
        }
        query.push(") AS found");
        let (found,): (i64,) = query.build_query_as().fetch_one(self.pool()?).await?;
        let found = u64::try_from(found).unwrap_or_default();
        let cap = cap.unwrap_or(u64::MAX);
        Ok(Count { total: found.min(cap), capped: found > cap })
    }

    /// The event with this id, or the terminal event of the call with this id; none when there is neither.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store is away or too slow, [`Error::Internal`] otherwise.
    pub async fn event(&self, id: Uuid) -> Result<Option<Detail>, Error> {
        // Two look-ups that an index can serve each. A row that conflicts with an earlier one of the same id is kept;
        // the first one counts.
        let mut query = QueryBuilder::<Postgres>::new("SELECT * FROM (SELECT ");
        query.push(DETAIL_COLUMNS).push(" FROM public.audit_events WHERE event_id = ").push_bind(id);
        self.push_tenant(&mut query);
        query.push(" UNION ALL SELECT ").push(DETAIL_COLUMNS);
        query.push(" FROM public.audit_events WHERE id = ").push_bind(id.to_string());
        query.push(" AND event_kind <> ").push_bind(UNLISTED_KIND);
        self.push_tenant(&mut query);
        query.push(") AS found ORDER BY event_id = ").push_bind(id);
        query.push(" DESC, recorded_at, topic, partition, position LIMIT 1");
        let row = query.build_query_as::<DetailRow>().fetch_optional(self.pool()?).await?;
        Ok(row.map(Detail::from))
    }

    fn push_tenant(&self, query: &mut QueryBuilder<Postgres>) {
        if let Some(tenant) = &self.tenant {
            query.push(" AND tenant = ").push_bind(tenant.clone());
        }
    }

    /// From which rows, and all conditions but the place in the list.
    fn push_conditions(&self, query: &mut QueryBuilder<Postgres>, filter: &Filter) {
        query.push(" FROM public.audit_events WHERE event_kind <> ").push_bind(UNLISTED_KIND);
        self.push_tenant(query);
        for (column, value) in filter.texts() {
            if let Some(value) = value {
                query.push(" AND ").push(column).push(" = ").push_bind(value.to_owned());
            }
        }
        if let Some(success) = filter.success {
            query.push(" AND success = ").push_bind(success);
        }
        if let Some(start) = filter.start_time {
            query.push(" AND \"timestamp\" >= ").push_bind(start.to_offset());
        }
        if let Some(end) = filter.end_time {
            query.push(" AND \"timestamp\" < ").push_bind(end.to_offset());
        }
    }

    fn listing(&self, filter: &Filter, after: Option<&Cursor>) -> QueryBuilder<Postgres> {
        let mut query = QueryBuilder::<Postgres>::new("SELECT ");
        query.push(LISTED_COLUMNS);
        self.push_conditions(&mut query, filter);
        if let Some(after) = after {
            query.push(" AND (recorded_at, topic, partition, position, log_id) < (");
            let mut values = query.separated(", ");
            values.push_bind(after.recorded_at.to_offset());
            values.push_bind(after.topic.clone());
            values.push_bind(after.partition);
            values.push_bind(after.position);
            values.push_bind(after.log_id);
            query.push(")");
        }
        query.push(
            " ORDER BY recorded_at DESC, topic DESC, partition DESC, position DESC, log_id DESC LIMIT ",
        );
        // One more than asked for tells whether another page follows.
        query.push_bind(i64::from(filter.limit) + 1);
        query
    }
}
