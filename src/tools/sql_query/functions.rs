//! Asks a connection's own catalog what the called functions do.
//!
//! A call is refused when any function of that name that the statement could mean is volatile or runs with its
//! owner's rights. Functions that lie about themselves are not found here; the role and the transaction hold.

use sqlx::Row;
use sqlx::postgres::PgConnection;

use super::check::Checked;
use super::refused;
use crate::refusal::Reason;
use crate::tools::ToolError;

/// Volatile by nature and harmless: they change nothing.
const HARMLESS: &[&str] = &[
    "random",
    "random_normal",
    "clock_timestamp",
    "timeofday",
    "gen_random_uuid",
    "uuidv4",
    "uuidv7",
    "bernoulli",
    "system",
    "pg_relation_size",
    "pg_total_relation_size",
    "pg_table_size",
    "pg_indexes_size",
    "pg_database_size",
    "pg_tablespace_size",
];

const CALLS: &str = "
    WITH volatile AS (
        SELECT p.oid, p.proname, p.pronamespace, n.nspname, p.proargtypes, p.pronargs, p.pronargdefaults
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
        WHERE (p.proname = ANY($2) OR p.proname = ANY($3))
          AND (p.provolatile = 'v' OR p.prosecdef OR EXISTS (
                SELECT FROM pg_catalog.pg_aggregate a JOIN pg_catalog.pg_proc f
                  ON f.oid IN (a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn, a.aggdeserialfn,
                               a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn)
                WHERE a.aggfnoid = p.oid AND (f.provolatile = 'v' OR f.prosecdef)))
          AND NOT (n.nspname = 'pg_catalog' AND p.proname = ANY($4))
    )
    SELECT v.nspname::text AS schema, v.proname::text AS name
    FROM volatile v JOIN ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[])) AS c(schema, name) ON c.name = v.proname
    WHERE CASE WHEN c.schema = '' THEN pg_catalog.pg_function_is_visible(v.oid) ELSE v.nspname = c.schema END
    UNION ALL
    SELECT v.nspname::text, v.proname::text
    FROM volatile v JOIN pg_catalog.pg_type t ON t.oid = v.proargtypes[0]
    WHERE v.proname = ANY($3) AND t.typtype IN ('c', 'd', 'p')
    UNION ALL
    SELECT v.nspname::text, v.proname::text
    FROM volatile v
    WHERE v.proname = ANY($5) AND v.pronargs >= 1 AND v.pronargs - v.pronargdefaults <= 1
      AND pg_catalog.pg_function_is_visible(v.oid)
    ORDER BY 1, 2 LIMIT 1";

const OPERATORS_AND_CASTS: &str = "
    SELECT 'operator ' || o.oprname AS name
    FROM pg_catalog.pg_operator o JOIN pg_catalog.pg_proc p ON p.oid = o.oprcode
    WHERE o.oprname = ANY($1) AND (p.provolatile = 'v' OR p.prosecdef)
    UNION ALL
    SELECT 'cast to ' || t.typname
    FROM pg_catalog.pg_cast c
    JOIN pg_catalog.pg_proc p ON p.oid = c.castfunc
    JOIN pg_catalog.pg_type t ON t.oid = c.casttarget
    WHERE (p.provolatile = 'v' OR p.prosecdef) AND (t.typname = ANY($2) OR c.castcontext = 'i')
    ORDER BY 1 LIMIT 1";

/// Refuses what changes something, by name.
///
/// # Errors
/// The outer error is the connection's, the inner one the refusal.
pub(super) async fn check(
    connection: &mut PgConnection,
    checked: &Checked,
) -> Result<Result<(), ToolError>, sqlx::Error> {
    let (schemas, names): (Vec<&str>, Vec<&str>) = checked
        .calls
        .iter()
        .map(|(schema, name)| (schema.as_deref().unwrap_or_default(), name.as_str()))
        .unzip();
    let fields: Vec<&str> = checked.fields.iter().map(String::as_str).collect();
    let applied: Vec<&str> = checked.applied.iter().map(String::as_str).collect();
    if !names.is_empty() || !fields.is_empty() {
        let found = sqlx::query(CALLS)
            .bind(schemas)
            .bind(names)
            .bind(fields)
            .bind(HARMLESS)
            .bind(applied)
            .persistent(false)
            .fetch_optional(&mut *connection)
            .await?;
        if let Some(row) = found {
            let (schema, name): (String, String) = (row.try_get("schema")?, row.try_get("name")?);
            return Ok(Err(refused(
                Reason::SqlFunctionRefused,
                format!(
                    "The function {schema}.{name} may change something or runs with its owner's rights: only functions that read are callable here."
                ),
            )));
        }
    }
    let operators: Vec<&str> = checked.operators.iter().map(String::as_str).collect();
    let words: Vec<&str> = checked.words.iter().map(String::as_str).collect();
    let found = sqlx::query(OPERATORS_AND_CASTS)
        .bind(operators)
        .bind(words)
        .persistent(false)
        .fetch_optional(connection)
        .await?;
    let Some(row) = found else { return Ok(Ok(())) };
    let name: String = row.try_get("name")?;
    Ok(Err(refused(
        Reason::SqlFunctionRefused,
        format!("The {name} calls a function that may change something: it is not usable here."),
    )))
}
