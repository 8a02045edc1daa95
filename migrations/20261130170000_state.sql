-- State that is read back at once, the outbox that carries each change of it into the log, and what the readers of the
-- log remember: leases with checkpoints, lane heads, what they set aside. Run as annals_owner.
--
-- Positions are byte offsets or sequence numbers of the log; they fit bigint. Links and digests have 32 bytes.

GRANT USAGE ON SCHEMA annals TO annals_writer, annals_reader;

-- What the owner makes later, in any schema: the reader sees it, the writer finds it, nobody may run its functions
-- but the writer, and views in public are for the audit.
ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO annals_writer, annals_reader;
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO annals_reader;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO annals_writer;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO annals_auditor;

CREATE TABLE annals.api_keys (
    key_id     uuid        PRIMARY KEY,
    subject_id text        NOT NULL,
    user_name  text        NOT NULL,
    key_sha256 bytea       NOT NULL UNIQUE CHECK (octet_length(key_sha256) = 32),
    roles      text[]      NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz
);

-- A change of state writes its event here in its own transaction; the relay deletes a row once its append is durable.
CREATE TABLE annals.outbox (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id uuid   NOT NULL UNIQUE,
    topic    text   NOT NULL,
    key      text   NOT NULL,
    body     bytea  NOT NULL
);

-- Lease and checkpoint of one partition in one row: they move together or not at all. A null position is before the
-- first event; the link is that of the last event applied.
CREATE TABLE annals.checkpoints (
    projection text        NOT NULL,
    version    integer     NOT NULL,
    topic      text        NOT NULL,
    partition  integer     NOT NULL CHECK (partition >= 0),
    log_id     uuid        NOT NULL,
    position   bigint      CHECK (position >= 0),
    link       bytea       CHECK (octet_length(link) = 32),
    epoch      bigint      NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    owner      text,
    expires_at timestamptz,
    PRIMARY KEY (projection, version, topic, partition),
    CHECK ((position IS NULL) = (link IS NULL))
);

-- The last event of each lane that a projection accepted.
CREATE TABLE annals.lane_heads (
    projection  text    NOT NULL,
    version     integer NOT NULL,
    log_id      uuid    NOT NULL,
    topic       text    NOT NULL,
    partition   integer NOT NULL CHECK (partition >= 0),
    incarnation uuid    NOT NULL,
    seq         bigint  NOT NULL CHECK (seq >= 0),
    link        bytea   NOT NULL CHECK (octet_length(link) = 32),
    PRIMARY KEY (projection, version, log_id, topic, partition, incarnation)
);

-- Events that a projection could not read, whole, with the cause.
CREATE TABLE annals.parked (
    projection  text        NOT NULL,
    version     integer     NOT NULL,
    log_id      uuid        NOT NULL,
    topic       text        NOT NULL,
    partition   integer     NOT NULL CHECK (partition >= 0),
    position    bigint      NOT NULL CHECK (position >= 0),
    recorded_at timestamptz NOT NULL,
    incarnation uuid        NOT NULL,
    seq         bigint      NOT NULL CHECK (seq >= 0),
    content     bytea       NOT NULL CHECK (octet_length(content) = 32),
    link        bytea       NOT NULL CHECK (octet_length(link) = 32),
    body        bytea       NOT NULL,
    cause       text        NOT NULL,
    parked_at   timestamptz NOT NULL,
    PRIMARY KEY (projection, version, log_id, topic, partition, position)
);

-- Gaps and conflicts that readers saw. A redelivery finds the same ones again, so they are unique.
CREATE TABLE annals.findings (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    projection  text        NOT NULL,
    version     integer     NOT NULL,
    log_id      uuid        NOT NULL,
    topic       text        NOT NULL,
    partition   integer     NOT NULL CHECK (partition >= 0),
    incarnation uuid        NOT NULL,
    kind        text        NOT NULL CHECK (kind IN ('gap', 'conflict')),
    from_seq    bigint      NOT NULL CHECK (from_seq >= 0),
    to_seq      bigint      NOT NULL CHECK (to_seq >= from_seq),
    position    bigint      NOT NULL CHECK (position >= 0),
    detail      text        NOT NULL,
    found_at    timestamptz NOT NULL,
    UNIQUE (projection, version, log_id, topic, partition, incarnation, kind, from_seq, to_seq, position)
);

-- Events that may land in the log twice with two sequences, by what they are.
CREATE TABLE annals.once (
    projection text    NOT NULL,
    version    integer NOT NULL,
    source     text    NOT NULL,
    event_id   uuid    NOT NULL,
    content    bytea   NOT NULL CHECK (octet_length(content) = 32),
    PRIMARY KEY (projection, version, source, event_id)
);

GRANT SELECT, INSERT, UPDATE, DELETE
    ON annals.api_keys, annals.outbox, annals.checkpoints, annals.lane_heads, annals.parked, annals.findings, annals.once
    TO annals_writer;
