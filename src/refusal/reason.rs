//! The table itself. Codes are stable: rows and dashboards are filtered by them.

use super::{Recorded, Row, Rpc, Surface};
use crate::base::Category;
use crate::event::Transport;

const HTTP: &[Transport] = &[Transport::Http];
const STDIO: &[Transport] = &[Transport::Stdio];
const EVERY: &[Transport] = &[Transport::Http, Transport::Stdio];

const MCP: &[Surface] = &[Surface::Mcp];
const REST: &[Surface] = &[Surface::Rest];
const BOTH: &[Surface] = &[Surface::Mcp, Surface::Rest];

const PARSE_ERROR: Rpc = Rpc::Error(-32_700);
const INVALID_REQUEST: Rpc = Rpc::Error(-32_600);
const METHOD_NOT_FOUND: Rpc = Rpc::Error(-32_601);
const INVALID_PARAMS: Rpc = Rpc::Error(-32_602);
const INTERNAL: Rpc = Rpc::Error(-32_603);
/// MCP 2026-07-28: a header is missing, unusable or differs from the body.
const HEADERS: Rpc = Rpc::Error(-32_020);
/// MCP 2026-07-28: a revision that is not served.
const VERSION: Rpc = Rpc::Error(-32_022);
/// The call was cancelled.
const CANCELLED: Rpc = Rpc::Error(1_499);
/// The tool may have had an effect, but its outcome is not recorded.
const UNRECORDED: Rpc = Rpc::Error(1_500);

/// The protocol owns everything from -32768 to -32000; our own codes are 1000 + the HTTP status.
const fn of(status: u16) -> Rpc {
    Rpc::Error(1_000 + status as i64)
}

const NO_LOG: Recorded = Recorded::Nothing(
    "it is the log that does not accept: nothing was decided, and `system.gap` counts the refusals",
);

macro_rules! reasons {
    ($($variant:ident = $code:literal, $category:ident, $status:literal, $rpc:expr, $recorded:expr, $transports:expr, $surfaces:expr, $meaning:literal;)*) => {
        /// Why something is refused or fails.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $(#[doc = $meaning] $variant,)* }

        impl Reason {
            /// Every reason, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its row.
            #[must_use]
            pub const fn row(self) -> &'static Row {
                match self {
                    $(Self::$variant => const { &Row {
                        code: $code,
                        category: Category::$category,
                        status: $status,
                        rpc: $rpc,
                        recorded: $recorded,
                        transports: $transports,
                        surfaces: $surfaces,
                        meaning: $meaning,
                    } },)*
                }
            }
        }
    };
}

use Recorded as R;

reasons! {
    // Before anybody is known.
    HostHeader = "host_header", Validation, 400, of(400), R::Request, HTTP, BOTH, "No `Host` header, or more than one.";
    HostNotAllowed = "host_not_allowed", Authz, 403, of(403), R::Request, HTTP, BOTH, "A `Host` that is not served.";
    OriginNotAllowed = "origin_not_allowed", Authz, 403, of(403), R::Request, HTTP, BOTH, "A page of an origin that is not served.";
    RouteNotFound = "route_not_found", Validation, 404, Rpc::Absent, R::Request, HTTP, REST, "A path at which there is nothing.";
    MethodNotAllowed = "method_not_allowed", Validation, 405, of(405), R::Request, HTTP, BOTH, "An HTTP method that the path does not take.";
    BodyTooLarge = "body_too_large", RateLimit, 413, of(413), R::Request, EVERY, MCP, "A body over `limits.body_bytes_max`, announced or sent.";
    MetricsRouteNotFound = "metrics_route_not_found", Validation, 404, Rpc::Absent, R::Nothing("the metrics have a listener of their own, on which nobody is known and nothing can be reached"), HTTP, REST, "A path of the metrics listener at which there is nothing.";
    MetricsMethodNotAllowed = "metrics_method_not_allowed", Validation, 405, Rpc::Absent, R::Nothing("the metrics have a listener of their own, on which nobody is known and nothing can be reached"), HTTP, REST, "Another HTTP method than GET at `/metrics`.";

    // Credentials.
    CredentialsMissing = "missing", Auth, 401, of(401), R::AuthFailed, EVERY, BOTH, "No API key.";
    CredentialsMalformed = "malformed", Auth, 401, of(401), R::AuthFailed, EVERY, BOTH, "Credentials that are not one API key.";
    KeyUnknown = "unknown", Auth, 401, of(401), R::AuthFailed, EVERY, BOTH, "An API key that nobody has.";
    KeyRevoked = "revoked", Auth, 401, of(401), R::AuthFailed, EVERY, BOTH, "An API key that was revoked.";
    KeyExpired = "expired", Auth, 401, of(401), R::AuthFailed, EVERY, BOTH, "An API key that has expired.";
    RolesUnmapped = "unmapped", Auth, 401, of(401), R::AuthFailed, EVERY, BOTH, "An API key whose roles lead to no persona.";
    KeysLoading = "keys_loading", Upstream, 503, of(503), R::Request, EVERY, BOTH, "The keys are not loaded yet, so that nobody can be called unknown.";

    // What surrounds a message.
    ContentType = "content_type", Validation, 415, of(415), R::Request, HTTP, MCP, "A body that is not said to be JSON.";
    Accept = "accept", Validation, 406, of(406), R::Request, HTTP, MCP, "An `Accept` that rules JSON out.";
    BodyCut = "body_cut", Validation, 400, of(400), R::Request, HTTP, MCP, "A body that ended before it was whole.";
    BodyTimeout = "body_timeout", Timeout, 408, of(408), R::Request, HTTP, MCP, "A body that took longer than `limits.body_timeout_ms`.";

    // What is no message.
    NotJson = "not_json", Validation, 400, PARSE_ERROR, R::Request, EVERY, MCP, "A body that is not JSON.";
    TooDeep = "too_deep", Validation, 400, INVALID_REQUEST, R::Request, EVERY, MCP, "A body nested deeper than 128 levels.";
    Batch = "batch", Validation, 400, INVALID_REQUEST, R::Request, EVERY, MCP, "A batch of messages.";
    NotObject = "not_object", Validation, 400, INVALID_REQUEST, R::Request, EVERY, MCP, "JSON that is neither an object nor an array.";
    MemberRepeated = "member_repeated", Validation, 400, INVALID_REQUEST, R::Request, EVERY, MCP, "A message in which a member of JSON-RPC stands twice.";
    JsonrpcVersion = "jsonrpc_version", Validation, 400, INVALID_REQUEST, R::Request, EVERY, MCP, "A message whose `jsonrpc` is not \"2.0\".";
    MethodMissing = "method_missing", Validation, 400, INVALID_REQUEST, R::Request, EVERY, MCP, "A message without `method` that is no response either.";
    MethodNotString = "method_not_string", Validation, 400, INVALID_REQUEST, R::Request, EVERY, MCP, "A message whose `method` is no string.";
    IdNull = "id_null", Validation, 400, INVALID_REQUEST, R::Request, EVERY, MCP, "A request whose `id` is null.";
    IdInvalid = "id_invalid", Validation, 400, INVALID_REQUEST, R::Request, EVERY, MCP, "A request whose `id` is neither a string nor an integer, or is longer than 256 bytes.";
    ResponseUnexpected = "response_unexpected", Validation, 400, INVALID_REQUEST, R::Request, HTTP, MCP, "A response under 2026-07-28, where the server asks nothing.";

    // Headers, versions and sessions.
    HeaderMissing = "header_missing", Validation, 400, HEADERS, R::Message, HTTP, MCP, "2026-07-28: a header that must stand beside the body is missing.";
    HeaderUnusable = "header_unusable", Validation, 400, HEADERS, R::Message, HTTP, MCP, "2026-07-28: a header that is repeated, not plain ASCII or wrongly encoded.";
    HeaderMismatch = "header_mismatch", Validation, 400, HEADERS, R::Message, HTTP, MCP, "2026-07-28: a header that says something else than the body.";
    MetaMissing = "meta_missing", Validation, 400, INVALID_PARAMS, R::Message, EVERY, MCP, "2026-07-28: `_meta` lacks the version or the client's capabilities.";
    UnsupportedVersion = "unsupported_version", Validation, 400, VERSION, R::Message, EVERY, MCP, "A revision of MCP that is not served.";
    VersionHeaderUnusable = "version_header_unusable", Validation, 400, INVALID_REQUEST, R::Message, HTTP, MCP, "2025-11-25: `MCP-Protocol-Version` is repeated or not plain ASCII.";
    SessionHeaderMissing = "session_header_missing", Validation, 400, INVALID_REQUEST, R::Message, HTTP, MCP, "2025-11-25: no `Mcp-Session-Id`.";
    SessionHeaderUnusable = "session_header_unusable", Validation, 400, INVALID_REQUEST, R::Message, HTTP, MCP, "2025-11-25: `Mcp-Session-Id` is repeated or not plain ASCII.";
    SessionNotFound = "session_not_found", Validation, 404, of(404), R::Message, EVERY, MCP, "A session that ended, never was, or is somebody else's: the caller cannot tell which.";
    SessionsExhausted = "sessions_exhausted", RateLimit, 503, of(503), R::Request, EVERY, MCP, "`initialize` while each session within the limits has a request in flight.";

    NotInitialized = "not_initialized", Validation, 200, INVALID_REQUEST, R::Message, STDIO, MCP, "2025-11-25 over stdio: a request before `initialize`.";
    AlreadyInitialized = "already_initialized", Validation, 200, INVALID_REQUEST, R::Request, STDIO, MCP, "2025-11-25 over stdio: a second `initialize`.";

    // Methods and their parameters.
    MethodNotFound = "method_not_found", Validation, 404, METHOD_NOT_FOUND, R::Request, EVERY, MCP, "2026-07-28: a method that the revision or this server does not have.";
    MethodNotFoundInSession = "method_not_found_in_session", Validation, 200, METHOD_NOT_FOUND, R::Request, EVERY, MCP, "2025-11-25: a method that the revision or this server does not have.";
    ParamsMalformed = "params_malformed", Validation, 200, INVALID_PARAMS, R::Message, EVERY, MCP, "`params` is no object, or a member stands in it twice.";
    CursorUnknown = "cursor_unknown", Validation, 200, INVALID_PARAMS, R::Request, EVERY, MCP, "`tools/list` with a cursor that was never given.";
    ProtocolVersionMissing = "protocol_version_missing", Validation, 200, INVALID_PARAMS, R::Request, EVERY, MCP, "`initialize` without a `protocolVersion` that is a string.";

    // Calls, before their intent.
    CallWithoutId = "call_without_id", Validation, 400, INVALID_REQUEST, R::Denied, EVERY, MCP, "`tools/call` as a notification, without an id: it is not run, which HTTP says with 400 instead of 202, and stdio, where a notification has no answer, does not say.";
    ToolNameMissing = "tool_name_missing", Validation, 200, INVALID_PARAMS, R::Denied, EVERY, MCP, "`tools/call` without a name.";
    ToolNameNotString = "tool_name_not_string", Validation, 200, INVALID_PARAMS, R::Denied, EVERY, MCP, "`tools/call` with a name that is no string.";
    ArgumentsNotObject = "arguments_not_object", Validation, 200, INVALID_PARAMS, R::Denied, EVERY, MCP, "`tools/call` with arguments that are no object.";
    RequestIdInFlight = "request_id_in_flight", Validation, 200, INVALID_REQUEST, R::Message, EVERY, MCP, "A request with the id of one that is in flight in the same session or stdio process.";
    UnknownTool = "unknown_tool", Validation, 200, INVALID_PARAMS, R::Denied, EVERY, MCP, "A tool that there is not.";
    ToolNotAllowed = "tool_not_allowed", Authz, 200, Rpc::Result, R::Denied, EVERY, MCP, "A tool that the persona may not call.";
    ConnectionNotAllowed = "connection_not_allowed", Authz, 200, Rpc::Result, R::DeniedOrFailed, EVERY, MCP, "A connection that the persona may not reach.";
    ConnectionUnknown = "connection_unknown", Validation, 200, Rpc::Result, R::DeniedOrFailed, EVERY, MCP, "A connection that there is not.";
    ConnectionRequired = "connection_required", Validation, 200, Rpc::Result, R::DeniedOrFailed, EVERY, MCP, "No connection is named, and not exactly one can be reached.";
    PurposeTwice = "purpose_twice", Validation, 200, Rpc::Result, R::Denied, EVERY, MCP, "`purpose` is given twice.";
    PurposeNotText = "purpose_not_text", Validation, 200, Rpc::Result, R::Denied, EVERY, MCP, "`purpose` is no string.";
    PurposeTooLong = "purpose_too_long", Validation, 200, Rpc::Result, R::Denied, EVERY, MCP, "`purpose` has over 1,000 characters.";
    ArgumentUnknown = "argument_unknown", Validation, 200, Rpc::Result, R::Denied, EVERY, MCP, "An argument that the tool does not have.";
    ArgumentMissing = "argument_missing", Validation, 200, Rpc::Result, R::Denied, EVERY, MCP, "An argument that the tool needs is not given.";
    ArgumentInvalid = "argument_invalid", Validation, 200, Rpc::Result, R::Denied, EVERY, MCP, "Arguments that the tool's input schema does not allow.";
    ArgumentRepeated = "argument_repeated", Validation, 200, Rpc::Result, R::Denied, EVERY, MCP, "An argument is given twice.";
    SqlTooLong = "sql_too_long", Validation, 200, Rpc::Result, R::Denied, EVERY, MCP, "A statement over 64 KiB.";
    RateLimited = "rate_limited", RateLimit, 200, Rpc::Result, R::Denied, EVERY, MCP, "More calls in a minute than `limits.calls_per_minute` lets an API key make.";
    TooManyCalls = "too_many_calls", RateLimit, 200, Rpc::Result, R::Denied, EVERY, MCP, "`limits.calls_in_flight_max` calls run already, or `limits.calls_in_flight_per_key_max` of one API key.";

    // Calls, behind their intent: statements that are refused unasked.
    SqlEmpty = "sql_empty", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "No statement.";
    SqlSyntax = "sql_syntax", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A statement that cannot be read.";
    SqlUnsupportedSyntax = "sql_unsupported_syntax", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A statement in a form that is not taken.";
    SqlUnsupportedType = "sql_unsupported_type", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A column of a type that cannot be described.";
    SqlMultipleStatements = "sql_multiple_statements", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "More than one statement.";
    SqlNotAQuery = "sql_not_a_query", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A statement that is no query.";
    SqlWrites = "sql_writes", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A query with a part that changes data.";
    SqlLocksRows = "sql_locks_rows", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A query that locks rows.";
    SqlSelectInto = "sql_select_into", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A query that makes a table.";
    SqlRelationRefused = "sql_relation_refused", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A relation that shows credentials, settings or other sessions.";
    SqlFunctionRefused = "sql_function_refused", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A function that changes, waits or reaches outside.";
    SqlTooComplex = "sql_too_complex", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A statement with too many parts or levels.";

    // What Postgres answers.
    SqlPermissionDenied = "sql_permission_denied", Authz, 200, Rpc::Result, R::Failed, EVERY, MCP, "The connection's role may not do that.";
    SqlUndefinedTable = "sql_undefined_table", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A table or schema that there is not.";
    SqlUndefinedColumn = "sql_undefined_column", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A column that there is not.";
    SqlUndefinedFunction = "sql_undefined_function", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A function that there is not for these arguments.";
    SqlReadOnly = "sql_read_only", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A write that the READ ONLY transaction stopped.";
    SqlNotSupported = "sql_not_supported", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "Something that Postgres does not support.";
    SqlBadValue = "sql_bad_value", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A value that does not fit, such as a division by zero.";
    SqlInvalid = "sql_invalid", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "A statement that Postgres refuses for another reason.";
    SqlConflict = "sql_conflict", Upstream, 200, Rpc::Result, R::Failed, EVERY, MCP, "Another session was in the way.";
    SqlResourcesExhausted = "sql_resources_exhausted", Upstream, 200, Rpc::Result, R::Failed, EVERY, MCP, "The database is short of something.";
    SqlServerFailed = "sql_server_failed", Upstream, 200, Rpc::Result, R::Failed, EVERY, MCP, "The database failed inside.";
    SqlTimeout = "sql_timeout", Timeout, 200, Rpc::Result, R::Failed, EVERY, MCP, "A statement that ran longer than the connection allows.";
    ConnectionUnreachable = "connection_unreachable", Upstream, 200, Rpc::Result, R::Failed, EVERY, MCP, "A database that is not reachable, or ended the session.";
    ConnectionStarting = "connection_starting", Upstream, 200, Rpc::Result, R::Failed, EVERY, MCP, "A connection that is still starting.";
    ConnectionBusy = "connection_busy", RateLimit, 200, Rpc::Result, R::Failed, EVERY, MCP, "All sessions of a connection are in use.";
    ConnectionRoleRefused = "connection_role_refused", Upstream, 200, Rpc::Result, R::Failed, EVERY, MCP, "A connection whose role could do more than read.";

    IdUnknown = "id_unknown", Validation, 200, Rpc::Result, R::Failed, EVERY, MCP, "An id for `fetch` that nothing has which the caller reaches.";

    // Other ends of a call.
    CallTimedOut = "call_timed_out", Timeout, 200, Rpc::Result, R::TimedOut, EVERY, MCP, "A call that took longer than `limits.call_timeout_ms`.";
    CancelledByCaller = "cancelled_by_caller", Cancelled, 200, CANCELLED, R::Cancelled, EVERY, MCP, "A call that its caller cancelled, or whose caller vanished under 2026-07-28.";
    CancelledByShutdown = "cancelled_by_shutdown", Cancelled, 200, CANCELLED, R::Cancelled, EVERY, MCP, "A call that still ran when the server stopped.";
    Cancelled = "cancelled", Cancelled, 200, CANCELLED, R::Nothing("a tool says it when it was told to stop: its call has its end by then"), EVERY, MCP, "What a tool says that was stopped.";
    Panic = "panic", Internal, 200, INTERNAL, R::DeniedOrFailed, EVERY, MCP, "A tool panicked.";
    ResultNotJson = "result_not_json", Internal, 200, INTERNAL, R::Failed, EVERY, MCP, "A tool's result has no JSON form.";
    RowNotJson = "row_not_json", Internal, 200, Rpc::Result, R::Failed, EVERY, MCP, "A row has no JSON form.";
    CallTaskLost = "call_task_lost", Internal, 200, UNRECORDED, R::Nothing("the task that would have recorded the outcome is gone; the call is closed later as interrupted"), EVERY, MCP, "The task of a call ended without an answer.";
    OutcomeUnrecorded = "outcome_unrecorded", Internal, 200, UNRECORDED, R::Nothing("it is the outcome that could not be recorded; the call is closed later as interrupted"), EVERY, MCP, "The outcome of a call could not be recorded, so its result is withheld.";

    ToolDropped = "tool_dropped", Internal, 200, INTERNAL, R::Nothing("the call has its end; `tool_call.late` says that its tool was dropped"), EVERY, MCP, "A tool that did not stop when it was told to, and was dropped.";
    ServerGone = "server_gone", Internal, 200, INTERNAL, R::Nothing("the process that would record it is gone; the call is closed as interrupted"), STDIO, MCP, "The server went away before it answered over stdio.";

    // The log.
    LogUnavailable = "log_unavailable", Internal, 503, of(503), NO_LOG, EVERY, BOTH, "The log cannot write now.";
    LogFull = "log_full", Internal, 503, of(503), NO_LOG, EVERY, BOTH, "The log has no room.";
    LogBusy = "log_busy", Internal, 503, of(503), NO_LOG, EVERY, BOTH, "The log has more to write than it takes.";
    ShuttingDown = "shutting_down", Internal, 503, of(503), NO_LOG, EVERY, BOTH, "The server is stopping.";

    // The audit, over REST and by tools.
    BadParameter = "bad_parameter", Validation, 400, Rpc::Absent, R::Request, HTTP, REST, "A parameter that is unknown or wrong.";
    BadEventId = "bad_event_id", Validation, 400, Rpc::Absent, R::Request, HTTP, REST, "An event id that is no UUID.";
    AuditNotAllowed = "audit_not_allowed", Authz, 403, Rpc::Result, R::AuditQueried, EVERY, BOTH, "A persona that may not read the audit.";
    BadCursor = "bad_cursor", Validation, 400, Rpc::Result, R::AuditQueried, EVERY, BOTH, "A cursor that is not ours, or of other filters.";
    EventNotFound = "event_not_found", Validation, 404, Rpc::Result, R::AuditQueried, EVERY, BOTH, "An event that is not in the store.";
    StoreUnavailable = "store_unavailable", Upstream, 503, Rpc::Result, R::AuditQueried, EVERY, BOTH, "The audit store is away.";
    StoreStopped = "store_stopped", Upstream, 503, Rpc::Result, R::AuditQueried, EVERY, BOTH, "The rows do not follow the log any more.";
    StoreFailed = "store_failed", Internal, 500, Rpc::Result, R::AuditQueried, EVERY, BOTH, "The store answered in a way that is not understood.";
}
