-- What each attempt cost. 0 where nobody said: attempts that were lost with their worker have no bill.

ALTER TABLE attempts
    ADD COLUMN resumed_tokens bigint NOT NULL DEFAULT 0,  -- output of earlier attempts that it went on from, and had to compute or find cached
    ADD COLUMN gpu_s double precision NOT NULL DEFAULT 0,  -- its share of the engine's time, times the engine's GPUs
    ADD COLUMN usd double precision NOT NULL DEFAULT 0;

CREATE INDEX steps_by_time ON steps (accepted_ns);
