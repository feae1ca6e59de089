-- Workflows: programs of many steps, and what they recorded besides. Times are Unix nanoseconds, 0: not yet.

ALTER TABLE steps
    ADD COLUMN step_key text NOT NULL DEFAULT '',  -- the step's name within its workflow
    ADD COLUMN input text NOT NULL DEFAULT '';  -- fingerprint of what was asked

CREATE TABLE workflows (
    workflow text PRIMARY KEY,
    kind text NOT NULL,
    key text NOT NULL,  -- sha256:… of the API key that opened it
    deadline_ns bigint NOT NULL,
    steps_planned int NOT NULL,
    opened_ns bigint NOT NULL,
    success boolean,
    score double precision,
    why text NOT NULL DEFAULT '',
    closed_ns bigint NOT NULL DEFAULT 0
);

CREATE INDEX workflows_by_time ON workflows (opened_ns DESC);

CREATE TABLE workflow_values (
    workflow text NOT NULL,
    token text NOT NULL,  -- of the name, as in the subject
    name text NOT NULL,
    value bytea NOT NULL,  -- JSON in UTF-8; the type json cannot be trusted to give the same bytes back
    recorded_ns bigint NOT NULL,
    PRIMARY KEY (workflow, token)
);
