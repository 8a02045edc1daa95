//! What a connection holds, as plain values: tables with their columns, comments and keys. Read at most once per configured
//! time, by one call for all that ask meanwhile.
//!
//! Knows only what the connection's role may SELECT. The values know nothing of Postgres: each kind of connection reads its own.

mod postgres;

pub(super) use postgres::read;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::ToolError;
use super::lexical::{Index, Source};
use super::sql_query::cancelled;
use crate::base::{Clock, nearest, whole};
use crate::refusal::Reason;

/// Characters of one comment; the rest is left out.
const COMMENT_CHARS_MAX: usize = 1_000;

/// A table or something that is read like one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Table {
    pub(super) schema: String,
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) comment: Option<String>,
    /// What the server believes, from its last look; none for views and for what it never looked at.
    pub(super) rows_estimated: Option<u64>,
    /// In their order. Fewer than `columns_total` when the connection has more columns than are kept.
    pub(super) columns: Vec<Column>,
    pub(super) columns_total: usize,
    /// The columns of the primary key; empty when there is none.
    pub(super) primary_key: Vec<String>,
    pub(super) foreign_keys: Vec<ForeignKey>,
    pub(super) indexes: Vec<TableIndex>,
}

/// What a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Table,
    View,
    MaterializedView,
    ForeignTable,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Column {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) nullable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) comment: Option<String>,
}

/// Columns whose values stand in columns of another table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ForeignKey {
    pub(super) columns: Vec<String>,
    pub(super) references: Referenced,
}

/// What a foreign key leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Referenced {
    pub(super) schema: String,
    pub(super) table: String,
    pub(super) columns: Vec<String>,
}

/// An index over plain columns and all rows: what makes a filter on its first columns cheap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TableIndex {
    pub(super) columns: Vec<String>,
    pub(super) unique: bool,
}

/// All that was read of one connection.
pub(super) struct Catalog {
    /// By schema and name.
    pub(super) tables: Vec<Table>,
    /// How many there are; more than `tables` when there are more than are kept.
    pub(super) tables_total: usize,
    /// For search.
    pub(super) index: Index,
}

/// Bounds of what is kept of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatalogLimits {
    /// How long it is taken for true.
    pub ttl: Duration,
    /// Tables that are kept.
    pub tables_max: u32,
    /// Columns that are kept, of all tables.
    pub columns_max: u32,
}

impl Table {
    /// `schema.name`.
    pub(super) fn full_name(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    /// Whether columns are missing.
    pub(super) fn is_cut(&self) -> bool {
        self.columns.len() < self.columns_total
    }
}

impl Catalog {
    /// Of these tables, in any order.
    fn new(mut tables: Vec<Table>, tables_total: usize) -> Self {
        tables.sort_by(|a, b| (&a.schema, &a.name).cmp(&(&b.schema, &b.name)));
        let mut index = Index::default();
        for (at, table) in tables.iter().enumerate() {
            let comment = table.comment.as_deref().unwrap_or_default();
            index.add(Source::Tables, (at, 0), &[(&table.name, 3.0), (&table.schema, 0.5), (comment, 1.0)]);
            for (nth, column) in table.columns.iter().enumerate() {
                let comment = column.comment.as_deref().unwrap_or_default();
                let fields = [(column.name.as_str(), 2.5), (comment, 1.0), (table.name.as_str(), 0.5)];
                index.add(Source::Columns, (at, nth), &fields);
            }
        }
        Self { tables, tables_total, index }
    }

    /// Whether tables or columns are missing.
    pub(super) fn is_cut(&self) -> bool {
        self.tables.len() < self.tables_total || self.tables.iter().any(Table::is_cut)
    }

    /// The table of this name, with or without its schema.
    ///
    /// # Errors
    /// `sql_undefined_table` names the nearest, or the choices when several schemas have it.
    pub(super) fn table(&self, asked: &str) -> Result<&Table, ToolError> {
        if let Some(table) = self.tables.iter().find(|table| table.full_name() == asked) {
            return Ok(table);
        }
        let named: Vec<&Table> = self.tables.iter().filter(|table| table.name == asked).collect();
        match named.as_slice() {
            [one] => Ok(one),
            [] => Err(self.unknown(asked)),
            several => {
                let names: Vec<String> = several.iter().take(10).map(|table| table.full_name()).collect();
                Err(ToolError::new(
                    Reason::SqlUndefinedTable,
                    format!("Several schemas have a table {:?}.", whole(asked, 128)),
                    format!("Name one with its schema: {}.", names.join(", ")),
                ))
            }
        }
    }

    fn unknown(&self, asked: &str) -> ToolError {
        let full: Vec<String> = self.tables.iter().map(Table::full_name).collect();
        let bare = self.tables.iter().map(|table| table.name.as_str());
        let near = nearest(asked, full.iter().map(String::as_str).chain(bare));
        let hint = near.map_or_else(
            || "sql_tables lists the tables of the connection.".to_owned(),
            |near| format!("Did you mean {near:?}?"),
        );
        let message = format!("There is no table {:?} that this connection may read.", whole(asked, 128));
        ToolError::new(Reason::SqlUndefinedTable, message, hint)
    }
}

/// Keeps one connection's catalog. Whoever finds it too old reads it; the others wait for that, and take its failure, too.
#[derive(Default)]
pub(super) struct Cache {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    read: Option<(Instant, Arc<Catalog>)>,
    failed: Option<(Instant, ToolError)>,
}

impl Cache {
    /// What is kept, when it is younger than `ttl`; else what `read` gives.
    ///
    /// # Errors
    /// What `read` fails with; `cancelled`.
    pub(super) async fn get(
        &self,
        clock: &dyn Clock,
        ttl: Duration,
        cancel: &CancellationToken,
        read: impl Future<Output = Result<Catalog, ToolError>>,
    ) -> Result<Arc<Catalog>, ToolError> {
        let asked = clock.monotonic();
        let mut state = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(cancelled()),
            state = self.state.lock() => state,
        };
        let now = clock.monotonic();
        if let Some((at, catalog)) = &state.read
            && (now.saturating_duration_since(*at) < ttl || *at >= asked)
        {
            return Ok(Arc::clone(catalog));
        }
        if let Some((at, error)) = &state.failed
            && *at >= asked
        {
            return Err(error.clone());
        }
        match read.await {
            Ok(catalog) => {
                let catalog = Arc::new(catalog);
                *state = State { read: Some((clock.monotonic(), Arc::clone(&catalog))), failed: None };
                Ok(catalog)
            }
            // That somebody gave up says nothing of the connection.
            Err(error) if error.reason == Reason::Cancelled => Err(error),
            Err(error) => {
                state.failed = Some((clock.monotonic(), error.clone()));
                Err(error)
            }
        }
    }
}
