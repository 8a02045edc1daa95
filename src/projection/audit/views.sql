-- The public views over the live version of the audit projection: @schema@ is replaced. Run as annals_owner, idempotent.

-- Every event, with the columns of audit_logs where they apply.
CREATE OR REPLACE VIEW public.audit_events AS
SELECT
    e.log_id,
    e.topic,
    e.partition,
    e.position,
    e.recorded_at,
    e.tenant,
    e.event_id,
    e.event_kind,
    e.event_type,
    e.occurred_at,
    e.incarnation,
    e.seq,
    e.link,
    e.content,
    e.ack,
    e.ack_check,
    e.body_head,
    e.body_tail,
    p.personal_token,
    (COALESCE(e.call_id, e.event_id))::text AS id,
    COALESCE(e.received_at, e.occurred_at) AS "timestamp",
    e.duration_ms,
    e.request_id,
    p.user_id,
    NULL::text AS user_email,
    e.persona,
    e.tool_name,
    e.toolkit_kind,
    NULL::text AS toolkit_name,
    e.connection,
    p.parameters,
    e.success,
    p.error_message,
    e.error_category,
    e.error_code,
    (COALESCE(e.received_at, e.occurred_at) AT TIME ZONE 'UTC')::date AS created_date,
    e.response_chars,
    p.request_chars,
    e.content_blocks,
    e.session_id,
    e.transport,
    e.source_kind AS source,
    CASE WHEN e.call_id IS NOT NULL THEN false END AS enrichment_applied,
    e.authorized,
    CASE WHEN e.call_id IS NOT NULL THEN 0::int8 END AS enrichment_tokens_full,
    CASE WHEN e.call_id IS NOT NULL THEN 0::int8 END AS enrichment_tokens_dedup,
    CASE WHEN e.call_id IS NOT NULL THEN ''::text END AS enrichment_mode,
    CASE WHEN e.call_id IS NOT NULL THEN ''::text END AS enrichment_match_kind,
    p.purpose,
    p.client_ip,
    p.user_agent,
    e.call_id,
    e.subject_id,
    e.effect,
    e.trace_id,
    e.occurrences,
    e.end_reason
FROM @schema@.audit_events e
LEFT JOIN @schema@.audit_personal p
    USING (tenant, log_id, topic, partition, position, recorded_at);

-- One row per call that ended: the terminal events, under the names that users of mcp-data-platform query. The first
-- one of a call counts: a closure that came behind its end is an event, but not how the call ended.
CREATE OR REPLACE VIEW public.audit_logs AS
SELECT
    id,
    "timestamp",
    duration_ms,
    request_id,
    user_id,
    user_email,
    persona,
    tool_name,
    toolkit_kind,
    toolkit_name,
    connection,
    parameters,
    success,
    error_message,
    created_date,
    response_chars,
    request_chars,
    content_blocks,
    session_id,
    transport,
    source,
    enrichment_applied,
    authorized,
    enrichment_tokens_full,
    enrichment_tokens_dedup,
    enrichment_mode,
    enrichment_match_kind,
    event_kind,
    purpose,
    error_category,
    error_code,
    client_ip,
    user_agent,
    call_id,
    subject_id,
    tenant,
    recorded_at,
    event_id,
    effect,
    trace_id
FROM public.audit_events v
WHERE event_kind IN (
    'tool_call.completed', 'tool_call.failed', 'tool_call.denied', 'tool_call.timed_out', 'tool_call.cancelled',
    'tool_call.interrupted'
) AND NOT (event_kind = 'tool_call.interrupted' AND EXISTS (
    SELECT FROM @schema@.audit_events f
    WHERE f.tenant = v.tenant AND f.call_id = v.call_id AND f.log_id = v.log_id AND f.topic = v.topic
      AND f.partition = v.partition AND f.position < v.position
      AND f.event_kind IN (
          'tool_call.completed', 'tool_call.failed', 'tool_call.denied', 'tool_call.timed_out', 'tool_call.cancelled'
      )
));

REVOKE ALL ON public.audit_events, public.audit_logs FROM PUBLIC;
GRANT SELECT ON public.audit_events, public.audit_logs TO annals_auditor, annals_reader;
