//! What the role that agents' SQL runs under may do in the sample database: read the sample's tables. The statement
//! check of `sql_query` is the first barrier; this is the second, and must hold alone.

use sqlx::PgConnection;

use super::bootstrap::execute;
use super::{Error, Role};

/// Volatile functions that change nothing outside their own session and that a reader has a use for. Every other
/// volatile function is taken away.
const HARMLESS: &str = "'random', 'random_normal', 'setseed', 'gen_random_uuid', 'uuidv4', 'uuidv7', \
     'clock_timestamp', 'timeofday', 'current_query', 'pg_sleep', 'pg_sleep_for', 'pg_sleep_until', \
     'pg_column_size', 'pg_relation_size', 'pg_table_size', 'pg_indexes_size', 'pg_total_relation_size', \
     'pg_database_size', 'pg_partition_tree', 'pg_partition_ancestors', 'pg_is_in_recovery'";

/// Functions that Postgres does not call volatile but that take a transaction id, run SQL given as text, or read it
/// from a name given as text.
const HARMFUL: &str = "'txid_current', 'pg_current_xact_id', 'table_to_xml', 'table_to_xmlschema', \
     'table_to_xml_and_xmlschema', 'query_to_xml', 'query_to_xmlschema', 'query_to_xml_and_xmlschema', \
     'cursor_to_xml', 'cursor_to_xmlschema', 'schema_to_xml', 'schema_to_xmlschema', \
     'schema_to_xml_and_xmlschema', 'database_to_xml', 'database_to_xmlschema', \
     'database_to_xml_and_xmlschema', 'ts_stat', 'ts_rewrite', 'set_config', 'pg_ls_waldir', \
     'pg_get_backend_memory_contexts'";

/// Who may connect, see and create what in the sample database.
pub(super) async fn grant(connection: &mut PgConnection) -> Result<(), Error> {
    let (owner, reader) = (Role::SampleOwner.name(), Role::SampleReader.name());
    let sql = format!(
        "REVOKE ALL ON SCHEMA public FROM PUBLIC;
         REVOKE ALL ON SCHEMA public FROM {reader};
         GRANT USAGE, CREATE ON SCHEMA public TO {owner};
         GRANT USAGE ON SCHEMA public TO {reader};
         GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader};
         ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT SELECT ON TABLES TO {reader};
         ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT USAGE ON SCHEMAS TO {reader};
         ALTER DEFAULT PRIVILEGES FOR ROLE {owner} REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;"
    );
    execute(connection, "grant access to the sample data", sql).await
}

/// Takes from everybody but the sample's owner the functions with side effects and the languages, in the database
/// that `connection`, a superuser's, is in. It may run any number of times; only what is missing is done.
///
/// # Errors
/// [`Error::Sql`] when the connection is not a superuser's or is lost.
pub async fn harden_sample(connection: &mut PgConnection) -> Result<(), Error> {
    let owner = Role::SampleOwner.name();
    let sql = format!(
        "DO $harden$
         DECLARE item record;
         BEGIN
           FOR item IN
             SELECT p.oid::regprocedure AS signature
             FROM pg_catalog.pg_proc p
             WHERE p.pronamespace = 'pg_catalog'::regnamespace
               AND (p.proname IN ({HARMFUL})
                    OR p.provolatile = 'v' AND p.proname NOT IN ({HARMLESS}))
               -- Those that only the server itself can call.
               AND p.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype, 'internal'::regtype,
                                        'language_handler'::regtype, 'index_am_handler'::regtype,
                                        'table_am_handler'::regtype, 'tsm_handler'::regtype,
                                        'fdw_handler'::regtype)
               AND EXISTS (
                 SELECT FROM aclexplode(COALESCE(p.proacl, acldefault('f', p.proowner))) a
                 WHERE a.grantee = 0)
           LOOP
             EXECUTE format('REVOKE EXECUTE ON ROUTINE %s FROM PUBLIC', item.signature);
             EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO {owner}', item.signature);
           END LOOP;
           FOR item IN
             SELECT l.lanname AS name FROM pg_catalog.pg_language l
             WHERE l.lanpltrusted AND EXISTS (
               SELECT FROM aclexplode(COALESCE(l.lanacl, acldefault('l', l.lanowner))) a WHERE a.grantee = 0)
           LOOP
             EXECUTE format('REVOKE USAGE ON LANGUAGE %I FROM PUBLIC', item.name);
             EXECUTE format('GRANT USAGE ON LANGUAGE %I TO {owner}', item.name);
           END LOOP;
         END
         $harden$;"
    );
    execute(connection, "take functions with side effects from the sample's readers", sql).await
}
