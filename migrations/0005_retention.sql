-- What steps and workflows have cost whose rows are kept no longer: their sums, by the hour in which each task began.
-- A task is a workflow, or a step that belongs to none. The columns are those of `legato cost`.
CREATE TABLE past_costs (
    hour_ns bigint NOT NULL,  -- its first nanosecond, Unix
    kind text NOT NULL,
    tenant text NOT NULL,
    model text NOT NULL,
    tasks bigint NOT NULL,
    successful bigint NOT NULL,
    steps bigint NOT NULL,
    attempts bigint NOT NULL,
    unbilled bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    resumed_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    gpu_s double precision NOT NULL,
    usd double precision NOT NULL,
    failed_usd double precision NOT NULL,
    cancelled_usd double precision NOT NULL,
    superseded_usd double precision NOT NULL,
    failed_gpu_s double precision NOT NULL,
    cancelled_gpu_s double precision NOT NULL,
    superseded_gpu_s double precision NOT NULL,
    lost_usd double precision NOT NULL,
    lost_gpu_s double precision NOT NULL,
    PRIMARY KEY (hour_ns, kind, tenant, model)
);
