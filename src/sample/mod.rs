//! The sample data: two years of an invented shop, from order to cash, for trying the tools on.
//!
//! Generated from a seed, loaded into a database of its own, and loaded again only when the generator changed. Never
//! touches another database, and nothing of Annals depends on it.

mod catalog;
mod draw;
mod sales;
mod table;

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{AssertSqlSafe, Row};

use crate::db;
use draw::Draw;
use sales::Sales;
use table::Table;

/// The name of the connection that leads to it.
pub const CONNECTION: &str = "sample";

/// What an agent finds there.
pub const DESCRIPTION: &str = "Sample data: two years (2024 and 2025) of an invented shop for home and office goods: customers, \
     orders, order_items, products, suppliers, shipments, payments, returns, support_tickets, employees, regions. \
     Tables and columns have comments.";

/// Raised whenever the same seed gives other rows, or a table or comment is another.
const GENERATOR_VERSION: i32 = 2;
const SEED: u64 = 20_240_101;
/// Of the lock that keeps two processes from loading at once.
const LOCK: i64 = 0x616e_6e61_6c73;

const TABLES: &str = include_str!("tables.sql");
const CONSTRAINTS: &str = include_str!("constraints.sql");
const MARKER: &str = "
    CREATE TABLE sample_data (
        generator_version int PRIMARY KEY,
        seed bigint NOT NULL,
        checksum text NOT NULL,
        rows jsonb NOT NULL
    );
    COMMENT ON TABLE sample_data IS 'Which generator and seed made the sample data, and how many rows each table has.';
    COMMENT ON COLUMN sample_data.generator_version IS 'Version of the generator.';
    COMMENT ON COLUMN sample_data.seed IS 'What the generator started from.';
    COMMENT ON COLUMN sample_data.checksum IS 'SHA-256 of all generated rows.';
    COMMENT ON COLUMN sample_data.rows IS 'Rows by table, as JSON.'";

/// What is in the sample database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// False when it was there already.
    pub fresh: bool,
    /// Rows by table, as they were generated.
    pub rows: BTreeMap<String, u64>,
}

/// The sample data could not be loaded.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} in the sample database: {cause}")]
pub struct Error {
    action: &'static str,
    #[source]
    cause: sqlx::Error,
}

impl Error {
    fn of(action: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |cause| Self { action, cause }
    }

    /// Whether the database went away, so that the same may work later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        crate::db::is_transient(&self.cause)
    }
}

/// Makes sure that the sample data is there, as the owner of its database. Everything happens in one transaction.
///
/// # Errors
/// [`Error`] names what failed; nothing is changed then.
pub async fn ensure(owner: &PgPool) -> Result<Loaded, Error> {
    let mut transaction = db::begin(owner).await.map_err(Error::of("begin"))?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(LOCK)
        .execute(&mut *transaction)
        .await
        .map_err(Error::of("wait for the lock"))?;
    if let Some(rows) = present(&mut transaction).await.map_err(Error::of("read what is there"))? {
        return Ok(Loaded { fresh: false, rows });
    }
    let tables = generate(SEED);
    run(&mut transaction, drop_tables(&tables)).await.map_err(Error::of("drop older sample data"))?;
    run(&mut transaction, TABLES.to_owned()).await.map_err(Error::of("create tables"))?;
    for table in &tables {
        copy(&mut transaction, table).await.map_err(Error::of("copy rows"))?;
    }
    run(&mut transaction, CONSTRAINTS.to_owned()).await.map_err(Error::of("add constraints"))?;
    let rows = mark(&mut transaction, &tables).await.map_err(Error::of("note what is there"))?;
    run(&mut transaction, format!("ANALYZE {}", names(&tables))).await.map_err(Error::of("analyze"))?;
    transaction.commit().await.map_err(Error::of("commit"))?;
    Ok(Loaded { fresh: true, rows })
}

async fn run(connection: &mut PgConnection, sql: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
}

/// The row counts, when this generator's data is there.
async fn present(connection: &mut PgConnection) -> Result<Option<BTreeMap<String, u64>>, sqlx::Error> {
    let made: bool = sqlx::query_scalar("SELECT to_regclass('sample_data') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await?;
    if !made {
        return Ok(None);
    }
    let row = sqlx::query("SELECT rows FROM sample_data WHERE generator_version = $1 AND seed = $2")
        .bind(GENERATOR_VERSION)
        .bind(i64::try_from(SEED).unwrap_or(i64::MAX))
        .fetch_optional(connection)
        .await?;
    let rows =
        row.map(|row| row.try_get::<sqlx::types::Json<BTreeMap<String, u64>>, _>("rows")).transpose()?;
    Ok(rows.map(|sqlx::types::Json(rows)| rows))
}

fn names(tables: &[Table]) -> String {
    tables.iter().map(|table| table.name).chain(["sample_data"]).collect::<Vec<_>>().join(", ")
}

fn drop_tables(tables: &[Table]) -> String {
    format!("DROP TABLE IF EXISTS {} CASCADE", names(tables))
}

async fn copy(connection: &mut PgConnection, table: &Table) -> Result<(), sqlx::Error> {
    let statement = format!("COPY {} FROM STDIN", table.name);
    let mut copy = connection.copy_in_raw(&statement).await?;
    copy.send(table.text.as_bytes()).await?;
    copy.finish().await.map(drop)
}

async fn mark(connection: &mut PgConnection, tables: &[Table]) -> Result<BTreeMap<String, u64>, sqlx::Error> {
    let rows: BTreeMap<String, u64> =
        tables.iter().map(|table| (table.name.to_owned(), table.rows)).collect();
    run(connection, MARKER.to_owned()).await?;
    sqlx::query("INSERT INTO sample_data VALUES ($1, $2, $3, $4)")
        .bind(GENERATOR_VERSION)
        .bind(i64::try_from(SEED).unwrap_or(i64::MAX))
        .bind(checksum(tables))
        .bind(sqlx::types::Json(&rows))
        .execute(connection)
        .await?;
    Ok(rows)
}

/// All rows, in the order in which they are loaded.
fn generate(seed: u64) -> Vec<Table> {
    let mut draw = Draw::new(seed);
    let draw = &mut draw;
    let mut tables =
        vec![catalog::regions(), catalog::employees(draw), catalog::suppliers(draw), catalog::categories()];
    let (table, products) = catalog::products(draw);
    tables.push(table);
    let (table, customers) = catalog::customers(draw);
    tables.push(table);
    tables.extend(Sales::generate(draw, &products, &customers).into_tables());
    tables
}

fn checksum(tables: &[Table]) -> String {
    let mut hash = Sha256::new();
    for table in tables {
        hash.update(table.name);
        hash.update(b"\0");
        hash.update(&table.text);
        hash.update(b"\0");
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_rows_everywhere() {
        let tables = generate(SEED);
        // A change of the generator changes this, and must raise GENERATOR_VERSION: else old data stays in place.
        assert_eq!(
            (GENERATOR_VERSION, checksum(&tables).as_str()),
            (2, "517d202d1253f29533300d022fd6ec7f04667de997f0b00d30d54271a999c364")
        );
        assert_ne!(checksum(&generate(SEED + 1)), checksum(&tables));
        let rows: u64 = tables.iter().map(|table| table.rows).sum();
        assert!(tables.len() >= 8 && rows >= 100_000, "{rows}");
    }

    #[test]
    fn no_value_needs_an_escape_in_copy() {
        for table in generate(SEED) {
            assert!(!table.text.replace("\\N", "").contains(['\\', '\r']), "{}", table.name);
            let columns: Vec<_> = table.text.lines().map(|line| line.matches('\t').count()).collect();
            assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "{}", table.name);
        }
    }
}
