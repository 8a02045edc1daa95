//! The pseudonymous part of each event type: ids, digests, decisions, outcomes, times and sizes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Kind, Topic};
use crate::base::{Category, Timestamp};

/// What an ack of the log means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AckClass {
    /// On this node's disk, by fdatasync.
    Fsync,
    /// In one broker node's page cache.
    Leader,
    /// On a quorum of brokers.
    Replicated,
    /// On the disks of a quorum of brokers.
    ReplicatedFsync,
}

impl AckClass {
    /// As in events and rows.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::Leader => "leader",
            Self::Replicated => "replicated",
            Self::ReplicatedFsync => "replicated_fsync",
        }
    }
}

/// Whether the ack class was checked against the real server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AckCheck {
    /// Checked.
    Verified,
    /// Taken from the config.
    Asserted,
}

impl AckCheck {
    /// As in events and rows.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Verified => "verified",
            Self::Asserted => "asserted",
        }
    }
}

/// What every event says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Common {
    /// The process start that made the event.
    pub incarnation: Uuid,
    /// What the ack of this event meant.
    pub ack: AckClass,
    /// How far that is known.
    pub ack_check: AckCheck,
    /// SHA-256 of the exact bytes of `personal.bytes`, hexadecimal.
    pub personal_sha256: String,
    /// True when the event can land twice with two sequence numbers, so that readers also drop it by (source, id).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
}

/// How the principal proved who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthMethod {
    /// An API key kept in Postgres.
    ApiKey,
    /// The admin key from the environment.
    EnvKey,
    /// The running server's own socket and token, or the data directory itself.
    Local,
}

/// How a call came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Streamable HTTP.
    Http,
    /// Standard input and output.
    Stdio,
}

impl Transport {
    /// As in events and rows.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Stdio => "stdio",
        }
    }
}

/// How much of the arguments the record keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentsLevel {
    /// Nothing of them, of the result or of an error's text.
    Minimal,
    /// Digests and sizes.
    Metadata,
    /// The arguments too, redacted.
    Arguments,
    /// The arguments and the result, redacted.
    Full,
}

/// What is known of a call: the same in its intent and in its terminal event, which so stands alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Call {
    /// Minted before anything else.
    pub call_id: Uuid,
    /// When the call was received.
    pub received_at: Timestamp,
    /// The principal's pseudonymous id.
    pub subject_id: String,
    /// How it proved who it is.
    pub auth_method: AuthMethod,
    /// The API key's id, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<Uuid>,
    /// The persona that decided.
    pub persona: String,
    /// The JSON-RPC id as received, clipped.
    pub request_id: String,
    /// The transport session's id; a session is bound to its key, so the id alone opens nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// How the call came in.
    pub transport: Transport,
    /// The MCP revision it was made under.
    pub protocol_version: String,
    /// `mcp`, later `rest` and others.
    pub source: String,
    /// The tool's name as asked for, clipped.
    pub tool_name: String,
    /// The tool's family: `platform`, `sql`; absent for an unknown tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toolkit_kind: Option<String>,
    /// The connection it reaches, when it reaches one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// SHA-256 of the tool's definition as listed, hexadecimal; absent for an unknown tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition_sha256: Option<String>,
    /// The trace that the caller says the call belongs to, 32 hexadecimal digits. It correlates and proves nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// How much of the arguments is kept in `personal`.
    pub arguments_level: ArgumentsLevel,
    /// Keyed digest of the arguments as received, without `purpose`, hexadecimal; absent at level `minimal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments_hmac: Option<String>,
    /// Their length in bytes; 0 at level `minimal`.
    pub arguments_bytes: u64,
    /// Names the key of the digests here and in the markers of redacted values.
    pub digest_key_id: String,
    /// How many values were replaced by markers in `personal`, and in what is kept here of the caller's texts.
    #[serde(default)]
    pub redactions: u32,
}

/// `tool_call.requested`: the intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Requested {
    /// The call.
    #[serde(flatten)]
    pub call: Call,
    /// When it is ended as timed out at the latest.
    pub deadline: Timestamp,
}

/// Why a call did not complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// From the closed set.
    pub category: Category,
    /// The specific reason, such as `unknown_tool`.
    pub code: String,
}

/// Whether a tool did what it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It may have, and nobody can say.
    Unknown,
}

impl Effect {
    /// As in events and rows.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
        }
    }
}

/// How a call ended, in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// From receipt to this event's making, milliseconds.
    pub duration_ms: u64,
    /// Bytes of the result's JSON.
    pub response_bytes: u64,
    /// Characters of the result's text content.
    pub response_chars: u64,
    /// Content blocks of the result.
    pub content_blocks: u32,
    /// Keyed digest of the result's JSON, hexadecimal; absent when there is no result, and at level `minimal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_hmac: Option<String>,
    /// Why it did not complete; absent exactly when it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// Whether it had its effect, where that cannot be told from the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
}

/// `tool_call.completed`, `failed`, `denied`, `timed_out`, `cancelled`, `interrupted`; and `late`, which ends nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Terminal {
    /// The call.
    #[serde(flatten)]
    pub call: Call,
    /// Whether the policy let it through to the tool.
    pub authorized: bool,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// `auth.failed`
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct AuthFailed {
    /// `missing`, `malformed`, `unknown`, `revoked`, `expired`, `unmapped` (no persona for its roles).
    pub reason: String,
    /// The key's id when the key is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<Uuid>,
    /// `mcp`, `rest`.
    pub source: String,
    /// The method and path asked for, clipped; `*` where the event stands for more than one.
    pub route: String,
    /// How many refusals the event stands for.
    pub count: u64,
    /// When they were, where the event stands for more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
}

/// The time that a counted event stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Window {
    /// The first that is counted.
    pub began_at: Timestamp,
    /// The last that is counted.
    pub ended_at: Timestamp,
    /// How many networks they came from; at least so many when there were more than are told apart.
    pub sources: u64,
}

/// `request.refused`: not a call, and not taken.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct RequestRefused {
    /// The specific reason, such as `not_json`: a row of docs/events.md.
    pub reason: String,
    /// From the closed set.
    pub category: Category,
    /// The HTTP status of the answer; absent where the transport has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The JSON-RPC error code of the answer, where it is a JSON-RPC message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_code: Option<i64>,
    /// The method and path asked for, clipped; `stdio` on standard input; `*` where the event stands for more than one.
    pub route: String,
    /// `mcp`, `rest`.
    pub source: String,
    /// How it came in.
    pub transport: Transport,
    /// The principal's pseudonymous id, when it is known who asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_id: Option<String>,
    /// How it proved who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_method: Option<AuthMethod>,
    /// The API key's id, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<Uuid>,
    /// The persona, when it is known who asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persona: Option<String>,
    /// The session that the principal has and asked in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The JSON-RPC method, clipped, when it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The JSON-RPC id as received, clipped, when it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// How many refusals the event stands for.
    pub count: u64,
    /// When they were, where the event stands for more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
}

/// `session.started`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionStarted {
    /// The session; it is bound to its key, so the id alone opens nothing.
    pub session_id: String,
    /// Whose it is.
    pub subject_id: String,
    /// How they proved who they are.
    pub auth_method: AuthMethod,
    /// The API key's id, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<Uuid>,
    /// What decided at its start.
    pub persona: String,
    /// How it came in.
    pub transport: Transport,
    /// The MCP revision it was opened under.
    pub protocol_version: String,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionEnd {
    /// The client said so, or closed its standard input.
    ClientDelete,
    /// Nobody used it for too long.
    Idle,
    /// Its key expired.
    Expired,
    /// A newer one needed its place.
    Evicted,
    /// The server stopped.
    Shutdown,
    /// Its key was revoked.
    Revoked,
}

impl SessionEnd {
    /// Every reason.
    pub const ALL: &'static [Self] =
        &[Self::ClientDelete, Self::Idle, Self::Expired, Self::Evicted, Self::Shutdown, Self::Revoked];

    /// As in events and rows.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClientDelete => "client_delete",
            Self::Idle => "idle",
            Self::Expired => "expired",
            Self::Evicted => "evicted",
            Self::Shutdown => "shutdown",
            Self::Revoked => "revoked",
        }
    }
}

/// `session.ended`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionEnded {
    /// The session.
    pub session_id: String,
    /// Whose it was.
    pub subject_id: String,
    /// How they proved who they are.
    pub auth_method: AuthMethod,
    /// The API key's id, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<Uuid>,
    /// How it came in.
    pub transport: Transport,
    /// Why it ended.
    pub reason: SessionEnd,
    /// When it had started.
    pub started_at: Timestamp,
    /// Calls that were made in it.
    pub calls: u64,
}

/// `admin.key_created`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyCreated {
    /// Who did it.
    pub actor_subject_id: String,
    /// How the actor proved who it is.
    pub actor_auth_method: AuthMethod,
    /// The new key's id.
    pub key_id: Uuid,
    /// The pseudonymous id of the principal that it authenticates.
    pub subject_id: String,
    /// SHA-256 of the key, hexadecimal; the key has 256 random bits, so this opens nothing.
    pub key_sha256: String,
    /// Roles, which personas map.
    pub roles: Vec<String>,
    /// When it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Whether its calls have no rate limit; absent is false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_limit: bool,
}

/// `admin.key_revoked`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyRevoked {
    /// Who did it.
    pub actor_subject_id: String,
    /// How the actor proved who it is.
    pub actor_auth_method: AuthMethod,
    /// The key.
    pub key_id: Uuid,
}

/// `admin.audit_queried`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditQueried {
    /// Who reads.
    pub subject_id: String,
    /// How it proved who it is.
    pub auth_method: AuthMethod,
    /// The API key's id, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<Uuid>,
    /// The persona that allowed it, or would not.
    pub persona: String,
    /// What is read: `events`, `count`, `overview`, `event`.
    pub view: String,
    /// False when the persona may not read the audit; nothing was read then.
    pub authorized: bool,
}

/// `admin.backup_taken`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupTaken {
    /// Who did it.
    pub actor_subject_id: String,
    /// How the actor proved who it is.
    pub actor_auth_method: AuthMethod,
    /// The log that was copied.
    pub log_id: Uuid,
    /// Where the copy ends: every event before this position is in it.
    pub end: u64,
    /// SHA-256 of the backup's `manifest.json`, hexadecimal; it names the digest of every other file.
    pub manifest_sha256: String,
}

/// Why a store came to follow another log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdoptionReason {
    /// The log in the data directory was another one.
    OtherLog,
    /// It was the same one, but without events that the store had: an older copy, set aside for a new log.
    OlderCopy,
}

/// How far the store had applied one partition of a log that it does not follow any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OldCheckpoint {
    /// The projection.
    pub projection: String,
    /// Its version.
    pub version: i32,
    /// The log it belonged to.
    pub log_id: Uuid,
    /// The topic.
    #[schemars(with = "String")]
    pub topic: Topic,
    /// The partition.
    pub partition: u32,
    /// The last event applied.
    pub position: u64,
    /// Its link, hexadecimal.
    pub link: String,
}

/// An API key as it stood in the store: its own events are on a log that is not here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptKey {
    /// The key's id.
    pub key_id: Uuid,
    /// The pseudonymous id of the principal that it authenticates.
    pub subject_id: String,
    /// SHA-256 of the key, hexadecimal.
    pub key_sha256: String,
    /// Roles, which personas map.
    pub roles: Vec<String>,
    /// When it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Whether it was revoked.
    pub revoked: bool,
    /// Whether its calls have no rate limit; absent is false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_limit: bool,
}

/// `admin.log_adopted`: all parts are made in one transaction; the lists are spread over them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogAdopted {
    /// Who did it.
    pub actor_subject_id: String,
    /// How the actor proved who it is.
    pub actor_auth_method: AuthMethod,
    /// Why.
    pub reason: AdoptionReason,
    /// The logs whose rows stay as history.
    pub old_log_ids: Vec<Uuid>,
    /// The log that the store follows from here on: the one that carries this event.
    pub new_log_id: Uuid,
    /// The number of this part, from 1.
    pub part: u32,
    /// How many parts there are.
    pub parts: u32,
    /// The checkpoints that were given up.
    pub checkpoints: Vec<OldCheckpoint>,
    /// The API keys that stay in force or stay revoked.
    pub keys: Vec<KeptKey>,
}

/// `system.started`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Started {
    /// Annals' version.
    pub version: String,
    /// The log that is written to.
    pub log_id: Uuid,
    /// `serve`, `key`: the command that runs.
    pub command: String,
}

/// `system.stopping`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stopping {
    /// `signal`, `done`, `error`.
    pub reason: String,
}

/// The head of one lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LaneHead {
    /// The lane's topic.
    #[schemars(with = "String")]
    pub topic: Topic,
    /// The lane's partition.
    pub partition: u32,
    /// Its last sequence number.
    pub seq: u64,
    /// Its last link, hexadecimal.
    pub link: String,
}

/// `system.lane_closed`: the lane's last event; for the lane that carries this event itself, the last one before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LaneClosed {
    /// Whose lane.
    pub lane_incarnation: Uuid,
    /// The lane and its end.
    #[serde(flatten)]
    pub head: LaneHead,
}

/// `system.checkpoint`: the heads of all non-empty lanes of the incarnation that writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SystemCheckpoint {
    /// Ordered by topic and partition. The system lane's head is the event before this one.
    pub heads: Vec<LaneHead>,
}

/// `system.retention`: what is about to be dropped for its age. It is durable before anything is dropped, so that what is
/// missing afterwards is missing only because this says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Retention {
    /// The oldest segments of the embedded log.
    Log(LogCut),
    /// The oldest months of a projection's rows.
    Rows(RowsCut),
}

/// A cut of the log: it starts at `first` once this is carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogCut {
    /// The first position that is kept: the base of a segment.
    pub first: u64,
    /// SHA-256 of that segment's header, hexadecimal. The header has the number of records before it and the heads of
    /// all lanes that go on behind it.
    pub header_sha256: String,
    /// The newest clock of a record that was dropped, now or before.
    pub recorded_through: Timestamp,
    /// What is dropped now, oldest first.
    pub segments: Vec<DroppedSegment>,
    /// The last record before `first` of each partition that has one, ordered by topic and partition.
    pub tails: Vec<PartitionTail>,
    /// SHA-256 of the anchor of the cut before, hexadecimal; absent for the first cut of a log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_anchor_sha256: Option<String>,
}

/// A segment file that is dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DroppedSegment {
    /// The position of its first byte.
    pub base: u64,
    /// Behind its last byte.
    pub end: u64,
    /// SHA-256 of the file, hexadecimal.
    pub sha256: String,
    /// Events in it.
    pub records: u64,
    /// The oldest clock of its events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_recorded_at: Option<Timestamp>,
    /// The newest clock of its events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_recorded_at: Option<Timestamp>,
}

/// The last record of a partition before a cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PartitionTail {
    /// The topic.
    #[schemars(with = "String")]
    pub topic: Topic,
    /// The partition.
    pub partition: u32,
    /// Where the record stood.
    pub position: u64,
    /// Its link, hexadecimal.
    pub link: String,
}

/// Months of rows that are dropped, whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RowsCut {
    /// The projection.
    pub projection: String,
    /// Its version.
    pub version: u32,
    /// The months, as `2026-01`, ordered.
    pub months: Vec<String>,
    /// Rows of events that were recorded before this are dropped: the first moment behind the last of `months`.
    pub before: Timestamp,
}

/// What kind of trouble kept a log from writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GapCause {
    /// The device or the file system failed to read, write or sync.
    Io,
    /// Fewer bytes were written than were given.
    ShortWrite,
    /// No room is left on the device, or in a quota.
    NoSpace,
    /// The file system takes no writes.
    ReadOnly,
    /// A file of the log lost its name.
    Missing,
    /// Another file stands where one of the log's did.
    Replaced,
    /// A file of the log was cut or prolonged by somebody else.
    Resized,
    /// The log's directory is not there.
    DirectoryMissing,
    /// Another directory stands where the log's did.
    DirectoryReplaced,
}

impl GapCause {
    /// Every cause.
    pub const ALL: &'static [Self] = &[
        Self::Io,
        Self::ShortWrite,
        Self::NoSpace,
        Self::ReadOnly,
        Self::Missing,
        Self::Replaced,
        Self::Resized,
        Self::DirectoryMissing,
        Self::DirectoryReplaced,
    ];

    /// As events, metrics and `/readyz` show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Io => "io",
            Self::ShortWrite => "short_write",
            Self::NoSpace => "no_space",
            Self::ReadOnly => "read_only",
            Self::Missing => "missing",
            Self::Replaced => "replaced",
            Self::Resized => "resized",
            Self::DirectoryMissing => "directory_missing",
            Self::DirectoryReplaced => "directory_replaced",
        }
    }
}

/// `system.gap`: for a while the log could not write. Nothing that was acknowledged is lost, and what was sequenced before
/// or meanwhile stands before this event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// What kind of trouble it was, as first seen.
    pub cause: GapCause,
    /// What the system said.
    pub detail: String,
    /// When it was noticed.
    pub began_at: Timestamp,
    /// When everything was written.
    pub ended_at: Timestamp,
    /// Requests for room in the log that were refused: each is a call, or another decision, that did not happen.
    pub refused: u64,
    /// Events that were written late.
    pub rewritten: u64,
}

/// The facts of every type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Facts {
    /// The intent of a call.
    Requested(Requested),
    /// The end of a call, or what came after it; the kind says which.
    Terminal(Kind, Terminal),
    /// `request.refused`
    RequestRefused(RequestRefused),
    /// `session.started`
    SessionStarted(SessionStarted),
    /// `session.ended`
    SessionEnded(SessionEnded),
    /// `auth.failed`
    AuthFailed(AuthFailed),
    /// `admin.key_created`
    KeyCreated(KeyCreated),
    /// `admin.key_revoked`
    KeyRevoked(KeyRevoked),
    /// `admin.audit_queried`
    AuditQueried(AuditQueried),
    /// `admin.backup_taken`
    BackupTaken(BackupTaken),
    /// `admin.log_adopted`
    LogAdopted(LogAdopted),
    /// `system.started`
    Started(Started),
    /// `system.stopping`
    Stopping(Stopping),
    /// `system.lane_closed`
    LaneClosed(LaneClosed),
    /// `system.checkpoint`
    Checkpoint(SystemCheckpoint),
    /// `system.retention`
    Retention(Retention),
    /// `system.gap`
    Gap(Gap),
}

impl Facts {
    /// The event type.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Requested(_) => Kind::ToolCallRequested,
            Self::Terminal(kind, _) => *kind,
            Self::RequestRefused(_) => Kind::RequestRefused,
            Self::SessionStarted(_) => Kind::SessionStarted,
            Self::SessionEnded(_) => Kind::SessionEnded,
            Self::AuthFailed(_) => Kind::AuthFailed,
            Self::KeyCreated(_) => Kind::AdminKeyCreated,
            Self::KeyRevoked(_) => Kind::AdminKeyRevoked,
            Self::AuditQueried(_) => Kind::AdminAuditQueried,
            Self::BackupTaken(_) => Kind::AdminBackupTaken,
            Self::LogAdopted(_) => Kind::AdminLogAdopted,
            Self::Started(_) => Kind::SystemStarted,
            Self::Stopping(_) => Kind::SystemStopping,
            Self::LaneClosed(_) => Kind::SystemLaneClosed,
            Self::Checkpoint(_) => Kind::SystemCheckpoint,
            Self::Retention(_) => Kind::SystemRetention,
            Self::Gap(_) => Kind::SystemGap,
        }
    }
}
