-- The first form of the ledger.
--
-- Times are microseconds since 1970 in UTC, except what may be forgotten from a
-- second on, which is in seconds. Nothing here holds arguments or results.

CREATE SCHEMA toolgate;

-- The forms that this database has had. The newest row counts.
CREATE TABLE toolgate.versions (
    version integer PRIMARY KEY,
    -- The oldest form whose gates may still use it.
    usable_from integer NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The time by which everything is judged.
CREATE FUNCTION toolgate.now_us() RETURNS bigint
    LANGUAGE sql VOLATILE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- The ledger itself: one row.
CREATE TABLE toolgate.ledger (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- The aud of the tickets whose use it remembers.
    id uuid NOT NULL,
    -- How often a gate has started on it: the epoch of the newest owner.
    epoch integer NOT NULL DEFAULT 0,
    -- When an operator last gave it a new identity.
    renewed_us bigint,
    -- When a gate found that it lacks what was acknowledged. Nothing is reserved
    -- on it until it has a new identity.
    lacks_us bigint,
    -- Tickets that may be forgotten from this second on have been.
    forgotten bigint
);
INSERT INTO toolgate.ledger (id) VALUES (gen_random_uuid());

-- What it was shown of time: one row, apart because it is written often.
CREATE TABLE toolgate.clock (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- The high-water mark.
    mark_us bigint,
    -- The latest time that was shown, believed or not.
    seen_us bigint
);
INSERT INTO toolgate.clock DEFAULT VALUES;

-- The gates that answer for running calls: one row for each start.
CREATE TABLE toolgate.owners (
    epoch integer PRIMARY KEY,
    -- Tells a start from another one of the same epoch, before a restore.
    token uuid NOT NULL UNIQUE,
    -- The journal that it writes. Its lock says that no other start does.
    journal_id uuid NOT NULL,
    started_us bigint NOT NULL,
    -- How long it must have been silent before another takes over.
    takeover_us bigint NOT NULL,
    -- Signs of life, counted, and when the last one was.
    beats bigint NOT NULL DEFAULT 0,
    seen_us bigint NOT NULL,
    -- When it stopped of itself.
    ended_us bigint,
    -- The successor that took over its calls. It changes nothing any more.
    fenced_by integer
);
CREATE INDEX owners_by_journal ON toolgate.owners (journal_id);

-- What each owner has committed, counted by connection, so that a database that
-- lacks some of it is found.
CREATE TABLE toolgate.work (
    epoch integer NOT NULL,
    slot integer NOT NULL,
    number bigint NOT NULL,
    -- The latest time that the gate has shown with it.
    shown_us bigint NOT NULL,
    PRIMARY KEY (epoch, slot)
);

-- The records of calls.
CREATE TABLE toolgate.calls (
    -- SHA-256(C([tenant, conversation, tool_call_id])).
    key bytea PRIMARY KEY,
    -- The reservation that opened it last.
    reservation_id uuid NOT NULL,
    -- Whether it has not ended, and then who answers for it.
    running boolean NOT NULL,
    owner integer NOT NULL,
    -- Who reserved it: whose journal tells whether an attempt was started.
    witness integer NOT NULL,
    -- The ticket that it spent.
    confirmation_id uuid,
    -- The second from which on it may be forgotten; null while it runs.
    forget_at bigint,
    record text NOT NULL,
    CHECK (running = (forget_at IS NULL))
);
CREATE INDEX calls_running ON toolgate.calls (owner) WHERE running;
CREATE INDEX calls_by_time ON toolgate.calls (forget_at) WHERE NOT running;

-- Tickets that were spent, revoked, or both.
CREATE TABLE toolgate.tickets (
    id uuid PRIMARY KEY,
    forget_at bigint NOT NULL,
    revoked boolean NOT NULL,
    -- The reservation.
    spent_by uuid
);
CREATE INDEX tickets_by_time ON toolgate.tickets (forget_at);
