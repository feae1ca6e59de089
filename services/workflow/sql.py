"""The statements of store.py, by name. Many rows go in one statement, as one array per column."""

TAKE_OVER = """
INSERT INTO positions (reader, stream, stream_created) VALUES ($1, $2, $3)
ON CONFLICT (reader, stream) DO UPDATE SET
    epoch = positions.epoch + 1,
    seq = CASE WHEN positions.stream_created = excluded.stream_created THEN positions.seq ELSE 0 END,
    stream_created = excluded.stream_created
RETURNING epoch, batch, seq, unannounced"""

LOCK_POSITION = "SELECT epoch, batch, unannounced FROM positions WHERE reader = $1 AND stream = $2 FOR UPDATE"

LOCK_POSITIONS = "SELECT 1 FROM positions WHERE reader = $1 ORDER BY stream FOR UPDATE"

MOVE_POSITION = "UPDATE positions SET seq = $3, batch = $4, unannounced = $5 WHERE reader = $1 AND stream = $2"

KNOWN = """
SELECT step, status, deadline_ns, attempt, prompt_tokens, cached_tokens, output_tokens, check_ns
FROM steps WHERE step = ANY($1::text[])"""

ADMIT = """
INSERT INTO steps
    (step, tenant, workflow, model, trace, step_key, input, admitted, status, prompt_tokens, accepted_ns, deadline_ns, check_ns,
     reserved_usd, updated_ns)
SELECT t.step, t.tenant, t.workflow, t.model, t.trace, t.step_key, t.input, t.admitted::json, 'queued', t.prompt_tokens,
       t.accepted_ns, t.deadline_ns, t.check_ns, t.reserved_usd, $14
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
            $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::float8[])
    AS t (step, tenant, workflow, model, trace, step_key, input, admitted, prompt_tokens, accepted_ns, deadline_ns, check_ns, reserved_usd)
ON CONFLICT (step) DO NOTHING"""

DISPATCH = """
INSERT INTO attempts (step, attempt, cell, worker, why, dispatched_ns)
SELECT * FROM unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::text[], $6::bigint[])
ON CONFLICT (step, attempt) DO NOTHING"""

# The first end of an attempt stays. It makes the attempt's row when the dispatch was not seen.
END = """
INSERT INTO attempts AS a
    (step, attempt, cell, worker, status, superseded, reason, problem, prompt_tokens, cached_tokens, output_tokens,
     queued_ms, ttft_ms, total_ms, resumed_tokens, computed_tokens, gpu_s, usd, ended_ns)
SELECT t.step, t.attempt, t.cell, t.worker, t.status, t.superseded, t.reason, t.problem::json,
       t.prompt_tokens, t.cached_tokens, t.output_tokens, t.queued_ms, t.ttft_ms, t.total_ms,
       t.resumed_tokens, t.computed_tokens, t.gpu_s, t.usd, t.ended_ns
FROM unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::text[], $6::boolean[], $7::text[], $8::text[],
            $9::bigint[], $10::bigint[], $11::bigint[], $12::float8[], $13::float8[], $14::float8[],
            $15::bigint[], $16::bigint[], $17::float8[], $18::float8[], $19::bigint[])
    AS t (step, attempt, cell, worker, status, superseded, reason, problem,
          prompt_tokens, cached_tokens, output_tokens, queued_ms, ttft_ms, total_ms, resumed_tokens, computed_tokens, gpu_s, usd, ended_ns)
ON CONFLICT (step, attempt) DO UPDATE SET
    status = excluded.status, superseded = excluded.superseded, reason = excluded.reason, problem = excluded.problem,
    prompt_tokens = excluded.prompt_tokens, cached_tokens = excluded.cached_tokens, output_tokens = excluded.output_tokens,
    queued_ms = excluded.queued_ms, ttft_ms = excluded.ttft_ms, total_ms = excluded.total_ms,
    resumed_tokens = excluded.resumed_tokens, computed_tokens = excluded.computed_tokens,
    gpu_s = excluded.gpu_s, usd = excluded.usd, estimated = false, ended_ns = excluded.ended_ns
WHERE a.ended_ns = 0"""

ADVANCE = """
UPDATE steps s SET
    status = t.status, attempt = t.attempt, prompt_tokens = t.prompt_tokens, cached_tokens = t.cached_tokens,
    output_tokens = t.output_tokens, check_ns = t.check_ns, updated_ns = $8
FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
    AS t (step, status, attempt, prompt_tokens, cached_tokens, output_tokens, check_ns)
WHERE s.step = t.step AND s.status IN ('queued', 'running')"""

# The compare-and-set: only an open step settles, and only those that did are returned.
SETTLE = """
UPDATE steps s SET
    status = t.status, reason = t.reason, problem = t.problem::json, finish_reason = t.finish_reason, attempt = t.attempt,
    prompt_tokens = t.prompt_tokens, cached_tokens = t.cached_tokens, output_tokens = t.output_tokens,
    text = t.text, tokens = t.tokens::int[], settled_ns = $12, updated_ns = $12
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int[],
            $7::bigint[], $8::bigint[], $9::bigint[], $10::bytea[], $11::text[])
    AS t (step, status, reason, problem, finish_reason, attempt, prompt_tokens, cached_tokens, output_tokens, text, tokens)
WHERE s.step = t.step AND s.status IN ('queued', 'running')
RETURNING s.step"""

OUTCOMES = """
SELECT step, tenant, workflow, trace, status, attempt, prompt_tokens, cached_tokens, output_tokens, problem, settled_ns,
       (SELECT coalesce(sum(a.usd), 0) FROM attempts a WHERE a.step = steps.step) AS usd
FROM steps WHERE step = ANY($1::text[]) ORDER BY step"""

DUE = """
SELECT step, status, attempt, deadline_ns, redrives, admitted
FROM steps WHERE status IN ('queued', 'running') AND check_ns <= $1 ORDER BY check_ns, step LIMIT $2"""

# Read from the index of open steps (`steps_to_check`), of which there are few, rather than by time through all that ever were.
OLDEST_OPEN = """
SELECT step, accepted_ns FROM (SELECT step, accepted_ns FROM steps WHERE status IN ('queued', 'running') OFFSET 0) AS open
ORDER BY accepted_ns, step LIMIT 1"""

LOOKED = """
UPDATE steps s SET redrives = t.redrives, check_ns = t.check_ns
FROM unnest($1::text[], $2::int[], $3::bigint[]) AS t (step, redrives, check_ns)
WHERE s.step = t.step AND s.status IN ('queued', 'running')"""

STEP = "SELECT * FROM steps WHERE step = $1"

ATTEMPTS = "SELECT * FROM attempts WHERE step = $1 ORDER BY attempt"

# --- attempts without a bill -----------------------------------------------------------------------------------------------------

# A success without times was reported by somebody else than its worker (closer.py, judge.py): nobody said what it used.
LOST = """
SELECT a.step, a.attempt, a.worker, a.dispatched_ns, coalesce(nullif(a.ended_ns, 0), n.dispatched_ns, s.settled_ns) AS given_up_ns
FROM attempts a JOIN steps s USING (step) LEFT JOIN LATERAL (
    SELECT min(dispatched_ns) AS dispatched_ns FROM attempts WHERE step = a.step AND attempt > a.attempt AND dispatched_ns > 0
) n ON true
WHERE a.step = ANY($1::text[]) AND (a.ended_ns = 0 OR (a.total_ms = 0 AND a.status = 'succeeded')) AND NOT a.estimated
      AND a.dispatched_ns > 0 AND s.settled_ns > 0
ORDER BY a.worker, a.step, a.attempt"""

# Ended after $2 or not at all; of the latter those only that may still be under way in that time: none is for longer than a day.
ATTEMPTS_ON = """
SELECT a.dispatched_ns, coalesce(nullif(a.ended_ns, 0), n.dispatched_ns, nullif(s.settled_ns, 0), $3) AS ended_ns
FROM attempts a JOIN steps s USING (step) LEFT JOIN LATERAL (
    SELECT min(dispatched_ns) AS dispatched_ns FROM attempts WHERE step = a.step AND attempt > a.attempt AND dispatched_ns > 0
) n ON true
WHERE a.worker = $1 AND (a.ended_ns > $2 OR (a.ended_ns = 0 AND a.dispatched_ns > $2 - 86400000000000))
      AND a.dispatched_ns > 0 AND a.dispatched_ns < $3
ORDER BY a.dispatched_ns DESC LIMIT $4"""

ESTIMATE = """
UPDATE attempts a SET gpu_s = t.gpu_s, usd = t.usd, estimated = true
FROM unnest($1::text[], $2::int[], $3::float8[], $4::float8[]) AS t (step, attempt, gpu_s, usd)
WHERE a.step = t.step AND a.attempt = t.attempt AND (a.ended_ns = 0 OR (a.total_ms = 0 AND a.status = 'succeeded'))"""

# --- workflows -------------------------------------------------------------------------------------------------------------------

# The first opening and the first value of a name stay, and so does the first closing.
OPEN_WORKFLOW = """
INSERT INTO workflows (workflow, kind, key, deadline_ns, steps_planned, opened_ns, budget_usd)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::int[], $6::bigint[], $7::float8[])
ON CONFLICT (workflow) DO NOTHING"""

RECORD_VALUE = """
INSERT INTO workflow_values (workflow, token, name, value, recorded_ns)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bigint[])
ON CONFLICT (workflow, token) DO NOTHING"""

CLOSE_WORKFLOW = """
UPDATE workflows w SET success = t.success, score = t.score, why = t.why, closed_ns = t.closed_ns
FROM unnest($1::text[], $2::boolean[], $3::float8[], $4::text[], $5::bigint[]) AS t (workflow, success, score, why, closed_ns)
WHERE w.workflow = t.workflow AND w.closed_ns = 0"""

SET_BUDGET = """
UPDATE workflows w SET budget_usd = t.budget_usd
FROM unnest($1::text[], $2::text[], $3::float8[]) AS t (workflow, key, budget_usd)
WHERE w.workflow = t.workflow AND w.key = t.key"""

_WORKFLOW_COLUMNS = """
SELECT w.*, s.tenant, coalesce(s.steps, 0) AS step_count,
       (SELECT count(*) FROM workflow_values v WHERE v.workflow = w.workflow) AS value_count, coalesce(s.prompt_tokens, 0) AS prompt_tokens,
       coalesce(s.cached_tokens, 0) AS cached_tokens, coalesce(s.output_tokens, 0) AS output_tokens,
       coalesce(s.usd, 0) AS spent_usd, coalesce(s.estimated_usd, 0) AS estimated_usd, coalesce(s.reserved_usd, 0) AS reserved_usd
FROM {workflows} w LEFT JOIN LATERAL (
    SELECT min(tenant) AS tenant, count(*) AS steps, sum(prompt_tokens)::bigint AS prompt_tokens,
           sum(cached_tokens)::bigint AS cached_tokens, sum(output_tokens)::bigint AS output_tokens,
           sum(bill.usd) AS usd, sum(bill.estimated_usd) AS estimated_usd,
           sum(greatest(0, reserved_usd - bill.usd)) FILTER (WHERE status IN ('queued', 'running')) AS reserved_usd
    FROM steps CROSS JOIN LATERAL (
        SELECT coalesce(sum(usd), 0) AS usd, coalesce(sum(usd) FILTER (WHERE estimated), 0) AS estimated_usd
        FROM attempts a WHERE a.step = steps.step
    ) bill WHERE steps.workflow = w.workflow AND steps.workflow <> ''
) s ON true ORDER BY w.opened_ns DESC"""

WORKFLOW = _WORKFLOW_COLUMNS.format(workflows="(SELECT * FROM workflows WHERE workflow = $1)")

WORKFLOWS = _WORKFLOW_COLUMNS.format(
    workflows="(SELECT * FROM workflows WHERE $2::text IS NULL OR key = $2 ORDER BY opened_ns DESC LIMIT $1)"
)

WORKFLOW_STEPS = """
SELECT step, step_key, input, status, model, attempt, prompt_tokens, cached_tokens, output_tokens, accepted_ns, settled_ns, problem
FROM steps WHERE workflow = $1 AND workflow <> '' ORDER BY accepted_ns DESC, step LIMIT $2"""

VALUE_NAMES = "SELECT name FROM workflow_values WHERE workflow = $1 ORDER BY recorded_ns DESC, name LIMIT $2"

VALUE = "SELECT value FROM workflow_values WHERE workflow = $1 AND token = $2"

# --- what it cost ----------------------------------------------------------------------------------------------------------------

# Attempts with whose they were and what they were for; a task is a workflow, or a step that belongs to none.
_BILLED = """
    SELECT coalesce(w.kind, '') AS kind, s.tenant, s.model, s.accepted_ns, a.*,
           CASE WHEN s.workflow <> '' THEN s.workflow ELSE s.step END AS task,
           CASE WHEN s.workflow <> '' THEN coalesce(w.success, false) ELSE s.status = 'succeeded' END AS successful,
           CASE WHEN a.ended_ns = 0 THEN CASE WHEN a.estimated THEN 'lost' ELSE '' END
                WHEN a.status = 'succeeded' AND NOT a.superseded THEN ''
                WHEN a.reason IN ('handed_over', 'preempted') THEN ''  -- the next attempt went on from its output
                WHEN a.superseded THEN 'superseded'
                WHEN a.status IN ('cancelled', 'expired') THEN 'cancelled'
                ELSE 'failed' END AS waste
    FROM steps s JOIN attempts a USING (step) LEFT JOIN workflows w ON w.workflow = s.workflow AND s.workflow <> ''
"""

_SUMS = """
       count(DISTINCT task) AS tasks, count(DISTINCT task) FILTER (WHERE successful) AS successful,
       count(DISTINCT billed.step) AS steps, count(*) AS attempts, count(*) FILTER (WHERE ended_ns = 0 AND NOT estimated) AS unbilled,
       sum(prompt_tokens)::bigint AS prompt_tokens, sum(cached_tokens)::bigint AS cached_tokens,
       sum(resumed_tokens)::bigint AS resumed_tokens, sum(output_tokens)::bigint AS output_tokens,
       sum(gpu_s) AS gpu_s, sum(usd) AS usd,
       coalesce(sum(usd) FILTER (WHERE waste = 'failed'), 0) AS failed_usd,
       coalesce(sum(usd) FILTER (WHERE waste = 'cancelled'), 0) AS cancelled_usd,
       coalesce(sum(usd) FILTER (WHERE waste = 'superseded'), 0) AS superseded_usd,
       coalesce(sum(gpu_s) FILTER (WHERE waste = 'failed'), 0) AS failed_gpu_s,
       coalesce(sum(gpu_s) FILTER (WHERE waste = 'cancelled'), 0) AS cancelled_gpu_s,
       coalesce(sum(gpu_s) FILTER (WHERE waste = 'superseded'), 0) AS superseded_gpu_s,
       coalesce(sum(usd) FILTER (WHERE waste = 'lost'), 0) AS lost_usd,
       coalesce(sum(gpu_s) FILTER (WHERE waste = 'lost'), 0) AS lost_gpu_s"""

COST_COUNTS = ("tasks", "successful", "steps", "attempts", "unbilled", "prompt_tokens", "cached_tokens", "resumed_tokens", "output_tokens")
COST_AMOUNTS = (
    *("gpu_s", "usd", "failed_usd", "cancelled_usd", "superseded_usd"),
    *("failed_gpu_s", "cancelled_gpu_s", "superseded_gpu_s", "lost_usd", "lost_gpu_s"),
)
_COST_COLUMNS = ", ".join((*COST_COUNTS, *COST_AMOUNTS))
_COST_TOTALS = ", ".join(
    (*(f"sum({name})::bigint AS {name}" for name in COST_COUNTS), *(f"sum({name}) AS {name}" for name in COST_AMOUNTS))
)

# What is still there by its attempts, and what is not by the sums that are kept.
COSTS = f"""
WITH billed AS ({_BILLED} WHERE s.accepted_ns >= $1),
present AS (SELECT kind, tenant, model, {_SUMS} FROM billed GROUP BY kind, tenant, model)
SELECT kind, tenant, model, {_COST_TOTALS}
FROM (
    SELECT kind, tenant, model, {_COST_COLUMNS} FROM present
    UNION ALL
    SELECT kind, tenant, model, {_COST_COLUMNS} FROM past_costs WHERE hour_ns >= $1
) AS costs
GROUP BY kind, tenant, model ORDER BY usd DESC, gpu_s DESC, kind, tenant, model LIMIT $2"""

# --- what is kept no longer ------------------------------------------------------------------------------------------------------

# Steps that belong to no workflow and ended before $1, the oldest.
RETIRED_STEPS = """
SELECT step FROM steps
WHERE workflow = '' AND accepted_ns < $1 AND settled_ns > 0 AND settled_ns < $1 ORDER BY accepted_ns LIMIT $2 FOR UPDATE SKIP LOCKED"""

# Workflows of which nothing has been heard since $1, whose deadline is over, and which have no open step; also those that nobody opened,
# which are but a name on steps.
RETIRED_WORKFLOWS = """
SELECT n.workflow FROM (
    SELECT workflow FROM workflows WHERE opened_ns < $1
    UNION
    SELECT workflow FROM steps WHERE workflow <> '' AND accepted_ns < $1
) n
WHERE NOT EXISTS (SELECT 1 FROM workflows w WHERE w.workflow = n.workflow AND greatest(w.opened_ns, w.deadline_ns, w.closed_ns) >= $1)
  AND NOT EXISTS (SELECT 1 FROM workflow_values v WHERE v.workflow = n.workflow AND v.recorded_ns >= $1)
  AND NOT EXISTS (SELECT 1 FROM steps s WHERE s.workflow = n.workflow AND s.workflow <> '' AND (s.settled_ns = 0 OR s.settled_ns >= $1))
ORDER BY n.workflow LIMIT $2"""

STEPS_OF = "SELECT step FROM steps WHERE workflow = ANY($1::text[]) AND workflow <> '' FOR UPDATE"

# A task is counted in the hour of its first step, with all that it has cost.
SUM_UP = f"""
WITH billed AS (
    SELECT *, min(accepted_ns) OVER (PARTITION BY task, tenant, model) / 3600000000000 * 3600000000000 AS hour_ns
    FROM ({_BILLED} WHERE s.step = ANY($1::text[])) AS attempts
)
INSERT INTO past_costs AS p (hour_ns, kind, tenant, model, {_COST_COLUMNS})
SELECT hour_ns, kind, tenant, model, {_SUMS} FROM billed GROUP BY hour_ns, kind, tenant, model
ON CONFLICT (hour_ns, kind, tenant, model) DO UPDATE SET
    {", ".join(f"{name} = p.{name} + excluded.{name}" for name in (*COST_COUNTS, *COST_AMOUNTS))}"""

FORGET_ATTEMPTS = "DELETE FROM attempts WHERE step = ANY($1::text[])"

FORGET_STEPS = "DELETE FROM steps WHERE step = ANY($1::text[])"

FORGET_VALUES = "DELETE FROM workflow_values WHERE workflow = ANY($1::text[])"

FORGET_WORKFLOWS = "DELETE FROM workflows WHERE workflow = ANY($1::text[])"
