-- What workflows may cost, and what attempts cost that could not say it.

ALTER TABLE workflows ADD COLUMN budget_usd double precision;  -- null: none

ALTER TABLE steps ADD COLUMN reserved_usd double precision NOT NULL DEFAULT 0;  -- of its workflow's budget, when it was admitted

ALTER TABLE attempts ADD COLUMN estimated boolean NOT NULL DEFAULT false;  -- gpu_s and usd, because its worker has not reported

CREATE INDEX attempts_by_worker ON attempts (worker, ended_ns);
