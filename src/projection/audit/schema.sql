-- The audit projection's schema, a template over its name: @schema@ is replaced. Run as annals_owner, idempotent.
CREATE SCHEMA IF NOT EXISTS @schema@;

CREATE TABLE IF NOT EXISTS @schema@.audit_events (
    log_id uuid NOT NULL,
    topic text NOT NULL,
    partition int4 NOT NULL,
    position int8 NOT NULL,
    recorded_at timestamptz NOT NULL,
    tenant text NOT NULL,
    event_id uuid NOT NULL,
    event_kind text NOT NULL,
    event_type text NOT NULL,
    source text NOT NULL,
    occurred_at timestamptz NOT NULL,
    incarnation uuid NOT NULL,
    seq int8 NOT NULL,
    link bytea NOT NULL,
    content bytea NOT NULL,
    ack text NOT NULL,
    ack_check text NOT NULL,
    once bool NOT NULL,
    body_head text NOT NULL,
    body_tail text NOT NULL,
    call_id uuid,
    subject_id text,
    key_id uuid,
    auth_method text,
    persona text,
    request_id text,
    session_id text,
    transport text,
    protocol_version text,
    source_kind text,
    tool_name text,
    toolkit_kind text,
    connection text,
    definition_sha256 text,
    arguments_hmac text,
    arguments_bytes int8,
    authorized bool,
    success bool,
    error_category text,
    error_code text,
    received_at timestamptz,
    deadline timestamptz,
    duration_ms int8,
    response_bytes int8,
    response_chars int8,
    content_blocks int8,
    result_hmac text,
    effect text,
    trace_id text,
    occurrences int8,
    end_reason text,
    digest_key_id text,
    redactions int8,
    PRIMARY KEY (log_id, topic, partition, position, recorded_at)
) PARTITION BY RANGE (recorded_at);

-- What erasure may blank. `user_id` is the name, or the pseudonym where there is none.
CREATE TABLE IF NOT EXISTS @schema@.audit_personal (
    log_id uuid NOT NULL,
    topic text NOT NULL,
    partition int4 NOT NULL,
    position int8 NOT NULL,
    recorded_at timestamptz NOT NULL,
    tenant text NOT NULL,
    subject_id text,
    user_id text,
    personal_token text,
    user_name text,
    client_ip text,
    user_agent text,
    purpose text,
    parameters jsonb,
    request_chars int8,
    error_message text,
    asserted jsonb,
    object_name text,
    query jsonb,
    result jsonb,
    PRIMARY KEY (log_id, topic, partition, position, recorded_at)
) PARTITION BY RANGE (recorded_at);

-- Newest-first paging; then the ways in that people use. Everything else filters what these find.
CREATE INDEX IF NOT EXISTS audit_events_recorded_idx
    ON @schema@.audit_events (tenant, recorded_at, topic, partition, position, log_id);
-- What "timestamp" of the views is, for windows of time in the past.
CREATE INDEX IF NOT EXISTS audit_events_timestamp_idx
    ON @schema@.audit_events (tenant, (COALESCE(received_at, occurred_at)));
CREATE INDEX IF NOT EXISTS audit_events_event_idx
    ON @schema@.audit_events (tenant, event_id);
CREATE INDEX IF NOT EXISTS audit_events_call_idx
    ON @schema@.audit_events (tenant, call_id) WHERE call_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS audit_events_tool_idx
    ON @schema@.audit_events (tenant, tool_name, recorded_at) WHERE tool_name IS NOT NULL;
CREATE INDEX IF NOT EXISTS audit_events_session_idx
    ON @schema@.audit_events (tenant, session_id, recorded_at) WHERE session_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS audit_events_trace_idx
    ON @schema@.audit_events (tenant, trace_id, recorded_at) WHERE trace_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS audit_personal_user_idx
    ON @schema@.audit_personal (tenant, user_id, recorded_at) WHERE user_id IS NOT NULL;

-- Calls with an intent and no terminal event yet, moved in the transaction of their events.
CREATE TABLE IF NOT EXISTS @schema@.open_calls (
    log_id uuid NOT NULL,
    topic text NOT NULL,
    partition int4 NOT NULL,
    call_id uuid NOT NULL,
    position int8 NOT NULL,
    incarnation uuid NOT NULL,
    tenant text NOT NULL,
    recorded_at timestamptz NOT NULL,
    deadline timestamptz NOT NULL,
    PRIMARY KEY (log_id, topic, partition, call_id)
);

-- Makes the partitions of the month that `at` is in (UTC). The writer may call it and has no other DDL.
CREATE OR REPLACE FUNCTION @schema@.ensure_month(at timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
AS $function$
DECLARE
    month timestamptz := date_trunc('month', at, 'UTC');
    parent text;
    child text;
BEGIN
    IF month IS NULL OR month < '1970-01-01 00:00:00+00' OR month >= '9999-12-01 00:00:00+00' THEN
        RAISE EXCEPTION 'no partition is made for %', at USING ERRCODE = 'datetime_field_overflow';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('annals.projection.@schema@', 0));
    FOREACH parent IN ARRAY ARRAY['audit_events', 'audit_personal'] LOOP
        child := parent || to_char(month, '"_"YYYY"_"MM');
        IF to_regclass(format('%I.%I', '@schema@', child)) IS NULL THEN
            -- Attached, not created as a partition: that would wait for every reader, and every reader for it.
            EXECUTE format(
                'CREATE TABLE %I.%I (LIKE %I.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)',
                '@schema@', child, '@schema@', parent
            );
            EXECUTE format(
                'ALTER TABLE %I.%I ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)',
                '@schema@', parent, '@schema@', child, month, month + interval '1 month'
            );
        END IF;
    END LOOP;
END
$function$;

-- Drops the partitions of all months that end before or at the start of the month that `before` is in (UTC). It has no
-- rights of its own, and nobody but the owner may call it: the writer cannot make a row go away.
CREATE OR REPLACE FUNCTION @schema@.drop_months(before timestamptz) RETURNS integer
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
SET lock_timeout = '3s'
AS $function$
DECLARE
    child record;
    dropped integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('annals.projection.@schema@', 0));
    FOR child IN
        SELECT c.relname FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid
        JOIN pg_class p ON p.oid = i.inhparent
        WHERE p.relnamespace = '@schema@'::regnamespace AND c.relnamespace = p.relnamespace
          AND p.relname IN ('audit_events', 'audit_personal')
          AND c.relname < p.relname || to_char(before, '"_"YYYY"_"MM')
        ORDER BY c.relname
    LOOP
        EXECUTE format('DROP TABLE %I.%I', '@schema@', child.relname);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END
$function$;

REVOKE ALL ON SCHEMA @schema@ FROM PUBLIC;
REVOKE ALL ON FUNCTION @schema@.drop_months(timestamptz) FROM PUBLIC, annals_writer, annals_reader;
REVOKE ALL ON FUNCTION @schema@.ensure_month(timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @schema@.ensure_month(timestamptz) TO annals_writer;
GRANT USAGE ON SCHEMA @schema@ TO annals_writer, annals_reader;
GRANT SELECT, INSERT ON @schema@.audit_events, @schema@.audit_personal TO annals_writer;
GRANT SELECT, INSERT, DELETE ON @schema@.open_calls TO annals_writer;
GRANT SELECT ON @schema@.audit_events, @schema@.audit_personal, @schema@.open_calls TO annals_reader;
