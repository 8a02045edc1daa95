//! The catalog of a Postgres database: one statement, so that it is of one moment, and of what the session's role may SELECT.

use futures::TryStreamExt;
use sqlx::Row;
use sqlx::postgres::PgConnection;

use super::{COMMENT_CHARS_MAX, Catalog, CatalogLimits, Table};
use crate::base::planted;

/// A JSON object for each table that the role may read at least a column of, in the order of their names; `$1` of them, with
/// their comments cut to `$2` characters, and how many there are. A partition is part of its table, unless only it may be read.
/// A key or an index with a part that the role may not read is left out, and so is what it leads to.
const TABLES: &str = "
SELECT pg_catalog.json_build_object(
    'schema', t.schema, 'name', t.name, 'kind', t.kind, 'rows_estimated', t.rows_estimated,
    'comment', pg_catalog.left(pg_catalog.obj_description(t.oid, 'pg_class'), $2),
    'columns', coalesce((
        SELECT pg_catalog.json_agg(pg_catalog.json_build_object(
            'name', a.attname, 'type', pg_catalog.format_type(a.atttypid, a.atttypmod), 'nullable', NOT a.attnotnull,
            'comment', pg_catalog.left(pg_catalog.col_description(a.attrelid, a.attnum), $2)) ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
          AND pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT')), '[]'),
    'columns_total', (
        SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
          AND pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT')),
    'primary_key', coalesce((
        SELECT pg_catalog.json_agg(a.attname ORDER BY k.nth)
        FROM pg_catalog.pg_constraint c
        CROSS JOIN LATERAL pg_catalog.unnest(c.conkey) WITH ORDINALITY AS k(attnum, nth)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum
        WHERE c.conrelid = t.oid AND c.contype = 'p'
        HAVING pg_catalog.bool_and(pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT'))), '[]'),
    'foreign_keys', coalesce((
        SELECT pg_catalog.json_agg(f.key ORDER BY f.columns::pg_catalog.text, f.key::pg_catalog.text) FROM (
            SELECT pg_catalog.json_agg(a.attname ORDER BY k.nth) AS columns, pg_catalog.json_build_object(
                'columns', pg_catalog.json_agg(a.attname ORDER BY k.nth),
                'references', pg_catalog.json_build_object(
                    'schema', pg_catalog.min(rn.nspname::pg_catalog.text), 'table', pg_catalog.min(r.relname::pg_catalog.text),
                    'columns', pg_catalog.json_agg(ra.attname ORDER BY k.nth))) AS key
            FROM pg_catalog.pg_constraint c
            CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(c.conkey), pg_catalog.unnest(c.confkey))
                WITH ORDINALITY AS k(attnum, referenced, nth)
            JOIN pg_catalog.pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum
            JOIN pg_catalog.pg_attribute ra ON ra.attrelid = c.confrelid AND ra.attnum = k.referenced
            JOIN pg_catalog.pg_class r ON r.oid = c.confrelid
            JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
            WHERE c.conrelid = t.oid AND c.contype = 'f'
              AND pg_catalog.has_schema_privilege(r.relnamespace, 'USAGE')
            GROUP BY c.oid
            HAVING pg_catalog.bool_and(pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT')
                AND pg_catalog.has_column_privilege(ra.attrelid, ra.attnum, 'SELECT'))) AS f), '[]'),
    'indexes', coalesce((
        SELECT pg_catalog.json_agg(x.entry ORDER BY x.columns::pg_catalog.text, x.entry::pg_catalog.text) FROM (
            SELECT pg_catalog.json_agg(a.attname ORDER BY k.nth) AS columns, pg_catalog.json_build_object(
                'columns', pg_catalog.json_agg(a.attname ORDER BY k.nth), 'unique', i.indisunique) AS entry
            FROM pg_catalog.pg_index i
            CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::pg_catalog.int2[]) WITH ORDINALITY AS k(attnum, nth)
            LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND a.attnum > 0
            WHERE i.indrelid = t.oid AND i.indisvalid AND i.indpred IS NULL AND k.nth <= i.indnkeyatts
            GROUP BY i.indexrelid, i.indisunique
            HAVING pg_catalog.bool_and(a.attnum IS NOT NULL
                AND pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT'))) AS x), '[]')
    )::pg_catalog.text AS entry, t.total
FROM (
    SELECT c.oid, n.nspname AS schema, c.relname AS name,
        CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized_view' WHEN 'f' THEN 'foreign_table' ELSE 'table' END AS kind,
        CASE WHEN c.relkind <> 'v' AND c.reltuples >= 0 THEN c.reltuples::pg_catalog.int8 END AS rows_estimated,
        pg_catalog.count(*) OVER () AS total
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
      AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
      AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
      AND ($3 OR pg_catalog.has_any_column_privilege(c.oid, 'SELECT'))
      AND NOT (c.relispartition AND EXISTS (
          SELECT FROM pg_catalog.pg_inherits h
          WHERE h.inhrelid = c.oid AND pg_catalog.has_any_column_privilege(h.inhparent, 'SELECT')))
    ORDER BY n.nspname COLLATE \"C\", c.relname COLLATE \"C\"
    LIMIT $1) AS t
ORDER BY t.schema COLLATE \"C\", t.name COLLATE \"C\"";

/// Reads the catalog within a READ ONLY transaction.
///
/// # Errors
/// What the driver or the server says.
pub(in crate::tools) async fn read(
    connection: &mut PgConnection,
    limits: CatalogLimits,
) -> Result<Catalog, sqlx::Error> {
    let mut tables = Vec::new();
    let mut total = 0;
    let mut columns_left = usize::try_from(limits.columns_max).unwrap_or(usize::MAX);
    let mut rows = sqlx::query(TABLES)
        .bind(i64::from(limits.tables_max))
        .bind(i32::try_from(COMMENT_CHARS_MAX).unwrap_or(i32::MAX))
        .bind(planted::armed("catalog_shows_unreadable_tables"))
        .persistent(false)
        .fetch(connection);
    while let Some(row) = rows.try_next().await? {
        total = usize::try_from(row.try_get::<i64, _>("total")?).unwrap_or(usize::MAX);
        let entry: String = row.try_get("entry")?;
        let mut table: Table =
            serde_json::from_str(&entry).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        table.columns.truncate(columns_left);
        columns_left -= table.columns.len();
        tables.push(table);
    }
    Ok(Catalog::new(tables, total))
}
