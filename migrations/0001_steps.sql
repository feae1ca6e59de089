-- The record of the workflow service. Times are Unix nanoseconds, 0: not yet.

-- One row for every accepted step.
CREATE TABLE steps (
    step text PRIMARY KEY,
    tenant text NOT NULL,
    workflow text NOT NULL,
    model text NOT NULL,
    trace text NOT NULL,
    admitted json NOT NULL,  -- the StepAdmitted message, as it can be sent again; json, because jsonb cannot hold \u0000
    status text NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'refused', 'failed', 'cancelled', 'expired', 'shed')),
    reason text NOT NULL DEFAULT '',
    problem json,
    finish_reason text,
    attempt int NOT NULL DEFAULT 0,
    redrives int NOT NULL DEFAULT 0,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    text bytea NOT NULL DEFAULT '',  -- UTF-8; the type text cannot hold U+0000, which models may say
    tokens int[] NOT NULL DEFAULT '{}',
    accepted_ns bigint NOT NULL,
    deadline_ns bigint NOT NULL,
    check_ns bigint NOT NULL,  -- when an open step is next looked at, because by then something should have been heard of it
    settled_ns bigint NOT NULL DEFAULT 0,
    updated_ns bigint NOT NULL
);

CREATE INDEX steps_to_check ON steps (check_ns) WHERE status IN ('queued', 'running');
CREATE INDEX steps_of_workflow ON steps (workflow, accepted_ns) WHERE workflow <> '';

-- Every attempt that was dispatched. Its step may have been settled by another one.
CREATE TABLE attempts (
    step text NOT NULL REFERENCES steps,
    attempt int NOT NULL,
    cell text NOT NULL,
    worker text NOT NULL,
    why text NOT NULL DEFAULT '',
    status text NOT NULL DEFAULT 'running',
    superseded boolean NOT NULL DEFAULT false,
    reason text NOT NULL DEFAULT '',
    problem json,
    prompt_tokens bigint NOT NULL DEFAULT 0,
    cached_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    queued_ms double precision NOT NULL DEFAULT 0,
    ttft_ms double precision NOT NULL DEFAULT 0,
    total_ms double precision NOT NULL DEFAULT 0,
    dispatched_ns bigint NOT NULL DEFAULT 0,
    ended_ns bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (step, attempt)
);

-- How far a reader has read a stream: moved in the transaction that writes what was read.
CREATE TABLE positions (
    reader text NOT NULL,
    stream text NOT NULL,
    stream_created text NOT NULL,  -- a stream that was made anew is read from its start
    seq bigint NOT NULL DEFAULT 0,
    epoch bigint NOT NULL DEFAULT 1,  -- grows with every take-over and fences the process before
    batch bigint NOT NULL DEFAULT 0,  -- grows with every commit, so that a commit whose answer was lost is recognised
    unannounced text[] NOT NULL DEFAULT '{}',  -- steps settled by the last batch, which are announced before the next one is written
    PRIMARY KEY (reader, stream)
);
