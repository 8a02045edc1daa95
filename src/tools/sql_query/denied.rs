//! Names that no query may use: what they reach lies beyond the tables.
//!
//! The catalog tells which functions are volatile; these are dangerous although it says otherwise, or it says so only
//! on some versions. The lists are matched by name in any schema: nothing harmless should be called alike.

/// Credentials, settings that may hold secrets, other sessions' statements, large objects, temporary objects.
const RELATIONS: &[&str] = &[
    "pg_authid",
    "pg_shadow",
    "pg_user",
    "pg_roles",
    "pg_group",
    "pg_db_role_setting",
    "pg_user_mapping",
    "pg_user_mappings",
    "user_mapping_options",
    "pg_foreign_server",
    "foreign_server_options",
    "pg_subscription",
    "pg_settings",
    "pg_file_settings",
    "pg_hba_file_rules",
    "pg_ident_file_mappings",
    "pg_config",
    "pg_cursors",
    "pg_prepared_statements",
    "pg_prepared_xacts",
    "pg_replication_slots",
    "pg_replication_origin_status",
    "pg_locks",
    "pg_largeobject",
    "pg_largeobject_metadata",
    "pg_statistic",
    "pg_statistic_ext_data",
    "pg_backend_memory_contexts",
    "pg_shmem_allocations",
    "pg_temp",
    "pg_toast",
];
const RELATION_PREFIXES: &[&str] = &[
    "pg_stat_activity",
    "pg_stat_replication",
    "pg_stat_ssl",
    "pg_stat_gssapi",
    "pg_stat_wal_receiver",
    "pg_stat_subscription",
    "pg_stat_statements",
    "pg_stat_progress_",
    "pg_temp_",
    "pg_toast_",
];

/// Functions that run SQL from text, read files or settings, act on other sessions, leave something behind, or wait.
const FUNCTIONS: &[&str] = &[
    "set_config",
    "current_setting",
    "pg_show_all_settings",
    "pg_show_all_file_settings",
    "pg_hba_file_rules",
    "pg_ident_file_mappings",
    "pg_config",
    "pg_cursor",
    "pg_prepared_statement",
    "pg_prepared_xact",
    "pg_lock_status",
    "pg_current_logfile",
    "pg_reload_conf",
    "pg_rotate_logfile",
    "pg_promote",
    "pg_notify",
    "pg_listening_channels",
    "pg_export_snapshot",
    "pg_cancel_backend",
    "pg_terminate_backend",
    "pg_log_backend_memory_contexts",
    "pg_stat_file",
    "pg_stat_get_activity",
    "pg_stat_get_progress_info",
    "pg_stat_get_wal_senders",
    "pg_stat_get_wal_receiver",
    "pg_stat_get_subscription",
    "pg_stat_statements",
    "pg_get_backend_memory_contexts",
    "pg_get_shmem_allocations",
    "pg_current_xact_id",
    "txid_current",
    "pg_get_replication_slots",
    "pg_get_publication_tables",
    "current_query",
    "pg_conf_load_time",
    "loread",
    "lowrite",
    "ts_stat",
    "ts_rewrite",
    "xpath_table",
    "connectby",
    "cursor_to_xml",
    "cursor_to_xmlschema",
    "setseed",
    "nextval",
    "setval",
    "currval",
    "lastval",
    "currtid",
    "currtid2",
    "pg_import_system_collations",
    "pg_extension_config_dump",
    "pg_nextoid",
    "pg_stop_making_pinned_objects",
];
const FUNCTION_PREFIXES: &[&str] = &[
    "query_to_",
    "table_to_xml",
    "schema_to_xml",
    "database_to_xml",
    "cursor_to_xml",
    "crosstab",
    "dblink",
    "postgres_fdw_",
    "lo_",
    "pg_read_",
    "pg_ls_",
    "pg_file_",
    "pg_logdir_",
    "pg_sleep",
    "pg_advisory_",
    "pg_try_advisory_",
    "pg_logical_",
    "pg_create_",
    "pg_drop_",
    "pg_copy_",
    "pg_replication_",
    "pg_switch_",
    "pg_wal_replay_",
    "pg_backup_",
    "pg_start_backup",
    "pg_stop_backup",
    "pg_stat_reset",
    "pg_stat_get_backend_",
    "pg_stat_clear_",
    "pg_stat_force_",
    "brin_",
    "gin_clean_",
    "binary_upgrade_",
    "pg_control_",
    "pg_event_trigger_",
];

/// Whether the relation or schema `name` is not to be read.
pub(super) fn is_denied_relation(name: &str) -> bool {
    RELATIONS.contains(&name) || RELATION_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether the function `name` is not to be called.
pub(super) fn is_denied_function(name: &str) -> bool {
    FUNCTIONS.contains(&name) || FUNCTION_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_denied_and_their_neighbours_are_not() {
        for name in
            ["query_to_xml_and_xmlschema", "pg_read_binary_file", "lo_put", "dblink_exec", "pg_sleep_for"]
        {
            assert!(is_denied_function(name), "{name}");
        }
        for name in ["lower", "log", "pg_get_viewdef", "pg_size_pretty", "to_json", "xpath", "current_date"] {
            assert!(!is_denied_function(name), "{name}");
        }
        assert!(is_denied_relation("pg_stat_activity") && is_denied_relation("pg_temp_3"));
        assert!(!is_denied_relation("pg_stat_user_tables") && !is_denied_relation("pg_class"));
    }
}
