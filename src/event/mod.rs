//! The events: what is recorded, in which shape, on which topic and partition, under which hash.
//!
//! Pure values. Nothing in here does I/O, asks for the time or knows of the log's files, of HTTP or of Postgres.

pub mod asyncapi;
mod body;
mod closure;
mod facts;
mod kind;
mod link;
mod personal;
pub mod released;
pub mod schema;
mod topic;
mod upcast;

pub use body::{BODY_BYTES_MAX, BuildError, DecodeError, Decoded, Draft, Event, Sealed, TOKEN_ABSENT};
pub use closure::{ClosureError, INTERRUPTED, closure, closure_id};
pub use facts::{
    AckCheck, AckClass, AdoptionReason, ArgumentsLevel, AuditQueried, AuthFailed, AuthMethod, BackupTaken,
    Call, Common, DroppedSegment, Effect, Facts, Failure, Gap, GapCause, KeptKey, KeyCreated, KeyRevoked,
    LaneClosed, LaneHead, LogAdopted, LogCut, OldCheckpoint, Outcome, PartitionTail, RequestRefused,
    Requested, Retention, RowsCut, SessionEnd, SessionEnded, SessionStarted, Started, Stopping,
    SystemCheckpoint, Terminal, Transport, Window,
};
pub use kind::{Kind, StoredType, UnknownKind};
pub use link::{Link, LinkInput, ZERO_LINK, link};
pub use personal::{Personal, PersonalAlg};
pub use topic::{PARTITIONS, Topic, TopicPartition, UnknownTopic, partition_of};
